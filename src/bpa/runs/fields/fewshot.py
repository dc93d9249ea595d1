"""Few-shot tasks: every way labels the queries of the same tasks; a row is one accuracy a task."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bpa._blocks import spans
from bpa._checks import check_choice, check_count, check_names, check_positive
from bpa.data.episodes import PROTOCOLS, Protocol, draw_tasks
from bpa.errors import ArgumentError, DTypeError, MemoryBudgetError
from bpa.hosts.fewshot import PMF, VARIANTS, Prediction, ProtoNet, PTMap, PTMapSettings, powered
from bpa.metrics.fewshot import correct_counts
from bpa.metrics.intervals import mean_interval
from bpa.records import Episode, FeatureSet
from bpa.runs.engine import Part
from bpa.runs.way import Way
from bpa.transforms.contract import SetTransform
from bpa.transforms.names import FREE, NamedTransform

__all__ = ["HOSTS", "VARIANTS", "FewShot", "FewShotTask", "fewshot_ways", "task_bytes", "variant_ways"]

BLOCK = 200
"""Tasks a journal line stands for."""
CHUNK = 200
"""Tasks computed at once where the budget allows more; larger sets of buffers leave the processor's cache."""
DEFAULT_BUDGET = 10**9


@dataclass(frozen=True)
class FewShotTask:
    """Which tasks are drawn.

    Parameters
    ----------
    n_way, n_shot : int
        Classes of a task, and labelled rows a class.
    n_query : int
        Queries per class (on average, under the ``dirichlet`` protocol).
    n_tasks : int
        Number of tasks.
    protocol : {"ptmap", "balanced", "dirichlet"}
        How tasks are drawn; see `bpa.data.episodes`.
    seed : int
        Of the tasks.
    concentration : float, optional
        Of the Dirichlet distribution, 2 where it is left out; other protocols have none.
    device, dtype : str
        Where and in which precision to compute.

    Examples
    --------
    >>> FewShotTask(n_shot=5, protocol="dirichlet").concentration
    2.0
    """

    n_way: int = 5
    n_shot: int = 1
    n_query: int = 15
    n_tasks: int = 10_000
    protocol: Protocol = "ptmap"
    seed: int = 0
    concentration: float | None = None
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        for name in ("n_way", "n_shot", "n_query", "n_tasks"):
            check_count(getattr(self, name), argument=name, function="FewShotTask")
        check_choice(self.protocol, PROTOCOLS, argument="protocol", function="FewShotTask")
        check_choice(self.dtype, ("float32", "float64"), argument="dtype", function="FewShotTask")
        if self.concentration is None and self.protocol == "dirichlet":
            object.__setattr__(self, "concentration", 2.0)
        if self.concentration is not None:
            check_positive(self.concentration, argument="concentration", function="FewShotTask")
            if self.protocol != "dirichlet":
                raise ArgumentError(
                    "The 'concentration' parameter of FewShotTask belongs to protocol='dirichlet'. "
                    f"Got protocol={self.protocol!r}."
                )


# ---------------------------------------------------------------------- hosts

Host = Callable[[Episode], Prediction]


def _protonet(transform: SetTransform, _: Mapping[str, Any], device: str) -> Host:
    return ProtoNet(transform).eval().to(device)


def _pmf(transform: SetTransform, _: Mapping[str, Any], device: str) -> Host:
    return PMF(transform).eval().to(device)


def _ptmap(transform: SetTransform, settings: Mapping[str, Any], _: str) -> Host:
    given = {
        **settings,
        "relaxation": float(settings["relaxation"]),
        "nonneg": "off",
    }  # powered before: once a file
    known_pairs, oracle = given.pop("known_pairs", False), given["prior"] == "oracle"
    loop = PTMapSettings(**given | ({"prior": "uniform"} if oracle else {}))
    whole = PTMap(transform, loop).eval()

    def label(episode: Episode) -> Prediction:
        counts = torch.nn.functional.one_hot(_truth(episode), episode.n_way).sum(dim=-2) if oracle else None
        host = PTMap(_Clamped(transform, episode), loop).eval() if known_pairs else whole
        out: Prediction = host(episode, class_mass=None if counts is None else counts.to(episode.query))
        return out

    return label


class _Clamped:
    """BPA told which pairs are known: the labels of the support, and −1 for the queries behind it."""

    def __init__(self, transform: SetTransform, episode: Episode) -> None:
        self.transform: Any = transform
        unknown = torch.full(episode.query.shape[:-1], -1, device=episode.query.device, dtype=torch.int64)
        self.labels = torch.cat([episode.support_labels, unknown], dim=-1)

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        out: Tensor = self.transform(x, mask=mask, support_labels=self.labels)
        return out


_SETTINGS = ("prior", "relaxation", "nonneg", "epochs", "centre", "renormalize")
"""What of PT-MAP's settings a way holds; the others are as published."""
_PTMAP = {name: getattr(PTMapSettings(), name) for name in _SETTINGS}
HOSTS: Mapping[str, tuple[Callable[[SetTransform, Mapping[str, Any], str], Host], Mapping[str, Any]]] = {
    "protonet": (_protonet, {}),
    "ptmap": (_ptmap, _PTMAP),
    "pmf": (_pmf, {}),
    "sillnet": (_ptmap, _PTMAP),
    "ptmap-sf": (_ptmap, _PTMAP),
}
"""Host → how it is made, and the settings it has; ``sillnet`` and ``ptmap-sf`` are PT-MAP on their features."""


def fewshot_ways(
    hosts: Sequence[str] = ("ptmap",), transforms: Sequence[NamedTransform] = (), **settings: Any
) -> list[Way]:
    """Return every host with every transform.

    Parameters
    ----------
    hosts : sequence of str
        Among `HOSTS`.
    transforms : sequence of NamedTransform
        What to hand to each.
    **settings
        Of PT-MAP: ``prior`` ("uniform", "estimate", "oracle": the true counts), ``relaxation``, ``nonneg``,
        ``epochs``, ``centre``, ``renormalize``. A setting that none of the hosts has is refused.

    Returns
    -------
    list of Way

    Examples
    --------
    >>> from bpa.runs import labels
    >>> labels(fewshot_ways(("pmf", "ptmap"), [NamedTransform("bpa")], prior="estimate"))
    ['pmf, bpa', 'ptmap, bpa']
    """
    check_choice(
        settings.get("prior", "uniform"),
        ("uniform", "estimate", "oracle"),
        argument="prior",
        function="ptmap",
    )
    check_names(hosts, tuple(HOSTS), argument="hosts", function="fewshot_ways")
    unheard = set(settings)
    ways = []
    for host in hosts:
        has = HOSTS[host][1]
        own = {**has, **settings} if has else {}
        unheard -= set(own)
        ways += [Way(host, transform, own) for transform in transforms]
    if unheard:
        raise ArgumentError(
            f"The setting {min(unheard)!r} belongs to PT-MAP, which is not among the hosts {', '.join(hosts)}."
        )
    return ways


def variant_ways(variant: str, *, baselines: bool = True, host: str = "ptmap") -> list[Way]:
    """Return PT-MAP in one of its published variants: its loop, and the weights and sweeps that belong to it.

    Parameters
    ----------
    variant : str
        A name of `bpa.hosts.fewshot.VARIANTS`.
    baselines : bool
        Begin with the loop on raw, unit and centred features.
    host : {"ptmap", "sillnet", "ptmap-sf"}
        Which features they are.

    Returns
    -------
    list of Way

    Examples
    --------
    >>> way = variant_ways("reference-eval", baselines=False)[0]
    >>> way.transform.reg, str(way.transform.solver)
    (0.2, 'sweeps:10')
    """
    check_choice(variant, tuple(VARIANTS), argument="variant", function="PT-MAP")
    published = VARIANTS[variant]
    own = {name: getattr(published, name) for name in _SETTINGS}
    known = {"known_pairs": True} if published.knows_pairs else {}
    free = [NamedTransform(name) for name in FREE] if baselines else []
    weights = published.reg_grid or (published.reg,)
    bpa = [NamedTransform("bpa", reg=reg, solver=published.solver) for reg in weights]
    return [*fewshot_ways((host,), free, **own), *fewshot_ways((host,), bpa, **own, **known)]


# ---------------------------------------------------------------------- the field


class FewShot:
    """Few-shot tasks over one feature set.

    Parameters
    ----------
    features : FeatureSet
        With labels.
    budget : int, optional
        Most bytes the computation may hold at once beside the features; 1 GB when not given. No result depends on it.
    chunk : int, optional
        Tasks computed at once; by default as many as the budget and the cache take. No result depends on it.

    Examples
    --------
    >>> from bpa.data import embedded_sketches
    >>> FewShot(embedded_sketches()).parts(FewShotTask(n_tasks=1000))
    5
    """

    name = "fewshot"

    def __init__(self, features: FeatureSet, *, budget: int | None = None, chunk: int | None = None) -> None:
        if features.labels is None:
            raise ArgumentError(
                f"Few-shot tasks need labels, and {features.source or 'this set'} has none. Name them (--labels)."
            )
        if chunk is not None:
            check_count(chunk, argument="chunk", function="FewShot")
        self.features, self.budget, self.chunk = features, budget or DEFAULT_BUDGET, chunk
        self._prepared: dict[tuple[str, str, Any], Tensor] = {}

    def data(self, _: FewShotTask) -> dict[str, Any]:
        """Which file."""
        given = self.features
        return {"source": Path(given.source).name, "sha256": given.sha256, "n": len(given), "dim": given.dim}

    def parts(self, task: FewShotTask) -> int:
        """Blocks of tasks."""
        return -(-task.n_tasks // BLOCK)

    def compute(self, task: FewShotTask, missing: Mapping[Way, Sequence[int]]) -> Iterator[Part]:
        """Count the queries that every way labels rightly, block by block; all ways share the drawn rows."""
        tasks = draw_tasks(
            self.features, n_way=task.n_way, n_shot=task.n_shot, n_query=task.n_query, n_tasks=task.n_tasks,
            protocol=task.protocol, seed=task.seed, concentration=task.concentration or 2.0,
        )  # fmt: skip
        at_once = self._at_once(task)
        hosts = {way: HOSTS[way.host][0](way.transform.build(), way.settings, task.device) for way in missing}
        for block, span in enumerate(spans(task.n_tasks, BLOCK)):
            here = [way for way, blocks in missing.items() if block in blocks]
            counts: dict[Way, list[int]] = {way: [] for way in here}
            spent = dict.fromkeys(here, 0.0)
            for part in spans(span.stop - span.start, at_once) if here else ():
                drawn: dict[Any, Episode] = {}
                for way in here:
                    began = time.perf_counter()
                    nonneg = way.settings.get("nonneg")
                    if nonneg not in drawn:
                        rows = slice(span.start + part.start, span.start + part.stop)
                        drawn[nonneg] = tasks.episode(self._rows(task, nonneg), rows)
                    counts[way] += _count(hosts[way], drawn[nonneg])
                    spent[way] += time.perf_counter() - began
            for way in here:
                yield Part(way, block, counts[way], spent[way])

    def score(
        self, task: FewShotTask, _: Way, parts: Sequence[Any]
    ) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """Accuracy of every task, and its mean with the half width of its interval, in percent."""
        hits = np.concatenate([np.asarray(block, dtype=np.float64) for block in parts])
        accuracy = hits / (task.n_way * task.n_query)
        interval = mean_interval(100.0 * accuracy)
        half = None if math.isinf(interval.half_width) else interval.half_width
        return {"accuracy": accuracy.tolist()}, {
            "n_tasks": len(hits),
            "accuracy": interval.mean,
            "half_width": half,
        }

    def _rows(self, task: FewShotTask, nonneg: Any) -> Tensor:
        """The features, after PT-MAP's first step where the way has one: it acts on entries, so once a file."""
        key = (task.device, task.dtype, nonneg)
        if key not in self._prepared:
            x = torch.from_numpy(self.features.features).to(
                device=task.device, dtype=getattr(torch, task.dtype)
            )
            self._prepared[key] = powered(x, nonneg=nonneg) if nonneg is not None else x
        return self._prepared[key]

    def _at_once(self, task: FewShotTask) -> int:
        """Tasks computed at once, within the budget."""
        if self.chunk is not None:
            return self.chunk
        itemsize = 8 if task.dtype == "float64" else 4
        need = task_bytes(task.n_way, task.n_shot, task.n_query, self.features.dim, itemsize)
        if need > self.budget:
            raise MemoryBudgetError(
                f"One {task.n_way}-way {task.n_shot}-shot task needs about {need:,} bytes and the budget is "
                f"{self.budget:,}. Raise the budget, or ask for fewer ways, shots or queries."
            )
        return int(max(1, min(CHUNK, self.budget // need)))


def task_bytes(n_way: int, n_shot: int, n_query: int, dim: int, itemsize: int) -> int:
    """Estimate of the bytes one task holds at its peak: features, square matrices, and float64 plans."""
    rows = n_way * (n_shot + n_query)
    return itemsize * (8 * rows * dim + 6 * rows * rows) + 8 * 8 * n_way * n_query * n_way


@torch.no_grad()
def _count(host: Host, episode: Episode) -> list[int]:
    counts: list[int] = correct_counts(host(episode).labels, _truth(episode)).tolist()
    return counts


def _truth(episode: Episode) -> Tensor:
    if episode.query_labels is None:
        raise DTypeError("An episode without query labels cannot be scored.")
    return episode.query_labels
