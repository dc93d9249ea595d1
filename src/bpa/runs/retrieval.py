"""Retrieval of a stored feature set: every way to rank it, judged by one protocol.

A *way* is one row of the table: plain features, features after a transform, either of them re-ranked, or another
method that a user could take instead. All ways rank the same queries, so their differences are paired.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bpa.data.features import read_features
from bpa.data.reid import read_reid_features
from bpa.errors import ArgumentError
from bpa.hosts.retrieval.kreciprocal import KReciprocal
from bpa.hosts.retrieval.rankers import RANKERS
from bpa.hosts.retrieval.ranking import estimate_rank, rank, row_source
from bpa.metrics.hubs import hubness, nearest
from bpa.metrics.intervals import mean_interval, paired_difference
from bpa.metrics.retrieval import AveragePrecision, evaluate_ranking
from bpa.plans.comparison import PRESETS, RowComparison
from bpa.plans.neighbours import FeatureSource
from bpa.records import QueryGallery, RunRecord
from bpa.report.figures import png_data_uri
from bpa.report.page import Page, Section, Strip, render
from bpa.report.table import Table
from bpa.runs.environment import describe_environment
from bpa.runs.paper_retrieval import PAPER_REG, paper_row
from bpa.runs.store import RunStore, write_atomically
from bpa.solvers import Sweeps
from bpa.transforms.names import USES_REG, make_transform

__all__ = [
    "RetrievalConfig",
    "Way",
    "config_from_names",
    "memory_line",
    "rank_way",
    "read_images",
    "read_task",
    "retrieval_table",
    "run_retrieval",
    "top_lists",
    "ways_of",
    "write_page",
    "write_rankings",
]

Protocol = Literal["joint", "frozen", "per-query"]


@dataclass(frozen=True)
class Way:
    """One row of the table.

    Attributes
    ----------
    method : str
        A transform's name, or that of a baseline.
    reg : float, "auto" or None
        Entropy weight, where the transform has one; ``"auto"`` is `bpa.plans.comparison.AUTO_REG` on
        centred features.
    protocol : str
        ``"joint"``, ``"frozen"`` or ``"per-query"``; matters for BPA only.
    rows : RowComparison or None
        How BPA's rows are compared.
    rerank : bool
        Whether k-reciprocal re-ranking follows.
    """

    method: str
    reg: float | Literal["auto"] | None = None
    protocol: Protocol = "joint"
    rows: RowComparison | None = None
    rerank: bool = False

    @property
    def name(self) -> str:
        """How tables call it."""
        parts = [self.method]
        if self.reg is not None:
            parts.append(f"reg={self.reg}" if isinstance(self.reg, str) else f"reg={self.reg:g}")
        if self.rows is not None:
            parts.append(f"({self.rows.name} rows)")
        if self.rerank:
            parts.append("+ k-reciprocal")
        return " ".join(parts)

    @property
    def paper_name(self) -> str | None:
        """The row of the paper's table this way belongs to."""
        if self.method == "identity":
            return "k-reciprocal" if self.rerank else "baseline"
        if (
            self.method == "bpa"
            and self.protocol == "joint"
            and self.rows == PRESETS["paper"]
            and self.reg != "auto"
        ):
            return "bpa + k-reciprocal" if self.rerank else "bpa"
        return None


@dataclass(frozen=True)
class RetrievalConfig:
    """Every setting that changes a number.

    Parameters
    ----------
    transforms : tuple of str
        Names of transforms to rank with.
    reg : tuple of float or "auto"
        Entropy weights. ``"auto"``, the default, is understood by BPA alone; other transforms take 0.1 instead.
    n_iter : int
        Sweeps of BPA.
    rows : tuple of str
        Presets of the row comparison: ``"retrieval"``, ``"paper"``.
    protocols : tuple of str
        ``"joint"``, ``"frozen"``, ``"per-query"``.
    rerank : {"none", "k-reciprocal"}
        Add re-ranked rows (joint).
    baselines : tuple of str
        Names of `bpa.hosts.retrieval.rankers.RANKERS`.
    k1, k2, lam, power
        Of the re-ranking.
    average_precision : str
        Definition of average precision.
    """

    transforms: tuple[str, ...] = ("bpa",)
    reg: tuple[float | Literal["auto"], ...] = ("auto",)
    n_iter: int = 5
    rows: tuple[str, ...] = ("retrieval",)
    protocols: tuple[Protocol, ...] = ("joint",)
    rerank: Literal["none", "k-reciprocal"] = "none"
    baselines: tuple[str, ...] = ()
    k1: int = 20
    k2: int = 6
    lam: float = 0.3
    power: int = 2
    average_precision: AveragePrecision = "finite-sum"

    def __post_init__(self) -> None:
        """Refuse names that nothing carries."""
        for name in self.baselines:
            if name not in RANKERS:
                raise ArgumentError(f"The baseline {name!r} is not known; choose among {', '.join(RANKERS)}.")
        for name in self.rows:
            if name not in PRESETS:
                raise ArgumentError(
                    f"The row comparison {name!r} is not known; choose among {', '.join(PRESETS)}."
                )
        for name in self.protocols:
            if name not in ("joint", "frozen", "per-query"):
                raise ArgumentError(
                    f"The protocol {name!r} is not known; choose among joint, frozen, per-query."
                )
        if not all(value == "auto" if isinstance(value, str) else value > 0 for value in self.reg):
            raise ArgumentError(
                f"The 'reg' of a retrieval run must be numbers above 0, or 'auto'. Got {self.reg!r}."
            )
        for name in self.transforms:
            make_transform(name, reg=0.1)  # the names it knows


def config_from_names(
    *,
    transforms: Sequence[str],
    reg: Sequence[float | str],
    n_iter: int | None,
    rows: Sequence[str],
    preset: str | None,
    protocols: Sequence[str],
    rerank: str,
    baselines: Sequence[str],
    **more: Any,
) -> RetrievalConfig:
    """Make a configuration from what a person may say: presets, ``all``, and nothing at all.

    Parameters
    ----------
    transforms, reg, n_iter, rows, protocols, rerank, baselines
        As in `RetrievalConfig`; empty for its own, ``baselines=("all",)`` for every one.
    preset : {"paper"} or None
        The paper's row comparison, sweeps and reg, where nothing else is said.
    **more
        Further fields of `RetrievalConfig`.

    Returns
    -------
    RetrievalConfig
    """
    given: dict[str, Any] = {
        "transforms": tuple(transforms), "protocols": tuple(protocols), "rerank": rerank,
        "baselines": tuple(RANKERS) if tuple(baselines) == ("all",) else tuple(baselines), **more,
    }  # fmt: skip
    given["rows"] = tuple(rows) or (("paper",) if preset == "paper" else ("retrieval",))
    if reg:
        given["reg"] = tuple(value if isinstance(value, str) else float(value) for value in reg)
    elif preset == "paper":
        given["reg"] = (PAPER_REG,)
    if n_iter is not None:
        given["n_iter"] = n_iter
    return RetrievalConfig(**given)


def read_task(
    path: str | Path, *, labels: str | None = None, key: str | None = None
) -> tuple[QueryGallery, str | None, str]:
    """Read a retrieval task from a feature file.

    Parameters
    ----------
    path : path
        As `bpa.data.features.read_features` takes it, or an ``.npz`` with ``ids``/``pids`` and ``camids``.
    labels, key
        As there.

    Returns
    -------
    task : QueryGallery
    dataset : str or None
        Name of the set, where the file gives one.
    sha256 : str
        Checksum of the file.
    """
    place = Path(path)
    if place.suffix == ".npz" and labels is None and key is None and place.is_file():
        task, dataset = read_reid_features(place)
        with place.open("rb") as file:
            return task, dataset, hashlib.file_digest(file, "sha256").hexdigest()
    features = read_features(place, labels=labels, key=key)
    task = QueryGallery.from_features(features)
    return replace(task, source=place.name), None, features.sha256


def read_images(path: str | Path) -> np.ndarray | None:
    """The array ``images`` of an ``.npz`` feature file, where there is one that shows pictures."""
    place = Path(path)
    if place.suffix != ".npz":
        return None
    with np.load(place, allow_pickle=False) as stored:
        found = stored.get("images", None)
    return found if found is not None and found.dtype == np.uint8 and found.ndim in (3, 4) else None


def memory_line(task: QueryGallery, config: RetrievalConfig, budget: str | int | None = None) -> str:
    """The memory the largest ranking of a configuration will hold, as a line to print before it is allocated."""
    estimates = [
        estimate_rank(
            len(task.query), len(task.gallery), task.features.shape[1], protocol=protocol, rows=PRESETS[rows],
            budget=budget, all_against_all=bool(np.array_equal(task.query, task.gallery)),
        )
        for protocol in config.protocols
        for rows in config.rows
    ]  # fmt: skip
    return max(estimates, key=lambda estimate: estimate.total).text()


def top_lists(
    task: QueryGallery, config: RetrievalConfig, *, top: int = 10, budget: str | int | None = None
) -> dict[str, list[list[int]]]:
    """Every query's first gallery rows, by plain cosine and by the first BPA way.

    Parameters
    ----------
    task, config, budget
        As in :func:`run_retrieval`.
    top : int
        Items listed.

    Returns
    -------
    dict
        Name of the way → one list a query; rows of the joint set. Items the protocol deletes are left out.
    """
    shown = [Way("unit"), *[way for way in ways_of(config) if way.method == "bpa" and not way.rerank][:1]]
    lists: dict[str, list[list[int]]] = {}
    for way in shown:
        distances = rank_way(task, way, config, budget=budget)[0].numpy()
        own = task.ids[task.query][:, None] == task.ids[task.gallery][None]
        if task.cameras is None:
            own &= task.query[:, None] == task.gallery[None]
        else:
            own &= task.cameras[task.query][:, None] == task.cameras[task.gallery][None]
        distances[own | (task.ids[task.gallery] == -1)[None]] = np.inf
        order = nearest(distances, top)
        lists[way.name] = [
            task.gallery[row[np.isfinite(distances[i, row])]].tolist() for i, row in enumerate(order)
        ]
    return lists


def write_rankings(path: str | Path, task: QueryGallery, lists: dict[str, list[list[int]]]) -> Path:
    """Write :func:`top_lists` as JSON, for anything that shows pictures.

    Parameters
    ----------
    path : path
        A ``.json`` file.
    task : QueryGallery
    lists : dict

    Returns
    -------
    Path
    """
    content = {"source": task.source, "queries": task.query.tolist(), "top": lists}
    return write_atomically(Path(path), json.dumps(content))


def write_page(
    path: str | Path,
    task: QueryGallery,
    records: Sequence[RunRecord],
    lists: dict[str, list[list[int]]],
    *,
    images: np.ndarray | None = None,
    shown: int = 12,
) -> Path:
    """Write one self-contained page: the table, and queries whose answers changed most, before and after.

    Parameters
    ----------
    path : path
        An ``.html`` file.
    task : QueryGallery
    records : sequence of RunRecord
        From :func:`run_retrieval`.
    lists : dict
        From :func:`top_lists`.
    images : ndarray of uint8, shape (n, height, width[, 3]), optional
        Pictures of the joint set's rows; without them the answers are named by identity.
    shown : int
        Queries shown.

    Returns
    -------
    Path
    """

    def answer(row: int, right: int) -> tuple[str, str, bool]:
        return (f"identity {task.ids[row]}", picture(row), bool(task.ids[row] == right))

    def picture(row: int) -> str:
        return "" if images is None else png_data_uri(np.ascontiguousarray(images[row]))

    hits = {
        name: np.array(
            [
                sum(task.ids[row] == task.ids[q] for row in found)
                for q, found in zip(task.query, of, strict=True)
            ]
        )
        for name, of in lists.items()
    }
    names = list(lists)
    change = hits[names[-1]] - hits[names[0]]
    order = np.argsort(-np.abs(change), kind="stable")[:shown]
    strips = [
        Strip(
            (f"identity {task.ids[task.query[i]]}", picture(int(task.query[i]))),
            [(name, [answer(row, int(task.ids[task.query[i]])) for row in lists[name][i]]) for name in names],
        )
        for i in order
    ]
    lead = (
        f"The {len(order)} queries whose first ten answers changed most: {int((change > 0).sum())} of {len(change)} "
        f"queries "
        f"have more right answers there than before, {int((change < 0).sum())} have fewer."
    )
    section = Section("retrieval", "Retrieval", lead, (retrieval_table(records),), (), strips)
    page = Page(f"Retrieval on {task.source}", "", (), (section,), dict(records[0].environment))
    return write_atomically(Path(path), render(page))


def ways_of(config: RetrievalConfig) -> list[Way]:
    """All rows a configuration asks for, the plain features first."""
    plain = [Way("identity"), Way("unit")]
    ways = [*plain, *(Way(name) for name in config.transforms if name not in USES_REG)]
    for name in config.transforms:
        if name not in USES_REG:
            continue
        for reg in config.reg:
            if name != "bpa":
                ways.append(Way(name, 0.1 if reg == "auto" else reg))
                continue
            ways += [
                Way(name, reg, protocol, PRESETS[rows])
                for protocol in config.protocols
                for rows in config.rows
            ]
    ways += [Way(name) for name in config.baselines if name not in ("cosine", "k-reciprocal")]
    if config.rerank == "k-reciprocal" or "k-reciprocal" in config.baselines:
        ways += [Way("identity", rerank=True), Way("unit", rerank=True)]
    if config.rerank == "k-reciprocal" and "bpa" in config.transforms:
        ways += [
            Way("bpa", reg, rows=PRESETS[rows], rerank=True) for reg in config.reg for rows in config.rows
        ]
    return list(dict.fromkeys(ways))


def run_retrieval(
    task: QueryGallery,
    config: RetrievalConfig,
    *,
    dataset: str | None = None,
    sha256: str = "",
    store: RunStore | None = None,
    budget: str | int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[RunRecord]:
    """Rank a task in every way of a configuration.

    Parameters
    ----------
    task : QueryGallery
    config : RetrievalConfig
    dataset : str, optional
        Name of the set as its file gives it; the paper's numbers are shown for the paper's sets only.
    sha256 : str
        Checksum of the file.
    store : RunStore, optional
        Where finished rows are kept, and taken from.
    budget : str or int, optional
        Bytes a ranking may hold.
    on_progress : callable, optional
        Called with (done, total).

    Returns
    -------
    list of RunRecord
        One per way, with the average precision and Rank-1 of every query.
    """
    ways = ways_of(config)
    data = {
        "source": task.source, "sha256": sha256, "dataset": dataset, "n": len(task.features),
        "n_query": len(task.query), "n_gallery": len(task.gallery), "cameras": task.cameras is not None,
    }  # fmt: skip
    records = []
    for done, way in enumerate(ways):
        settings = _settings(way, config)
        record = None if store is None else store.find(settings, study="retrieval", data=data)
        if record is None:
            began = time.perf_counter()
            distances, notes = rank_way(task, way, config, budget=budget)
            record = _record(task, settings, data, distances, notes, config, time.perf_counter() - began)
            if store is not None:
                store.append(record)
        records.append(record)
        if on_progress is not None:
            on_progress(done + 1, len(ways))
    return records


def rank_way(
    task: QueryGallery, way: Way, config: RetrievalConfig, *, budget: str | int | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Distances of every query to the gallery, and what the diagnostics had to say.

    Parameters
    ----------
    task : QueryGallery
    way : Way
    config : RetrievalConfig
    budget : str or int, optional

    Returns
    -------
    distances : Tensor, shape (n_query, n_gallery)
    notes : tuple of str
    """
    x = torch.from_numpy(task.features)
    query, gallery = x[task.query], x[task.gallery]
    same = len(task.query) == len(task.gallery) and bool(np.array_equal(task.query, task.gallery))
    joint = query if same else torch.cat([query, gallery])
    n_query = len(query)
    if way.method in RANKERS:
        return -RANKERS[way.method](query, None if same else gallery), ()
    if way.rerank:
        source = (
            row_source(joint, reg=way.reg or 0.1, n_iter=config.n_iter, rows=way.rows or PRESETS["retrieval"])
            if way.method == "bpa"
            else FeatureSource(make_transform(way.method)(joint))
        )
        fitted = KReciprocal.fit(
            source, n_query, k1=min(config.k1, source.n - 1), k2=config.k2, lam=config.lam, power=config.power,
            all_against_all=same,
        )  # fmt: skip
        return fitted.distances(), ()
    if way.method == "bpa":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the notes go into the table
            ranking = rank(
                query, None if same else gallery, reg=way.reg or 0.1, n_iter=config.n_iter, protocol=way.protocol,
                rows=way.rows or PRESETS["retrieval"], budget=budget,
            )  # fmt: skip
        assert ranking.diagnostics is not None  # noqa: S101 - asked for
        return ranking.distances, ranking.diagnostics.notes
    made = make_transform(way.method, reg=way.reg or 0.1, solver=Sweeps(config.n_iter))
    z = made(joint)
    source = FeatureSource(z)
    first = 0 if same else n_query
    out = torch.empty(n_query, source.n - first)
    for start in range(0, n_query, 1024):
        stop = min(n_query, start + 1024)
        out[start:stop] = source.rows(start, stop)[:, first:]
    return out, ()


def _settings(way: Way, config: RetrievalConfig) -> dict[str, Any]:
    settings = {
        "way": way.name, "method": way.method, "reg": way.reg, "protocol": way.protocol,
        "rows": None if way.rows is None else asdict(way.rows), "rerank": way.rerank, "paper_row": way.paper_name,
        "n_iter": config.n_iter, "average_precision": config.average_precision,
    }  # fmt: skip
    if way.rerank:
        settings |= {"k1": config.k1, "k2": config.k2, "lam": config.lam, "power": config.power}
    return settings


def _record(
    task: QueryGallery,
    settings: dict[str, Any],
    data: dict[str, Any],
    distances: Tensor,
    notes: tuple[str, ...],
    config: RetrievalConfig,
    seconds: float,
) -> RunRecord:
    cameras = task.cameras
    values = distances.numpy()
    scores = evaluate_ranking(
        values, task.ids[task.query], task.ids[task.gallery],
        None if cameras is None else cameras[task.query], None if cameras is None else cameras[task.gallery],
        self_index=task.self_index, average_precision=config.average_precision,
    )  # fmt: skip
    hubs = hubness(values, self_index=task.self_index)
    first = np.where(np.isnan(scores.average_precision), np.nan, scores.first_rank == 1)
    return RunRecord(
        study="retrieval",
        config=settings,
        data=data,
        values={"average_precision": scores.average_precision.tolist(), "rank_1": first.tolist()},
        summary={
            **scores.summary(),
            "S_10": hubs.skewness,
            "never_in_top_10": hubs.never,
            "notes": list(notes),
        },
        environment=describe_environment(),
        seconds=seconds,
    )


def retrieval_table(records: Sequence[RunRecord], *, against: str = "unit") -> Table:
    """One row a way: scores in percent, the paired difference to plain cosine, hubness, and the paper's numbers.

    Parameters
    ----------
    records : sequence of RunRecord
        From :func:`run_retrieval`.
    against : str
        Name of the way to compare with.

    Returns
    -------
    Table
    """
    reference = next((r for r in records if r.config["way"] == against), None)
    dataset = records[0].data.get("dataset")
    shown = any(paper_row(dataset, r.config["paper_row"] or "") for r in records)
    columns = [
        "ranking",
        "protocol",
        "mAP",
        "Rank-1",
        "Rank-5",
        "Rank-10",
        "mINP",
        f"mAP over {against}",
        "S_10",
    ]
    rows = []
    notes = []
    for record in records:
        s = record.summary
        values = np.asarray(record.values["average_precision"])
        counted = ~np.isnan(values)
        gain = None
        if reference is not None and record is not reference:
            base = np.asarray(reference.values["average_precision"])
            gain = paired_difference(100 * values[counted], 100 * base[counted])
        row: list[Any] = [
            record.config["way"],
            record.config["protocol"],
            mean_interval(100 * values[counted]),
            *(100 * s[f"Rank-{k}"] if f"Rank-{k}" in s else None for k in (1, 5, 10)),
            100 * s["mINP"],
            gain,
            s["S_10"],
        ]
        if shown:
            paper = paper_row(dataset, record.config["paper_row"] or "")
            row += [None if paper is None else f"{paper[0]} / {paper[1]}"]
        rows.append(row)
        notes += [f"{record.config['way']}: {note}" for note in s.get("notes", [])]
        if s["n_tied"]:
            notes.append(
                f"{record.config['way']}: Rank-1 of {s['n_tied']} queries depends on how ties are broken."
            )
    first = records[0]
    d = first.data
    title = f"Retrieval on {d['source'] or 'a feature set'}: {d['n_query']} queries, {d['n_gallery']} gallery items"
    about = (
        f"Single query, {'items of the same camera deleted' if d['cameras'] else 'no cameras'}; average precision: "
        f"{first.summary['average_precision']}; {first.summary['n_counted']} queries counted, "
        f"{first.summary['n_empty']} without a relevant item; ± is the 95 % interval over queries; S_10 is hubness."
    )
    if shown:
        columns.append("paper (mAP / Rank-1)")
        about += " Judge by the gain over the baseline with the same features; the paper's checkpoints are not public."
    return Table(title, columns, rows, [about, *notes])
