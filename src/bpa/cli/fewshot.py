"""``bpa fewshot``: hosts and transforms on shared few-shot tasks."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from bpa.cli._common import (
    Budget,
    Device,
    Dtype,
    Features,
    Json,
    Key,
    Labels,
    NIter,
    Out,
    Reg,
    Seed,
    Transforms,
    emit,
    progress,
)
from bpa.data.features import read_features
from bpa.errors import ArgumentError
from bpa.runs.fewshot import HOSTS, FewShotConfig, fewshot_table, run_fewshot
from bpa.runs.paper_fewshot import MAIN, paper_table
from bpa.runs.store import RunStore

_DEFAULT = FewShotConfig()


def fewshot(
    features: Features,
    *,
    host: Annotated[
        tuple[str, ...],
        Parameter(consume_multiple=True, negative=(), help=f"Hosts: {' '.join(HOSTS)}."),
    ] = _DEFAULT.hosts,
    transform: Transforms = _DEFAULT.transforms,
    reg: Reg = _DEFAULT.regs,
    n_iter: NIter = None,
    way: Annotated[int, Parameter(help="Classes of a task.")] = _DEFAULT.n_way,
    shot: Annotated[
        tuple[int, ...],
        Parameter(consume_multiple=True, negative=(), help="Labelled rows per class, one or more."),
    ] = _DEFAULT.shots,
    query: Annotated[
        int, Parameter(help="Queries per class (on average, if unbalanced).")
    ] = _DEFAULT.n_query,
    tasks: Annotated[int, Parameter(help="Number of tasks.")] = _DEFAULT.n_tasks,
    protocol: Annotated[
        Literal["ptmap", "balanced", "dirichlet"],
        Parameter(help="The published task list, tasks with a stream each, or unbalanced queries."),
    ] = _DEFAULT.protocol,
    concentration: Annotated[float, Parameter(help="Of the Dirichlet protocol.")] = _DEFAULT.concentration,
    prior: Annotated[
        Literal["uniform", "estimate", "oracle"],
        Parameter(help="PT-MAP's class masses: equal, estimated, or the true counts."),
    ] = _DEFAULT.prior,
    relaxation: Annotated[
        float, Parameter(help="PT-MAP's penalty on the class masses; inf holds them exactly.")
    ] = _DEFAULT.relaxation,
    nonneg: Annotated[
        Literal["relu", "error", "signed", "off"], Parameter(help="What PT-MAP does about negative features.")
    ] = _DEFAULT.nonneg,
    paper: Annotated[
        str | None,
        Parameter(help=f"Say that FEATURES is a file of the paper, and compare: {' '.join(MAIN)}."),
    ] = None,
    split: Annotated[str | None, Parameter(help="Use the rows of this split only.")] = None,
    labels: Labels = None,
    key: Key = None,
    seed: Seed = _DEFAULT.seed,
    device: Device = _DEFAULT.device,
    dtype: Dtype = _DEFAULT.dtype,
    budget: Budget = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Measure few-shot accuracy with and without a transform.

    All hosts, transforms and regs see the same tasks. The baselines a user already has (identity, unit, centred) are
    always run, and gains are paired differences over the same tasks. With --out, a stopped run goes on where it was.

    Example: bpa fewshot features.npz --host ptmap protonet --transform bpa --shot 1 5 --tasks 2000
    """
    given = read_features(features, labels=labels, key=key)
    if given.labels is None:
        raise ArgumentError(f"Few-shot tasks need labels, and {features} has none. Name them by --labels.")
    config = FewShotConfig(
        hosts=host,
        transforms=transform,
        regs=reg,
        n_iter=n_iter,
        n_way=way,
        shots=shot,
        n_query=query,
        n_tasks=tasks,
        protocol=protocol,
        seed=seed,
        concentration=concentration,
        prior=prior,
        relaxation=relaxation,
        nonneg=nonneg,
        device=device,
        dtype=dtype,
    )
    store = None if out is None else RunStore(out)
    with progress("few-shot tasks") as tick:
        result = run_fewshot(
            given if split is None else given.of_split(split),
            config,
            store=store,
            budget=budget,
            on_progress=tick,
        )
    tables = [fewshot_table(result), *([] if paper is None else [paper_table(result, paper)])]
    files = {} if store is None else {"records": store.results_path}
    emit(json=json, tables=tables, records=result.records if json else (), files=files)
