"""Accuracy of few-shot predictions, task by task."""

from __future__ import annotations

import torch
from torch import Tensor

from bpa.errors import ShapeError


def correct_counts(predicted: Tensor, truth: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Number of queries labelled rightly in each task.

    Parameters
    ----------
    predicted, truth : Tensor, shape (..., Q), integers
        Predicted and true class of each query.
    mask : Tensor, shape (..., Q), bool, optional
        True at the queries that exist.

    Returns
    -------
    Tensor, shape (...), int64
    """
    if predicted.shape != truth.shape:
        raise ShapeError(
            f"The arguments of correct_counts must have one shape (..., Q). Got {tuple(predicted.shape)} and "
            f"{tuple(truth.shape)}."
        )
    hits = predicted == truth
    return (hits if mask is None else hits & mask).sum(dim=-1)


def task_accuracy(predicted: Tensor, truth: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Share of the queries of each task labelled rightly, shape (...), float64.

    Parameters
    ----------
    predicted, truth : Tensor, shape (..., Q), integers
        Predicted and true class of each query.
    mask : Tensor, shape (..., Q), bool, optional
        True at the queries that exist.

    Returns
    -------
    Tensor, shape (...), float64
    """
    hits = correct_counts(predicted, truth, mask=mask).to(torch.float64)
    total = truth.shape[-1] if mask is None else mask.sum(dim=-1)
    return hits / total
