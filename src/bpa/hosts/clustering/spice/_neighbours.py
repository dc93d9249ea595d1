"""The nearest other rows of a set of unit rows, in blocks: memory is a block of rows, never n²."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bpa._blocks import block_rows, spans


def nearest_others(f: Tensor, k: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """For blocks of the unit rows f (n, d): which rows, and the cosines and indices (b, k) of their nearest others."""
    n = len(f)
    for rows in spans(n, block_rows(n, f.element_size())):
        cosines = f[rows] @ f.T
        own = torch.arange(rows.start, rows.stop, device=f.device)
        cosines[own - rows.start, own] = -torch.inf
        near = cosines.topk(k, dim=-1)
        yield rows, near.values, near.indices
