"""The demonstration: few-shot, clustering and retrieval on the data inside the package, with and without the transform.

Every setting is fixed beforehand; what does not help is shown like what does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from bpa._extras import needs
from bpa.data.catalog import embedded_sketches
from bpa.records import FeatureSet, RunRecord
from bpa.runs.answers import answers
from bpa.runs.engine import Progress, run
from bpa.runs.fields.clustering import Clustering, ClusterTask, clustering_ways
from bpa.runs.fields.fewshot import FewShot, FewShotTask, fewshot_ways
from bpa.runs.fields.retrieval import PRESETS, Retrieval, RetrievalTask, ranked_ways, retrieval_ways
from bpa.runs.inside import inside
from bpa.runs.store import RunStore
from bpa.runs.way import transforms_asked
from bpa.transforms.names import Reg

__all__ = ["DemoConfig", "run_demo"]


@dataclass(frozen=True)
class DemoConfig:
    """Every setting of the demonstration that changes a number.

    Parameters
    ----------
    tasks : int
        Few-shot tasks.
    cluster_classes, cluster_repeats : int
        Classes to cluster, and how often, each time on 80 % of the items.
    regs : tuple of float or "auto"
        Entropy weights.
    ranked : int, optional
        Items of the retrieval, each of which queries the others; all where it is left out.
    shown_classes, shown_items : int
        Size of the set whose affinities are drawn.
    seed : int
        Start of every random stream.
    """

    tasks: int = 400
    cluster_classes: int = 20
    cluster_repeats: int = 5
    regs: tuple[Reg, ...] = (0.05, 0.1, 0.2, 0.5, "auto")
    ranked: int | None = None
    shown_classes: int = 5
    shown_items: int = 12
    seed: int = 0


def run_demo(
    store: RunStore, config: DemoConfig | None = None, *, on_progress: Progress | None = None
) -> list[RunRecord]:
    """Run what is not in ``store`` yet and return all records, in a fixed order.

    Parameters
    ----------
    store : RunStore
        Where finished parts are kept; a second run with the same settings computes nothing.
    config : DemoConfig, optional
        Settings; the defaults are those of ``bpa demo``.
    on_progress : callable, optional
        Called with (parts done, parts).

    Returns
    -------
    list of RunRecord
        Studies ``fewshot``, ``cluster``, ``retrieve``, ``answers`` and ``inside``.

    Notes
    -----
    Computes on one thread: sums then come out alike on any number of cores, and a busy machine is not made busier.
    """
    with _one_thread():
        return _run(store, config or DemoConfig(), on_progress or (lambda _done, _all: None))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Hold torch, BLAS and OpenMP to one thread."""
    with needs("app", "threadpoolctl", feature="the demonstration"):
        from threadpoolctl import threadpool_limits
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def _run(store: RunStore, config: DemoConfig, tell: Progress) -> list[RunRecord]:
    sketches = embedded_sketches()
    assert sketches.labels is not None  # noqa: S101 - the embedded data has labels
    tell(0, 4)
    ways = fewshot_ways(("protonet",), transforms_asked(("bpa",), reg=config.regs))
    tasks = [
        FewShotTask(n_shot=shot, n_tasks=config.tasks, protocol="balanced", seed=config.seed)
        for shot in (1, 5)
    ]
    records = run("fewshot", FewShot(sketches), [(task, ways) for task in tasks], axes=("reg",), store=store)
    tell(1, 4)
    some = sketches.select(np.flatnonzero(sketches.labels < config.cluster_classes))
    grouped = ClusterTask(
        config.cluster_classes, repeats=config.cluster_repeats, n_init=3, share=0.8, seed=config.seed
    )
    clusterers = [
        *clustering_ways(("bpa-smooth",), baselines=False), *clustering_ways(("k-means",), reg=config.regs),
    ]  # fmt: skip
    records += run("cluster", Clustering(some), [(grouped, clusterers)], axes=("reg",), store=store)
    tell(2, 4)
    records += _retrieve(sketches, config, store)
    tell(3, 4)
    first = np.flatnonzero(
        (sketches.labels < config.shown_classes) & (np.arange(len(sketches)) % 40 < config.shown_items)
    )
    records.append(inside(sketches.select(first), store=store))
    tell(4, 4)
    return records


def _retrieve(sketches: FeatureSet, config: DemoConfig, store: RunStore) -> list[RunRecord]:
    """Every item queries the others; the answers of four queries are shown with their pictures."""
    ranked = sketches if config.ranked is None else sketches.select(np.arange(config.ranked))
    field, task = Retrieval(ranked), RetrievalTask()
    ways = retrieval_ways(reg=config.regs, rows=(PRESETS["retrieval"], PRESETS["paper"]))
    records = run("retrieve", field, [(task, ways)], axes=("reg",), store=store)
    shown = ranked_ways(ways)
    images = None if ranked.images is None else np.asarray(255 - ranked.images)  # ink dark on white
    made = answers(
        field,
        task,
        shown,
        lambda: [field.top(task, way) for way in shown],
        images=images,
        name_of=ranked.name_of,
        shown=4,
        choose="spaced",
        store=store,
    )
    return [*records, made]
