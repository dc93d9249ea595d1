"""Arrays in, arrays out: the transform as a scikit-learn estimator, also for items that arrive later."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bpa.cost import cosine_cost, unit_rows
from bpa.errors import ArgumentError, ConvergenceWarning, MissingExtraError
from bpa.kernels._standardise import AutoReg, standardise, standardise_rows
from bpa.kernels._weight import weigh
from bpa.solvers import Converged
from bpa.transforms.functional import balance

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    if error.name is not None and error.name.split(".")[0] == "sklearn":
        raise MissingExtraError("bpa.estimators.transformer", "sklearn") from error
    raise

__all__ = ["BPATransformer"]

_SAME_ITEM = 1e-13
"""Costs up to this, relative to the scale of the costs, are rounding: the two items are one and the same."""
_BLOCK_NUMBERS = 1 << 23
"""Costs of new items held at a time."""


class BPATransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Balanced affinities to the items of a fitted set.

    ``fit`` balances the plan of the set to itself until it has converged, and keeps the items and one
    potential :math:`g_j` each. ``transform`` gives any item, fitted or new, its row

    .. math::

        w_j(x) = e^{f(x) + g_j - c(x, x_j)/\mathrm{reg}} / s, \qquad
        f(x) = -\log \sum_j e^{g_j - c(x, x_j)/\mathrm{reg}},

    with s the largest affinity of the fitted set. For a fitted item this is its row of the plan, with
    affinity 1 to itself, so ``fit_transform(X)`` equals ``fit(X).transform(X)``.

    Parameters
    ----------
    reg : float or "auto", default 0.1
        Entropy weight. ``"auto"`` chooses it from the fitted set, with costs ``1 - cosine`` around the mean of that
        set and rows brought to one length; see :func:`bpa.choose_reg`. Not for ``metric="precomputed"``.
    metric : {"cosine", "sqeuclidean", "precomputed"}, default "cosine"
        With ``"precomputed"``, ``fit`` takes symmetric costs (n, n) of at least 0, and ``transform`` costs
        (m, n) to the fitted items.
    scale : {"max", None}, default "max"
        Whether affinities are divided by the largest of the fitted set.
    tol : float, default 1e-6
        Largest relative error of a row sum of the fitted plan.
    max_iter : int, default 300
        Most products with the kernel spent on that.

    Attributes
    ----------
    items_ : ndarray, shape (k, d)
        The distinct fitted items (with ``"precomputed"``, their positions, shape (k,)).
    item_of_sample_ : ndarray, shape (n,)
        Which item each fitted sample is.
    potential_ : ndarray, shape (k,)
        :math:`g`.
    scale_ : float
        The largest affinity before scaling; 1 with ``scale=None``.
    reg_ : float
        The entropy weight used.
    choice_ : AutoReg or None
        What ``reg="auto"`` chose and why.
    n_iter_, marginal_error_, converged_ : int, float, bool
        How the balancing went.
    centre_, cost_unit_ : Tensor, shape (d,), and float
        Mean of the fitted samples, from which Euclidean costs are taken, and their largest entry.

    Notes
    -----
    Computed in float64, returned in the type of the input. Samples that coincide (for ``"cosine"``: that
    point the same way) are one item: they get equal rows, with affinity 1 to one another. That is what
    makes a new item's row well defined when it coincides with a fitted one. The rows of new items do not
    change those of fitted ones; the joint transform of both sets would, a little.

    Time and memory are O(n²) for ``fit``, O(m n) for ``transform`` of m items.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> fitted = BPATransformer().fit(X)
    >>> fitted.transform(X[:1]).round(2)
    array([[1., 1., 0., 0.]])
    >>> bool(np.allclose(fitted.transform(X), BPATransformer().fit_transform(X)))
    True
    """

    def __init__(
        self,
        reg: float | Literal["auto"] = 0.1,
        *,
        metric: Literal["cosine", "sqeuclidean", "precomputed"] = "cosine",
        scale: Literal["max"] | None = "max",
        tol: float = 1e-6,
        max_iter: int = 300,
    ) -> None:
        self.reg = reg
        self.metric = metric
        self.scale = scale
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any = None) -> BPATransformer:  # noqa: ARG002 - scikit-learn's signature
        """Balance the set ``X`` (n, d) and keep its potentials; ``y`` is not used."""
        if self.metric not in ("cosine", "sqeuclidean", "precomputed"):
            raise ArgumentError(
                "The 'metric' parameter of BPATransformer must be 'cosine', 'sqeuclidean' or 'precomputed'. "
                f"Got {self.metric!r}."
            )
        if self.scale not in ("max", None):
            raise ArgumentError(
                f"The 'scale' parameter of BPATransformer must be 'max' or None. Got {self.scale!r}."
            )
        if self.reg == "auto" and (self.metric == "precomputed" or self.scale is None):
            name, given = ("metric", self.metric) if self.metric == "precomputed" else ("scale", None)
            raise ArgumentError(
                f"The {name!r} parameter of BPATransformer cannot be {given!r} with reg='auto', which centres features "
                "and brings rows to one length. Give reg a number."
            )
        samples, _ = self._validate(X, reset=True)
        if self.metric == "precomputed":
            _check_self_costs(samples)
        self.centre_ = samples.mean(dim=0)
        self.cost_unit_ = float(samples.max())
        own = torch.arange(len(samples)) if self.metric == "precomputed" else samples
        costs, is_same = self._costs_to(samples, own)
        is_same.fill_diagonal_(True)  # also where given costs of an item to itself carry rounding
        item_of_sample = is_same.to(torch.uint8).argmax(dim=1)  # the first sample that is the same item
        positions, self_item = torch.unique(item_of_sample, return_inverse=True)
        self.items_ = positions.numpy() if self.metric == "precomputed" else samples[positions].numpy()
        self.item_of_sample_ = self_item.numpy()
        costs = costs[positions][:, positions]
        self.choice_: AutoReg | None = None
        if self.reg == "auto":
            points = samples[positions]
            self.centre_ = self._uncentred(points).mean(dim=0)
            directions = self._directions(points)
            cosines = (directions @ directions.T).clamp(-1, 1)
            costs = 1 - cosines
            mean = self.centre_.square().sum() if self.metric == "cosine" else torch.zeros(())
            weight = weigh(cosines, mean.double(), None)
        self.reg_ = float(weight.reg) if self.reg == "auto" else float(self.reg)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # said below, in this estimator's words
            result = balance(
                costs,
                reg=self.reg_,
                solver=Converged(self.tol, self.max_iter),
            )
        if self.reg == "auto":
            self.choice_ = standardise(result.plan, cosines, weight, diagonal=1.0, mask=None)[1]
        largest = float(result.plan.max())
        self.potential_ = result.log_u.numpy()
        self.scale_ = largest if self.scale == "max" and largest > 0 else 1.0
        self.n_iter_ = int(result.convergence.n_iter)
        self.marginal_error_ = float(result.convergence.marginal_error)
        self.converged_ = self.marginal_error_ <= self.tol
        self._n_features_out = len(self.item_of_sample_)
        if not self.converged_:
            warnings.warn(
                f"BPATransformer reached a row-sum error of {self.marginal_error_:.2g}, not "
                f"tol={self.tol:g}, within "
                f"max_iter={self.max_iter} (reg={self.reg_:g}). Raise reg, tol or max_iter.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the rows (m, n) of the items ``X`` (m, d): affinities to the n fitted samples."""
        check_is_fitted(self)
        samples, dtype = self._validate(X, reset=False)
        out = np.empty((len(samples), self._n_features_out), dtype=dtype)
        rows = max(1, _BLOCK_NUMBERS // max(1, self._n_features_out))
        for start in range(0, len(samples), rows):
            affinity = self._rows_of(samples[start : start + rows])
            out[start : start + rows] = affinity.numpy()[:, self.item_of_sample_]
        return out

    def _rows_of(self, samples: Tensor) -> Tensor:
        """Affinities (m, k) to the fitted items."""
        items = torch.from_numpy(self.items_)
        costs, is_same = self._costs_to(samples, items)
        if self.choice_ is not None:
            cosines = (self._directions(samples) @ self._directions(items).T).clamp(-1, 1)
            costs = 1 - cosines
        log_affinity = torch.from_numpy(self.potential_) - costs / self.reg_
        log_affinity = log_affinity.masked_fill(is_same, -torch.inf)
        normaliser = torch.logsumexp(log_affinity, dim=1, keepdim=True)
        has_partner = normaliser > -torch.inf
        affinity = (log_affinity - torch.where(has_partner, normaliser, 0.0)).exp()
        if self.choice_ is not None:
            return standardise_rows(affinity, cosines, is_same, self.choice_)
        return torch.where(is_same, 1.0, affinity / self.scale_)

    def _uncentred(self, samples: Tensor) -> Tensor:
        return unit_rows(samples) if self.metric == "cosine" else samples

    def _directions(self, samples: Tensor) -> Tensor:
        """Unit rows as seen from the mean of the fitted set."""
        return unit_rows(self._uncentred(samples) - self.centre_)

    def _costs_to(self, samples: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (m, k), and which of the pairs are one and the same item."""
        if self.metric == "precomputed":
            costs = samples[:, items]
            return costs, costs <= _SAME_ITEM * self.cost_unit_
        if self.metric == "cosine":
            costs = cosine_cost(samples, items)
            are_zero = (samples == 0).all(dim=1)[:, None] & (items == 0).all(dim=1)[None, :]
            return costs, (costs <= _SAME_ITEM) | are_zero
        # Moved by the mean of the fitted set, whatever else comes along: a row must not depend on its
        # companions.
        samples, items = samples - self.centre_, items - self.centre_
        sizes = samples.square().sum(dim=1)[:, None] + items.square().sum(dim=1)[None, :]
        costs = (sizes - 2 * samples @ items.T).clamp_min(0)
        return costs, costs <= _SAME_ITEM * sizes

    def _validate(self, X: Any, *, reset: bool) -> tuple[Tensor, np.dtype[Any]]:
        """Samples in the type to compute in, and the type to answer in."""
        array = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32])
        return torch.from_numpy(np.array(array, dtype=np.float64)), array.dtype

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = tags.input_tags.positive_only = self.metric == "precomputed"
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _check_self_costs(costs: Tensor) -> None:
    if costs.shape[0] != costs.shape[1]:
        raise ArgumentError(
            f"With metric='precomputed', BPATransformer.fit needs square costs (n, n). Got "
            f"{tuple(costs.shape)}."
        )
    if bool((costs < 0).any()):
        raise ArgumentError(
            "Negative values in data: with metric='precomputed', BPATransformer.fit needs costs of at "
            "least 0. "
            "Add a constant to the costs off the diagonal; it changes nothing."
        )
