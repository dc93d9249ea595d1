"""Retrieval and re-identification: rank, re-rank, and serve one query at a time."""

from __future__ import annotations

from bpa.hosts.retrieval.diagnostics import Diagnostics
from bpa.hosts.retrieval.gallery import Gallery
from bpa.hosts.retrieval.kreciprocal import KReciprocal, k_reciprocal
from bpa.hosts.retrieval.rankers import RANKERS
from bpa.hosts.retrieval.ranking import Ranking, estimate_rank, rank, rerank, row_source

__all__ = [
    "RANKERS",
    "Diagnostics",
    "Gallery",
    "KReciprocal",
    "Ranking",
    "estimate_rank",
    "k_reciprocal",
    "rank",
    "rerank",
    "row_source",
]
