"""Balanced-Pairwise-Affinities: a set of features becomes the rows of its optimal self-transport plan."""

from __future__ import annotations

from ._errors import BPAError, ConvergenceWarning
from .auto import AutoReg, choose_reg
from .diagnostics import Diagnosis, diagnose
from .records import Balance
from .transform import BPA, BPAAttention, balance, balanced_affinities, exact_matching

__version__ = "0.1.0.dev0"

__all__ = [
    "BPA",
    "AutoReg",
    "BPAAttention",
    "BPAError",
    "Balance",
    "ConvergenceWarning",
    "Diagnosis",
    "balance",
    "balanced_affinities",
    "choose_reg",
    "diagnose",
    "exact_matching",
]
