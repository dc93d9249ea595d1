"""The clustering hosts: SPICE's second phase, from cached features."""

from __future__ import annotations

from bpa.hosts.clustering.spice import (
    SPICE_SETTINGS,
    ClusteringHeads,
    EmbeddingDiagnostics,
    PseudoLabels,
    ReliableLabels,
    SpiceResult,
    SpiceSettings,
    double_softmax_floor,
    double_softmax_loss,
    embedding_diagnostics,
    prototype_pseudo_labels,
    reliable_labels,
    train_clustering_heads,
)

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
