"""Counts of rightly labelled queries."""

from __future__ import annotations

import pytest
import torch

from bpa.errors import ShapeError
from bpa.metrics import correct_counts

PREDICTED = torch.tensor([[0, 1, 2], [1, 1, 1]])
TRUTH = torch.tensor([[0, 1, 1], [0, 0, 1]])


def test_queries_are_counted_task_by_task() -> None:
    assert correct_counts(PREDICTED, TRUTH).tolist() == [2, 1]


def test_a_query_that_does_not_exist_counts_for_nothing() -> None:
    mask = torch.tensor([[False, True, True], [True, True, False]])
    assert correct_counts(PREDICTED, TRUTH, mask=mask).tolist() == [1, 0]


def test_predictions_of_other_queries_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"one shape \(\.\.\., Q\)\. Got \(2, 3\) and \(2, 2\)"):
        correct_counts(PREDICTED, TRUTH[:, :2])
