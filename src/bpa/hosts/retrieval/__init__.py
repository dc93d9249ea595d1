"""Retrieval and re-identification: rank, re-rank, and serve one query at a time."""

from __future__ import annotations

from bpa.hosts.retrieval.gallery import FrozenBPA
from bpa.hosts.retrieval.kreciprocal import KReciprocal, k_reciprocal
from bpa.hosts.retrieval.ranking import Diagnostics, Ranking, bpa_rank, bpa_source, estimate_rank, rerank
from bpa.hosts.retrieval.rankers import BASELINES
from bpa.plans.comparison import AUTO_REG, PAPER, PRESETS, RETRIEVAL, RowComparison

__all__ = [
    "AUTO_REG",
    "BASELINES",
    "PAPER",
    "PRESETS",
    "RETRIEVAL",
    "Diagnostics",
    "FrozenBPA",
    "KReciprocal",
    "Ranking",
    "RowComparison",
    "bpa_rank",
    "bpa_source",
    "estimate_rank",
    "k_reciprocal",
    "rerank",
]
