"""Answers of a retrieval: queries with their first gallery items in two ways, kept as a record that the page shows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bpa.records import QueryGallery, RunRecord
from bpa.runs.engine import once
from bpa.runs.fields.retrieval import Retrieval, RetrievalTask
from bpa.runs.store import RunStore, write_atomically
from bpa.runs.way import Way, labels

__all__ = ["answers", "read_images", "write_rankings"]

Lists = Sequence[Sequence[Sequence[int]]]
_ENDS = 8
"""Identities shown at either end of the gains."""
_SIDE = 64
"""Pixels of a thumbnail's longer side, at most."""


def answers(
    field: Retrieval,
    asked: RetrievalTask,
    ways: Sequence[Way],
    lists: Callable[[], Lists],
    *,
    depth: int = 10,
    images: np.ndarray | None = None,
    name_of: Callable[[int], str] = "identity {}".format,
    shown: int = 12,
    choose: Literal["changed", "spaced"] = "changed",
    store: RunStore | None = None,
) -> RunRecord:
    """Return queries with their first answers by two ways.

    Parameters
    ----------
    field, asked : Retrieval, RetrievalTask
        The task.
    ways : sequence of Way
        Plain features first.
    lists : callable
        Gives, of every way, every query's first gallery items, as `Retrieval.top` does; called where nothing is stored.
    depth : int
        Items of a list.
    images : ndarray of uint8, shape (n, height, width[, 3]), optional
        Pictures of the task's rows; without them the answers are named by identity.
    name_of : callable
        Name of an identity.
    shown : int
        Queries shown.
    choose : {"changed", "spaced"}
        Those whose answers changed most, or evenly spaced ones.
    store : RunStore, optional
        Where the record is kept, and taken from.

    Returns
    -------
    RunRecord
        Of the field "answers".
    """
    task = field.task(asked)
    described = {
        "field": "answers", "deleted": asked.deleted, "shown": shown, "choose": choose, "depth": depth,
        "pictures": images is not None, "ways": [way.to_dict() for way in ways],
    }  # fmt: skip
    return once(
        "answers",
        described,
        field.data(asked),
        lambda: _gathered(task, described, lists(), images, name_of),
        store=store,
    )


def read_images(path: str | Path) -> np.ndarray | None:
    """Return the array ``images`` of an ``.npz`` feature file, where there is one that shows pictures."""
    place = Path(path)
    if place.suffix != ".npz":
        return None
    with np.load(place, allow_pickle=False) as stored:
        found = stored.get("images", None)
    return found if found is not None and found.dtype == np.uint8 and found.ndim in (3, 4) else None


def _gathered(
    task: QueryGallery,
    described: dict[str, Any],
    lists: Lists,
    images: np.ndarray | None,
    name_of: Callable[[int], str],
) -> dict[str, Any]:
    def item(row: int, query: int) -> dict[str, Any]:
        same = bool(task.ids[row] == task.ids[query])
        return {"name": name_of(int(task.ids[row])), "item": row, "right": same, **_thumbnail(images, row)}

    hits = np.array(
        [
            [
                sum(task.ids[row] == task.ids[q] for row in found)
                for q, found in zip(task.query, way, strict=True)
            ]
            for way in lists
        ]
    )
    change = hits[-1] - hits[0]
    if described["choose"] == "changed":
        order = np.argsort(-np.abs(change), kind="stable")[: described["shown"]]
        chosen = f"The {len(order)} queries whose first answers changed most."
    else:
        order = np.linspace(0, len(task.query), described["shown"], endpoint=False).astype(int)
        chosen = f"{len(order)} queries, evenly spaced through the set, not chosen."
    strips = [
        {
            "query": item(int(task.query[i]), int(task.query[i])),
            "answers": [[item(int(row), int(task.query[i])) for row in way[i]] for way in lists],
        }
        for i in order
    ]
    counts = {"queries": len(change), "better": int((change > 0).sum()), "worse": int((change < 0).sum())}
    found = {"depth": described["depth"], "ways": described["ways"], "strips": strips}
    return {"chosen": chosen, **counts, **found, **_by_identity(task, change, name_of)}


def _by_identity(task: QueryGallery, change: np.ndarray, name_of: Callable[[int], str]) -> dict[str, Any]:
    """Return right answers gained by a query, a mean an identity: the largest gains and losses, and their numbers."""
    names, member = np.unique(task.ids[task.query], return_inverse=True)
    mean = np.bincount(member, weights=change) / np.bincount(member)
    order = np.argsort(-mean, kind="stable")
    shown = order if len(order) <= 2 * _ENDS else np.concatenate([order[:_ENDS], order[-_ENDS:]])
    return {
        "identities": len(names),
        "gaining": int((mean > 0).sum()),
        "losing": int((mean < 0).sum()),
        "by_identity": [{"name": name_of(int(names[k])), "change": float(mean[k])} for k in shown],
    }


def _thumbnail(images: np.ndarray | None, row: int) -> dict[str, Any]:
    """Return a picture as base64 of its bytes, its longer side cut to `_SIDE` pixels by taking every k-th."""
    if images is None:
        return {}
    step = max(1, -(-max(images.shape[1:3]) // _SIDE))
    small = np.ascontiguousarray(images[row][::step, ::step])
    return {"shape": list(small.shape), "picture": base64.b64encode(small.tobytes()).decode()}


def write_rankings(path: Path, task: QueryGallery, ways: Sequence[Way], lists: Lists) -> Path:
    """Write every query's first gallery rows, by every way, as JSON for anything that shows pictures."""
    content = {
        "source": task.source,
        "queries": task.query.tolist(),
        "top": dict(zip(labels(ways), lists, strict=True)),
    }
    return write_atomically(path, json.dumps(content))
