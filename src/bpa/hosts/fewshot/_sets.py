"""What the few-shot hosts share: an episode checked once and laid out as one set, and what they answer with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bpa._checks import check_features, check_shape
from bpa.errors import ArgumentError, DTypeError, ShapeError
from bpa.records import Episode
from bpa.transforms.contract import SetTransform


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a few-shot host says about each query.

    Parameters
    ----------
    scores : Tensor, shape (..., Q, k)
        Logits or log-probabilities: the larger, the likelier. Differentiable. Zero at masked queries.

    Examples
    --------
    >>> import torch
    >>> Prediction(torch.tensor([[0.1, 0.7, 0.2], [2.0, -1.0, 0.0]])).labels
    tensor([1, 0])
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

    def halves(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The labelled and the unlabelled rows of ``z``, shape (..., n, w)."""
        return z[..., : self.n_support, :], z[..., self.n_support :, :]

    def hidden(self, scores: Tensor) -> Tensor:
        """Scores (..., Q, k), zero at the queries that do not exist."""
        return scores if self.query_mask is None else scores.masked_fill(~self.query_mask[..., None], 0.0)


def join(episode: Episode) -> TaskSet:
    """Check an episode and lay its rows side by side; half precision becomes float32."""
    support, query = episode.support, episode.query
    check_features(support, argument="support", function="Episode")
    check_features(query, argument="query", function="Episode")
    if support.shape[:-2] != query.shape[:-2] or support.shape[-1] != query.shape[-1]:
        raise ShapeError(
            f"The 'support' and 'query' parameters of Episode must agree in batch and width. Got "
            f"{tuple(support.shape)} and {tuple(query.shape)}."
        )
    mask = _mask(episode)
    onehot = _onehot(episode, None if mask is None else mask[..., : support.shape[-2]])
    x = _side_by_side(support.to(onehot.dtype), query.to(onehot.dtype))
    if mask is not None:  # whatever padding holds, it enters nothing
        x = torch.where(mask[..., None], x, torch.zeros_like(x))
    return TaskSet(x, mask, onehot, support.shape[-2])


def _mask(episode: Episode) -> Tensor | None:
    """True at the rows that exist, support first, shape (..., n); None where all do."""
    if episode.support_mask is None and episode.query_mask is None:
        return None
    parts = []
    for name, rows in (("support_mask", episode.support), ("query_mask", episode.query)):
        given = getattr(episode, name)
        if given is None:
            given = torch.ones(rows.shape[:-1], dtype=torch.bool, device=rows.device)
        check_shape(given.shape, tuple(rows.shape[:-1]), argument=name, function="Episode")
        if given.dtype is not torch.bool:
            raise DTypeError(
                f"The {name!r} parameter of Episode must be boolean, true at the rows that exist. Got {given.dtype}."
            )
        parts.append(given)
    return torch.cat(parts, dim=-1)


def _onehot(episode: Episode, there: Tensor | None) -> Tensor:
    """Classes of the labelled rows (..., L, k), zero where a row does not exist, in the type to compute in."""
    labels, k = episode.support_labels, episode.n_way
    check_shape(
        labels.shape, tuple(episode.support.shape[:-1]), argument="support_labels", function="Episode",
        way_out="Each labelled row has one class.",
    )  # fmt: skip
    if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise DTypeError(f"The 'support_labels' parameter of Episode must hold integers. Got {labels.dtype}.")
    labels = labels.to(device=episode.support.device, dtype=torch.int64)
    known = labels if there is None else torch.where(there, labels, torch.zeros_like(labels))
    low, high = int(known.min()), int(known.max())
    if low < 0 or high >= k:
        raise ArgumentError(
            f"The 'support_labels' parameter of Episode must lie in 0..n_way - 1 = 0..{k - 1}. Got {low}..{high}."
        )
    dtype = torch.promote_types(
        torch.promote_types(episode.support.dtype, episode.query.dtype), torch.float32
    )
    onehot = torch.nn.functional.one_hot(known, k).to(dtype)
    if there is not None:
        onehot = onehot * there[..., None]
    empty = onehot.sum(dim=-2) == 0
    if bool(empty.any()):
        missing = int(empty.nonzero()[0, -1])
        raise ArgumentError(
            f"The 'support_labels' parameter of Episode must name every class at least once. Class {missing} of {k} "
            f"has no labelled row; lower n_way, or number the classes from 0 without gaps."
        )
    return onehot


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
