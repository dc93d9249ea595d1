"""Clustering scores: predicted clusters and true classes in, numbers out.

Every score compares two labellings of the same n items. Labels are names, not positions: any integers or
strings will do, gaps in the numbering are empty clusters and count for nothing, and the number of clusters
may differ from the number of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from bpa._checks import check_choice, check_shape
from bpa._extras import needs
from bpa.errors import ArgumentError, NonFiniteError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ClusteringScores",
    "NMIAverage",
    "adjusted_rand_index",
    "clustering_accuracy",
    "clustering_scores",
    "contingency_table",
    "match_clusters",
    "normalized_mutual_information",
]

Labels: TypeAlias = "NDArray[Any] | Sequence[int] | Sequence[str]"
NMIAverage: TypeAlias = Literal["geometric", "arithmetic"]
"""How the two entropies under the mutual information are averaged."""


@dataclass(frozen=True)
class ClusteringScores:
    """Three scores of one labelling, and what is needed to read them.

    Attributes
    ----------
    acc : float
        Share of items on the best one-to-one map of clusters to classes.
    nmi : float
        Normalised mutual information under ``nmi_average``. Not corrected for chance: 10 random clusters of
        20 points score about 0.11.
    ari : float
        Adjusted Rand index; 0 for a random labelling in expectation.
    nmi_average : {"geometric", "arithmetic"}
        Which mean of the entropies normalises the mutual information.
    n : int
        Number of items.
    n_clusters, n_classes : int
        How many different labels were predicted, and how many are true.

    Examples
    --------
    >>> scores = clustering_scores([0, 0, 1, 1], [5, 5, 3, 4], nmi_average="arithmetic")
    >>> scores.acc, round(scores.nmi, 2), scores.n_clusters, scores.n_classes
    (0.75, 0.8, 3, 2)
    """

    acc: float
    nmi: float
    ari: float
    nmi_average: NMIAverage
    n: int
    n_clusters: int
    n_classes: int


def contingency_table(labels_true: Labels, labels_pred: Labels) -> NDArray[np.int64]:
    """Count the items of every (class, cluster) pair.

    Parameters
    ----------
    labels_true, labels_pred : array_like, shape (n,)
        Classes and clusters of the same items.

    Returns
    -------
    ndarray of int64, shape (n_classes, n_clusters)
        Rows and columns in sorted order of the labels that occur.

    Examples
    --------
    >>> contingency_table(["cat", "cat", "dog"], [1, 0, 0]).tolist()
    [[1, 1], [1, 0]]
    """
    true, pred = _checked(labels_true, labels_pred, "contingency_table")
    return _table(true, pred)


def match_clusters(labels_true: Labels, labels_pred: Labels) -> NDArray[Any]:
    """Rename every cluster to the class it is matched with.

    The match is one to one and keeps the largest number of items (the Hungarian method, on a table that
    need not be square). Items of a cluster left over when there are more clusters than classes keep no
    class and get -1 (or ``""`` where labels are strings).

    Parameters
    ----------
    labels_true, labels_pred : array_like, shape (n,)
        Classes and clusters of the same items.

    Returns
    -------
    ndarray, shape (n,)
        For each item the class its cluster was matched with.

    Examples
    --------
    >>> match_clusters([0, 0, 1, 1], [7, 7, 3, 3]).tolist()
    [0, 0, 1, 1]
    """
    true, pred = _checked(labels_true, labels_pred, "match_clusters")
    classes = np.unique(true)
    clusters, which = np.unique(pred, return_inverse=True)
    rows, columns = _assign(_table(true, pred))
    left_over: Any = "" if classes.dtype.kind == "U" else -1
    renamed = np.full(len(clusters), left_over, dtype=classes.dtype)
    renamed[columns] = classes[rows]
    return renamed[which]


def clustering_accuracy(labels_true: Labels, labels_pred: Labels) -> float:
    """Share of items that the best one-to-one map of clusters to classes gets right (ACC).

    Parameters
    ----------
    labels_true, labels_pred : array_like, shape (n,)
        Classes and clusters of the same items. Their numbers may differ: with more clusters than classes
        the clusters left over count as wrong, with fewer the classes left over do.

    Returns
    -------
    float
        Between 1 / n and 1.

    Examples
    --------
    >>> clustering_accuracy([0, 0, 1, 1], [1, 1, 0, 0])
    1.0
    >>> clustering_accuracy([0, 0, 1, 1], [0, 1, 2, 2])
    0.75
    """
    true, pred = _checked(labels_true, labels_pred, "clustering_accuracy")
    table = _table(true, pred)
    rows, columns = _assign(table)
    return float(table[rows, columns].sum() / len(true))


def normalized_mutual_information(labels_true: Labels, labels_pred: Labels, *, average: NMIAverage) -> float:
    """Mutual information of the two labellings over a mean of their entropies (NMI).

    Parameters
    ----------
    labels_true, labels_pred : array_like, shape (n,)
        Classes and clusters of the same items.
    average : {"geometric", "arithmetic"}
        The mean; no default, because published tables differ: image clustering uses the geometric mean,
        scikit-learn's default is the arithmetic one.

    Returns
    -------
    float
        Between 0 and 1. Two single-cluster labellings agree completely and score 1; one single cluster
        against several classes scores 0.

    Examples
    --------
    >>> truth, found = [0, 0, 1, 1], [0, 1, 2, 3]
    >>> [round(normalized_mutual_information(truth, found, average=a), 3) for a in ("geometric", "arithmetic")]
    [0.707, 0.667]
    """
    true, pred = _checked(labels_true, labels_pred, "normalized_mutual_information")
    check_choice(average, get_args(NMIAverage), argument="average", function="normalized_mutual_information")
    scores = _sklearn_metrics()
    return float(scores.normalized_mutual_info_score(true, pred, average_method=average))


def adjusted_rand_index(labels_true: Labels, labels_pred: Labels) -> float:
    """Pairs of items on which the two labellings agree, corrected for chance (ARI).

    Parameters
    ----------
    labels_true, labels_pred : array_like, shape (n,)
        Classes and clusters of the same items.

    Returns
    -------
    float
        At most 1; 0 in expectation for a random labelling, negative below chance.

    Examples
    --------
    >>> adjusted_rand_index([0, 0, 1, 1], [1, 1, 0, 0]), adjusted_rand_index([0, 0, 1, 1], [0, 1, 0, 1])
    (1.0, -0.5)
    """
    true, pred = _checked(labels_true, labels_pred, "adjusted_rand_index")
    return float(_sklearn_metrics().adjusted_rand_score(true, pred))


def clustering_scores(
    labels_true: Labels, labels_pred: Labels, *, nmi_average: NMIAverage
) -> ClusteringScores:
    """ACC, NMI and ARI of one labelling.

    Parameters
    ----------
    labels_true, labels_pred : array_like, shape (n,)
        Classes and clusters of the same items.
    nmi_average : {"geometric", "arithmetic"}
        See :func:`normalized_mutual_information`.

    Returns
    -------
    ClusteringScores

    Examples
    --------
    >>> clustering_scores([0, 0, 1, 1], [1, 1, 0, 0], nmi_average="geometric").ari
    1.0
    """
    table = contingency_table(labels_true, labels_pred)
    return ClusteringScores(
        acc=clustering_accuracy(labels_true, labels_pred),
        nmi=normalized_mutual_information(labels_true, labels_pred, average=nmi_average),
        ari=adjusted_rand_index(labels_true, labels_pred),
        nmi_average=nmi_average,
        n=int(table.sum()),
        n_clusters=table.shape[1],
        n_classes=table.shape[0],
    )


def _table(true: NDArray[Any], pred: NDArray[Any]) -> NDArray[np.int64]:
    classes, row = np.unique(true, return_inverse=True)
    clusters, column = np.unique(pred, return_inverse=True)
    counts = np.bincount(row * len(clusters) + column, minlength=len(classes) * len(clusters))
    return counts.reshape(len(classes), len(clusters)).astype(np.int64)


def _assign(table: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    with needs("sklearn", "scipy", feature="bpa.metrics.clustering"):
        from scipy.optimize import linear_sum_assignment
    rows, columns = linear_sum_assignment(table, maximize=True)
    return rows, columns


def _sklearn_metrics() -> Any:
    with needs("sklearn", "sklearn", "scipy", feature="bpa.metrics.clustering"):
        from sklearn import metrics
    return metrics


def _checked(labels_true: Labels, labels_pred: Labels, function: str) -> tuple[NDArray[Any], NDArray[Any]]:
    arrays = []
    for name, labels in (("labels_true", labels_true), ("labels_pred", labels_pred)):
        array = np.asarray(labels)
        check_shape(array.shape, ("n",), argument=name, function=function)
        if array.dtype.kind == "f":
            if not np.isfinite(array).all():
                raise NonFiniteError(
                    f"The {name!r} parameter of {function} must hold labels. Got NaN or Inf."
                )
            if not (array == np.round(array)).all():
                raise ArgumentError(
                    f"The {name!r} parameter of {function} must hold integers or strings. Got fractions."
                )
            array = array.astype(np.int64)
        elif array.dtype.kind not in "biuU":
            raise ArgumentError(
                f"The {name!r} parameter of {function} must hold integers or strings. Got {array.dtype}."
            )
        arrays.append(array)
    true, pred = arrays
    if len(true) != len(pred):
        raise ShapeError(
            f"The 'labels_true' and 'labels_pred' parameters of {function} must label the same items. Got {len(true)} "
            f"true labels and {len(pred)} predicted ones."
        )
    return true, pred
