"""``bpa fewshot``: hosts and transforms on shared few-shot tasks."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from bpa.cli import _flags as flags
from bpa.cli._output import emit, progress
from bpa.errors import ArgumentError
from bpa.report.sections import tables_of
from bpa.runs.engine import run
from bpa.runs.fields.fewshot import HOSTS, VARIANTS, FewShot, FewShotTask, fewshot_ways, variant_ways
from bpa.runs.way import Way, transforms_asked
from bpa.transforms.names import PUBLISHED_REG

_TASK = FewShotTask()


def fewshot(
    features: flags.Features,
    *,
    host: Annotated[tuple[str, ...], flags.names("--host", f"Hosts: {' '.join(HOSTS)}.")] = ("ptmap",),
    transform: flags.Transforms = ("bpa",),
    variant: Annotated[
        str | None,
        Parameter(
            help=f"PT-MAP as published, with the reg and sweeps that belong to it: {' '.join(VARIANTS)}."
        ),
    ] = None,
    weights: flags.Weights = flags.WEIGHTS,
    baselines: flags.Baselines = True,
    way: Annotated[int, flags.whole("--way", "Classes of a task.")] = _TASK.n_way,
    shot: flags.Shots = (_TASK.n_shot,),
    query: Annotated[
        int, flags.whole("--query", "Queries per class (on average, if unbalanced).")
    ] = _TASK.n_query,
    tasks: Annotated[int, flags.whole("--tasks", "Number of tasks.")] = _TASK.n_tasks,
    protocol: Annotated[
        Literal["ptmap", "balanced", "dirichlet"],
        Parameter(help="The published task list, tasks with a stream each, or unbalanced queries."),
    ] = _TASK.protocol,
    concentration: Annotated[
        float | None, Parameter(help="Of the dirichlet protocol; 2 where not given.")
    ] = None,
    prior: Annotated[
        Literal["uniform", "estimate", "oracle"] | None,
        Parameter(help="PT-MAP's class masses: equal (if not given), estimated, or the true counts."),
    ] = None,
    relaxation: Annotated[
        float | None,
        Parameter(help="PT-MAP's penalty on the class masses; inf, if not given, holds them exactly."),
    ] = None,
    nonneg: Annotated[
        Literal["relu", "error", "signed", "off"] | None,
        Parameter(help="What PT-MAP does about negative features; relu if not given."),
    ] = None,
    split: Annotated[str | None, Parameter(help="Use the rows of this split only.")] = None,
    claimed: flags.Claimed = flags.CLAIMED,
    reading: flags.Reading = flags.READING,
    seed: flags.Seed = _TASK.seed,
    computing: flags.Computing = flags.COMPUTING,
    keeping: flags.Keeping = flags.KEEPING,
) -> None:
    """Measure few-shot accuracy with and without a transform.

    All hosts, transforms and regs see the same tasks. What a user already has (raw, unit and centred features) is
    shown beside them, and gains are paired differences over the same tasks. With --out, a stopped run goes on.

    Example: bpa fewshot features.npz --host ptmap protonet --transform bpa --shot 1 5 --tasks 2000
    """
    loop = {"prior": prior, "relaxation": relaxation, "nonneg": nonneg}
    said = {key: value for key, value in loop.items() if value is not None}
    ways: list[Way]
    if variant is None:
        weights.check(transform)
        transforms = transforms_asked(
            transform, reg=weights.regs(PUBLISHED_REG), solver=weights.solver, baselines=baselines
        )
        ways = fewshot_ways(host, transforms, **said)
    else:
        if said or weights != flags.WEIGHTS or tuple(transform) != ("bpa",) or len(host) != 1:
            raise ArgumentError(
                "--variant brings the loop, the reg and the sweeps that were published together. Leave out --prior, "
                "--relaxation, --nonneg, --reg, --solver, --paper and --transform, and name one host."
            )
        ways = variant_ways(variant, baselines=baselines, host=host[0])
    grid = [
        (
            FewShotTask(
                n_way=way, n_shot=n_shot, n_query=query, n_tasks=tasks, protocol=protocol, seed=seed,
                concentration=concentration, **computing.place,
            ),
            ways,
        )
        for n_shot in shot
    ]  # fmt: skip
    claimed.check("fewshot", grid)
    given = reading.read(features)
    field = FewShot(given if split is None else given.of_split(split), budget=computing.budget)
    store = keeping.store
    with progress("few-shot tasks") as tick:
        records = run("fewshot", field, grid, axes=("reg", "sweeps", "width"), store=store, on_progress=tick)
    files = {} if store is None else {"records": store.results_path}
    emit(
        json=keeping.json,
        tables=[*tables_of(records), *claimed.tables(records)],
        records=records if keeping.json else (),
        files=files,
    )
