"""Transforms by name, for command lines and configurations."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from bpa.errors import ArgumentError
from bpa.solvers import PAPER_SWEEPS, Solver
from bpa.transforms.alternatives import (
    PCA,
    Attention,
    CentredUnitNorm,
    CosineRows,
    DualSoftmax,
    RowSoftmax,
    SpectralRows,
    UnitNorm,
)
from bpa.transforms.contract import Identity, SetTransform
from bpa.transforms.functional import balanced_affinities
from bpa.transforms.layers import BPA, BPAAttention

TRANSFORMS = (
    "identity", "unit", "centred", "cosine", "softmax", "dual-softmax", "pca", "spectral", "bpa", "bpa-attn",
)  # fmt: skip
USES_REG = frozenset({"softmax", "dual-softmax", "spectral", "bpa", "bpa-attn"})
"""The names whose result depends on ``reg``."""
FREE = ("identity", "unit", "centred")
"""What every user already has; gains are quoted over the best of these."""


class CosineBPA(BPA):
    """`BPA` that hosts working on inner products can hand cosines to; built with ``reg`` and ``solver`` only."""

    def __init__(self, reg: float | Literal["auto"] = 0.1, solver: Solver = PAPER_SWEEPS) -> None:
        super().__init__(reg, solver)
        self.reg, self.solver = reg, solver

    def from_cosines(self, cosines: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Affinities (..., n, n) of rows with these cosines."""
        return balanced_affinities(
            1.0 - cosines, reg=self.reg, solver=self.solver, cost="precomputed", mask=mask
        )


def make_transform(
    name: str, *, reg: float | Literal["auto"] = 0.1, solver: Solver = PAPER_SWEEPS, dim: int = 5
) -> SetTransform:
    """Build a set transform from its name.

    Parameters
    ----------
    name : str
        One of `TRANSFORMS`. ``pca`` and ``spectral`` take their width after a colon, ``"pca:40"``. BPA as attention
        can mix a reduced set, ``"bpa-attn:pca:40"``, with affinities of that set, or of the features
        (``"bpa-attn:pca:40@x"``).
    reg : float or "auto"
        Entropy weight or temperature, where the transform has one; ``"auto"`` is understood by BPA alone.
    solver : Sweeps or Converged
        Of BPA.
    dim : int
        Width of ``pca`` and ``spectral`` when the name gives none. The default, 5, is where the paper's
        table has both at their best.

    Returns
    -------
    SetTransform
    """
    base, _, rest = name.partition(":")
    if base == "bpa-attn" and rest:
        inner, _, of = rest.partition("@")
        if inner.partition(":")[0] in ("pca", "spectral") and of in ("", "x"):
            values = make_transform(inner, reg=reg, dim=dim)
            weights = make_transform("bpa", reg=reg, solver=solver)
            return Attention(weights, values, of=Identity() if of else None)
    if base not in TRANSFORMS or (rest and (base not in ("pca", "spectral") or not rest.isdigit())):
        raise ArgumentError(
            f"The transform {name!r} is not known; choose among {', '.join(TRANSFORMS)} (pca:40 sets a width, "
            f"bpa-attn:pca:40 mixes a reduced set)."
        )
    if base == "bpa":
        return CosineBPA(reg, solver)
    if base == "bpa-attn":
        return BPAAttention(reg, solver)
    if reg == "auto" and base in USES_REG:
        raise ArgumentError(f"reg='auto' is a rule for bpa; {base!r} needs a number.")
    temperature = 0.1 if reg == "auto" else float(reg)
    wide = int(rest) if rest else dim
    simple: dict[str, SetTransform] = {
        "identity": Identity(),
        "unit": UnitNorm(),
        "centred": CentredUnitNorm(),
        "cosine": CosineRows(),
    }
    if base in simple:
        return simple[base]
    if base == "softmax":
        return RowSoftmax(temperature)
    if base == "dual-softmax":
        return DualSoftmax(temperature)
    return PCA(wide) if base == "pca" else SpectralRows(wide, temperature)
