"""The transform as a scikit-learn estimator: a thin face of a plan that is balanced once and asked later."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bpa._blocks import spans
from bpa._checks import check_choice, check_reg
from bpa._words import REG_WORDS, SOLVER_WORDS, explains
from bpa.errors import ArgumentError
from bpa.kernels._standardise import AutoReg, standardise, standardise_rows
from bpa.kernels._weight import weigh
from bpa.plans import DensePlan
from bpa.plans._late import Late, distinct_items
from bpa.plans._plan import Cost, Options
from bpa.solvers._choice import Solver, solver_named

__all__ = ["BPATransformer"]

_METRICS = ("cosine", "centred-cosine", "sqeuclidean", "precomputed")
_BLOCK_NUMBERS = 1 << 18
"""Affinities of new items made at a time: 2 MB, which stay in the cache from their costs to the answer."""


@explains(**REG_WORDS, **SOLVER_WORDS)
class BPATransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Balanced affinities to the items of a fitted set.

    ``fit`` balances the plan of the set to itself until it has converged; ``transform`` gives any item, fitted or new,
    its row

    .. math::

        w_j(x) = e^{f(x) + g_j - c(x, x_j)/\mathrm{reg}} / s, \qquad
        f(x) = -\log \sum_j e^{g_j - c(x, x_j)/\mathrm{reg}},

    with s the largest affinity of the fitted set. For a fitted item this is its row of the plan, with affinity 1 to
    itself, so ``fit_transform(X)`` equals ``fit(X).transform(X)``. With ``reg="auto"`` rows are brought to one length
    instead of divided by s, as :func:`bpa.balanced_affinities` does.

    Parameters
    ----------
    reg : float or "auto", default "auto"
        Entropy weight. ``"auto"`` chooses it from the fitted set, with costs ``1 - cosine`` around the mean of that
        set; see :func:`bpa.choose_reg`. Not for ``metric="precomputed"``. The paper's value is 0.1.
    metric : {"cosine", "centred-cosine", "sqeuclidean", "precomputed"}, default "cosine"
        What differs between two items; ``"centred-cosine"`` is the cosine of unit rows minus their mean. With
        ``"precomputed"``, ``fit`` takes symmetric costs (n, n) of at least 0, and ``transform`` costs (m, n) to the
        fitted items.
    scale : {"max", None}, default "max"
        Whether affinities are divided by the largest of the fitted set.
    solver : str, Converged or Sweeps, default "converged"
        How far the fitted plan is balanced: ``"converged"`` (to 1e-6), ``"converged:1e-4"``, or the paper's
        ``"sweeps:5"``; see :mod:`bpa.solvers`.

    Attributes
    ----------
    plan_ : DensePlan
        The plan of the distinct items: their prepared rows, potentials, scale, and how balanced it is.
    item_of_sample_ : ndarray, shape (n,)
        Which item each fitted sample is.
    reg_ : float
        The entropy weight used.
    choice_ : AutoReg or None
        What ``reg="auto"`` chose and why.

    Notes
    -----
    Computed in float64, returned in the type of the input. Samples that coincide (for the cosines: that point the same
    way) are one item: they get equal rows, with affinity 1 to one another. That is what makes a new item's row well
    defined when it coincides with a fitted one. The rows of new items do not change those of fitted ones; the joint
    transform of both sets would, a little.

    Time and memory are O(n²) for ``fit``, O(m n) for ``transform`` of m items.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> fitted = BPATransformer(reg=0.1).fit(X)
    >>> fitted.transform(X[:1]).round(2)
    array([[1., 1., 0., 0.]])
    >>> bool(np.allclose(fitted.transform(X), BPATransformer(reg=0.1).fit_transform(X)))
    True
    """

    def __init__(
        self,
        reg: float | Literal["auto"] = "auto",
        *,
        metric: Cost = "cosine",
        scale: Literal["max"] | None = "max",
        solver: str | Solver = "converged",
    ) -> None:
        self.reg = reg
        self.metric = metric
        self.scale = scale
        self.solver = solver

    def fit(self, X: Any, y: Any = None) -> BPATransformer:  # noqa: ARG002 - scikit-learn's signature
        """Balance the set ``X`` (n, d) and keep its potentials; ``y`` is not used."""
        options = self._options()
        samples, _ = self._validate(X, reset=True)
        if self.metric == "precomputed":
            _check_self_costs(samples)
        self._items, item_of_sample = distinct_items(samples, self.metric)
        self.item_of_sample_ = item_of_sample.numpy()
        points = samples[self._items]
        self.plan_ = DensePlan.of(points[:, self._items] if self.metric == "precomputed" else points, options)
        self.reg_ = self.plan_.reg
        self.choice_: AutoReg | None = _choice(self.plan_) if options.reg == "auto" else None
        self._n_features_out = len(self.item_of_sample_)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the rows (m, n) of the items ``X`` (m, d): affinities to the n fitted samples."""
        check_is_fitted(self)
        samples, dtype = self._validate(X, reset=False)
        if self.metric == "precomputed":
            samples = samples[:, self._items]
        out = np.empty((len(samples), self._n_features_out), dtype=dtype)
        for span in spans(len(samples), _BLOCK_NUMBERS // self._n_features_out):
            late = self.plan_.late(samples[span])
            rows = late.rows() if self.choice_ is None else _standardised(late, self.reg_, self.choice_)
            out[span] = rows.numpy()[:, self.item_of_sample_]
        return out

    def _options(self) -> Options:
        """What the plan is asked for; where the weight is left to the rule, rows of the plan itself."""
        name = type(self).__name__
        check_choice(self.metric, _METRICS, argument="metric", function=name)
        check_choice(self.scale, ("max", None), argument="scale", function=name)
        reg = check_reg(self.reg, function=name, auto=self.metric != "precomputed")
        if reg == "auto" and self.scale is None:
            raise ArgumentError(
                f"The 'scale' parameter of {name} has no effect with reg='auto', which brings each row to one length. "
                f"Leave it out, or give reg a number."
            )
        return Options.checked(
            name, reg=reg, cost=self.metric, given_costs=True,
            solver=solver_named(self.solver) if isinstance(self.solver, str) else self.solver,
            scale=None if reg == "auto" else self.scale, diagonal=0.0 if reg == "auto" else 1.0,
        )  # fmt: skip

    def _validate(self, X: Any, *, reset: bool) -> tuple[Tensor, np.dtype[Any]]:
        """Samples in the type to compute in, and the type to answer in."""
        array = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32])
        return torch.from_numpy(np.array(array, dtype=np.float64)), array.dtype

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = tags.input_tags.positive_only = self.metric == "precomputed"
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _choice(plan: DensePlan) -> AutoReg:
    """What the rule saw in a plan that it weighed."""
    assert plan.preparation is not None and plan.preparation.mean is not None  # noqa: S101, PT018 - the rule centres
    mean = plan.preparation.mean.square().sum() if plan.preparation.of_units else torch.zeros(())
    cosines = (plan.features @ plan.features.T).clamp_(-1, 1)
    weight = weigh(cosines, mean.double(), None)
    return standardise(plan.affinities(), cosines, weight, diagonal=1.0, mask=None)[1]


def _standardised(late: Late, reg: float, choice: AutoReg) -> Tensor:
    """Rows of the plan, brought to one length by the choice made for the fitted set."""
    is_self = torch.zeros_like(late.entries, dtype=torch.bool)
    is_self[late.known] = True
    return standardise_rows(late.rows(), (late.entries * reg).clamp_(-1, 1), is_self, choice)


def _check_self_costs(costs: Tensor) -> None:
    if costs.shape[0] != costs.shape[1]:
        raise ArgumentError(
            f"With metric='precomputed', BPATransformer.fit needs square costs (n, n). Got {tuple(costs.shape)}."
        )
    if bool((costs < 0).any()):
        raise ArgumentError(
            "Negative values in data: with metric='precomputed', BPATransformer.fit needs costs of at least 0. Add a "
            "constant to the costs off the diagonal; it changes nothing."
        )
