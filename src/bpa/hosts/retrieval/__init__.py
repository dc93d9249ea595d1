"""Retrieval and re-identification: rank, re-rank, and serve one query at a time."""

from __future__ import annotations

from .baselines import BASELINES
from .comparison import AUTO_REG, PAPER, PRESETS, RETRIEVAL, RowComparison
from .frozen import FrozenBPA
from .kreciprocal import KReciprocal, k_reciprocal
from .ranking import Diagnostics, Ranking, bpa_rank, bpa_source, estimate_rank, rerank

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
