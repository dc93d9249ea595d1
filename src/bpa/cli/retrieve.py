"""``bpa retrieve``: every way to rank a feature file, plain features first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bpa.cli import _flags as flags
from bpa.cli._output import emit, note, progress
from bpa.errors import ArgumentError
from bpa.paper import sets
from bpa.report.page import render
from bpa.report.sections import build_page, tables_of
from bpa.runs.answers import answers, read_images, write_rankings
from bpa.runs.engine import run
from bpa.runs.fields.retrieval import (
    HOSTS,
    PRESETS,
    PROTOCOLS,
    Retrieval,
    RetrievalTask,
    memory_line,
    ranked_ways,
    read_task,
    retrieval_ways,
)
from bpa.runs.store import write_atomically

_TASK = RetrievalTask()
_PUBLISHED_REG = 0.25
"""The paper's entropy weight for TopDBNet features; on other features it can hurt."""


def retrieve(
    features: flags.Features,
    *,
    host: Annotated[tuple[str, ...], flags.names("--host", f"Rankings: {' '.join(HOSTS)}; or all.")] = (
        "nearest",
    ),
    transform: flags.Transforms = (),
    weights: flags.Weights = flags.WEIGHTS,
    rows: Annotated[
        tuple[str, ...], flags.names("--rows", f"How rows of W are compared: {', '.join(PRESETS)}.")
    ] = (),
    protocol: Annotated[
        tuple[str, ...], flags.names("--protocol", f"{', '.join(PROTOCOLS)}; joint is the paper's.")
    ] = (),
    baselines: flags.Baselines = True,
    deleted: Annotated[
        Literal["identity-camera", "camera"],
        Parameter(
            help="What of the gallery a query does not see: items of its identity and camera, or all of its camera."
        ),
    ] = _TASK.deleted,
    ap: Annotated[
        Literal["finite-sum", "trapezoid", "scikit-learn"], Parameter(name="--ap", help="Average precision.")
    ] = _TASK.average_precision,
    k1: Annotated[
        int | None, flags.whole("--k1", "Neighbours of k-reciprocal re-ranking; 20 where not given.")
    ] = None,
    k2: Annotated[int | None, flags.whole("--k2", "Neighbours its encodings are averaged over; 6.")] = None,
    lam: Annotated[float | None, Parameter(help="Share of the plain distance in it; 0.3.")] = None,
    power: Annotated[
        Literal[2, 4] | None, Parameter(help="2, or 4, which squares distances twice, as the toolboxes do.")
    ] = None,
    report: Annotated[
        Path | None,
        Parameter(help="HTML page: the table, and queries with their first ten before and after."),
    ] = None,
    claimed: flags.Claimed = flags.CLAIMED,
    reading: flags.Reading = flags.READING,
    dtype: flags.Dtype = None,
    budget: flags.Budget = None,
    keeping: flags.Keeping = flags.KEEPING,
) -> None:
    """Rank a gallery for every query, with and without the transform, and say how good the rankings are.

    FEATURES holds features, identities (labels), and where there are any cameras and is_query; without
    is_query every item queries the others. --paper compares whole rows by Euclidean distance at reg 0.25.

    Example: bpa retrieve reid.npz --host nearest k-reciprocal csls --transform bpa --reg auto 0.05 0.1
    """
    unknown = [name for name in rows if name not in PRESETS]
    if unknown:
        raise ArgumentError(f"--rows takes {', '.join(PRESETS)}. Got {unknown[0]!r}.")
    hosts = HOSTS if host == ("all",) else host
    transforms = transform or ("bpa",)
    ranks, reranks = "nearest" in hosts, "k-reciprocal" in hosts
    bpa = "bpa" in {text.partition(":")[0] for text in transforms}
    loop = {"k1": k1, "k2": k2, "lam": lam, "power": power}
    again: dict[str, Any] = {name: value for name, value in loop.items() if value is not None}
    for said, heard, why in (
        (again, reranks, f"--{', --'.join(again)} is for --host k-reciprocal"),
        (transform, ranks or reranks, "--transform is for --host nearest and k-reciprocal"),
        (rows, bpa and (ranks or reranks), "--rows is for --transform bpa"),
        (protocol, bpa and ranks, "--protocol is for --host nearest with --transform bpa"),
    ):
        if said and not heard:
            raise ArgumentError(f"{why}, which was not asked for. Leave it out.")
    weights.check(transforms if ranks or reranks else ())
    task, dataset, sha256 = read_task(features, labels=reading.labels, key=reading.key)
    ways = retrieval_ways(
        hosts, transforms, reg=weights.regs(_PUBLISHED_REG), solver=weights.solver, protocols=protocol or ("joint",),
        rows=[PRESETS[name] for name in rows or (("paper",) if weights.paper else ("retrieval",))],
        baselines=baselines, **again,
    )  # fmt: skip
    if claimed.paper_table is None and weights.paper and dataset in sets("retrieval"):
        claimed = replace(claimed, paper_table=dataset)  # the file says which set its pictures are
    field = Retrieval(task, sha256=sha256, dataset=dataset, budget=budget)
    asked = RetrievalTask(average_precision=ap, deleted=deleted, dtype=dtype or "float32")
    claimed.check("retrieval", [(asked, ways)])
    needed = memory_line(field.task(asked), ways, budget)
    if needed:
        note(needed)
    store = keeping.store
    with progress("rankings") as tick:
        records = run("retrieve", field, [(asked, ways)], axes=("reg",), store=store, on_progress=tick)
    files: dict[str, Path] = {}
    if keeping.out is not None or report is not None:
        shown = ranked_ways(ways)
        lists = [field.top(asked, way) for way in shown]
        if keeping.out is not None:
            files["rankings"] = write_rankings(keeping.out / "rankings.json", task, shown, lists)
        if report is not None:
            strips = answers(field, asked, shown, lambda: lists, images=read_images(features), store=store)
            page = build_page([*records, strips], title=f"Retrieval on {task.source}")
            files["report"] = write_atomically(report, render(page))
    tables = [*tables_of(records), *claimed.tables(records)]
    emit(json=keeping.json, tables=tables, records=records, files=files)
