"""``bpa retrieve``: every way to rank a feature file, the rows of the paper's table first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from bpa.cli._common import (
    Budget,
    Features,
    Json,
    Key,
    Labels,
    NIter,
    Out,
    Reg,
    Transforms,
    _read_names,
    emit,
    note,
    progress,
)
from bpa.runs.retrieval import (
    RetrievalConfig,
    config_from_names,
    memory_line,
    read_images,
    read_task,
    retrieval_table,
    run_retrieval,
    top_lists,
    write_page,
    write_rankings,
)
from bpa.runs.store import RunStore

_DEFAULT = RetrievalConfig()

Names = Parameter(converter=_read_names, consume_multiple=True, negative=(), n_tokens=1)


def retrieve(
    features: Features,
    *,
    labels: Labels = None,
    key: Key = None,
    transform: Transforms = _DEFAULT.transforms,
    reg: Reg = (),
    n_iter: NIter = None,
    rows: Annotated[
        tuple[str, ...], Names, Parameter(help="How rows of W are compared: retrieval, paper.")
    ] = (),
    preset: Annotated[
        Literal["paper"] | None, Parameter(help="The paper's settings: its row comparison and reg 0.25.")
    ] = None,
    protocol: Annotated[
        tuple[str, ...], Names, Parameter(help="joint, frozen, per-query; joint is the paper's.")
    ] = _DEFAULT.protocols,
    rerank: Annotated[
        Literal["none", "k-reciprocal"], Parameter(help="Add rows with k-reciprocal re-ranking.")
    ] = "none",
    baselines: Annotated[
        tuple[str, ...], Names, Parameter(help="Other methods to show, by name, or 'all'.")
    ] = (),
    k1: int = _DEFAULT.k1,
    k2: int = _DEFAULT.k2,
    lam: float = _DEFAULT.lam,
    power: Annotated[Literal[2, 4], Parameter(help="4 squares distances twice, as the toolboxes do.")] = 2,
    ap: Annotated[
        Literal["finite-sum", "trapezoid", "scikit-learn"], Parameter(name="--ap", help="Average precision.")
    ] = "finite-sum",
    report: Annotated[
        Path | None,
        Parameter(help="HTML page: the table, and queries with their first ten before and after."),
    ] = None,
    budget: Budget = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Rank a gallery for every query, with and without the transform, and say how good the rankings are.

    FEATURES holds features, identities (labels), and where there are any cameras and is_query; without
    is_query every item queries the others. There is no reg that suits all features: give one or more.

    Example: bpa retrieve reid.npz --transform bpa --reg 0.05 0.1 --rerank k-reciprocal --baselines csls
    """
    task, dataset, sha256 = read_task(features, labels=labels, key=key)
    config = config_from_names(
        transforms=transform,
        reg=reg,
        n_iter=n_iter,
        rows=rows,
        preset=preset,
        protocols=protocol,
        rerank=rerank,
        baselines=baselines,
        k1=k1,
        k2=k2,
        lam=lam,
        power=power,
        average_precision=ap,
    )
    note(memory_line(task, config, budget))
    store = None if out is None else RunStore(out)
    with progress("rankings") as tick:
        records = run_retrieval(
            task, config, dataset=dataset, sha256=sha256, store=store, budget=budget, on_progress=tick
        )
    files: dict[str, Path] = {}
    if out is not None or report is not None:
        lists = top_lists(task, config, budget=budget)
        if out is not None:
            files["rankings"] = write_rankings(out / "rankings.json", task, lists)
        if report is not None:
            files["report"] = write_page(report, task, records, lists, images=read_images(features))
    emit(json=json, tables=[retrieval_table(records)], records=records, files=files)
