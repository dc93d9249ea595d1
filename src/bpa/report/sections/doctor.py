"""What ``bpa doctor`` found, in words for somebody who has not read the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bpa.memory import format_bytes
from bpa.records import RunRecord
from bpa.report.page import Section
from bpa.report.sections._section import Made
from bpa.report.table import Table

__all__ = ["doctor"]

_BALANCED = 1e-3
"""Up to this relative error of a row sum a plan counts as balanced."""
_COLUMNS = ("what", "found", "what it means")
_VERDICTS = {
    "likely helps": "items fall into groups, and rows of W say so more clearly than the features do",
    "neutral": "hardly any groups to sharpen: expect about what centred features give",
    "likely hurts": "at this reg rows rest on too few partners or are blurred: expect less than centred features give",
}


def doctor(study: str, records: Sequence[RunRecord], _axes: Sequence[str] | None) -> Made:
    """Return the tables: the forecast first, the installation last."""
    record = records[-1]
    found = record.summary
    tables = [_installation(record.environment)]
    if found:
        forecasts = [_forecast(each) for each in found["forecasts"]]
        tables = [
            *forecasts,
            _set(found["set"]),
            _weights(found["weights"], found["set"]["looked_at"]),
            *tables,
        ]
    return Section(study, "Doctor", "", tables), []


def _forecast(seen: Mapping[str, Any]) -> Table:
    reg = seen["reg"]
    rows = [
        ("verdict", seen["verdict"], _VERDICTS[seen["verdict"]]),
        (
            "reg of the rule",
            seen["chosen"],
            f"on centred features, which auto uses; about {seen['chosen_uncentred']:.2g} on features as they are",
        ),
        (
            "nearer than chance",
            seen["nearer"],
            "neighbours are so many times as near as in a cloud without groups",
        ),
        (
            "partners",
            seen["partners"],
            "items a row of W is shared among; few is sharp, all of them is blurred",
        ),
        ("parts", seen["parts"], "near 1 the set falls into parts that hardly touch, near 0 it is one"),
        ("hubs before", seen["hubs_before"], "how unevenly items are the neighbours of others; 0 is even"),
        ("hubs after", seen["hubs_after"], "the same by rows of W"),
        ("row sums off by", seen["off_by"], _balance(seen["off_by"], seen["products"])),
    ]
    note = f"A forecast from {seen['looked_at']:,} unlabelled items; bpa fewshot, cluster and retrieve measure it."
    return Table(f"Forecast for reg={reg if isinstance(reg, str) else f'{reg:g}'}", _COLUMNS, rows, [note])


def _balance(off_by: float, products: int) -> str:
    """Explain how far from balanced five sweeps leave W, and the way out."""
    if off_by <= _BALANCED:
        return "after five sweeps; balanced, every item has the same say"
    needed = (
        f"takes {products} products with the kernel" if products > 0 else "did not arrive within 300 products"
    )
    return (
        f"after five sweeps; not balanced (more than {_BALANCED:g}): some rows of W count more than others. "
        f"--solver sweeps:20 comes closer; --solver converged {needed}"
    )


def _set(seen: Mapping[str, Any]) -> Table:
    classes = "no labels" if seen["classes"] is None else f"{seen['classes']:,}"
    same_way = (
        "they point the same way: centre them" if seen["cosine"] > 0.3 else "no common direction to speak of"
    )
    rows = [
        ("items", f"{seen['items']:,}", ""),
        ("dimension", f"{seen['dimension']:,}", ""),
        ("classes", classes, ""),
        ("zero rows", seen["zero_rows"], "items without a direction; the transform cannot place them"),
        ("duplicated rows", seen["duplicates"], "items that are the same; they are each other's nearest"),
        (
            "length of a row",
            seen["length"],
            f"varies by {seen['length_spread']:.0%}; the transform ignores it",
        ),
        ("cosine of two items", seen["cosine"], f"± {seen['cosine_spread']:.2f}; 0 is unrelated: {same_way}"),
        ("W itself", format_bytes(seen["bytes_of_w"]), "n × n numbers in float32"),
        (
            "memory beside W",
            format_bytes(seen["bytes_beside"]),
            "while it is computed: vectors and library workspace",
        ),
    ]
    notes = (
        []
        if seen["looked_at"] == seen["items"]
        else [f"Cosines of {seen['looked_at']:,} evenly spaced items."]
    )
    return Table("The set", _COLUMNS, rows, notes)


def _weights(seen: Sequence[Mapping[str, Any]], looked_at: int) -> Table:
    sweeps = list(seen[0]["off_by"])
    rows = [
        [
            f"{each['reg']:g}",
            each["partners"],
            f"{each['strongest']:.1%}",
            *(each["off_by"][n] for n in sweeps),
            "yes" if each["off_by"][sweeps[0]] <= _BALANCED else "no",
        ]
        for each in seen
    ]
    columns = (
        "reg",
        "partners",
        "strongest",
        *(f"off, {n} sweeps" for n in sweeps),
        f"balanced after {sweeps[0]}",
    )
    notes = [
        f"Partners: among how many of {looked_at:,} items a row of W is shared; strongest: the share of the first one.",
        f"Off: how far the worst row sum is from 1. Up to {_BALANCED:g} a plan counts as balanced; above it some rows "
        f"weigh more than others; more sweeps (--solver sweeps:20) or as many as it takes (--solver converged) help.",
    ]
    return Table("What reg does here", columns, rows, notes)


def _installation(found: Mapping[str, Any]) -> Table:
    rows: list[tuple[str, Any]] = [
        (name, ", ".join(value) if isinstance(value, list) else value)
        for name, value in found.items()
        if name != "packages"
    ]
    return Table("Installation", ("what", "found"), [*rows, *sorted(found["packages"].items())])
