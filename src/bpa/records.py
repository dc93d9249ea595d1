"""The nouns that cross rooms; nothing here computes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bpa.errors import ArgumentError, DTypeError, FileError, ShapeError


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Stored features with what is known about each row.

    Parameters
    ----------
    features : ndarray, shape (n, d), float32
        One row per item.
    labels : ndarray, shape (n,), int64, optional
        The class (or identity) of each row; any integers.
    class_names : tuple of str, optional
        Name of class ``c`` at position ``c``.
    cameras : ndarray, shape (n,), int64, optional
        The view each row was taken from.
    images : ndarray, shape (n, height, width[, channels]), uint8, optional
        The pictures behind the rows.
    is_query : ndarray, shape (n,), bool, optional
        True at the rows that query, false at the gallery.
    splits : ndarray, shape (n,), str, optional
        Name of the split of each row.
    source, sha256 : str
        Where the rows were read from, and the checksum of that file.
    """

    features: np.ndarray
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    cameras: np.ndarray | None = None
    images: np.ndarray | None = None
    is_query: np.ndarray | None = None
    splits: np.ndarray | None = None
    source: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        """Check once that all fields speak of the same rows."""
        shape = np.shape(self.features)
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 1:
            raise ShapeError(
                f"The 'features' of FeatureSet must have shape (n, d) with n, d ≥ 1. Got {shape}."
            )
        if self.features.dtype != np.float32:
            raise DTypeError(f"The 'features' of FeatureSet must be float32. Got {self.features.dtype}.")
        for name in ("labels", "cameras", "images", "is_query", "splits"):
            value = getattr(self, name)
            if value is not None and len(value) != shape[0]:
                raise ShapeError(
                    f"The {name!r} of FeatureSet must have one entry per row, {shape[0]}. Got {len(value)}."
                )
        if self.labels is not None and self.labels.dtype != np.int64:
            raise DTypeError(f"The 'labels' of FeatureSet must be int64. Got {self.labels.dtype}.")

    def __len__(self) -> int:
        return int(self.features.shape[0])

    @property
    def dim(self) -> int:
        """Width of a row."""
        return int(self.features.shape[1])

    def name_of(self, label: int) -> str:
        """Name of a class: its entry of ``class_names`` where there is one, else the number."""
        if self.class_names is not None and 0 <= label < len(self.class_names):
            return self.class_names[label]
        return str(label)

    def select(self, rows: np.ndarray) -> FeatureSet:
        """The set restricted to ``rows`` (indices or a boolean mask), in that order."""

        def of(value: np.ndarray | None) -> np.ndarray | None:
            return None if value is None else value[rows]

        return replace(
            self,
            features=self.features[rows],
            labels=of(self.labels),
            cameras=of(self.cameras),
            images=of(self.images),
            is_query=of(self.is_query),
            splits=of(self.splits),
        )

    def of_split(self, name: str) -> FeatureSet:
        """The rows of one named split."""
        if self.splits is None:
            raise ArgumentError(
                f"The split {name!r} was asked of {self.source or 'a set'}, which names no splits."
            )
        rows = self.splits == name
        if not rows.any():
            known = ", ".join(sorted(set(self.splits.tolist())))
            raise ArgumentError(f"The split {name!r} is not in {self.source or 'this set'}; it has {known}.")
        return self.select(rows)


@dataclass(frozen=True, eq=False)
class Episode:
    """One few-shot task, or a batch of them: labelled rows, rows to label, and the labels as data.

    Parameters
    ----------
    support : Tensor, shape (..., L, d)
        Labelled rows, in any order.
    support_labels : Tensor, shape (..., L), int64
        Class of each labelled row, in ``0 .. n_way - 1``.
    query : Tensor, shape (..., Q, d)
        Rows to label, in any order.
    n_way : int
        Number of classes.
    query_labels : Tensor, shape (..., Q), int64, optional
        The truth, where it is known.
    support_mask, query_mask : Tensor, shape (..., L) and (..., Q), bool, optional
        True at the rows that exist, for tasks padded to one size.
    """

    support: Tensor
    support_labels: Tensor
    query: Tensor
    n_way: int
    query_labels: Tensor | None = None
    support_mask: Tensor | None = None
    query_mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class QueryGallery:
    """Who asks, and among whom: the two sides of a retrieval task over one set of rows.

    An item may be on both sides (every item queries the others); it is then one item of the joint set and is
    never ranked for itself.

    Parameters
    ----------
    features : ndarray, shape (n, d), float32
        One row per item of the joint set.
    query, gallery : ndarray of int64, shape (n_query,), (n_gallery,)
        Rows of ``features``, without repeats on a side.
    ids : ndarray, shape (n,), int64
        Identity of each row; −1 is junk, neither right nor wrong.
    cameras : ndarray, shape (n,), int64, optional
        The view each row was taken from.
    source : str
        Where the rows came from.
    """

    features: np.ndarray
    query: np.ndarray
    gallery: np.ndarray
    ids: np.ndarray
    cameras: np.ndarray | None = None
    source: str = ""

    def __post_init__(self) -> None:
        """Check once that both sides speak of the same rows."""
        shape = np.shape(self.features)
        if len(shape) != 2 or shape[1] < 1:
            raise ShapeError(f"The 'features' of QueryGallery must have shape (n, d). Got {shape}.")
        for name in ("ids", "cameras"):
            value = getattr(self, name)
            if value is not None and np.shape(value) != (shape[0],):
                raise ShapeError(
                    f"The {name!r} of QueryGallery must have one entry per row, {shape[0]}. Got "
                    f"{np.shape(value)}."
                )
        for name in ("query", "gallery"):
            rows = getattr(self, name)
            if np.ndim(rows) != 1 or len(rows) == 0 or rows.min() < 0 or rows.max() >= shape[0]:
                raise ShapeError(
                    f"The {name!r} of QueryGallery must be a vector of at least one row number in "
                    f"0..{shape[0] - 1}. "
                    f"Got shape {np.shape(rows)}."
                )
            if len(np.unique(rows)) != len(rows):
                raise ArgumentError(f"The {name!r} of QueryGallery must not repeat a row.")

    @property
    def self_index(self) -> np.ndarray | None:
        """Gallery position of each query itself (−1: not there); None when the sides share no item."""
        position = np.full(len(self.features), -1, dtype=np.int64)
        position[self.gallery] = np.arange(len(self.gallery))
        own: np.ndarray = position[self.query]
        return own if (own >= 0).any() else None

    @classmethod
    def from_features(cls, features: FeatureSet) -> QueryGallery:
        """Take the sides from ``is_query``; without it every item queries all the others."""
        if features.labels is None:
            raise ArgumentError(
                f"retrieval needs an identity per row, and {features.source or 'this set'} has no labels; "
                "name the array that holds them (--labels)."
            )
        everyone = np.arange(len(features), dtype=np.int64)
        query, gallery = everyone, everyone
        if features.is_query is not None:
            query, gallery = everyone[features.is_query], everyone[~features.is_query]
        return cls(
            features=features.features,
            query=query,
            gallery=gallery,
            ids=features.labels,
            cameras=features.cameras,
            source=features.source,
        )


def plain(value: Any, *, keep_nonfinite: bool = False) -> Any:
    """Return ``value`` as strict JSON can hold it.

    Numpy scalars, arrays, paths, tuples, sets and dataclasses become plain; NaN becomes None and an
    infinity the text ``inf`` or ``-inf``, unless ``keep_nonfinite``.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if keep_nonfinite or math.isfinite(value):
            return float(value)
        return None if math.isnan(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item, keep_nonfinite=keep_nonfinite) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), keep_nonfinite=keep_nonfinite)
    if isinstance(value, np.generic):
        return plain(value.item(), keep_nonfinite=keep_nonfinite)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: plain(getattr(value, item.name), keep_nonfinite=keep_nonfinite)
            for item in fields(value)
        }
    if isinstance(value, list | tuple):
        return [plain(item, keep_nonfinite=keep_nonfinite) for item in value]
    if isinstance(value, set | frozenset):
        return [plain(item, keep_nonfinite=keep_nonfinite) for item in sorted(value, key=str)]
    if isinstance(value, Path):
        return value.as_posix()
    raise DTypeError(
        "a record holds what JSON holds (text, numbers, true/false, lists, mappings). "
        f"Got {type(value).__name__}."
    )


@dataclass(frozen=True)
class RunRecord:
    """One finished run: what was asked, on what data, every value it gave, and what it ran on.

    Parameters
    ----------
    study : str
        The name of the study the run belongs to.
    config : mapping
        Every setting that changes a number, the seed among them. Held as JSON holds it: tuples become lists,
        numpy scalars become numbers, paths become text, so that a record equals its own round trip.
    data : mapping
        What the run read: source, checksum, number of items, and so on.
    values : mapping of str to list of float
        The per-episode (or per-query, per-repeat …) values behind the summary. NaN stands for "not defined
        here".
    summary : mapping
        What a table shows: means, half widths, counts.
    environment : mapping
        Versions and machine, as `bpa.runs.environment.describe_environment` gives them.
    seconds : float
        Wall time of the run. The only field that differs between two runs of the same configuration.
    """

    study: str
    config: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("config", "data", "summary", "environment"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        values = {
            str(key): [math.nan if item is None else float(item) for item in items]
            for key, items in self.values.items()
        }
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "seconds", float(self.seconds))

    def to_dict(self, *, seconds: bool = True) -> dict[str, Any]:
        """Return what strict JSON can hold (NaN is null); ``seconds=False`` leaves the wall time out."""
        out = {item.name: plain(getattr(self, item.name)) for item in fields(self)}
        if not seconds:
            del out["seconds"]
        return out

    def to_json(self, *, seconds: bool = True) -> str:
        """Return one line of strict JSON; ``seconds=False`` leaves the wall time out."""
        return json.dumps(
            self.to_dict(seconds=seconds),
            allow_nan=False,
            ensure_ascii=False,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        """Return the record that `to_json` wrote."""
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise FileError(f"a RunRecord is one line of JSON. Got text that is not: {error}.") from None
        names = {item.name for item in fields(cls)}
        if not isinstance(raw, dict) or "study" not in raw or not set(raw) <= names:
            raise FileError(f"a RunRecord has the fields {', '.join(sorted(names))}. Got {str(raw)[:80]}.")
        return cls(**raw)


@dataclass(frozen=True, eq=False)
class Balance:
    """A balanced plan, the scalings that make it, and for every set of the batch how balanced it is.

    Parameters
    ----------
    plan : Tensor, shape (..., n, m)
        diag(u) K diag(v). Its column sums are exact after alternating sweeps, its row sums nearly.
    log_u, log_v : Tensor, shapes (..., n) and (..., m)
        Logarithms of the scalings; equal for the symmetric solver.
    n_iter : Tensor, shape (...), int64
        Sweeps done, or products with K spent by the symmetric solver.
    marginal_error : Tensor, shape (...)
        Largest relative error of a row sum.
    converged : Tensor, shape (...), bool, or None
        Whether the tolerance was reached; None where none was asked for.
    reg : float, optional
        The entropy weight that turned a cost into K.
    """

    plan: Tensor
    log_u: Tensor
    log_v: Tensor
    n_iter: Tensor
    marginal_error: Tensor
    converged: Tensor | None = None
    reg: float | None = None
