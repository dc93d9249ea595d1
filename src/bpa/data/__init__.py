"""Files in, records out: features, re-identification sets, few-shot tasks, and sets that need no file."""

from __future__ import annotations

from bpa.data.catalog import CATALOG, CatalogEntry, digits, embedded_sketches
from bpa.data.episodes import TaskList, draw_tasks
from bpa.data.features import read_features, write_features
from bpa.data.reid import (
    ReidImage,
    ReidSet,
    extract_cuhk03,
    read_cuhk03,
    read_market1501,
    read_reid_features,
    write_reid_features,
)
from bpa.data.synthetic import sphere_clusters

__all__ = [
    "CATALOG",
    "CatalogEntry",
    "ReidImage",
    "ReidSet",
    "TaskList",
    "digits",
    "draw_tasks",
    "embedded_sketches",
    "extract_cuhk03",
    "read_cuhk03",
    "read_features",
    "read_market1501",
    "read_reid_features",
    "sphere_clusters",
    "write_features",
    "write_reid_features",
]
