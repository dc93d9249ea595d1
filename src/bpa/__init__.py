"""Balanced-Pairwise-Affinities: a set of features becomes the rows of its optimal self-transport plan."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
