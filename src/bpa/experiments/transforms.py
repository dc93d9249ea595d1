"""Transforms by name, for command lines and configurations."""

from __future__ import annotations

from typing import Literal

from bpa._errors import ArgumentError
from bpa.baselines import (
    PCA,
    CentredUnitNorm,
    CosineRows,
    DualSoftmax,
    RowSoftmax,
    SpectralRows,
    UnitNorm,
)
from bpa.hosts._contract import Identity, SetTransform

TRANSFORMS = (
    "identity", "unit", "centred", "cosine", "softmax", "dual-softmax", "pca", "spectral", "bpa", "bpa-attn",
)  # fmt: skip
USES_REG = frozenset({"softmax", "dual-softmax", "spectral", "bpa", "bpa-attn"})
"""The names whose result depends on ``reg``."""
FREE = ("identity", "unit", "centred")
"""What every user already has; gains are quoted over the best of these."""


def make_transform(
    name: str, *, reg: float | Literal["auto"] = 0.1, n_iter: int | None = None, dim: int = 5
) -> SetTransform:
    """Build a set transform from its name.

    Parameters
    ----------
    name : str
        One of `TRANSFORMS`. ``pca`` and ``spectral`` take their width after a colon, ``"pca:40"``.
    reg : float or "auto"
        Entropy weight or temperature, where the transform has one; ``"auto"`` is understood by BPA alone.
    n_iter : int, optional
        Sweeps of BPA; None is its default.
    dim : int
        Width of ``pca`` and ``spectral`` when the name gives none. The default, 5, is where the paper's
        table has both at their best.

    Returns
    -------
    SetTransform
    """
    base, _, width = name.partition(":")
    if base not in TRANSFORMS or (width and (base not in ("pca", "spectral") or not width.isdigit())):
        raise ArgumentError(
            f"The transform {name!r} is not known; choose among {', '.join(TRANSFORMS)} (pca:40 "
            f"sets a width)."
        )
    if base in ("bpa", "bpa-attn"):
        from bpa.transform import BPA, BPAAttention

        maker = BPA if base == "bpa" else BPAAttention
        made: SetTransform = maker(reg=reg, n_iter=n_iter)  # type: ignore[arg-type]  # "auto" is checked by BPA itself
        return made
    if reg == "auto" and base in USES_REG:
        raise ArgumentError(f"reg='auto' is a rule for bpa; {base!r} needs a number.")
    temperature = 0.1 if reg == "auto" else float(reg)
    wide = int(width) if width else dim
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
