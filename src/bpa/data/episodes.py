"""Few-shot tasks drawn from a labelled feature set, each one reproducible on its own.

Three protocols:

``ptmap``
    The published 10,000-task list, index for index: one ``RandomState`` draws the classes of a task, then
    permutes the rows of each class, every permutation applied to the one before. Classes stand in order of
    first appearance and are cut to the size of the smallest. One-shot and five-shot tasks of the same list
    are nested.
``balanced``
    Each task has a random stream of its own, made from the seed and the number of the task, and draws from
    all rows of a class.
``dirichlet``
    As ``balanced``, with the query counts of the classes drawn from a symmetric Dirichlet distribution:
    ``n_way · n_query`` queries in all, not equally many a class.

With any of them, the task numbered i is the same whatever subset, order or chunk it is asked in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from bpa._checks import check_choice, check_count, check_positive
from bpa._words import explains
from bpa.errors import ArgumentError
from bpa.records import Episode, FeatureSet

__all__ = ["PROTOCOLS", "Protocol", "TaskList", "class_rows", "draw_tasks", "ptmap_indices"]

Protocol = Literal["ptmap", "balanced", "dirichlet"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


@dataclass(frozen=True, eq=False)
class TaskList:
    """Few-shot tasks as row numbers of a feature set.

    Parameters
    ----------
    rows : ndarray, shape (T, n_way · n_shot + Q), int64
        Row numbers; support first, shot by shot, then queries.
    support_labels : ndarray, shape (L,), int64
        Class within the task of each support row.
    query_labels : ndarray, shape (T, Q), int64
        Class within the task of each query row.
    classes : ndarray, shape (T, n_way), int64
        The label, in the feature set, of each class of a task.
    n_way, n_shot : int
        Size of a task.

    Examples
    --------
    >>> toy = FeatureSet(np.eye(12, dtype=np.float32), labels=np.repeat([4, 7, 9], 4))
    >>> tasks = draw_tasks(toy, n_way=2, n_shot=1, n_query=3, n_tasks=5)
    >>> len(tasks), tasks.n_query, tasks.rows.shape
    (5, 6, (5, 8))
    >>> tasks.episode(torch.from_numpy(toy.features), slice(0, 2)).query.shape
    torch.Size([2, 6, 12])
    """

    rows: np.ndarray
    support_labels: np.ndarray
    query_labels: np.ndarray
    classes: np.ndarray
    n_way: int
    n_shot: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_query(self) -> int:
        """Queries of a task, over all classes."""
        return int(self.query_labels.shape[1])

    def episode(self, features: Tensor, tasks: slice | Sequence[int]) -> Episode:
        """Some of the tasks as one batched `Episode`, rows taken from ``features`` of shape (n, d)."""
        rows = torch.from_numpy(self.rows[tasks]).to(features.device)
        gathered = features[rows]
        n_support = len(self.support_labels)
        support_labels = torch.from_numpy(self.support_labels).to(features.device)
        return Episode(
            support=gathered[:, :n_support],
            support_labels=support_labels.expand(len(rows), -1),
            query=gathered[:, n_support:],
            n_way=self.n_way,
            query_labels=torch.from_numpy(self.query_labels[tasks]).to(features.device),
        )


@explains(
    n_ways="n_way", n_shots="n_shot", n_queries="n_query", n_runs="n_tasks", n_episodes="n_tasks",
    alpha="concentration",
)  # fmt: skip
def draw_tasks(
    features: FeatureSet,
    *,
    n_way: int = 5,
    n_shot: int = 1,
    n_query: int = 15,
    n_tasks: int = 10_000,
    protocol: Protocol = "ptmap",
    seed: int = 0,
    concentration: float = 2.0,
    first: int = 0,
) -> TaskList:
    """Draw tasks ``first … first + n_tasks - 1``.

    Parameters
    ----------
    features : FeatureSet
        With labels.
    n_way, n_shot : int
        Classes of a task and labelled rows of each.
    n_query : int
        Queries per class; under ``dirichlet``, on average.
    n_tasks : int
        Number of tasks.
    protocol : {"ptmap", "balanced", "dirichlet"}
        The published 10,000-task list, index for index; tasks from all rows of a class, each with a random stream of
        its own; or the same with unbalanced query counts.
    seed : int
        Seed of the list (``ptmap``), or of every task together with its number.
    concentration : float
        Parameter of the Dirichlet distribution; 2 is the value of the literature.
    first : int
        Number of the first task.

    Returns
    -------
    TaskList

    Raises
    ------
    ArgumentError
        When labels are missing, when there are fewer classes than ``n_way``, or when a class has too few
        rows; the message names the class.

    Examples
    --------
    >>> toy = FeatureSet(np.eye(12, dtype=np.float32), labels=np.repeat([4, 7, 9], 4))
    >>> many = draw_tasks(toy, n_way=2, n_query=3, n_tasks=10, protocol="balanced")
    >>> again = draw_tasks(toy, n_way=2, n_query=3, n_tasks=1, protocol="balanced", first=7)
    >>> bool((many.rows[7] == again.rows[0]).all())  # a task is the same whatever it is drawn with
    True
    """
    for name, value in (("n_way", n_way), ("n_shot", n_shot), ("n_query", n_query), ("n_tasks", n_tasks)):
        check_count(value, argument=name, function="draw_tasks")
    check_count(first, argument="first", function="draw_tasks", minimum=0)
    check_choice(protocol, PROTOCOLS, argument="protocol", function="draw_tasks")
    check_positive(concentration, argument="concentration", function="draw_tasks")
    labels, members = class_rows(features)
    if len(members) < n_way:
        raise ArgumentError(f"{n_way}-way tasks need {n_way} classes. {_name(features)} has {len(members)}.")
    need = n_shot + (1 if protocol == "dirichlet" else n_query)
    smallest = min(range(len(members)), key=lambda index: len(members[index]))
    if len(members[smallest]) < need:
        raise ArgumentError(
            f"{n_shot}-shot tasks with {n_query} queries need {need} rows of every class. Class "
            f"{features.name_of(int(labels[smallest]))!r} of {_name(features)} has {len(members[smallest])}."
        )
    if protocol == "ptmap":
        return _ptmap(labels, members, range(first, first + n_tasks), n_way, n_shot, n_query, seed)
    tasks = []
    for task in range(first, first + n_tasks):
        rng = np.random.default_rng([seed, task])
        chosen = rng.permutation(len(members))[:n_way]
        if protocol == "dirichlet":
            room = np.array([len(members[index]) - n_shot for index in chosen])
            counts = _dirichlet_counts(rng, n_way * n_query, concentration, room)
            if counts is None:
                where = int(np.argmin(room))
                raise ArgumentError(
                    f"{n_way * n_query} unbalanced queries do not fit: class "
                    f"{features.name_of(int(labels[chosen[where]]))!r} of {_name(features)} has {room[where]} rows "
                    f"left beside its support. Ask for fewer queries."
                )
        else:
            counts = np.full(n_way, n_query)
        picked = [rng.choice(members[index], n_shot + count, replace=False)
                  for index, count in zip(chosen, counts, strict=True)]  # fmt: skip
        tasks.append((chosen, picked))
    return _assemble(labels, tasks, n_way, n_shot)


def class_rows(features: FeatureSet) -> tuple[np.ndarray, list[np.ndarray]]:
    """Labels in order of first appearance, and the rows of each, in the order of the file; O(n log n).

    Examples
    --------
    >>> labels, rows = class_rows(FeatureSet(np.eye(3, dtype=np.float32), labels=np.array([9, 4, 9])))
    >>> labels.tolist(), [list(map(int, members)) for members in rows]
    ([9, 4], [[0, 2], [1]])
    """
    if features.labels is None:
        raise ArgumentError(f"Few-shot tasks need labels, and {_name(features)} has none. Pass labels=...")
    unique, first, inverse, counts = np.unique(
        features.labels, return_index=True, return_inverse=True, return_counts=True
    )
    by_label = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
    order = np.argsort(first, kind="stable")
    return unique[order], [by_label[index] for index in order]


def _ptmap(
    labels: np.ndarray,
    members: list[np.ndarray],
    tasks: range,
    n_way: int,
    n_shot: int,
    n_query: int,
    seed: int,
) -> TaskList:
    size = min(len(rows) for rows in members)
    classes, order = ptmap_indices(
        len(members), size, n_way=n_way, n_rows=n_shot + n_query, n_tasks=tasks.stop, seed=seed
    )
    classes, order = classes[tasks.start :], order[tasks.start :]
    table = np.stack([rows[:size] for rows in members])  # (C, m)
    rows = table[classes[:, :, None], order]  # (T, k, s + q)
    rows = rows.transpose(0, 2, 1).reshape(len(rows), -1)  # shot by shot
    within = np.tile(np.arange(n_way), n_shot + n_query)
    split = n_way * n_shot
    query_labels = np.broadcast_to(within[split:], (len(rows), n_way * n_query)).copy()
    return TaskList(rows, within[:split].copy(), query_labels, labels[classes], n_way, n_shot)


def ptmap_indices(
    n_classes: int, n_items: int, *, n_way: int, n_rows: int, n_tasks: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The published list as indices: classes (T, k), and rows within each class (T, k, n_rows).

    The stream of ``numpy.random.RandomState`` is frozen by numpy, so the list is the same everywhere and
    always.

    Examples
    --------
    >>> classes, rows = ptmap_indices(20, 600, n_way=5, n_rows=16, n_tasks=2)
    >>> classes[0].tolist(), rows.shape
    ([18, 1, 19, 8, 10], (2, 5, 16))
    """
    stream = np.random.RandomState(seed)
    classes = np.empty((n_tasks, n_way), dtype=np.int64)
    rows = np.empty((n_tasks, n_way, n_rows), dtype=np.int64)
    every_class, start = np.arange(n_classes), np.arange(n_items)
    for task in range(n_tasks):
        classes[task] = stream.permutation(every_class)[:n_way]
        order = start
        for way in range(n_way):
            order = stream.permutation(order)  # chained, not restarted
            rows[task, way] = order[:n_rows]
    return classes, rows


def _dirichlet_counts(
    rng: np.random.Generator, total: int, concentration: float, room: np.ndarray
) -> np.ndarray | None:
    """Counts that sum to ``total``, proportional to a Dirichlet draw (largest remainder), within ``room``.

    A draw that asks a class for more rows than it has is drawn again, so with small classes the
    distribution is the Dirichlet one cut off there. None when a thousand draws do not fit.
    """
    for _ in range(1000):
        share = rng.dirichlet(np.full(len(room), concentration)) * total
        counts = np.floor(share).astype(np.int64)
        short = total - int(counts.sum())
        counts[np.argsort(counts - share, kind="stable")[:short]] += 1
        if (counts <= room).all():
            return counts
    return None


def _assemble(
    labels: np.ndarray, tasks: list[tuple[np.ndarray, list[np.ndarray]]], n_way: int, n_shot: int
) -> TaskList:
    rows, query_labels = [], []
    for _, picked in tasks:
        support = np.stack([block[:n_shot] for block in picked], axis=1).ravel()  # shot by shot
        rows.append(np.concatenate([support, *(block[n_shot:] for block in picked)]))
        query_labels.append(np.repeat(np.arange(n_way), [len(block) - n_shot for block in picked]))
    classes = np.stack([labels[chosen] for chosen, _ in tasks])
    return TaskList(
        np.stack(rows), np.tile(np.arange(n_way), n_shot), np.stack(query_labels), classes, n_way, n_shot
    )


def _name(features: FeatureSet) -> str:
    return features.source or "the feature set"
