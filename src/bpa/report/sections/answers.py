"""Answers: queries and their first answers, before and after the transform, with their pictures where there are any."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bpa.records import RunRecord
from bpa.report.figures import png_data_uri
from bpa.report.page import Section, Strip
from bpa.report.sections._section import Made
from bpa.runs.way import Way, labels

__all__ = ["answers"]


def answers(study: str, records: Sequence[RunRecord], _axes: Sequence[str] | None) -> Made:
    """Return the strips of the newest record."""
    found = records[-1].summary
    names = labels([Way.from_dict(way) for way in found["ways"]])
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
    lead = (
        f"{found['chosen']} {found['better']} of {found['queries']} queries have more right answers among their first "
        f"{found['depth']} with {names[-1]} than with {names[0]}, {found['worse']} have fewer."
    )
    return Section(study, "Answers", lead, (), (), strips), []


def _picture(item: Mapping[str, Any]) -> str:
    """Return the thumbnail of an item as an address."""
    if "picture" not in item:
        return ""
    pixels = np.frombuffer(base64.b64decode(item["picture"]), dtype=np.uint8).reshape(item["shape"])
    return png_data_uri(np.ascontiguousarray(pixels))
