"""Answers: queries and their first answers, before and after the transform, with their pictures where there are any."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bpa.records import RunRecord
from bpa.report.figures import bar_chart, png_data_uri
from bpa.report.page import Figure, Section, Strip
from bpa.report.sections._section import Made
from bpa.runs.way import Way, labels, shared

__all__ = ["answers"]


def answers(study: str, records: Sequence[RunRecord], _axes: Sequence[str] | None) -> Made:
    """Return the strips of the newest record."""
    found = records[-1].summary
    ways = [Way.from_dict(way) for way in found["ways"]]
    names = labels(ways)
    strips = [
        Strip(
            (query["name"], _picture(query)),
            [
                (name, [(a["name"], _picture(a), a["right"]) for a in row])
                for name, row in zip(names, rows, strict=True)
            ],
        )
        for query, rows in ((strip["query"], strip["answers"]) for strip in found["strips"])
    ]
    alike = f" ({', '.join(shared(ways))})"
    lead = (
        f"{found['chosen']} {found['better']} of {found['queries']} queries have more right answers among their first "
        f"{found['depth']} with {names[-1]} than with {names[0]}, {found['worse']} have fewer{alike}."
    )
    return Section(study, "Answers", lead, (), [_by_identity(found, names)], strips), []


def _by_identity(found: Mapping[str, Any], names: Sequence[str]) -> Figure:
    """Return who gains and who loses."""
    bars = [(entry["name"], entry["change"], 0.0) for entry in found["by_identity"]]
    text = f"{found['gaining']} of {found['identities']} identities gain, {found['losing']} lose."
    markup = bar_chart("Right answers gained a query, by identity", text, bars, diverging=True)
    caption = f"Among the first {found['depth']}: {names[-1]} against {names[0]}; the largest gains and losses. {text}"
    return Figure("Who gains and who loses", markup, caption)


def _picture(item: Mapping[str, Any]) -> str:
    """Return the thumbnail of an item as an address."""
    if "picture" not in item:
        return ""
    pixels = np.frombuffer(base64.b64decode(item["picture"]), dtype=np.uint8).reshape(item["shape"])
    return png_data_uri(np.ascontiguousarray(pixels))
