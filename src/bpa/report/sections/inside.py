"""Inside W: a small set before and after the transform, and what makes two of its rows differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bpa.records import RunRecord
from bpa.report.figures import heatmaps, row_difference, scatters, stacked_bars
from bpa.report.page import Figure, Section
from bpa.report.sections._section import Made

__all__ = ["inside"]


def inside(study: str, records: Sequence[RunRecord], _axes: Sequence[str] | None) -> Made:
    """Return the pictures of W of a small set."""
    s = records[-1].summary
    labels, names = s["labels"], s["class_names"]
    bounds = [k for k in range(1, len(labels)) if labels[k] != labels[k - 1]]
    before, after = np.asarray(s["before"], dtype=np.float64), np.asarray(s["after"], dtype=np.float64)
    hidden = before.copy()
    np.fill_diagonal(hidden, np.nan)
    np.fill_diagonal(before, np.nanmax(hidden))
    halves = s["halves"]
    bars = [(name, (h["direct"], h["third"])) for name, h in halves.items()]
    share = {name: h["third"] / (h["third"] + h["direct"]) for name, h in halves.items()}
    same = np.asarray(labels)[:, None] == np.asarray(labels)[None, :]
    off = ~np.eye(len(labels), dtype=bool)
    contrast = [float(m[same & off].mean()) for m in (hidden, after)] + [
        float(m[~same].mean()) for m in (hidden, after)
    ]
    text = (
        f"Mean of same-class pairs: cosine {contrast[0]:.2f}, W {contrast[1]:.2f}; of different classes: cosine "
        f"{contrast[2]:.2f}, W {contrast[3]:.2f}."
    )
    figures = [
        Figure(
            f"The set before and after (reg {s['reg']:g})",
            heatmaps(
                "Cosine similarity and W, ordered by class",
                text,
                [("cosine similarity", before), ("W, square root", _visible(after))],
                bounds,
            ),
            text
            + " Bright is alike, cut at the 99th percentile in W; lines separate the classes: "
            + ", ".join(names)
            + ".",
        ),
        Figure(
            "The same items in the plane",
            scatters(
                "First two principal components before and after",
                f"{len(labels)} items of {len(names)} classes",
                [
                    ("unit-norm features", np.asarray(s["plane_before"], dtype=np.float64)),
                    ("rows of W", np.asarray(s["plane_after"], dtype=np.float64)),
                ],
                labels,
                names,
            ),
            "Principal components, not fitted to the labels.",
        ),
        Figure(
            "What makes two rows differ",
            stacked_bars(
                "Mean absolute difference of two rows",
                "; ".join(f"{name}: {value:.0%} from third parties" for name, value in share.items()),
                ("direct: the pair itself", "third party: all others"),
                bars,
            ),
            "A row difference has a direct part, the two entries of the pair itself, and a third-party part: "
            "whether the others see the two alike. "
            + "; ".join(f"{k}: {v:.0%} third-party" for k, v in share.items())
            + ".",
        ),
        *(
            Figure(
                f"Row difference of {pair['title']}",
                row_difference(
                    f"Absolute difference of the rows of items {pair['pair'][0]} and {pair['pair'][1]}",
                    f"sum {sum(pair['values']):.2f}",
                    np.asarray(pair["values"], dtype=np.float64),
                    pair["pair"],
                    bounds,
                ),
                f"Items {pair['pair'][0]} and {pair['pair'][1]}; sum {sum(pair['values']):.2f}.",
            )
            for pair in s["pairs"]
        ),
    ]
    lead = "What the transform does to a small set: each row of W says how one item shares itself among the others."
    return Section(study, "Inside W", lead, (), figures), []


def _visible(w: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return W so that most of it can be seen: square root, cut at the 99th percentile off the diagonal."""
    off = w[~np.eye(len(w), dtype=bool)]
    return np.asarray(np.sqrt(np.minimum(w, np.percentile(off, 99))))
