"""One finished run as data, and what JSON can hold of it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bpa.errors import DTypeError, FileError


def plain(value: Any, *, keep_nonfinite: bool = False) -> Any:
    """Return ``value`` as strict JSON can hold it.

    Numpy scalars, arrays, paths, tuples, sets and dataclasses become plain; NaN becomes None and an
    infinity the text ``inf`` or ``-inf``, unless ``keep_nonfinite``. Lists of numbers are not walked in Python.
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
        simple = value.dtype.kind in "iub" or (
            value.dtype.kind == "f" and (keep_nonfinite or np.isfinite(value).all())
        )
        return value.tolist() if simple else plain(value.tolist(), keep_nonfinite=keep_nonfinite)
    if isinstance(value, np.generic):
        return plain(value.item(), keep_nonfinite=keep_nonfinite)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: plain(getattr(value, item.name), keep_nonfinite=keep_nonfinite)
            for item in fields(value)
        }
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))  # of ten thousand labels, one kind
        if kinds <= {int, bool, str, type(None)}:
            return list(value)
        if kinds <= {int, float} and (keep_nonfinite or all(map(math.isfinite, value))):
            return list(value)
        return [plain(item, keep_nonfinite=keep_nonfinite) for item in value]
    if isinstance(value, set | frozenset):
        return [plain(item, keep_nonfinite=keep_nonfinite) for item in sorted(value, key=str)]
    if isinstance(value, Path):
        return value.as_posix()
    raise DTypeError(
        f"a record holds what JSON holds (text, numbers, true/false, lists, mappings). Got {type(value).__name__}."
    )


def canonical_json(value: Any) -> str:
    """Return ``value`` as the one line of strict JSON by which two settings are compared."""
    return json.dumps(
        plain(value), sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )


def digest(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of `canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


def row_key(study: str, task: Any, way: Any, data: Any) -> str:
    """Return what a row is known by: the digest of what was asked, and of what it was asked on."""
    return digest([study, task, way, data])


@dataclass(frozen=True)
class RunRecord:
    """One finished row: what was asked, on what data, every value it gave, and what it ran on.

    Parameters
    ----------
    study : str
        The name of the study or verb the row belongs to.
    task : mapping
        What had to be done, the seed among it; its ``"field"`` says which kind of task. Rows of one task and data
        may be compared, value by value. Held as JSON holds it: tuples become lists, numpy scalars become numbers,
        paths become text, so that a record equals its own round trip.
    way : mapping
        How it was done, as `bpa.runs.way.Way.to_dict` gives it; empty for what is no way of doing a task.
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
        Wall time of the run. The only field that differs between two runs of the same row.

    Examples
    --------
    >>> made = RunRecord("demo", {"field": "toy", "seed": 0}, values={"accuracy": [0.5, 1.0]}, seconds=2.0)
    >>> again = RunRecord.from_json(made.to_json())
    >>> again.key == made.key, again.values["accuracy"]
    (True, [0.5, 1.0])
    """

    study: str
    task: dict[str, Any] = field(default_factory=dict)
    way: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("task", "way", "data", "summary", "environment"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        values = {
            str(key): np.asarray(items, dtype=np.float64).tolist() for key, items in self.values.items()
        }
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "seconds", float(self.seconds))

    @property
    def key(self) -> str:
        """What the row is known by: the digest of study, task, way and data."""
        return row_key(self.study, self.task, self.way, self.data)

    def to_dict(self, *, seconds: bool = True) -> dict[str, Any]:
        """Return what strict JSON can hold (NaN is null); ``seconds=False`` leaves the wall time out."""
        out = {item.name: plain(getattr(self, item.name)) for item in fields(self)}
        if not seconds:
            del out["seconds"]
        return out

    def to_json(self, *, seconds: bool = True) -> str:
        """Return one line of strict JSON; ``seconds=False`` leaves the wall time out."""
        return _one_line(self.to_dict(seconds=seconds))

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        """Return the record that `to_json` wrote."""
        return cls(**_read_line(text, cls))


@dataclass(frozen=True)
class RunPlan:
    """What a run was asked for, written before its first row, so that an interrupted run can be told from a whole one.

    Parameters
    ----------
    study : str
        As in its records.
    axes : tuple of str
        The fields that the study varies on purpose, first the one a chart has along its axis.
    rows : tuple of str
        `RunRecord.key` of every row, in order.

    Examples
    --------
    >>> asked = RunPlan("fewshot-sweeps", axes=("sweeps",), rows=("a", "b"))
    >>> RunPlan.from_json(asked.to_json()) == asked
    True
    """

    study: str
    axes: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))
        object.__setattr__(self, "rows", tuple(self.rows))

    def to_json(self) -> str:
        """Return one line of strict JSON."""
        return _one_line(plain(self))

    @classmethod
    def from_json(cls, text: str) -> RunPlan:
        """Return the plan that `to_json` wrote."""
        return cls(**_read_line(text, cls))


def _one_line(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _read_line(text: str, kind: type[RunRecord] | type[RunPlan]) -> dict[str, Any]:
    """Return the fields of a record or a plan from its line."""
    name = kind.__name__
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"a {name} is one line of JSON. Got text that is not: {error}.") from None
    names = {item.name for item in fields(kind)}
    if not isinstance(raw, dict) or "study" not in raw or not set(raw) <= names:
        raise FileError(f"a {name} has the fields {', '.join(sorted(names))}. Got {str(raw)[:80]}.")
    return raw
