"""One finished run as data, and what JSON can hold of it."""

from __future__ import annotations

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
