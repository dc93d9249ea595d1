"""What every kernel of one large set has in common, however it is represented."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["LargeKernel"]


class LargeKernel(ABC):
    """A symmetric kernel of ``n`` items with marginals of one, as both solvers see it; scalings are logarithms.

    A representation answers the three questions of :class:`bpa.solvers.SymmetricKernel`; the alternating sweeps follow
    from the first, because K = Kᵀ. Vectors (n,) are float64, products are in the number type of the kernel.
    """

    def __init__(self, n: int, device: torch.device) -> None:
        self.n = n
        self.device = device

    @abstractmethod
    def log_apply(self, log_u: Tensor) -> Tensor:
        """Return log(K exp(log_u)), in the number type of ``log_u``."""

    @abstractmethod
    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map w → diag(u) K diag(u) w."""

    @abstractmethod
    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        """For every row of diag(u) K diag(u), where its largest entry stands, and that entry's logarithm."""

    def start(self) -> Tensor:
        return torch.zeros(self.n, dtype=torch.float64, device=self.device)

    def match_rows(self, v: Tensor) -> Tensor:
        return -self.log_apply(v)

    def match_columns(self, u: Tensor) -> Tensor:
        return -self.log_apply(u)

    def log_row_scaling(self, u: Tensor) -> Tensor:
        return u

    def log_column_scaling(self, v: Tensor) -> Tensor:
        return v
