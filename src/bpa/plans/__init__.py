"""One set balanced once, asked later: over all its pairs, on its neighbour graph, or over several processes."""

from __future__ import annotations

from bpa.plans._comparison import RowComparison
from bpa.plans._dense import DensePlan
from bpa.plans._files import load_plan
from bpa.plans._graph import GraphPlan
from bpa.plans._plan import TopK
from bpa.plans._search import Neighbours, nearest_neighbours
from bpa.plans._sharded import ShardedPlan, sharded_affinities

__all__ = [
    "DensePlan",
    "GraphPlan",
    "Neighbours",
    "RowComparison",
    "ShardedPlan",
    "TopK",
    "load_plan",
    "nearest_neighbours",
    "sharded_affinities",
]
