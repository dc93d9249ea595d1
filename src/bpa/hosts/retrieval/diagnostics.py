"""Whether ``reg`` fits the features: what a ranking says about itself, read off a sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bpa.cost import cosine_cost, unit_rows
from bpa.plans import DensePlan, GraphPlan

__all__ = ["Diagnostics", "PlanSigns", "diagnose_ranking", "plain_costs", "signs_of"]

_SAMPLE = 256


@dataclass(frozen=True)
class Diagnostics:
    """Whether ``reg`` fits the features.

    Attributes
    ----------
    reg : float
        The entropy weight used.
    cost_mean, cost_std : float
        Of the off-diagonal cost (a sample of rows). The best ``reg`` was 0.4 to 1 times the deviation where measured.
    perplexity : float
        Median number of items a row of the plan spreads over, exp(entropy).
    n : int
        Items of the set that was balanced.
    row_maximum : float
        Mean largest off-diagonal entry of the stretched rows.
    marginal_error, scale : float
        Of the plan.
    hubness_before, hubness_after : float
        Skewness of how often gallery items are in the top 10, for the plain cost and for the ranking returned.
    near, middle : float
        Quantiles 0.001 and 0.5 of the distances of rows: where they are close, re-ranking weights that fall with the
        distance are nearly flat, and only its neighbour sets carry information.
    notes : tuple of str
        What looks wrong, in sentences; empty when nothing does.

    Examples
    --------
    >>> from bpa.hosts.retrieval import rank
    >>> x = 1 + torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    >>> seen = rank(x).diagnostics
    >>> 0.08 <= seen.reg <= 0.4, seen.n, seen.notes
    (True, 200, ())
    """

    reg: float
    cost_mean: float
    cost_std: float
    perplexity: float
    n: int
    row_maximum: float
    marginal_error: float
    scale: float
    hubness_before: float
    hubness_after: float
    near: float
    middle: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanSigns:
    """What was seen of a plan before it went; the fields are those of :class:`Diagnostics`."""

    reg: float
    n: int
    perplexity: float
    row_maximum: float
    marginal_error: float
    scale: float


def signs_of(plan: DensePlan | GraphPlan) -> PlanSigns:
    """Perplexity and largest entries of a sample of rows, and what the plan knows of itself."""
    chosen = torch.linspace(0, plan.n - 1, min(plan.n, _SAMPLE)).long()
    rows = plan.rows(chosen)
    rows = (rows.to_dense() if rows.layout is torch.sparse_csr else rows).to(plan.features.dtype, copy=True)
    rows[torch.arange(len(chosen)), chosen] = 0
    share = rows / rows.sum(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    entropy = -torch.special.xlogy(share, share).sum(dim=1)
    perplexity, row_maximum = float(entropy.exp().median()), float(rows.amax(dim=1).mean())
    return PlanSigns(
        plan.reg, plan.n, perplexity, row_maximum, float(plan.convergence.marginal_error), plan.scale
    )


def plain_costs(query: Tensor, gallery: Tensor, cost: str) -> Tensor:
    """Costs of features by which a ranking without the plan would go, shape (q, g)."""
    return cosine_cost(query, gallery) if "cosine" in cost else torch.cdist(query, gallery)


def diagnose_ranking(
    query: Tensor, gallery: Tensor | None, distances: Tensor, signs: PlanSigns, *, cost: str, is_centred: bool
) -> Diagnostics:
    """Look at a ranking beside that of the plain cost, for a sample of queries.

    Parameters
    ----------
    query, gallery : Tensor
        Features of both sides; without a gallery every item queries the others.
    distances : Tensor, shape (n_query, n_gallery)
        The ranking.
    signs : PlanSigns
        Of its plan.
    cost : str
        What differs between two items.
    is_centred : bool
        Whether the plan's costs are those of unit rows minus their mean.

    Returns
    -------
    Diagnostics
    """
    chosen = torch.linspace(0, len(query) - 1, min(len(query), 4 * _SAMPLE)).long()
    others = query if gallery is None else gallery
    own = chosen if gallery is None else None
    plain = plain_costs(query[chosen], others, cost)
    before, after = _hub_skewness(plain, own), _hub_skewness(distances[chosen], own)
    if is_centred:
        joint = unit_rows(query if gallery is None else torch.cat([query, gallery]))
        joint = joint - joint.mean(dim=0)
        plain = cosine_cost(joint[chosen], joint if gallery is None else joint[len(query) :])
    if own is not None:
        plain[torch.arange(len(own)), own] = torch.nan
    plain = plain[~torch.isnan(plain)]
    deviation = float(plain.std()) if plain.numel() > 1 else 0.0
    sample = torch.sort(distances[chosen].reshape(-1)).values
    return Diagnostics(
        reg=signs.reg, cost_mean=float(plain.mean()), cost_std=deviation, perplexity=signs.perplexity, n=signs.n,
        row_maximum=signs.row_maximum, marginal_error=signs.marginal_error, scale=signs.scale, hubness_before=before,
        hubness_after=after, near=float(sample[len(sample) // 1000]), middle=float(sample[len(sample) // 2]),
        notes=tuple(_notes(signs, deviation, before, after, len(chosen))),
    )  # fmt: skip


def _notes(signs: PlanSigns, deviation: float, before: float, after: float, n_chosen: int) -> list[str]:
    notes = []
    share = signs.perplexity / max(1, signs.n - 1)
    extreme = "large" if share > 0.9 else "small" if share < 0.05 and signs.n > 100 else ""
    if extreme:
        notes.append(
            f"reg={signs.reg:g} is {extreme} for these features: a row spreads over {signs.perplexity:.0f} of "
            f"{signs.n} items; the cost varies by {deviation:.2g}, and 0.4 to 1 times that is a first guess for reg."
        )
    if after > before + 0.1 and n_chosen >= 50:
        notes.append(
            f"with reg={signs.reg:g} few items fill more top lists than before (skewness {before:.2f} to {after:.2f}); "
            f"a ranking with more hubs is usually worse."
        )
    return notes


def _hub_skewness(distances: Tensor, own: Tensor | None, k: int = 10) -> float:
    """Skewness of how often each gallery item is among the k nearest."""
    if own is not None:
        distances = distances.clone()
        distances[torch.arange(len(own)), own] = torch.inf
    nearest = torch.topk(distances, min(k, distances.shape[1]), dim=1, largest=False).indices
    count = torch.bincount(nearest.reshape(-1), minlength=distances.shape[1]).double()
    deviation = count - count.mean()
    spread = float(deviation.square().mean())
    return 0.0 if spread == 0 else float(deviation.pow(3).mean()) / spread**1.5
