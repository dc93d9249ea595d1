"""Accuracy of few-shot predictions, task by task."""

from __future__ import annotations

from torch import Tensor

from bpa.errors import ShapeError

__all__ = ["correct_counts"]


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

    Examples
    --------
    >>> import torch
    >>> correct_counts(torch.tensor([[0, 1, 2], [1, 1, 1]]), torch.tensor([[0, 1, 1], [0, 0, 1]]))
    tensor([2, 1])
    """
    if predicted.shape != truth.shape:
        raise ShapeError(
            f"The 'predicted' and 'truth' parameters of correct_counts must have one shape (..., Q). Got "
            f"{tuple(predicted.shape)} and {tuple(truth.shape)}."
        )
    hits = predicted == truth
    return (hits if mask is None else hits & mask).sum(dim=-1)
