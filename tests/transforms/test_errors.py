"""What is wrong is said in one sentence: which argument, what was expected, what came, the way out."""

from __future__ import annotations

import pytest
import torch

from bpa import BPA, BPAAttention, balance, balanced_affinities, exact_matching
from bpa.cost import cosine_cost, sqeuclidean_cost
from bpa.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError
from bpa.solvers import Converged, Sweeps, sinkhorn

GOOD = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def spoiled(value: float) -> torch.Tensor:
    x = GOOD.clone().expand(3, 6, 4).clone()
    x[1, 4, 2] = value
    x[2, 0, 0] = value
    return x


CASES = {
    "not a tensor": (lambda: balanced_affinities(GOOD.numpy()), DTypeError, r"'x'.*torch\.Tensor.*ndarray"),
    "integers": (
        lambda: balanced_affinities(GOOD.long()),
        DTypeError,
        r"'x'.*floating point.*int64.*\.float\(\)",
    ),
    "complex": (lambda: balanced_affinities(GOOD + 0j), DTypeError, r"'x'.*floating point.*complex64"),
    "sparse": (lambda: balanced_affinities(GOOD.to_sparse()), DTypeError, r"'x'.*dense.*to_dense"),
    "one dimension": (
        lambda: balanced_affinities(GOOD[0]),
        ShapeError,
        r"\(\.\.\., n, d\)\. Got \(4,\).*x\[None\]",
    ),
    "empty set": (lambda: balanced_affinities(GOOD[:0]), ShapeError, r"n ≥ 1.*Got \(0, 4\).*mask="),
    "no features": (lambda: balanced_affinities(GOOD[:, :0]), ShapeError, r"at least one feature"),
    "nan": (
        lambda: balanced_affinities(spoiled(float("nan"))),
        NonFiniteError,
        r"Rows \[\(1, 4\), \(2, 0\)\] hold NaN",
    ),
    "inf": (
        lambda: balanced_affinities(spoiled(float("inf"))[1]),
        NonFiniteError,
        r"Rows \[4\] hold NaN or Inf",
    ),
    "nan, masked path": (
        lambda: balanced_affinities(spoiled(float("nan")), mask=torch.ones(6, dtype=torch.bool)),
        NonFiniteError,
        r"\(1, 4\)",
    ),
    "nan in a large set": (
        lambda: balanced_affinities(torch.full((700, 3), float("nan"))),
        NonFiniteError,
        r"Rows \[0, 1, 2, 3, 4\] \(the first of 700\)",
    ),
    "reg zero": (
        lambda: balanced_affinities(GOOD, reg=0.0),
        ArgumentError,
        r"'reg'.*above 0.*0\.0.*exact_matching",
    ),
    "reg negative": (lambda: BPA(reg=-1.0), ArgumentError, r"'reg' parameter of BPA .*-1"),
    "reg nan": (lambda: BPA(reg=float("nan")), ArgumentError, r"'reg'.*nan"),
    "reg text": (lambda: BPA(reg="small"), ArgumentError, r"'reg'.*'small'"),
    "no sweeps": (
        lambda: BPA(solver=Sweeps(0)),
        ArgumentError,
        r"'n' parameter of Sweeps.*at least 1. Got 0",
    ),
    "half a sweep": (
        lambda: BPA(solver=Sweeps(2.5)),
        ArgumentError,
        r"'n' parameter of Sweeps.*whole number",
    ),
    "unknown cost": (
        lambda: BPA(cost="euclid"),
        ArgumentError,
        r"'cost'.*'cosine', 'sqeuclidean', 'precomputed'",
    ),
    "unknown solver": (
        lambda: BPA(solver="newton"),
        DTypeError,
        r"'solver' parameter of BPA.*Sweeps\(n\) or Converged\(tol\)",
    ),
    "unknown scale": (lambda: BPA(scale="sum"), ArgumentError, r"'scale'.*'max', None"),
    "no products": (lambda: Converged(max_iter=0), ArgumentError, r"'max_iter' parameter of Converged"),
    "scale_grad without effect": (
        lambda: BPA(scale=None, scale_grad=True),
        ArgumentError,
        r"'scale_grad'.*no effect",
    ),
    "tol zero": (lambda: BPA(solver=Converged(0.0)), ArgumentError, r"'tol'.*above 0"),
    "mask of numbers": (
        lambda: balanced_affinities(GOOD, mask=torch.ones(6)),
        DTypeError,
        r"'mask'.*boolean.*float32",
    ),
    "mask of another size": (
        lambda: balanced_affinities(GOOD, mask=torch.ones(5, dtype=torch.bool)),
        ShapeError,
        r"'mask'.*\(6,\).*Got \(5,\)",
    ),
    "mask of another batch": (
        lambda: balanced_affinities(GOOD.expand(3, 6, 4), mask=torch.ones(2, 6, dtype=torch.bool)),
        ShapeError,
        r"'mask'.*\(3, 6\).*Got \(2, 6\)",
    ),
    "cost of no items": (lambda: balance(torch.zeros(0, 0)), ShapeError, r"'cost'.*n ≥ 1.*\(0, 0\)"),
    "labels of another size": (
        lambda: balanced_affinities(GOOD, support_labels=torch.zeros(2, 6, dtype=torch.long)),
        ShapeError,
        r"'support_labels'.*Got \(2, 6\)",
    ),
    "labels that are not whole": (
        lambda: balanced_affinities(GOOD, support_labels=torch.zeros(6)),
        DTypeError,
        r"'support_labels'.*integer.*−1",
    ),
    "cost not square": (
        lambda: balance(GOOD),
        ShapeError,
        r"'cost' parameter of balance.*\(\.\.\., n, n\).*\(6, 4\)",
    ),
    "cost with nan": (
        lambda: balance(torch.full((3, 3), float("nan"))),
        NonFiniteError,
        r"'cost' parameter of balance",
    ),
    "cost not symmetric": (
        lambda: balance(torch.arange(9.0).reshape(3, 3), solver=Converged()),
        ArgumentError,
        r"cost of balance must be symmetric.*Average it.*Sweeps",
    ),
    "callable of another shape": (
        lambda: balanced_affinities(GOOD, cost=lambda x: x),
        ShapeError,
        r"'cost'.*must return costs of shape \(6, 6\).*Got \(6, 4\)",
    ),
    "callable that is lost": (
        lambda: balanced_affinities(GOOD, cost=lambda _: None),
        ShapeError,
        r"Got NoneType",
    ),
    "values of another set": (
        lambda: BPAAttention()(GOOD, values=torch.ones(5, 2)),
        ShapeError,
        r"'values'.*n = 6.*Got \(5, 2\)",
    ),
    "option that does not exist": (lambda: BPAAttention(lam=0.1), TypeError, r"lam"),
    "matching of features": (lambda: exact_matching(GOOD), ShapeError, r"exact_matching"),
    "different widths": (
        lambda: cosine_cost(GOOD, GOOD[:, :2]),
        ShapeError,
        r"same number of features. Got 4 and 2",
    ),
    "nan in a cost function": (
        lambda: sqeuclidean_cost(spoiled(float("nan"))),
        NonFiniteError,
        r"sqeuclidean_cost",
    ),
    "marginal of another size": (
        lambda: sinkhorn(torch.zeros(2, 3), torch.zeros(3), solver=Sweeps(1)),
        ShapeError,
        r"'log_row'.*\(\.\.\., 2\).*Got \(3,\)",
    ),
    "kernel without a pair": (
        lambda: sinkhorn(torch.full((2, 2), -float("inf")), solver=Sweeps(1)),
        ArgumentError,
        r"at least one pair",
    ),
    "exotic numbers": (
        lambda: balanced_affinities(GOOD.to(torch.float8_e4m3fn)),
        DTypeError,
        r"float8.*float32",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_input_is_refused_in_words(name: str) -> None:
    call, kind, pattern = CASES[name]
    with pytest.raises(kind, match=pattern):
        call()
