"""Few-shot accuracy of hosts and transforms over many tasks that all of them share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bpa.data.episodes import PROTOCOLS, Protocol, TaskList, draw_tasks
from bpa.errors import ArgumentError, DTypeError, MemoryBudgetError
from bpa.hosts.fewshot import PMF, Prediction, ProtoNet, PTMap, PTMapSettings, powered
from bpa.metrics.fewshot import correct_counts
from bpa.metrics.intervals import Interval, mean_interval, paired_difference
from bpa.records import Episode, FeatureSet, RunRecord
from bpa.report.table import Table
from bpa.runs.environment import describe_environment
from bpa.runs.store import Journal, RunStore
from bpa.solvers import PAPER_SWEEPS, Sweeps
from bpa.transforms.names import FREE, TRANSFORMS, USES_REG, make_transform

HOSTS = ("protonet", "ptmap", "pmf", "sillnet", "ptmap-sf")
"""``sillnet`` and ``ptmap-sf`` are PT-MAP on the features those methods publish."""
PTMAP_LIKE = frozenset({"ptmap", "sillnet", "ptmap-sf"})
BLOCK = 200
"""Tasks a journal line stands for."""
CHUNK = 200
"""Tasks computed at once where the budget allows more; larger sets of buffers leave the processor's cache."""
DEFAULT_BUDGET = 10**9

Reg = float | Literal["auto"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FewShotConfig:
    """What a few-shot comparison runs.

    Parameters
    ----------
    hosts : tuple of str
        Among `HOSTS`.
    transforms : tuple of str
        Names for `make_transform`. The baselines everybody has (identity, unit, centred) are always run too.
    regs : tuple of float or "auto"
        Entropy weights, for the transforms that have one.
    n_iter : int, optional
        Sweeps of BPA; None for its own.
    n_way : int
        Classes of a task.
    shots : tuple of int
        Labelled rows per class; one comparison each.
    n_query : int
        Queries per class (on average, under the ``dirichlet`` protocol).
    n_tasks : int
        Number of tasks.
    protocol : {"ptmap", "balanced", "dirichlet"}
        How tasks are drawn; see `bpa.data.episodes`.
    seed : int
        Of the tasks.
    concentration : float
        Of the Dirichlet distribution.
    prior : {"uniform", "estimate", "oracle"}
        Class masses of PT-MAP; ``oracle`` gives it the true counts.
    relaxation : float
        PT-MAP's penalty on the class masses; infinite holds them exactly.
    nonneg : {"relu", "error", "signed", "off"}
        What PT-MAP does about negative features.
    epochs : int
        Centre updates of PT-MAP.
    renormalize : bool
        Whether PT-MAP normalises and centres again after the transform.
    baselines : bool
        Whether the three baselines are added.
    device, dtype : str
        Where and in which precision to compute.
    """

    hosts: tuple[str, ...] = ("ptmap",)
    transforms: tuple[str, ...] = ("bpa",)
    regs: tuple[Reg, ...] = (0.1,)
    n_iter: int | None = None
    n_way: int = 5
    shots: tuple[int, ...] = (1,)
    n_query: int = 15
    n_tasks: int = 10_000
    protocol: Protocol = "ptmap"
    seed: int = 0
    concentration: float = 2.0
    prior: Literal["uniform", "estimate", "oracle"] = "uniform"
    relaxation: float = math.inf
    nonneg: Literal["relu", "error", "signed", "off"] = "relu"
    epochs: int = 20
    renormalize: bool = True
    baselines: bool = True
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        for name, values, known in (("hosts", self.hosts, HOSTS), ("protocol", (self.protocol,), PROTOCOLS),
                                    ("prior", (self.prior,), ("uniform", "estimate", "oracle")),
                                    ("dtype", (self.dtype,), ("float32", "float64"))):  # fmt: skip
            unknown = [value for value in values if value not in known]
            if unknown or not values:
                got = repr(unknown[0]) if unknown else "none"
                raise ArgumentError(
                    f"The {name!r} of a few-shot run must be among {', '.join(known)}. Got {got}."
                )
        unknown = [name for name in self.transforms if name.partition(":")[0] not in TRANSFORMS]
        if unknown:
            raise ArgumentError(
                f"The 'transforms' of a few-shot run must be among {', '.join(TRANSFORMS)}. Got "
                f"{unknown[0]!r}."
            )
        if not self.shots or not (self.transforms or self.baselines):
            raise ArgumentError("A few-shot run needs at least one shot count and one transform.")
        if not self.regs and any(name.partition(":")[0] in USES_REG for name in self.transforms):
            raise ArgumentError(
                "The 'regs' of a few-shot run must name at least one entropy weight. Got none."
            )


@dataclass(frozen=True)
class Cell:
    """One row of the comparison: a host with a transform at one shot count."""

    host: str
    transform: str
    reg: Reg | None
    n_shot: int

    @property
    def name(self) -> str:
        """The transform with its reg, as tables show it."""
        return self.transform if self.reg is None else f"{self.transform} {self.reg}"


@dataclass(frozen=True)
class CellResult:
    """Accuracy of one cell, task by task, with its gains over the baselines on the same tasks.

    Parameters
    ----------
    cell : Cell
        What was run.
    accuracy : ndarray, shape (T,)
        Percent of the queries of each task.
    mean : Interval
        Of ``accuracy``.
    gain : Interval or None
        Paired, over the identity.
    gain_over_best : Interval or None
        Paired, over the best of identity, unit and centred by their means.
    best : str
        Which of the three that is.
    seconds : float
        Wall time of this cell.
    """

    cell: Cell
    accuracy: np.ndarray
    mean: Interval
    gain: Interval | None
    gain_over_best: Interval | None
    best: str
    seconds: float


@dataclass(frozen=True)
class FewShotResult:
    """Records, one a cell, and what tables show of them."""

    config: FewShotConfig
    records: tuple[RunRecord, ...]
    cells: tuple[CellResult, ...]

    def find(self, host: str, transform: str, n_shot: int, reg: Reg | None = None) -> CellResult:
        """The result of one cell."""
        for result in self.cells:
            if result.cell == Cell(host, transform, reg, n_shot):
                return result
        raise ArgumentError(f"There is no cell {host}, {transform}, reg {reg}, {n_shot}-shot in this run.")


def cells_of(config: FewShotConfig) -> list[Cell]:
    """The cells of a configuration, baselines first, each once."""
    names = [*(FREE if config.baselines else ()), *config.transforms]
    cells = []
    for n_shot in config.shots:
        for host in config.hosts:
            for name in names:
                regs: Sequence[Reg | None] = config.regs if name.partition(":")[0] in USES_REG else (None,)
                cells += [Cell(host, name, reg, n_shot) for reg in regs]
    return list(dict.fromkeys(cells))


def run_fewshot(
    features: FeatureSet,
    config: FewShotConfig,
    *,
    store: RunStore | None = None,
    budget: int | None = None,
    on_progress: Progress | None = None,
    chunk: int | None = None,
) -> FewShotResult:
    """Run every host with every transform on the same tasks.

    Parameters
    ----------
    features : FeatureSet
        With labels.
    config : FewShotConfig
        What to run.
    store : RunStore, optional
        Where finished cells are kept and unfinished ones journalled; cells found there are not run again.
    budget : int, optional
        Most bytes the computation may hold at once beside the features; 1 GB when not given. No result
        depends on it.
    on_progress : callable, optional
        Called with (tasks done, tasks in all), over all cells.
    chunk : int, optional
        Tasks computed at once; by default as many as the budget and the cache take. No result depends on it.

    Returns
    -------
    FewShotResult
    """
    data = {"source": features.source, "sha256": features.sha256, "n": len(features), "dim": features.dim}
    cells = cells_of(config)
    total, done = len(cells) * config.n_tasks, 0
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    x = torch.from_numpy(features.features).to(device=config.device, dtype=dtype)
    # PT-MAP's first step acts on single entries: once a file, not once a task
    prepared = powered(x, nonneg=config.nonneg) if PTMAP_LIKE & set(config.hosts) else x
    found: dict[Cell, RunRecord] = {}
    for n_shot in config.shots:
        pending = []
        for cell in (cell for cell in cells if cell.n_shot == n_shot):
            known = (
                None if store is None else store.find(_cell_config(config, cell), study="fewshot", data=data)
            )
            if known is None:
                pending.append(cell)
            else:
                found[cell] = known
                done += config.n_tasks
        if not pending:
            continue
        tasks = draw_tasks(
            features,
            n_way=config.n_way,
            n_shot=n_shot,
            n_query=config.n_query,
            n_tasks=config.n_tasks,
            protocol=config.protocol,
            seed=config.seed,
            concentration=config.concentration,
        )
        at_once = _chunk(config, n_shot, features.dim, x.element_size(), budget or DEFAULT_BUDGET, chunk)
        hosts = {cell: _host(cell, config) for cell in pending}
        journals = {cell: _Tally(store, config, cell, data) for cell in pending}
        for block, start in enumerate(range(0, config.n_tasks, BLOCK)):
            stop = min(start + BLOCK, config.n_tasks)
            missing = [cell for cell in pending if block not in journals[cell].done]
            counts: dict[Cell, list[int]] = {cell: [] for cell in missing}
            spent = dict.fromkeys(missing, 0.0)
            for first in range(start, stop if missing else start, at_once):
                episodes: dict[bool, Episode] = {}
                for cell in missing:
                    began = time.perf_counter()
                    powers = cell.host in PTMAP_LIKE
                    if powers not in episodes:
                        here = slice(first, min(first + at_once, stop))
                        episodes[powers] = tasks.episode(prepared if powers else x, here)
                    episode = episodes[powers]
                    counts[cell] += _count(hosts[cell], episode, config, tasks)
                    spent[cell] += time.perf_counter() - began
                    done += len(episode.query)
                    if on_progress is not None:
                        on_progress(done, total)
            for cell in missing:
                journals[cell].add(block, counts[cell], spent[cell])
            done += (len(pending) - len(missing)) * (stop - start)
        for cell in pending:
            found[cell] = _record(config, cell, data, journals[cell], tasks)
            if store is not None:
                store.append(found[cell])
                journals[cell].discard()
    records = tuple(found[cell] for cell in cells)
    return FewShotResult(config, records, tuple(_results(cells, records)))


def fewshot_table(result: FewShotResult) -> Table:
    """Accuracy with its interval, paired gains, and seconds, one row a cell."""
    config = result.config
    rows = [
        (
            item.cell.host,
            f"{item.cell.n_shot}",
            item.cell.name,
            item.mean,
            item.gain,
            item.gain_over_best,
            item.best,
            item.seconds,
        )
        for item in result.cells
    ]
    tasks = f"{config.n_tasks:,} tasks, {config.protocol} protocol, seed {config.seed}"
    notes = [
        "Percent ± half-width of the 95 % interval over tasks; gains are paired over the same tasks.",
        "'best free' is the best of identity, unit and centred for that host and shot.",
    ]
    if config.hosts and PTMAP_LIKE & set(config.hosts) and config.protocol == "dirichlet":
        notes.append(f"PT-MAP's class masses: {config.prior}, relaxation {config.relaxation:g}.")
    return Table(
        f"{config.n_way}-way, {config.n_query} queries a class, {tasks}",
        (
            "host",
            "shot",
            "transform",
            "accuracy",
            "gain over identity",
            "gain over best free",
            "best free",
            "seconds",
        ),
        rows,
        notes,
    )


# ---------------------------------------------------------------------- parts


class _Tally:
    """Counts of correct queries per block, on disk where there is a store."""

    def __init__(
        self, store: RunStore | None, config: FewShotConfig, cell: Cell, data: dict[str, Any]
    ) -> None:
        self.journal: Journal | None = None
        if store is not None:
            self.journal = store.journal(
                {"study": "fewshot", "config": _cell_config(config, cell), "data": data}
            )
        self.done: dict[int, Any] = {} if self.journal is None else self.journal.done

    def add(self, block: int, counts: list[int], seconds: float) -> None:
        if self.journal is None:
            self.done[block] = [counts, seconds]
        else:
            self.journal.add(block, [counts, seconds])

    def discard(self) -> None:
        if self.journal is not None:
            self.journal.discard()


def _cell_config(config: FewShotConfig, cell: Cell) -> dict[str, Any]:
    """Every setting that changes a number of this cell, and no other."""
    out: dict[str, Any] = {
        key: value
        for key, value in asdict(config).items()
        if key not in ("hosts", "transforms", "regs", "shots", "baselines", "n_iter", "concentration")
    }
    out |= {"host": cell.host, "transform": cell.transform, "reg": cell.reg, "n_shot": cell.n_shot}
    if cell.transform.startswith("bpa"):
        out["n_iter"] = config.n_iter
    if config.protocol == "dirichlet":
        out["concentration"] = config.concentration
    if cell.host not in PTMAP_LIKE:
        for key in ("prior", "relaxation", "nonneg", "epochs", "renormalize"):
            del out[key]
    elif math.isinf(config.relaxation):
        out["relaxation"] = "inf"
    return out


def _host(cell: Cell, config: FewShotConfig) -> Callable[[Episode, Tensor | None], Prediction]:
    transform = make_transform(
        cell.transform,
        reg=0.1 if cell.reg is None else cell.reg,
        solver=PAPER_SWEEPS if config.n_iter is None else Sweeps(config.n_iter),
    )
    if cell.host == "protonet":
        protonet = ProtoNet(transform).eval()
        return lambda episode, _: protonet(episode)
    if cell.host == "pmf":
        pmf = PMF(transform).eval().to(config.device)
        return lambda episode, _: pmf(episode)

    settings = PTMapSettings(
        prior="estimate" if config.prior == "estimate" else "uniform",
        relaxation=config.relaxation,
        nonneg="off",  # features are powered already
        epochs=config.epochs,
        renormalize=config.renormalize,
    )
    ptmap = PTMap(transform, settings).eval()
    return lambda episode, class_mass: ptmap(episode, class_mass=class_mass)


@torch.no_grad()
def _count(
    host: Callable[[Episode, Tensor | None], Prediction],
    episode: Episode,
    config: FewShotConfig,
    tasks: TaskList,
) -> list[int]:
    truth = episode.query_labels
    if truth is None:
        raise DTypeError("An episode without query labels cannot be scored.")
    class_mass = None
    if config.prior == "oracle":
        class_mass = torch.nn.functional.one_hot(truth, tasks.n_way).sum(dim=-2).to(episode.query)
    counts: list[int] = correct_counts(host(episode, class_mass).labels, truth).tolist()
    return counts


def _chunk(
    config: FewShotConfig, n_shot: int, dim: int, itemsize: int, budget: int, asked: int | None
) -> int:
    """Tasks computed at once, within the budget."""
    if asked is not None:
        if asked < 1:
            raise ArgumentError(f"The 'chunk' of run_fewshot must be at least 1. Got {asked}.")
        return asked
    need = task_bytes(config.n_way, n_shot, config.n_query, dim, itemsize)
    if need > budget:
        raise MemoryBudgetError(
            f"One {config.n_way}-way {n_shot}-shot task needs about {need:,} bytes and the "
            f"budget is {budget:,}. "
            f"Raise the budget, or ask for fewer ways, shots or queries."
        )
    return int(max(1, min(CHUNK, budget // need)))


def task_bytes(n_way: int, n_shot: int, n_query: int, dim: int, itemsize: int) -> int:
    """Estimate of the bytes one task holds at its peak: features, square matrices, and float64 plans."""
    rows = n_way * (n_shot + n_query)
    return itemsize * (8 * rows * dim + 6 * rows * rows) + 8 * 8 * n_way * n_query * n_way


def _record(
    config: FewShotConfig, cell: Cell, data: dict[str, Any], tally: _Tally, tasks: TaskList
) -> RunRecord:
    counts: list[int] = []
    seconds = 0.0
    for block in sorted(tally.done):
        counts += tally.done[block][0]
        seconds += tally.done[block][1]
    accuracy = np.asarray(counts, dtype=np.float64) / tasks.n_query
    summary: dict[str, Any] = {"n_tasks": len(counts)}
    interval = mean_interval(100.0 * accuracy)
    summary |= {
        "accuracy": interval.mean,
        "half_width": None if math.isinf(interval.half_width) else interval.half_width,
    }
    return RunRecord(
        study="fewshot",
        config=_cell_config(config, cell),
        data=data,
        values={"accuracy": accuracy.tolist()},
        summary=summary,
        environment=describe_environment(),
        seconds=seconds,
    )


def _results(cells: list[Cell], records: Sequence[RunRecord]) -> list[CellResult]:
    percent = {
        cell: 100.0 * np.asarray(record.values["accuracy"])
        for cell, record in zip(cells, records, strict=True)
    }
    out = []
    for cell, record in zip(cells, records, strict=True):
        free = {name: percent.get(Cell(cell.host, name, None, cell.n_shot)) for name in FREE}
        present = {name: values for name, values in free.items() if values is not None}
        best = max(present, key=lambda name: float(present[name].mean()), default="")
        raw = free["identity"]
        own = percent[cell]
        out.append(
            CellResult(
                cell,
                own,
                mean_interval(own),
                None if raw is None or cell.transform == "identity" else paired_difference(own, raw),
                None if not best or cell.transform in FREE else paired_difference(own, present[best]),
                best,
                record.seconds,
            )
        )
    return out
