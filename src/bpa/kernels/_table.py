"""The table of kernels: an ordered list, each entry saying what it cannot take; the first that can is used.

A new kernel is one file with a class like `Dense` (a ``name``, ``why_not``, ``affinities``) and one line here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bpa._checks import check_cost, check_features, check_labels, check_mask
from bpa.errors import ArgumentError, DTypeError
from bpa.kernels._dense import Dense
from bpa.kernels._fused import Fused
from bpa.kernels._recipe import Recipe, Request
from bpa.records import Convergence

__all__ = ["AFFINITIES", "Entry", "Explanation", "choose", "computable", "explain", "request_of"]

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


def choose(request: Request) -> Entry:
    """The first entry that can take ``request``, or the one the environment forces."""
    forced = None if torch.compiler.is_compiling() else os.environ.get(VARIABLE)
    if forced:
        return _forced(forced, request)
    for entry in AFFINITIES:
        if entry.why_not(request) is None:
            return entry
    raise AssertionError("the last entry takes everything")


def _forced(name: str, request: Request) -> Entry:
    known = {entry.name: entry for entry in AFFINITIES}
    if name not in known:
        raise ArgumentError(f"The environment variable {VARIABLE} may name {', '.join(known)}. Got {name!r}.")
    reason = known[name].why_not(request)
    if reason is not None:
        raise ArgumentError(
            f"{VARIABLE}={name} cannot take this call: {reason}. Unset it, or change the call."
        )
    return known[name]


@dataclass(frozen=True)
class Explanation:
    """Which kernel a call uses, and why the ones before it do not serve.

    Parameters
    ----------
    chosen : str
        Name of the entry that is used.
    reasons : tuple of (str, str or None)
        Every entry in the order they are asked, with its reason against this call; None where it could take it.

    Examples
    --------
    >>> import torch
    >>> told = explain(torch.randn(5, 3), reg="auto")
    >>> told.chosen, dict(told.reasons)["fused"]
    ('dense', "reg='auto' centres the set and finishes its rows another way")
    """

    chosen: str
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
