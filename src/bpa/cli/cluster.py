"""``bpa cluster``: clusters of a feature file, scored where it has labels, beside the usual alternatives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from bpa.cli import _flags as flags
from bpa.cli._output import emit, progress, told_choice
from bpa.errors import ArgumentError
from bpa.report.sections import tables_of
from bpa.runs.clusters import write_clusters
from bpa.runs.engine import run
from bpa.runs.fields.clustering import HOSTS, Clustering, ClusterTask, clustering_ways
from bpa.transforms.names import PUBLISHED_REG

_TASK = ClusterTask(n_clusters=2)


def cluster(
    features: flags.Features,
    *,
    k: Annotated[int, flags.whole("--k", "Clusters to find.")],
    host: Annotated[tuple[str, ...], flags.names("--host", f"Clusterers: {' '.join(HOSTS)}.")] = (
        "bpa-smooth",
        "k-means",
    ),
    transform: flags.Transforms = (),
    weights: flags.Weights = flags.WEIGHTS,
    baselines: flags.Baselines = True,
    n_init: Annotated[int, flags.whole("--n-init", "Starts of every k-means.")] = _TASK.n_init,
    repeats: flags.Repeats = None,
    share: Annotated[
        float, Parameter(help="Share of the items a repeat draws; below 1 the intervals cover the data too.")
    ] = _TASK.share,
    nmi: Annotated[
        Literal["geometric", "arithmetic"], Parameter(name="--nmi", help="Mean of the entropies under NMI.")
    ] = _TASK.nmi_average,
    clusters: Annotated[
        Path | None, Parameter(name="--clusters", help="File for the clusters found: .npy or .csv.")
    ] = None,
    reading: flags.Reading = flags.READING,
    seed: flags.Seed = _TASK.seed,
    computing: flags.Computing = flags.COMPUTING,
    keeping: flags.Keeping = flags.KEEPING,
) -> None:
    """Cluster a feature file, beside the usual alternatives.

    The clusters written are those of the first host (and its first reg), from the repeat with the smallest inertia.
    Labels, where the file has them, are used in the scores and nowhere else. 'bpa-smooth' is k-means on means over the
    partners of a sparse plan, 'bpa-spectral' spectral clustering of that plan; neither needs an n × n matrix, and both
    take large sets with --no-baselines. 'k-means' clusters the rows of every --transform. Beside them stand k-means on
    raw, unit, centred, cosine and softmax rows, and spectral clustering of plain affinities.

    Example: bpa cluster digits.npz --k 10 --host bpa-smooth k-means --transform bpa --clusters clusters.csv
    """
    rows = transform or (("bpa",) if "k-means" in host else ())
    if transform and "k-means" not in host:
        raise ArgumentError(
            f"--transform makes rows for k-means, which is not among the hosts {', '.join(host)}."
        )
    weights.check(rows, host_has_reg=any(HOSTS[name].has_reg for name in host if name in HOSTS))
    regs = weights.regs(PUBLISHED_REG)
    ways = clustering_ways(host, rows, reg=regs, solver=weights.solver, baselines=baselines)
    task = ClusterTask(
        k,
        n_init=n_init,
        repeats=repeats or _TASK.repeats,
        share=share,
        seed=seed,
        nmi_average=nmi,
        **computing.place,
    )
    given = reading.read(features)
    field = Clustering(given, budget=computing.budget)
    with progress("fits") as tick:
        records = run(
            "cluster", field, [(task, ways)], axes=("reg", "sweeps"), store=keeping.store, on_progress=tick
        )
    files: dict[str, Path] = {}
    targets = [
        target for target in (clusters, keeping.out and keeping.out / "clusters.csv") if target is not None
    ]
    if targets:
        found = field.clusters(task, records[0])
        for target in targets[::-1]:
            files["clusters"] = write_clusters(target, found)
    chosen = told_choice([way.fields().get("reg") for way in ways], given.features) if share == 1 else {}
    emit(json=keeping.json, tables=tables_of(records), records=records, files=files, **chosen)
