"""One function per validation sentence; called once, at the public door."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Literal, overload

import torch
from torch import Tensor

from bpa.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError


def is_tracing() -> bool:
    """Whether values cannot be looked at: under compile, export, or a functorch transform."""
    return bool(torch.compiler.is_compiling()) or torch._C._functorch.maybe_current_level() is not None


def check_features(x: object, *, argument: str, function: str) -> None:
    """Floating point, at least two dimensions, at least one item."""
    _check_floating_tensor(x, argument, function)
    assert isinstance(x, Tensor)  # noqa: S101 - narrowing for the type checker; checked above
    if x.dim() < 2:
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have shape (..., n, d). Got {tuple(x.shape)}. "
            f"A single item is a set of one: use {argument}[None]."
        )
    if not is_tracing() and x.shape[-2] == 0:
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have shape (..., n, d) with n ≥ 1. "
            f"Got {tuple(x.shape)}. An empty set has nothing to compare; pass mask=... for padded sets."
        )
    if not is_tracing() and x.shape[-1] == 0:
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have at least one feature. Got {tuple(x.shape)}."
        )


def check_cost(cost: object, *, argument: str, function: str, square: bool = True) -> None:
    """Floating point, (..., n, n) with n ≥ 1 (or (..., n, m) where ``square`` is false)."""
    _check_floating_tensor(cost, argument, function)
    assert isinstance(cost, Tensor)  # noqa: S101 - narrowing for the type checker; checked above
    wanted = "(..., n, n)" if square else "(..., n, m)"
    if cost.dim() < 2 or (square and cost.shape[-1] != cost.shape[-2]):
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have shape {wanted}. Got {tuple(cost.shape)}."
        )
    if not is_tracing() and 0 in cost.shape[-2:]:
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have shape {wanted} with n ≥ 1. Got {tuple(cost.shape)}."
        )


def _check_floating_tensor(x: object, argument: str, function: str) -> None:
    if not isinstance(x, Tensor):
        raise DTypeError(
            f"The {argument!r} parameter of {function} must be a torch.Tensor. Got {type(x).__name__}. "
            f"Convert it with torch.as_tensor."
        )
    if x.layout is not torch.strided:
        raise DTypeError(
            f"The {argument!r} parameter of {function} must be a dense tensor. Got layout {x.layout}. "
            f"Call .to_dense() first."
        )
    if not x.dtype.is_floating_point:
        raise DTypeError(
            f"The {argument!r} parameter of {function} must hold floating point numbers. Got {x.dtype}. "
            f"Call .float() first."
        )


def check_finite(x: Tensor, *, argument: str, function: str, mask: Tensor | None = None) -> None:
    """No NaN and no Inf in the items that exist; the message names the first rows that break it."""
    if is_tracing():
        return
    bad_rows = ~torch.isfinite(x).all(dim=-1)
    if mask is not None:
        bad_rows = bad_rows & mask
    if bool(bad_rows.any()):
        raise_non_finite(bad_rows, argument=argument, function=function)


def raise_non_finite(bad_rows: Tensor, *, argument: str, function: str) -> None:
    """Say which rows hold NaN or Inf; ``bad_rows`` has shape (..., n)."""
    where = [tuple(row) if len(row) > 1 else row[0] for row in bad_rows.nonzero()[:5].tolist()]
    count = int(bad_rows.sum())
    more = f" (the first of {count})" if count > len(where) else ""
    raise NonFiniteError(
        f"The {argument!r} parameter of {function} must be finite. Rows {where}{more} hold NaN or Inf. "
        f"Remove or mask these rows."
    )


def check_positive(value: object, *, argument: str, function: str) -> None:
    """A finite real number above zero."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        hint = " For the limit reg = 0 use bpa.exact_matching." if argument == "reg" else ""
        raise ArgumentError(
            f"The {argument!r} parameter of {function} must be a finite number above 0. Got {value!r}.{hint}"
        )


@overload
def check_reg(value: object, *, function: str, auto: Literal[False]) -> float: ...
@overload
def check_reg(value: object, *, function: str, auto: bool) -> float | Literal["auto"]: ...
def check_reg(value: object, *, function: str, auto: bool) -> float | Literal["auto"]:
    """An entropy weight as a number, or ``"auto"`` (written in any case) where ``auto`` says that the rule is offered.

    Examples
    --------
    >>> check_reg(1, function="rank", auto=True), check_reg("Auto", function="rank", auto=True)
    (1.0, 'auto')
    """
    if isinstance(value, str):
        if value.strip().lower() != "auto":
            wanted = "a finite number above 0, or 'auto'" if auto else "a finite number above 0"
            raise ArgumentError(f"The 'reg' parameter of {function} must be {wanted}. Got {value!r}.")
        if not auto:
            raise ArgumentError(
                f"The 'reg' parameter of {function} must be a finite number above 0. Got 'auto', a rule for BPA on "
                f"features; bpa.choose_reg(x) says which number it takes for yours."
            )
        return "auto"
    check_positive(value, argument="reg", function=function)
    return float(value)  # type: ignore[arg-type]  # a real number, checked above


def check_count(
    value: object, *, argument: str, function: str, minimum: int = 1, maximum: int | None = None
) -> None:
    """A whole number of at least ``minimum``, and at most ``maximum`` where there is one."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or int(value) < minimum
        or (maximum is not None and int(value) > maximum)
    ):
        wanted = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ArgumentError(
            f"The {argument!r} parameter of {function} must be a whole number {wanted}. Got {value!r}."
        )


def check_interval(value: object, interval: str, *, argument: str, function: str) -> None:
    """A real number inside an interval written as in mathematics: ``"(0, 1]"`` leaves 0 out and lets 1 in.

    Examples
    --------
    >>> check_interval(1.5, "[0, 1]", argument="step", function="ptmap")
    Traceback (most recent call last):
    ...
    bpa.errors.ArgumentError: The 'step' parameter of ptmap must lie in [0, 1]. Got 1.5.
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    above = number >= low if interval[0] == "[" else number > low
    below = number <= high if interval[-1] == "]" else number < high
    if not (above and below):
        raise ArgumentError(
            f"The {argument!r} parameter of {function} must lie in {interval}. Got {value!r}."
        )


def check_shape(
    shape: Sequence[int], wanted: tuple[int | str, ...], *, argument: str, function: str, way_out: str = ""
) -> None:
    """A shape as docstrings write it: numbers are meant exactly, names are any size of at least one.

    A leading ``"..."`` stands for any number of sizes. ``way_out`` is the sentence after "Got …".

    Examples
    --------
    >>> check_shape((4, 2, 3), ("...", "n", 3), argument="x", function="f")
    >>> check_shape((2, 5), ("n", 3), argument="x", function="f")
    Traceback (most recent call last):
    ...
    bpa.errors.ShapeError: The 'x' parameter of f must have shape (n, 3). Got (2, 5).
    """
    last = wanted[1:] if wanted[0] == "..." else wanted
    fits = len(shape) >= len(last) if wanted[0] == "..." else len(shape) == len(last)
    sizes = tuple(shape)[len(shape) - len(last) :]
    if not fits or not all(
        have >= 1 if isinstance(want, str) else have == want for have, want in zip(sizes, last, strict=True)
    ):
        listed = ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "")
        empty = " and no empty side" if 0 in sizes else ""
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have shape ({listed}){empty}. Got {tuple(shape)}."
            f"{' ' + way_out if way_out else ''}"
        )


def check_choice(value: object, choices: tuple[object, ...], *, argument: str, function: str) -> None:
    """One of the named choices."""
    if not any(value is choice or value == choice for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise ArgumentError(
            f"The {argument!r} parameter of {function} must be one of {listed}. Got {value!r}."
        )


def check_names(values: Sequence[str], choices: Sequence[str], *, argument: str, function: str) -> None:
    """At least one name, each of them one there is.

    Examples
    --------
    >>> check_names(("csls", "magic"), ("nearest", "csls"), argument="hosts", function="retrieval_ways")
    Traceback (most recent call last):
    ...
    bpa.errors.ArgumentError: The 'hosts' parameter of retrieval_ways may name nearest, csls. Got 'magic'.
    """
    unknown = [value for value in values if value not in choices]
    if unknown or not values:
        got = repr(unknown[0]) if unknown else "no name"
        raise ArgumentError(
            f"The {argument!r} parameter of {function} may name {', '.join(choices)}. Got {got}."
        )


def check_mask(mask: object, shape: torch.Size, *, function: str) -> Tensor:
    """Booleans that broadcast to the (..., n) of the set; returned at that shape."""
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise DTypeError(
            f"The 'mask' parameter of {function} must be a boolean tensor, true at the items that exist. Got {got}."
        )
    return _broadcast(mask, shape, argument="mask", function=function)


def check_labels(labels: object, shape: torch.Size, *, function: str) -> Tensor:
    """Whole numbers that broadcast to the (..., n) of the set, −1 for unknown; returned at that shape."""
    if not isinstance(labels, Tensor) or labels.dtype.is_floating_point or labels.dtype is torch.bool:
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise DTypeError(
            f"The 'support_labels' parameter of {function} must be an integer tensor, −1 where the label is "
            f"unknown. Got {got}."
        )
    return _broadcast(labels, shape, argument="support_labels", function=function)


def _broadcast(value: Tensor, shape: torch.Size, *, argument: str, function: str) -> Tensor:
    fits = value.dim() <= len(shape) and value.dim() >= 1 and value.shape[-1] == shape[-1]
    if fits:
        try:
            return value.expand(shape)
        except RuntimeError:
            fits = False
    raise ShapeError(
        f"The {argument!r} parameter of {function} must have shape (..., n) = {tuple(shape)}, one entry an item. "
        f"Got {tuple(value.shape)}."
    )
