"""Exact neighbours, one block of costs at a time; the only search and the only selection of this library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bpa._blocks import block_rows, spans
from bpa._checks import check_choice, check_count
from bpa.errors import ArgumentError, ShapeError
from bpa.kernels._rows import COSTS, Preparation
from bpa.plans._sets import as_set, compute_dtype

__all__ = [
    "Neighbours", "Own", "largest", "nearest_neighbours", "nearest_rows", "own_to_front", "search", "smallest",
    "sorted_lists",
]  # fmt: skip

Own = Literal["excluded", "first", "as found"]
"""What becomes of an item in its own list: left out, put in front, or listed where its cost puts it."""
_ROOM = 8 << 20
"""Bytes of one block of costs: what the last-level cache holds from the product to the selection."""
_LEAST_GROUP = 6
"""Entries of which only the extreme one is looked at first; below this many a plain selection is as fast."""


class Neighbours(NamedTuple):
    """The nearest items of every item that asks: ``indices`` (int64) and ``costs``, each (m, k), nearest first.

    Examples
    --------
    >>> found = nearest_neighbours(torch.tensor([[0.0], [1.0], [3.0]]), 2, cost="sqeuclidean")
    >>> found.indices.tolist(), found.costs.tolist()
    ([[1, 2], [0, 2], [1, 0]], [[1.0, 9.0], [1.0, 4.0], [4.0, 9.0]])
    """

    indices: Tensor
    costs: Tensor


def nearest_neighbours(
    x: Tensor | np.ndarray,
    k: int,
    *,
    y: Tensor | np.ndarray | None = None,
    cost: Literal["cosine", "centred-cosine", "sqeuclidean"] = "cosine",
) -> Neighbours:
    """Exact nearest neighbours by blocks of the Gram matrix, in O(n·(d + k)) memory.

    Parameters
    ----------
    x : Tensor or ndarray, shape (n, d)
        The set.
    k : int
        Neighbours of each item.
    y : Tensor or ndarray, shape (m, d), optional
        Items that ask; where it is left out, the set asks itself and no item is its own neighbour.
    cost : {"cosine", "centred-cosine", "sqeuclidean"}
        What "near" means; the mean is that of the set.

    Returns
    -------
    Neighbours
        Named pair ``indices``, ``costs``, each (m, k); of equal costs the smaller position comes first.

    Examples
    --------
    >>> import torch
    >>> nearest_neighbours(torch.tensor([[0.0], [1.0], [3.0]]), 1, cost="sqeuclidean").indices.flatten()
    tensor([1, 0, 1])
    """
    function = "nearest_neighbours"
    x = as_set(x, argument="x", function=function, minimum=2)
    check_choice(cost, COSTS, argument="cost", function=function)
    check_count(k, argument="k", function=function)
    most = len(x) - (y is None)
    if k > most:
        raise ArgumentError(
            f"The 'k' parameter of {function} must be at most {most} for {len(x)} items. Got {k}."
        )
    dtype = compute_dtype(x)
    preparation = Preparation.of(x, cost, dtype)
    rows = preparation.rows(x, dtype)
    if y is None:
        return nearest_rows(rows, rows, k, cost, own="excluded")
    y = as_set(y, argument="y", function=function)
    if y.shape[1] != x.shape[1]:
        raise ShapeError(
            f"The 'y' parameter of {function} must have {x.shape[1]} features, as the set. Got {y.shape[1]}."
        )
    return nearest_rows(preparation.rows(y, dtype), rows, k, cost)


def nearest_rows(asking: Tensor, rows: Tensor, k: int, cost: str, *, own: Own = "as found") -> Neighbours:
    """The ``k`` nearest of prepared ``rows`` (n, d) to each of ``asking`` (m, d); ``own`` where both are one set."""
    is_cosine = cost != "sqeuclidean"
    squared = None if is_cosine else _squared(rows)
    buffer = rows.new_empty(min(len(asking), _rows_at_once(len(rows), rows.element_size())) * len(rows))

    def block_of(span: slice) -> Tensor:
        """Costs up to the asking item's own constant, which does not change its order."""
        out = buffer[: (span.stop - span.start) * len(rows)].view(-1, len(rows))
        torch.addmm(out, asking[span], rows.T, beta=0, alpha=-1 if is_cosine else -2, out=out)
        return out if squared is None else out.add_(squared)

    found = search(block_of, len(asking), len(rows), k, own=own, item_bytes=rows.element_size())
    constant = 1.0 if is_cosine else _squared(asking)[:, None]
    return Neighbours(found.indices, found.costs.add_(constant).clamp_(min=0))


def _rows_at_once(n: int, item_bytes: int) -> int:
    return block_rows(n, item_bytes, room=_ROOM)


def search(
    block_of: Callable[[slice], Tensor],
    m: int,
    n: int,
    k: int,
    *,
    own: Own = "as found",
    item_bytes: int = 4,
    farthest: Tensor | None = None,
) -> Neighbours:
    """The ``k`` of ``n`` items with the smallest costs to each of ``m``, exactly, equal costs by position.

    Parameters
    ----------
    block_of : callable
        Costs of a span of asking items to all, shape (b, n); may be overwritten here.
    m, n, k : int
        Items that ask, items that are asked, and neighbours of each (``n`` where that is less).
    own : {"as found", "excluded", "first"}
        What becomes of item i in list i, where both sides are one set.
    item_bytes : int
        Of one cost; decides how many rows are asked for at once.
    farthest : Tensor, shape (m,), optional
        Filled with the largest cost of every row.

    Returns
    -------
    Neighbours
    """
    found = []
    for span in spans(m, _rows_at_once(n, item_bytes)):
        costs = block_of(span)
        if farthest is not None:
            farthest[span] = costs.amax(dim=1)
        if own == "excluded":
            costs.diagonal(offset=span.start).fill_(torch.inf)
        value, index = smallest(costs, k)
        if own == "first":
            index, value = own_to_front(
                index, value, torch.arange(span.start, span.stop, device=index.device)
            )
        found.append((index, value))
    return Neighbours(torch.cat([index for index, _ in found]), torch.cat([value for _, value in found]))


def smallest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` smallest entries of each row (m, n) and their positions, by (value, position), exactly."""
    return _extreme(values, k, largest=False)


def largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest entries of each row (m, n) and their positions; of equal ones the first come first."""
    return _extreme(values, k, largest=True)


def sorted_lists(index: Tensor, value: Tensor, *, largest: bool = False) -> tuple[Tensor, Tensor]:
    """Lists (m, k) of positions and values in the order of the values, equal ones by position."""
    index, by_index = torch.sort(index, dim=1)
    value = value.gather(1, by_index)
    value, by_value = torch.sort(value, dim=1, stable=True, descending=largest)
    return index.gather(1, by_value), value


def own_to_front(index: Tensor, value: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Put each item first in its own list, at cost 0; where it is absent it takes the place of the last."""
    absent = ~(index == own[:, None]).any(dim=1)
    index, value = index.clone(), value.clone()
    index[absent, -1] = own[absent]
    value[absent, -1] = 0
    order = torch.sort(index != own[:, None], dim=1, stable=True).indices
    return index.gather(1, order), value.gather(1, order)


def _extreme(values: Tensor, k: int, *, largest: bool) -> tuple[Tensor, Tensor]:
    """A partial selection leaves open which of several equal entries it takes; where that matters, positions decide."""
    width = values.shape[1]
    k = min(k, width)
    wanted = min(k + 1, width)  # one more than asked for shows where the choice is open
    among = _promising(values, wanted, largest=largest)
    pool = values if among is None else values.gather(1, among)
    found, place = torch.topk(pool, wanted, dim=1, largest=largest, sorted=True)
    index = place if among is None else among.gather(1, place)
    unsorted = (found[:, 1:] == found[:, :-1]).any(dim=1).nonzero()[:, 0]  # equal entries are in no order yet
    if k < width:
        open_rows = (found[:, k] == found[:, k - 1]).nonzero()[:, 0]
        found, index = found[:, :k].contiguous(), index[:, :k].contiguous()
        for part in torch.split(open_rows, max(1, len(values) // 8)):
            index[part] = _first_of_equals(values[part], found[part, -1:], k, largest=largest)
            found[part] = values[part].gather(1, index[part])
    index[unsorted], found[unsorted] = sorted_lists(index[unsorted], found[unsorted], largest=largest)
    return found, index


def _promising(values: Tensor, k: int, *, largest: bool) -> Tensor | None:
    """Positions among which the ``k`` extreme entries of each row lie, or None where looking at all is as cheap.

    They lie in the k groups of columns with the most extreme entries, so that most columns are looked at once only.
    """
    size = int((values.shape[1] / k) ** 0.5)  # as many groups as entries of the chosen ones
    if size < _LEAST_GROUP:
        return None
    n_groups = values.shape[1] // size
    whole = n_groups * size
    grouped = values[:, :whole].reshape(len(values), size, n_groups)
    extreme = grouped.amax(dim=1) if largest else grouped.amin(dim=1)
    group = extreme.topk(k, dim=1, largest=largest, sorted=False).indices
    among = (group[:, :, None] + torch.arange(0, whole, n_groups, device=values.device)).flatten(1)
    rest = torch.arange(whole, values.shape[1], device=values.device)
    return torch.cat([among, rest.expand(len(among), -1)], dim=1)


def _first_of_equals(values: Tensor, bound: Tensor, k: int, *, largest: bool) -> Tensor:
    """Positions (r, k) of the entries beyond ``bound`` (r, 1), and of the first that equal it."""
    beyond = values > bound if largest else values < bound
    equal = values == bound
    taken = beyond | (equal & (equal.cumsum(dim=1) <= k - beyond.sum(dim=1, keepdim=True)))
    return taken.nonzero()[:, 1].view(-1, k)


def _squared(rows: Tensor) -> Tensor:
    return torch.cat([part.square().sum(dim=1) for part in torch.split(rows, 4096)])
