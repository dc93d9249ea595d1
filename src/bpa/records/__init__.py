"""The nouns that cross rooms; nothing here computes."""

from __future__ import annotations

from bpa.records.balance import Balance, Convergence
from bpa.records.runs import RunPlan, RunRecord
from bpa.records.sets import FeatureSet
from bpa.records.tasks import Episode, QueryGallery

__all__ = ["Balance", "Convergence", "Episode", "FeatureSet", "QueryGallery", "RunPlan", "RunRecord"]
