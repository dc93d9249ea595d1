"""The paper's claims: published numbers as data, and one comparison of what a run found with them.

A claim belongs to a *set*, the paper's name for the features it was measured on, and holds for the rows whose fields
are what it says. Nothing here knows whether features are the paper's: that is the user's word (no checksum of the
paper's files is known), and without it only gains may be compared, because another network's features have another
level.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from bpa.errors import ArgumentError
from bpa.metrics.intervals import Interval, mean_interval, paired_difference
from bpa.records import RunRecord
from bpa.records.runs import plain
from bpa.runs.way import Way

__all__ = ["Claim", "Comparison", "check", "claims", "compare", "sets"]

_SHAPE = ("values", "width", "weights_of", "unscaled", "diagonal", "cost", "self_included")
"""Settings of a transform that a claim has as well, or not at all."""


@dataclass(frozen=True)
class Claim:
    """One published number.

    Parameters
    ----------
    set : str
        The paper's name for the features.
    field : str
        Which kind of task.
    score : str
        The key of the values it is the mean of.
    where : mapping
        What the flat fields of a row's task and way have to be.
    value : float
        In percent.

    Examples
    --------
    >>> claim = next(c for c in claims() if c.set == "miniimagenet-wrn" and c.where["transform"] == "bpa")
    >>> claim.where["host"], claim.where["n_shot"], claim.value
    ('ptmap', 1, 83.19)
    """

    set: str
    field: str
    score: str
    where: Mapping[str, Any]
    value: float

    def holds_for(self, task: Mapping[str, Any], way: Way) -> bool:
        """Whether a way of doing a task is what the number was published for."""
        fields = {**task, **way.fields()}
        same = all(_without_none(fields.get(key)) == value for key, value in self.where.items())
        return (
            same
            and task["field"] == self.field
            and all(fields.get(key) == self.where.get(key) for key in _SHAPE)
        )


@dataclass(frozen=True)
class Comparison:
    """A claim beside what a run found.

    Parameters
    ----------
    claim : Claim
        What was published.
    record : RunRecord
        The row.
    ours : Interval
        Its mean, in percent.
    difference : float
        Ours minus the paper's; says something only about the paper's own features.
    paper_gain : float or None
        The paper's gain over raw features in the same host; None for raw features.
    our_gain : Interval or None
        Ours, paired.

    Examples
    --------
    >>> task = {"field": "fewshot", "n_way": 5, "n_shot": 1, "n_query": 15, "protocol": "ptmap"}
    >>> way = {"host": "protonet", "transform": {"name": "identity"}, "settings": {}}
    >>> record = RunRecord("fewshot", task, way, values={"accuracy": [0.6, 0.7]})
    >>> round(compare([record], "miniimagenet-resnet12")[0].difference, 2)
    2.61
    """

    claim: Claim
    record: RunRecord
    ours: Interval
    difference: float
    paper_gain: float | None
    our_gain: Interval | None


@cache
def claims() -> tuple[Claim, ...]:
    """Return every claim there is.

    Examples
    --------
    >>> sorted({claim.field for claim in claims()})
    ['fewshot', 'retrieval']
    """
    out: list[Claim] = []
    files = resources.files("bpa.paper").joinpath("claims").iterdir()
    for file in sorted((file for file in files if file.name.endswith(".toml")), key=lambda file: file.name):
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        for row in raw["claims"]:
            given = {k: v for k, v in row.items() if k not in ("set", "score", "value")}
            implied: dict[str, Any] = {}
            for key, by_value in raw.get("implied", {}).items():
                implied |= by_value.get(given.get(key), {})
            where = {**raw["everywhere"], **implied, **given}
            out.append(
                Claim(
                    row["set"], raw["field"], row.get("score", raw.get("score")), where, float(row["value"])
                )
            )
    return tuple(out)


def sets(field: str | None = None) -> tuple[str, ...]:
    """Return the names of the sets the paper has numbers for, of one field or of all.

    Examples
    --------
    >>> sets("retrieval")
    ('cuhk03-detected', 'cuhk03-labeled', 'market1501')
    """
    return tuple(dict.fromkeys(claim.set for claim in claims() if field in (None, claim.field)))


def check(name: str, field: str, grid: Sequence[tuple[Any, Sequence[Way]]]) -> None:
    """Refuse a set the paper has no numbers for, and a grid of which it has no row, before anything is computed.

    Parameters
    ----------
    name : str
        A set of `sets`.
    field : str
        Which kind of task.
    grid : sequence of (task, ways)
        As `bpa.runs.run` takes it.

    Examples
    --------
    >>> check("imagenet", "fewshot", [])
    Traceback (most recent call last):
    ...
    bpa.errors.ArgumentError: The paper has no numbers for 'imagenet'; it has ...
    """
    mine = [claim for claim in claims() if claim.set == name]
    if not mine:
        raise ArgumentError(f"The paper has no numbers for {name!r}; it has {', '.join(sets())}.")
    rows = (({"field": field, **plain(task)}, way) for task, ways in grid for way in ways)
    if not any(claim.holds_for(task, way) for task, way in rows for claim in mine):
        said = ", ".join(
            f"{key} {value}" for key, value in mine[-1].where.items() if not isinstance(value, Mapping)
        )
        raise ArgumentError(
            f"None of these rows is one the paper has for {name!r}; one that it has is {said}."
        )


def compare(records: Sequence[RunRecord], name: str) -> list[Comparison]:
    """Put every row beside the claim that holds for it.

    Parameters
    ----------
    records : sequence of RunRecord
        Of one run.
    name : str
        A set of `sets`.

    Returns
    -------
    list of Comparison
        In the order of the claims; rows the paper does not have are left out.

    Examples
    --------
    >>> compare([], "miniimagenet-wrn")
    []
    """
    done = [record for record in records if record.way]
    found = [
        (claim, record)
        for claim in claims()
        for record in done
        if claim.set == name
        and claim.holds_for(record.task, Way.from_dict(record.way))
        and claim.score in record.values
    ]
    return [_compared(claim, record, found) for claim, record in found]


def _compared(claim: Claim, record: RunRecord, found: Sequence[tuple[Claim, RunRecord]]) -> Comparison:
    values = _percent(record, claim.score)
    ours = mean_interval(values[~np.isnan(values)])
    raw = [
        (other, base)
        for other, base in found
        if other.where["transform"] == "identity"
        and other.score == claim.score
        and all(other.where.get(key) == claim.where.get(key) for key in ("host", "n_shot"))
        and (base.task, base.data) == (record.task, record.data)
    ]
    if not raw or claim.where["transform"] == "identity":
        return Comparison(claim, record, ours, ours.mean - claim.value, None, None)
    other, base = raw[0]
    before = _percent(base, claim.score)
    both = ~(np.isnan(values) | np.isnan(before))
    gain = paired_difference(values[both], before[both])
    return Comparison(claim, record, ours, ours.mean - claim.value, claim.value - other.value, gain)


def _percent(record: RunRecord, score: str) -> np.ndarray:
    return 100.0 * np.asarray(record.values[score], dtype=np.float64)


def _without_none(value: Any) -> Any:
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value
