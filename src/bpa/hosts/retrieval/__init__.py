"""Retrieval and re-identification: rank, re-rank, and serve one query at a time."""

from __future__ import annotations

from bpa.hosts.retrieval.gallery import Gallery
from bpa.hosts.retrieval.kreciprocal import KReciprocal, k_reciprocal
from bpa.hosts.retrieval.rankers import RANKERS
from bpa.hosts.retrieval.ranking import Diagnostics, Ranking, estimate_rank, rank, rerank, row_source
from bpa.plans.comparison import AUTO_REG, PAPER, PRESETS, RETRIEVAL, RowComparison

__all__ = [
    "AUTO_REG",
    "PAPER",
    "PRESETS",
    "RANKERS",
    "RETRIEVAL",
    "Diagnostics",
    "Gallery",
    "KReciprocal",
    "Ranking",
    "RowComparison",
    "estimate_rank",
    "k_reciprocal",
    "rank",
    "rerank",
    "row_source",
]
