"""Retrieval: every way ranks the same gallery for the same queries; a row is one average precision a query."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bpa._blocks import spans
from bpa._checks import check_choice, check_count, check_names
from bpa.data.features import read_features
from bpa.data.reid import read_reid_features
from bpa.errors import ArgumentError
from bpa.hosts.retrieval import RANKERS, KReciprocal, estimate_rank, rank, row_source
from bpa.hosts.retrieval.sources import DistanceSource, FeatureSource
from bpa.metrics.hubs import hubness, nearest
from bpa.metrics.retrieval import AveragePrecision, Deleted, evaluate_ranking
from bpa.plans import RowComparison
from bpa.plans._comparison import PRESETS
from bpa.records import FeatureSet, QueryGallery
from bpa.runs.engine import Part
from bpa.runs.way import Way, transforms_asked
from bpa.solvers._choice import Solver
from bpa.transforms.names import FREE, NamedTransform, Reg

__all__ = [
    "HOSTS",
    "PRESETS",
    "PROTOCOLS",
    "Retrieval",
    "RetrievalTask",
    "draw_identities",
    "memory_line",
    "ranked_ways",
    "read_task",
    "retrieval_ways",
]

PROTOCOLS = ("joint", "frozen", "per-query")
HOSTS = ("nearest", *(name for name in RANKERS if name != "cosine"))
"""``nearest`` ranks by the distance of the transform's rows; ``k-reciprocal`` re-ranks these; the others are methods
that a user could take instead, on unit features."""


@dataclass(frozen=True)
class RetrievalTask:
    """How rankings are judged, and which draw of the set is ranked.

    Parameters
    ----------
    average_precision : {"finite-sum", "trapezoid", "scikit-learn"}
        Definition of average precision.
    deleted : {"identity-camera", "camera"}
        What of the gallery a query does not see: items of its identity *and* camera, or all of its camera.
    identities, each : int, optional
        Draw so many identities, and at most so many items of each; all where they are left out.
    seed : int, optional
        Of the draw.
    dtype : {"float32", "float64"}
        In which precision to compute.

    Examples
    --------
    >>> RetrievalTask().deleted
    'identity-camera'
    """

    average_precision: AveragePrecision = "finite-sum"
    deleted: Deleted = "identity-camera"
    identities: int | None = None
    each: int | None = None
    seed: int | None = None
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        for name in ("identities", "each"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), argument=name, function="RetrievalTask")
        check_choice(self.dtype, ("float32", "float64"), argument="dtype", function="RetrievalTask")


def retrieval_ways(
    hosts: Sequence[str] = ("nearest",),
    transforms: Sequence[str] = ("bpa",),
    *,
    reg: Sequence[Reg] = (),
    solver: Sequence[Solver] = (),
    rows: Sequence[RowComparison] = (PRESETS["retrieval"],),
    protocols: Sequence[str] = ("joint",),
    baselines: bool = True,
    k1: int = 20,
    k2: int = 6,
    lam: float = 0.3,
    power: Literal[2, 4] = 2,
) -> list[Way]:
    """Return every ranking that was asked for, the plain features first.

    Parameters
    ----------
    hosts : sequence of str
        Among `HOSTS`.
    transforms : sequence of str
        For ``nearest`` and ``k-reciprocal``.
    reg, solver, baselines
        As in `bpa.runs.way.transforms_asked`.
    rows : sequence of RowComparison
        How rows of W are compared.
    protocols : sequence of str
        Of BPA: ``"joint"``, ``"frozen"``, ``"per-query"``. Re-ranking is joint.
    k1, k2, lam, power
        Of the re-ranking.

    Returns
    -------
    list of Way
        Each once.

    Examples
    --------
    >>> from bpa.runs import labels
    >>> labels(retrieval_ways(("nearest", "csls"), baselines=False))
    ['nearest, bpa', 'csls']
    """
    check_names(hosts, HOSTS, argument="hosts", function="retrieval_ways")
    check_names(protocols, PROTOCOLS, argument="protocols", function="retrieval_ways")
    named = transforms_asked(transforms, reg=reg, solver=solver, baselines=baselines)
    strange = [t for t in named if t.name == "bpa" and (t.cost or t.unscaled or t.diagonal is not None)]
    if strange:
        raise ArgumentError(f"A ranking by bpa has a stretched plan with unit diagonal. Got {strange[0]!r}.")
    compared = [{"rows": asdict(one)} for one in rows]
    again = {"k1": k1, "k2": k2, "lam": lam, "power": power}
    ways = [Way("nearest", transform) for transform in named if baselines and transform.name in FREE]
    for host in hosts:
        if host == "nearest":
            for transform in named:
                asked = [{**how, "protocol": protocol} for protocol in protocols for how in compared]
                ways += [Way(host, transform, own) for own in (asked if transform.name == "bpa" else [{}])]
        elif host == "k-reciprocal":
            for transform in named:
                own = compared if transform.name == "bpa" else [{}]
                ways += [Way(host, transform, {**how, **again}) for how in own]
        else:
            ways.append(Way(host, NamedTransform("identity")))
    return list(dict.fromkeys(ways))


class Retrieval:
    """Retrieval over one task, or over draws from one feature set.

    Parameters
    ----------
    given : QueryGallery or FeatureSet
        The task; or a set with labels, from which each `RetrievalTask` draws its own.
    sha256 : str
        Checksum of the file.
    dataset : str, optional
        Name of the set, where its file gives one.
    budget : str or int, optional
        Bytes a ranking may hold.
    every_query : bool
        Keep the average precision of every query; otherwise only their mean, for grids of many draws.

    Examples
    --------
    >>> from bpa.data import embedded_sketches
    >>> field = Retrieval(embedded_sketches())
    >>> field.data(RetrievalTask(identities=5, each=4, seed=0))["n"]
    20
    """

    name = "retrieval"

    def __init__(
        self,
        given: QueryGallery | FeatureSet,
        *,
        sha256: str = "",
        dataset: str | None = None,
        budget: str | int | None = None,
        every_query: bool = True,
    ) -> None:
        self.given, self.dataset, self.budget, self.every_query = given, dataset, budget, every_query
        self.sha256 = given.sha256 if isinstance(given, FeatureSet) else sha256
        self._drawn: tuple[RetrievalTask, QueryGallery] | None = None

    def task(self, asked: RetrievalTask) -> QueryGallery:
        """The task itself, drawn where there is something to draw."""
        if asked.deleted == "camera" and self.given.cameras is None:
            raise ArgumentError(
                f"deleted='camera' needs the camera of every item; {self.given.source or 'this set'} has no cameras."
            )
        if isinstance(self.given, QueryGallery):
            return self.given
        if self._drawn is None or self._drawn[0] != asked:
            drawn = draw_identities(self.given, asked.identities, each=asked.each, seed=asked.seed or 0)
            self._drawn = (asked, drawn)
        return self._drawn[1]

    def data(self, asked: RetrievalTask) -> dict[str, Any]:
        """Which file, and how many items on each side."""
        task = self.task(asked)
        return {
            "source": Path(task.source).name, "sha256": self.sha256, "n": len(task.features),
            "dim": task.features.shape[1], "n_query": len(task.query), "n_gallery": len(task.gallery),
            "cameras": task.cameras is not None, **({} if self.dataset is None else {"dataset": self.dataset}),
        }  # fmt: skip

    def parts(self, _: RetrievalTask) -> int:
        """One ranking."""
        return 1

    def compute(self, asked: RetrievalTask, missing: Mapping[Way, Sequence[int]]) -> Iterator[Part]:
        """Rank and judge, one way after the other."""
        task = self.task(asked)
        for way in missing:
            began = time.perf_counter()
            distances, notes = self.distances(asked, way)
            values, summary = _judged(task, asked, distances.numpy())
            if not self.every_query:
                values = {key: [float(np.nanmean(items))] for key, items in values.items()}
            found = {"values": values, "summary": {**summary, "notes": list(notes)}}
            yield Part(way, 0, found, time.perf_counter() - began)

    def score(
        self, _asked: RetrievalTask, _way: Way, parts: Sequence[Any]
    ) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """Average precision and Rank-1 of every query (NaN without a relevant item), and what tables show."""
        return parts[0]["values"], parts[0]["summary"]

    def distances(self, asked: RetrievalTask, way: Way) -> tuple[Tensor, tuple[str, ...]]:
        """Distances of every query to the gallery, and what the diagnostics had to say.

        Returns
        -------
        distances : Tensor, shape (n_query, n_gallery)
        notes : tuple of str
        """
        task = self.task(asked)
        x = torch.from_numpy(task.features).to(getattr(torch, asked.dtype))
        query, gallery = x[task.query], x[task.gallery]
        same = _is_all_against_all(task)
        if way.host not in ("nearest", "k-reciprocal"):
            return -RANKERS[way.host](query, None if same else gallery), ()
        joint = query if same else torch.cat([query, gallery])
        if way.host == "k-reciprocal":
            settings = way.settings
            source = _source(joint, way)
            fitted = KReciprocal.fit(
                source, len(query), k1=min(settings["k1"], source.n - 1), k2=settings["k2"], lam=settings["lam"],
                power=settings["power"], all_against_all=same,
            )  # fmt: skip
            return fitted.distances(), ()
        if way.transform.name != "bpa":
            source = _source(joint, way)
            first = 0 if same else len(query)
            out = torch.empty(len(query), source.n - first, dtype=x.dtype)
            for rows in spans(len(query), 1024):
                out[rows] = source.rows(rows)[:, first:]
            return out, ()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the notes go into the record
            found = rank(
                query, None if same else gallery, reg=_reg(way), solver=_solver(way),
                protocol=way.settings["protocol"], rows=RowComparison(**way.settings["rows"]), budget=self.budget,
            )  # fmt: skip
        assert found.diagnostics is not None  # noqa: S101 - asked for
        return found.distances, found.diagnostics.notes

    def top(self, asked: RetrievalTask, way: Way, *, top: int = 10) -> list[list[int]]:
        """Every query's first gallery items: rows of the joint set, what the protocol deletes left out."""
        task = self.task(asked)
        distances = self.distances(asked, way)[0].numpy().copy()
        gone = task.query[:, None] == task.gallery[None]
        if task.cameras is not None:
            gone |= task.cameras[task.query][:, None] == task.cameras[task.gallery][None]
            if asked.deleted == "identity-camera":
                gone &= task.ids[task.query][:, None] == task.ids[task.gallery][None]
        distances[gone | (task.ids[task.gallery] == -1)[None]] = np.inf
        order = nearest(distances, top)
        return [task.gallery[row[np.isfinite(distances[i, row])]].tolist() for i, row in enumerate(order)]


def ranked_ways(ways: Sequence[Way]) -> list[Way]:
    """Return the two ways whose answers are shown side by side: unit features, and BPA, by the rule where it ran."""
    bpa = [way for way in ways if way.host == "nearest" and way.transform.name == "bpa"]
    ruled = [way for way in bpa if way.transform.reg == "auto"]
    return [Way("nearest", NamedTransform("unit")), *(ruled or bpa)[:1]]


def draw_identities(
    features: FeatureSet, n_identities: int | None, *, each: int | None, seed: int
) -> QueryGallery:
    """Draw a retrieval task of random identities with at most ``each`` items, every item querying the others.

    Parameters
    ----------
    features : FeatureSet
        With labels. A set that names its queries is taken whole.
    n_identities, each : int or None
        None keeps all.
    seed : int

    Returns
    -------
    QueryGallery
    """
    if features.is_query is not None and not (n_identities is None and each is None):
        raise ArgumentError(
            f"{features.source or 'This set'} names its queries and is ranked whole. Leave out the size of a draw."
        )
    if features.is_query is not None or features.labels is None:
        return QueryGallery.from_features(features)  # says what is missing
    generator = np.random.default_rng(seed)
    names = np.unique(features.labels)
    if n_identities is not None and n_identities < len(names):
        names = generator.choice(names, n_identities, replace=False)
    rows = []
    for name in np.sort(names):
        own = np.flatnonzero(features.labels == name)
        rows.append(np.sort(generator.permutation(own)[:each]) if each is not None else own)
    return QueryGallery.from_features(features.select(np.concatenate(rows)))


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


def memory_line(task: QueryGallery, ways: Sequence[Way], budget: str | int | None = None) -> str:
    """Say how much memory the largest ranking by BPA will hold, before it is allocated; nothing where there is none."""
    estimates = [
        estimate_rank(
            len(task.query), len(task.gallery), task.features.shape[1], protocol=way.settings["protocol"],
            rows=RowComparison(**way.settings["rows"]), budget=budget, all_against_all=_is_all_against_all(task),
        )
        for way in ways
        if "protocol" in way.settings
    ]  # fmt: skip
    return max(estimates, key=lambda estimate: estimate.total).text() if estimates else ""


# ---------------------------------------------------------------------- one ranking


def _is_all_against_all(task: QueryGallery) -> bool:
    return len(task.query) == len(task.gallery) and bool(np.array_equal(task.query, task.gallery))


def _source(joint: Tensor, way: Way) -> DistanceSource:
    """Distances between the rows that the transform makes of the joint set."""
    if way.transform.name == "bpa":
        return row_source(
            joint, reg=_reg(way), solver=_solver(way), rows=RowComparison(**way.settings["rows"])
        )
    return FeatureSource(way.transform.build()(joint))


def _reg(way: Way) -> Reg:
    assert way.transform.reg is not None  # noqa: S101 - bpa has one
    return way.transform.reg


def _solver(way: Way) -> Solver:
    assert way.transform.solver is not None  # noqa: S101 - bpa has one
    return way.transform.solver


def _judged(
    task: QueryGallery, asked: RetrievalTask, distances: np.ndarray
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    cameras = task.cameras
    scores = evaluate_ranking(
        distances, task.ids[task.query], task.ids[task.gallery],
        None if cameras is None else cameras[task.query], None if cameras is None else cameras[task.gallery],
        self_index=task.self_index, average_precision=asked.average_precision, deleted=asked.deleted,
    )  # fmt: skip
    hubs = hubness(distances, self_index=task.self_index)
    first = np.where(np.isnan(scores.average_precision), np.nan, scores.first_rank == 1)
    values = {"average_precision": scores.average_precision.tolist(), "rank_1": first.tolist()}
    return values, {**scores.summary(), "S_10": hubs.skewness, "never_in_top_10": hubs.never}
