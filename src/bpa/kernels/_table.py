"""The table of kernels: two ordered lists, each entry saying what it cannot take; the first that can is used.

`AFFINITIES` turn rows into W at once; `PLANS` represent the kernel of one large set, balanced once and asked later.
A new kernel is one file with a class like `Dense` (a ``name``, ``why_not``, ``affinities``) and one line here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from bpa._checks import check_cost, check_features, check_labels, check_mask, check_reg
from bpa.errors import ArgumentError, DTypeError
from bpa.kernels._dense import Dense
from bpa.kernels._fused import Fused
from bpa.kernels._graph import GRAPH
from bpa.kernels._ranks import RANKS
from bpa.kernels._recipe import PlanRequest, Recipe, Reg, Request
from bpa.kernels._rows import Preparation
from bpa.kernels._tiles import KEPT, STREAMED, GramTiles
from bpa.kernels._weight import LEAST_REG
from bpa.memory import parse_bytes
from bpa.records import Convergence

__all__ = [
    "AFFINITIES",
    "PLANS",
    "Entry",
    "Explanation",
    "PlanEntry",
    "choose",
    "choose_plan",
    "computable",
    "explain",
    "explain_plan",
    "request_of",
]

VARIABLE = "BPA_KERNEL"
"""Environment variable that forces one entry by name."""


class Entry(Protocol):
    """What the table asks of a kernel that turns rows into W."""

    name: str

    def why_not(self, request: Request) -> str | None:
        """Why it cannot take these sets, in a few words; None where it can."""

    def affinities(self, request: Request) -> tuple[Tensor, Convergence | None]:
        """W (..., n, n), and how balanced its plan is; None is enough where ``wants_convergence`` is false."""


AFFINITIES: tuple[Entry, ...] = (Fused(), Dense())
"""For W now: fastest first, and last the one that takes everything."""


class PlanEntry(Protocol):
    """What the table asks of a representation of one large kernel."""

    name: str

    def why_not(self, request: PlanRequest) -> str | None:
        """Why it cannot take this set, in a few words; None where it can."""


PLANS: tuple[PlanEntry, ...] = (RANKS, GRAPH, KEPT, STREAMED)
"""For a plan asked later: what was asked for by name, then what memory allows."""


def choose(request: Request) -> Entry:
    """The first entry that can take ``request``, or the one the environment forces."""
    forced = None if torch.compiler.is_compiling() else _forced(AFFINITIES)
    for entry in AFFINITIES if forced is None else (forced,):
        reason = entry.why_not(request)
        if reason is None:
            return entry
    assert forced is not None  # noqa: S101 - the last entry of the table takes everything
    raise _cannot(forced.name, reason)


def choose_plan(request: PlanRequest) -> Explanation:
    """Which representation serves a plan; nobody, where none can."""
    forced = _forced(PLANS)
    reasons = tuple((entry.name, entry.why_not(request)) for entry in PLANS)
    able = [name for name, reason in reasons if reason is None]
    if forced is not None and able and forced.name not in able:
        raise _cannot(forced.name, dict(reasons)[forced.name])
    return Explanation(forced.name if forced is not None and able else next(iter(able), None), reasons)


def _forced(entries: Sequence[Any]) -> Any:
    """The entry of this list that the environment names; None where it names one of the other list, or nothing."""
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    known = [entry.name for entry in AFFINITIES] + [entry.name for entry in PLANS]
    if name not in known:
        raise ArgumentError(f"The environment variable {VARIABLE} may name {', '.join(known)}. Got {name!r}.")
    return next((entry for entry in entries if entry.name == name), None)


def _cannot(name: str, reason: str | None) -> ArgumentError:
    return ArgumentError(f"{VARIABLE}={name} cannot take this call: {reason}. Unset it, or change the call.")


@dataclass(frozen=True)
class Explanation:
    """Which kernel a call uses, and why the ones before it do not serve.

    Parameters
    ----------
    chosen : str or None
        Name of the entry that is used; None where nobody can.
    reasons : tuple of (str, str or None)
        Every entry in the order they are asked, with its reason against this call; None where it could take it.

    Examples
    --------
    >>> import torch
    >>> told = explain(torch.randn(5, 3), reg="auto")
    >>> told.chosen, dict(told.reasons)["fused"]
    ('dense', "reg='auto' centres the set and finishes its rows another way")
    """

    chosen: str | None
    reasons: tuple[tuple[str, str | None], ...]

    def __str__(self) -> str:
        lines = []
        for name, reason in self.reasons:
            said = reason if reason is not None else "could take it, and is slower"
            lines.append(f"{name}: {'used' if name == self.chosen else said}")
        return "\n".join(lines)


def explain(
    x: Tensor, *, mask: Tensor | None = None, support_labels: Tensor | None = None, **options: Any
) -> Explanation:
    """Say which kernel :func:`bpa.balanced_affinities` uses for these sets, and why; nothing is computed.

    Parameters
    ----------
    x, mask, support_labels
        As for :func:`bpa.balanced_affinities`.
    **options
        Its other options.

    Returns
    -------
    Explanation
        ``print`` it for one line an entry.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(2, 80, 640)
    >>> print(explain(x))
    fused: used
    dense: could take it, and is slower
    >>> print(explain(x, cost="sqeuclidean"))
    fused: it knows the cosine cost only
    dense: used
    """
    request = request_of(x, Recipe(**options, function="explain"), mask, support_labels)
    return Explanation(choose(request).name, tuple((e.name, e.why_not(request)) for e in AFFINITIES))


def explain_plan(
    x: Tensor,
    *,
    reg: Reg,
    cost: Literal["cosine", "centred-cosine", "sqeuclidean"] = "cosine",
    keep: bool | torch.dtype | None = None,
    neighbours: int | None = None,
    budget: str | int | None = None,
) -> Explanation:
    """Say which kernel a plan of `bpa.plans` uses for one set, and why; nothing is balanced.

    Parameters
    ----------
    x : Tensor, shape (n, d)
        Features of one set.
    reg, cost, keep, budget
        As for :meth:`bpa.plans.DensePlan.fit`.
    neighbours : int, optional
        Entries of a neighbour list, for :class:`bpa.plans.GraphPlan`.

    Returns
    -------
    Explanation
        ``chosen`` is None where nobody can: the budget is too small.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(300, 8)
    >>> print(explain_plan(x, reg=0.1, keep=False))
    ranks: the set is not shared by processes
    graph: all pairs were asked for, not those of a neighbour graph
    kept: keep=False asks for tiles
    streamed: used
    """
    check_features(x, argument="x", function="explain_plan")
    weight = check_reg(reg, function="explain_plan", auto=True)
    x = computable(x)
    rows = Preparation.of(x, cost, x.dtype).rows(x, x.dtype)
    spread = GramTiles(rows, cost, LEAST_REG if weight == "auto" else weight).spread
    n, d = x.shape
    allowed = None if budget is None else parse_bytes(budget)
    return choose_plan(PlanRequest(n, d, x.dtype, spread, keep, neighbours, budget=allowed))


def request_of(
    x: Tensor,
    recipe: Recipe,
    mask: Tensor | None,
    labels: Tensor | None,
    *,
    wants_convergence: bool = False,
) -> Request:
    """Check what a caller gave, and put it in a type to compute in."""
    function = recipe.function
    check = check_cost if recipe.cost == "precomputed" else check_features
    check(x, argument="x", function=function)
    shape = x.shape[:-1]
    mask = None if mask is None else check_mask(mask, shape, function=function)
    labels = None if labels is None else check_labels(labels, shape, function=function)
    return Request(recipe, computable(x), mask, labels, wants_convergence)


def computable(x: Tensor) -> Tensor:
    """``x`` in a type to compute in: float32 for the half types."""
    if x.dtype in (torch.float32, torch.float64):
        return x
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.float()
    raise DTypeError(f"Numbers of type {x.dtype} are not supported. Convert them to float32 first.")
