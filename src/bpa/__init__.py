"""Balanced-Pairwise-Affinities: a set of features becomes the rows of its optimal self-transport plan."""

from __future__ import annotations

from bpa.diagnostics import Diagnosis, diagnose
from bpa.errors import BPAError, ConvergenceWarning
from bpa.records import Balance
from bpa.transforms.choosing import AutoReg, choose_reg
from bpa.transforms.functional import balance, balanced_affinities, exact_matching
from bpa.transforms.layers import BPA, BPAAttention

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
