"""What the few-shot hosts share: an episode checked once, and class means that do not depend on row order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bpa.errors import ArgumentError, DTypeError, ShapeError
from bpa.transforms.contract import SetTransform


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a few-shot host says about each query.

    Parameters
    ----------
    scores : Tensor, shape (..., Q, k)
        Logits or log-probabilities: the larger, the likelier. Differentiable. Zero at masked queries.
    """

    scores: Tensor

    @property
    def labels(self) -> Tensor:
        """The likeliest class of each query, shape (..., Q), int64."""
        return self.scores.detach().argmax(dim=-1)


@dataclass(frozen=True, eq=False)
class TaskSet:
    """Labelled and unlabelled rows of a task as one set, labelled rows first.

    ``x`` has shape (..., n, d) with n = L + Q, ``mask`` shape (..., n) or None, ``support_onehot`` shape
    (..., L, k) with zero rows where the mask is false.
    """

    x: Tensor
    mask: Tensor | None
    support_onehot: Tensor
    n_support: int

    @property
    def support_mask(self) -> Tensor | None:
        """True at the labelled rows that exist."""
        return None if self.mask is None else self.mask[..., : self.n_support]

    @property
    def query_mask(self) -> Tensor | None:
        """True at the unlabelled rows that exist."""
        return None if self.mask is None else self.mask[..., self.n_support :]


def join(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    n_way: int | None,
    support_mask: Tensor | None,
    query_mask: Tensor | None,
    function: str,
) -> TaskSet:
    """Check an episode and lay its rows side by side; half precision becomes float32."""
    for name, value in (("support", support), ("query", query)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise DTypeError(f"The {name!r} parameter of {function} must be a floating tensor. Got {kind}.")
        if value.dim() < 2 or value.shape[-2] < 1 or value.shape[-1] < 1:
            raise ShapeError(
                f"The {name!r} parameter of {function} must have shape (..., rows, d) with at least one row. "
                f"Got {tuple(value.shape)}."
            )
    if support.shape[:-2] != query.shape[:-2] or support.shape[-1] != query.shape[-1]:
        raise ShapeError(
            f"The 'support' and 'query' of {function} must agree in batch and width. Got "
            f"{tuple(support.shape)} "
            f"and {tuple(query.shape)}."
        )
    if support_labels.shape != support.shape[:-1]:
        raise ShapeError(
            f"The 'support_labels' of {function} must have shape {tuple(support.shape[:-1])}, "
            f"one per support row. "
            f"Got {tuple(support_labels.shape)}."
        )
    if support_labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise DTypeError(f"The 'support_labels' of {function} must be integers. Got {support_labels.dtype}.")
    labels = support_labels.to(device=support.device, dtype=torch.int64)
    mask: Tensor | None = None
    if support_mask is not None or query_mask is not None:
        parts = []
        for name, given, rows in (("support_mask", support_mask, support), ("query_mask", query_mask, query)):
            if given is None:
                given = torch.ones(rows.shape[:-1], dtype=torch.bool, device=rows.device)
            if given.shape != rows.shape[:-1] or given.dtype != torch.bool:
                raise ShapeError(
                    f"The {name!r} of {function} must be boolean with shape {tuple(rows.shape[:-1])}. "
                    f"Got {given.dtype} {tuple(given.shape)}."
                )
            parts.append(given)
        mask = torch.cat(parts, dim=-1)
    valid = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask[..., : labels.shape[-1]]
    known = torch.where(valid, labels, torch.zeros_like(labels))
    k = int(known.max()) + 1 if n_way is None else n_way
    if int(known.min()) < 0 or int(known.max()) >= k:
        raise ArgumentError(
            f"The 'support_labels' of {function} must lie in 0 … n_way - 1 = {k - 1}. Got "
            f"{int(known.min())} … "
            f"{int(known.max())}."
        )
    dtype = torch.promote_types(torch.promote_types(support.dtype, query.dtype), torch.float32)
    onehot = torch.nn.functional.one_hot(known, k).to(dtype) * valid[..., None].to(dtype)
    empty = onehot.sum(dim=-2) == 0
    if bool(empty.any()):
        missing = int(empty.nonzero()[0, -1])
        raise ArgumentError(
            f"Every class needs a labelled row in {function}. Class {missing} of {k} has none in "
            f"'support_labels'."
        )
    x = _side_by_side(support.to(dtype), query.to(dtype))
    if mask is not None:  # whatever padding holds, it enters nothing
        x = torch.where(mask[..., None], x, torch.zeros_like(x))
    return TaskSet(x, mask, onehot, support.shape[-2])


def _side_by_side(support: Tensor, query: Tensor) -> Tensor:
    """Both as one set; without a copy where they are neighbouring slices of one tensor, as drawn tasks are."""
    first, second = support.storage_offset(), query.storage_offset()
    if (
        support.untyped_storage().data_ptr() == query.untyped_storage().data_ptr()
        and support.stride() == query.stride()
        and second == first + support.shape[-2] * support.stride(-2)
        and not (support.requires_grad or query.requires_grad)
    ):
        shape = (*support.shape[:-2], support.shape[-2] + query.shape[-2], support.shape[-1])
        return support.as_strided(shape, support.stride(), first)
    return torch.cat([support, query], dim=-2)


def transformed(transform: SetTransform, x: Tensor, mask: Tensor | None) -> Tensor:
    """Rows of the set after ``transform``; masked rows as zeros, outside autocast."""
    with torch.autocast(device_type=x.device.type, enabled=False):
        z = transform(x, mask=mask)
    return z if mask is None else torch.where(mask[..., None], z, torch.zeros_like(z))


@runtime_checkable
class GramTransform(SetTransform, Protocol):
    """A set transform that can also start from the cosines between the rows, whatever their width."""

    def from_cosines(self, cosines: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map cosines (..., n, n) to what the transform gives for rows with these cosines."""
        ...


def class_means(rows: Tensor, onehot: Tensor) -> Tensor:
    """Mean row of each class, shape (..., k, w), by one-hot product: any order, any balance."""
    counts = onehot.sum(dim=-2)[..., None]
    return onehot.transpose(-1, -2) @ rows / counts


def sqdistances(rows: Tensor, means: Tensor) -> Tensor:
    """Squared Euclidean distances (..., Q, k) between rows and means, never negative."""
    inner = rows @ means.transpose(-1, -2)
    return ((rows * rows).sum(-1)[..., None] - 2.0 * inner + (means * means).sum(-1)[..., None, :]).clamp_min(
        0.0
    )


def check_apply(apply: str, owner: str) -> str:
    """``apply`` when it is one of its two values."""
    if apply not in ("always", "training"):
        raise ArgumentError(
            f"The 'apply' parameter of {owner} must be 'always' or 'training'. Got {apply!r}."
        )
    return apply
