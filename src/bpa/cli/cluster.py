"""``bpa cluster``: clusters of a feature file, scored where it has labels, beside the usual alternatives."""

from __future__ import annotations

from pathlib import Path
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
    Repeats,
    Seed,
    emit,
    progress,
    told_choice,
)
from bpa.cli._common import Transforms as _Transforms
from bpa.data.features import read_features
from bpa.runs.clustering import ClusterConfig, cluster_table, run_clustering, write_clusters
from bpa.runs.store import RunStore

_DEFAULT = ClusterConfig(n_clusters=2)


def cluster(
    features: Features,
    *,
    k: Annotated[int, Parameter(name="--k", help="Clusters to find.")],
    labels: Labels = None,
    key: Key = None,
    transform: _Transforms = _DEFAULT.transforms,
    reg: Reg = _DEFAULT.reg,
    n_iter: NIter = None,
    compare: Annotated[
        bool,
        Parameter(
            help="Also k-means on raw, unit, centred, cosine and softmax rows, and spectral clustering."
        ),
    ] = True,
    n_init: Annotated[int, Parameter(name="--n-init", help="Starts of every k-means.")] = _DEFAULT.n_init,
    repeats: Repeats = _DEFAULT.repeats,
    share: Annotated[
        float, Parameter(help="Share of the items a repeat draws; below 1 the intervals cover the data too.")
    ] = _DEFAULT.share,
    nmi: Annotated[
        Literal["geometric", "arithmetic"], Parameter(name="--nmi", help="Mean of the entropies under NMI.")
    ] = _DEFAULT.nmi_average,
    clusters: Annotated[
        Path | None, Parameter(name="--clusters", help="File for the clusters found: .npy or .csv.")
    ] = None,
    seed: Seed = 0,
    device: Device = _DEFAULT.device,
    dtype: Dtype = _DEFAULT.dtype,
    budget: Budget = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Cluster a feature file, beside the usual alternatives.

    The clusters written are those of the first transform and reg, from the repeat with the smallest inertia.
    Labels, where the file has them, are used in the scores and nowhere else. Besides the named transforms
    (k-means on their rows), 'bpa-smooth' is k-means on means over the partners of a sparse plan,
    'bpa-spectral' spectral clustering of that plan, and 'spectral' spectral clustering of plain affinities.
    bpa-smooth and bpa-spectral need no n × n matrix and take large sets.

    Example: bpa cluster digits.npz --k 10 --transform bpa-smooth bpa --reg 0.1 --clusters clusters.csv
    """
    config = ClusterConfig(
        n_clusters=k,
        transforms=transform,
        reg=reg,
        n_iter=n_iter,
        compare=compare,
        n_init=n_init,
        repeats=_DEFAULT.repeats if repeats is None else repeats,
        share=share,
        seed=seed,
        nmi_average=nmi,
        dtype=dtype,
        device=device,
    )
    store = None if out is None else RunStore(out)
    given = read_features(features, labels=labels, key=key)
    with progress("fits") as tick:
        run = run_clustering(
            given,
            config,
            store=store,
            budget=budget,
            on_progress=tick,
        )
    files: dict[str, Path] = {}
    if out is not None:
        files["clusters"] = write_clusters(out / "clusters.csv", run.labels)
    if clusters is not None:
        files["clusters"] = write_clusters(clusters, run.labels)
    chosen = told_choice(reg, given.features) if share == 1 else {}
    emit(json=json, tables=[cluster_table(run.record)], records=[run.record], files=files, **chosen)
