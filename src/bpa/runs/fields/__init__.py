"""Kinds of tasks, one file each: the only places that know how such a task is done."""

from __future__ import annotations

from bpa.runs.fields.clustering import Clustering, ClusterTask, clustering_ways
from bpa.runs.fields.fewshot import FewShot, FewShotTask, fewshot_ways, variant_ways
from bpa.runs.fields.retrieval import Retrieval, RetrievalTask, retrieval_ways
from bpa.runs.fields.sphere import Sphere, SphereTask

__all__ = [
    "ClusterTask",
    "Clustering",
    "FewShot",
    "FewShotTask",
    "Retrieval",
    "RetrievalTask",
    "Sphere",
    "SphereTask",
    "clustering_ways",
    "fewshot_ways",
    "retrieval_ways",
    "variant_ways",
]
