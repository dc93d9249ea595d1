"""The clustering hosts: SPICE's second phase, from cached features."""

from __future__ import annotations

from bpa.hosts.clustering.spice._diagnostics import EmbeddingDiagnostics, embedding_diagnostics
from bpa.hosts.clustering.spice._heads import ClusteringHeads
from bpa.hosts.clustering.spice._pseudo_labels import (
    PseudoLabels,
    double_softmax_floor,
    double_softmax_loss,
    prototype_pseudo_labels,
)
from bpa.hosts.clustering.spice._reliable import ReliableLabels, reliable_labels
from bpa.hosts.clustering.spice._settings import SPICE_SETTINGS, SpiceSettings
from bpa.hosts.clustering.spice._training import SpiceResult, train_clustering_heads

__all__ = [
    "SPICE_SETTINGS",
    "ClusteringHeads",
    "EmbeddingDiagnostics",
    "PseudoLabels",
    "ReliableLabels",
    "SpiceResult",
    "SpiceSettings",
    "double_softmax_floor",
    "double_softmax_loss",
    "embedding_diagnostics",
    "prototype_pseudo_labels",
    "reliable_labels",
    "train_clustering_heads",
]
