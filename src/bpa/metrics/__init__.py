"""Predictions and truth in, numbers out."""

from __future__ import annotations

from bpa.metrics.clustering import (
    ClusteringScores,
    adjusted_rand_index,
    clustering_accuracy,
    clustering_scores,
    contingency_table,
    match_clusters,
    normalized_mutual_information,
)
from bpa.metrics.fewshot import correct_counts
from bpa.metrics.hubs import Hubness, hubness
from bpa.metrics.intervals import Interval, mean_interval, paired_difference
from bpa.metrics.retrieval import RetrievalScores, evaluate_lists, evaluate_ranking

__all__ = [
    "ClusteringScores",
    "Hubness",
    "Interval",
    "RetrievalScores",
    "adjusted_rand_index",
    "clustering_accuracy",
    "clustering_scores",
    "contingency_table",
    "correct_counts",
    "evaluate_lists",
    "evaluate_ranking",
    "hubness",
    "match_clusters",
    "mean_interval",
    "normalized_mutual_information",
    "paired_difference",
]
