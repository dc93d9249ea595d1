"""The inputs of the goldens, made by a rule that shares no code with the library.

Every array comes from ``numpy.random.RandomState``, the one generator whose stream numpy promises never to change, and
from elementary arithmetic. `checksums` is stored beside the goldens: a number that differs because its input differs
is seen as such.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def stream(*words: object) -> np.random.RandomState:
    """The random stream that belongs to these words."""
    return np.random.RandomState(zlib.crc32(repr(words).encode()))


def classes(n: int, n_classes: int) -> NDArray[np.int64]:
    """Labels 0, 1, …, 0, 1, …: every class about as often."""
    return np.arange(n, dtype=np.int64) % n_classes


def points(
    n: int,
    d: int,
    *,
    batch: Sequence[int] = (),
    n_classes: int = 5,
    noise: float = 0.7,
    shift: float = 0.3,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Points (..., n, d) around class centres, a little to one side of the origin; item i is of class i mod classes."""
    rng = stream("points", n, d, tuple(batch), seed)
    centres = rng.standard_normal((*batch, n_classes, d))
    out: NDArray[np.float64] = (
        centres[..., classes(n, n_classes), :] + noise * rng.standard_normal((*batch, n, d)) + shift
    )
    return out


def tensor(array: NDArray[np.float64], precision: str = "float64") -> Tensor:
    """The array as a tensor of this number type."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(TYPES[precision])


def features(n: int, d: int, *, precision: str = "float64", **rule: object) -> Tensor:
    """`points` as a tensor."""
    return tensor(points(n, d, **rule), precision)  # type: ignore[arg-type]


def weights(shape: Sequence[int], precision: str = "float64") -> Tensor:
    """Fixed random weights: what a result is multiplied with before its sum is differentiated."""
    return tensor(stream("weights", tuple(shape)).standard_normal(tuple(shape)), precision)


def costs(n: int, *, batch: Sequence[int] = (), symmetric: bool = True) -> Tensor:
    """Costs (..., n, n) in 0 … 2 that no features gave."""
    raw = stream("costs", n, tuple(batch)).uniform(0, 2, (*batch, n, n))
    return tensor((raw + raw.swapaxes(-1, -2)) / 2 if symmetric else raw)


def logarithmic_cost(x: Tensor) -> Tensor:
    """A cost of one's own, for ``cost=callable``: log(1 + squared distance)."""
    return (x[..., :, None, :] - x[..., None, :, :]).square().sum(dim=-1).log1p()


def mask(n: int, batch: Sequence[int] = ()) -> Tensor:
    """True at the items that exist: between three quarters and all of them."""
    rng = stream("mask", n, tuple(batch))
    there = rng.uniform(size=(*batch, n)) < 0.8
    there[..., : max(2, n // 2)] = True
    return torch.from_numpy(there)


def known_labels(n: int, batch: Sequence[int] = ()) -> Tensor:
    """Classes of the first third of the items, −1 behind."""
    labels = np.where(np.arange(n) < n // 3, classes(n, 3), -1)
    return torch.from_numpy(np.broadcast_to(labels, (*batch, n)).copy())


def with_special_rows(x: Tensor) -> Tensor:
    """The set with a zero row, a repeated row, and a row of another length in the same direction."""
    x = x.clone()
    x[..., 3, :] = 0
    x[..., 5, :] = x[..., 4, :]
    x[..., 7, :] = 1e3 * x[..., 6, :]
    return x


def late(x: Tensor, count: int = 5, again: int = 2, seed: int = 9) -> Tensor:
    """New items near those of ``x`` (n, d), followed by ``again`` of ``x`` themselves."""
    noise = tensor(stream("late", tuple(x.shape), count, seed).standard_normal((count, x.shape[1]))).to(
        x.dtype
    )
    return torch.cat([x[: 3 * count : 3] + 0.4 * noise, x[11 : 11 + again]])


def query_and_gallery(
    n_query: int = 18, n_gallery: int = 70, d: int = 8, *, precision: str = "float64"
) -> tuple[Tensor, Tensor]:
    """Queries and a gallery of ten identities."""
    both = features(n_query + n_gallery, d, n_classes=10, noise=0.6, seed=4, precision=precision)
    return both[:n_query], both[n_query:]


def identities(n: int) -> NDArray[np.int64]:
    """Identity of each row of `query_and_gallery`, both sides."""
    return classes(n, 10)


def cameras(n: int) -> NDArray[np.int64]:
    """Camera of each row."""
    return (np.arange(n, dtype=np.int64) // 3) % 4


def nearest_lists(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Nearest neighbours of every item by the plain distance, the item itself left out: positions, distances."""
    distance = np.linalg.norm(x.numpy()[:, None] - x.numpy()[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    index = np.argsort(distance, axis=1, kind="stable")[:, :k]
    return torch.from_numpy(index), torch.from_numpy(np.take_along_axis(distance, index, axis=1))


def episode(
    d: int,
    *,
    batch: Sequence[int] = (3,),
    n_way: int = 5,
    n_shot: int = 2,
    n_query: int = 4,
    precision: str = "float64",
) -> tuple[Tensor, Tensor, Tensor]:
    """Few-shot tasks: support (..., L, d), its labels (..., L), query (..., Q, d); rows in no order, features ≥ 0."""
    rng = stream("episode", d, tuple(batch), n_way, n_shot, n_query)
    n_support, n_all = n_way * n_shot, n_way * (n_shot + n_query)
    centres = rng.standard_normal((*batch, n_way, d))
    labels = np.concatenate([classes(n_support, n_way), rng.permutation(classes(n_all - n_support, n_way))])
    rows = np.maximum(0, 0.8 + centres[..., labels, :] + 1.2 * rng.standard_normal((*batch, n_all, d)))
    support_labels = torch.from_numpy(np.broadcast_to(labels[:n_support], (*batch, n_support)).copy())
    return (
        tensor(rows[..., :n_support, :], precision),
        support_labels,
        tensor(rows[..., n_support:, :], precision),
    )


def probabilities(n: int, k: int, *, seed: int = 0) -> Tensor:
    """Soft cluster assignments (n, k) that follow the classes of `points`."""
    logits = 1.5 * stream("probabilities", n, k, seed).standard_normal((n, k))
    logits[np.arange(n), classes(n, k)] += 3
    return tensor(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))


def write_feature_file(
    folder: Path, *, n: int = 120, d: int = 12, n_classes: int = 8, sides: bool = False
) -> Path:
    """A feature file for a command line: features ≥ 0 and labels, with ``sides`` also cameras and is_query."""
    raw = points(n, d, n_classes=n_classes, noise=1.1, seed=6)
    arrays = {"features": np.maximum(raw + 0.5, 0).astype(np.float32), "labels": classes(n, n_classes)}
    if sides:
        arrays |= {"cameras": cameras(n), "is_query": np.arange(n) % 5 == 0}
    path = folder / ("sides.npz" if sides else "features.npz")
    np.savez(path, **arrays)
    return path


def checksums() -> dict[str, NDArray[np.float64]]:
    """A few numbers of every kind of input."""
    support, labels, query = episode(16)
    kinds = {
        "points": points(25, 6),
        "batch of points": points(12, 5, batch=(3, 2)),
        "weights": weights((4, 3)).numpy(),
        "costs": costs(20).numpy(),
        "mask": mask(25, (3,)).numpy().astype(float),
        "late": late(features(60, 8)).numpy(),
        "episode": np.concatenate([support.numpy().ravel(), labels.numpy().ravel(), query.numpy().ravel()]),
        "probabilities": probabilities(60, 5).numpy(),
    }
    return {
        name: np.array([value.size, value.sum(), np.abs(value).sum(), value.ravel()[-1]], dtype=np.float64)
        for name, value in kinds.items()
    }
