r"""The transforms a user already has, and the naive alternatives to BPA, all as set transforms.

Every object here is called like BPA itself, ``t(x, mask=mask)``, maps (..., n, d) to (..., n, w), commutes
with a permutation of the set, and treats each set of a batch on its own. Rows that ``mask`` leaves out
come back as zeros and influence nothing.

With :math:`\hat z_i` the unit rows and :math:`S = \hat Z \hat Z^\top`:

=================  ===================================================================================
`UnitNorm`         :math:`\hat z_i`
`CentredUnitNorm`  :math:`\hat z_i` minus the mean of the set, to unit length again
`CosineRows`       rows of :math:`S`
`RowSoftmax`       :math:`\exp(S_{ij}/reg)` over its row sum, stretched, unit diagonal: half a sweep of BPA
`DualSoftmax`      row softmax times column softmax, stretched, unit diagonal
`PCA`              the leading principal components of the set
`SpectralRows`     rows of the leading eigenvectors of the normalised affinity
`Attention`        the rows of any of them (or of BPA) used as weights: :math:`W V`
=================  ===================================================================================

A row shorter than 1e-12 is left shorter than one where rows are brought to unit length; a zero row stays zero.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bpa._checks import check_count, check_reg
from bpa._words import REG_WORDS, explains
from bpa.transforms.contract import Identity, SetTransform

__all__ = [
    "PCA",
    "Attention",
    "CentredUnitNorm",
    "CosineRows",
    "DualSoftmax",
    "RowSoftmax",
    "SpectralRows",
    "UnitNorm",
]

_WIDTH_WORDS = {"n_components": "dim", "n_dims": "dim", "k": "dim"}


class UnitNorm:
    """Rows to unit length; a zero row stays zero.

    Examples
    --------
    >>> UnitNorm()(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map (..., n, d) to (..., n, d)."""
        return normalize(_only(x, mask), dim=-1)


class CentredUnitNorm:
    """Rows to unit length, the mean of the set subtracted, rows to unit length again.

    Examples
    --------
    >>> CentredUnitNorm()(torch.tensor([[2.0, 0.0], [0.0, 3.0]])).round(decimals=3)
    tensor([[ 0.7070, -0.7070],
            [-0.7070,  0.7070]])
    """

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map (..., n, d) to (..., n, d)."""
        unit = normalize(_only(x, mask), dim=-1)
        return normalize(_centred(unit, mask), dim=-1)


class CosineRows:
    """Rows of the cosine matrix ``S``, neither normalised nor stretched.

    Examples
    --------
    >>> CosineRows()(torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])).round(decimals=3)
    tensor([[1.0000, 0.0000, 0.7070],
            [0.0000, 1.0000, 0.7070],
            [0.7070, 0.7070, 1.0000]])
    """

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map (..., n, d) to (..., n, n)."""
        return _cosine(x, mask)


class RowSoftmax:
    """Row-normalised affinities ``exp(S / reg)``.

    Parameters
    ----------
    reg : float
        Temperature of the softmax; the same number as in BPA gives exactly one row half-sweep of it.
    plain : bool
        The second reading of the same words: the softmax over the whole row, self included, no stretch, no
        diagonal.

    Examples
    --------
    >>> x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    >>> rows = RowSoftmax(0.1)(x)
    >>> rows.diagonal().tolist(), float(RowSoftmax(0.1, plain=True)(x).sum(dim=1)[0].round(decimals=5))
    ([1.0, 1.0, 1.0, 1.0], 1.0)
    """

    @explains(**REG_WORDS)
    def __init__(self, reg: float = 0.1, *, plain: bool = False) -> None:
        self.reg = check_reg(reg, function="RowSoftmax", auto=False)
        self.plain = plain

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map (..., n, d) to (..., n, n)."""
        logits, allowed = _logits(x, mask, self.reg, keep_self=self.plain)
        rows = _softmax(logits, allowed, dim=-1)
        rows = rows if self.plain else _stretched(rows)
        return rows if mask is None else rows * mask[..., :, None]


class DualSoftmax:
    """Row softmax times column softmax of ``S / reg``, self left out, stretched, unit diagonal.

    Parameters
    ----------
    reg : float
        Temperature of both.

    Examples
    --------
    >>> both = DualSoftmax(0.1)(torch.randn(5, 8, generator=torch.Generator().manual_seed(0)))
    >>> bool(torch.allclose(both, both.T)), both.diagonal().tolist()
    (True, [1.0, 1.0, 1.0, 1.0, 1.0])
    """

    @explains(**REG_WORDS)
    def __init__(self, reg: float = 0.1) -> None:
        self.reg = check_reg(reg, function="DualSoftmax", auto=False)

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map (..., n, d) to (..., n, n)."""
        logits, allowed = _logits(x, mask, self.reg, keep_self=False)
        both = _softmax(logits, allowed, dim=-1) * _softmax(logits, allowed, dim=-2)
        both = _stretched(both)
        return both if mask is None else both * mask[..., :, None]


class PCA:
    """The ``dim`` leading principal components of each set, centred, unwhitened.

    A set of n rows has at most n - 1 of them; further columns are zero. The sign of a component is
    arbitrary, and no distance between rows depends on it.

    Parameters
    ----------
    dim : int
        Width of the output.

    Examples
    --------
    >>> PCA(2)(torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]])).abs().round()
    tensor([[2., 0.],
            [0., 0.],
            [2., 0.]])
    """

    @explains(**_WIDTH_WORDS)
    def __init__(self, dim: int) -> None:
        check_count(dim, argument="dim", function="PCA")
        self.dim = dim

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map (..., n, d) to (..., n, dim)."""
        centred = _centred(_only(x, mask), mask)
        values, vectors = torch.linalg.eigh(centred @ centred.transpose(-1, -2))  # ascending
        kept = min(self.dim, values.shape[-1])
        scores = vectors[..., -kept:] * values[..., None, -kept:].clamp_min(0.0).sqrt()
        return _widen(scores.flip(-1), self.dim)


class SpectralRows:
    r"""Rows of the leading eigenvectors of the normalised affinity.

    .. math:: D^{-1/2} A D^{-1/2}, \quad A_{ij} = \exp((S_{ij} - 1)/reg), \quad A_{ii} = 0

    Columns beyond the number of rows are zero. As ``dim`` approaches n the rows become equidistant, which
    is why the accuracy of this baseline falls to chance there.

    Parameters
    ----------
    dim : int
        Number of eigenvectors.
    reg : float
        Temperature of the affinity.
    normalize_rows : bool
        Scale the rows of the result to unit length, as spectral clustering often does.

    Examples
    --------
    >>> x = torch.eye(2, 4).repeat_interleave(3, 0) + 0.01  # two groups of three
    >>> rows = SpectralRows(2, normalize_rows=True)(x)
    >>> (rows @ rows.T).round().abs()[0].tolist()  # equal inside a group, orthogonal across
    [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    """

    @explains(**REG_WORDS, **_WIDTH_WORDS)
    def __init__(self, dim: int, reg: float = 0.1, *, normalize_rows: bool = False) -> None:
        check_count(dim, argument="dim", function="SpectralRows")
        self.dim = dim
        self.reg = check_reg(reg, function="SpectralRows", auto=False)
        self.normalize_rows = normalize_rows

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map (..., n, d) to (..., n, dim)."""
        logits, allowed = _logits(x, mask, self.reg, keep_self=False)
        affinity = (logits - 1.0 / self.reg).exp() * allowed
        root = affinity.sum(-1).clamp_min(torch.finfo(affinity.dtype).tiny).rsqrt()
        laplacian = root[..., :, None] * affinity * root[..., None, :]
        if (
            mask is not None
        ):  # rows that are not there get the last eigenvalue, -2, outside the spectrum [-1, 1]
            laplacian = laplacian - 2.0 * torch.diag_embed((~mask).to(laplacian))
        vectors = torch.linalg.eigh(laplacian).eigenvectors
        kept = min(self.dim, vectors.shape[-1])
        rows = _only(vectors[..., -kept:].flip(-1), mask)
        if mask is not None:  # … and its eigenvectors, which only those rows carry, vanish with them
            columns = torch.arange(kept, device=rows.device) < mask.sum(-1)[..., None]
            rows = rows * columns[..., None, :]
        return _widen(normalize(rows, dim=-1) if self.normalize_rows else rows, self.dim)


class Attention:
    """Use the rows of an (n, n) transform as weights: ``affinity(of(x)) @ values(x)``.

    Parameters
    ----------
    affinity : SetTransform
        Gives the weights: BPA, `RowSoftmax`, `DualSoftmax`, `CosineRows`.
    values : SetTransform
        What is averaged, as a function of the set; the set itself by default.
    of : SetTransform, optional
        What the weights are computed from; the values by default, which is the paper's ``BPA(V) V`` read
        for a reduced set. `Identity` computes them from the set itself.

    Examples
    --------
    >>> from bpa import BPA
    >>> x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    >>> bool(torch.allclose(Attention(BPA())(x), BPA()(x) @ x))
    True
    >>> Attention(BPA(), PCA(2))(x).shape
    torch.Size([6, 2])
    """

    def __init__(
        self, affinity: SetTransform, values: SetTransform | None = None, *, of: SetTransform | None = None
    ) -> None:
        self.affinity = affinity
        self.values = values if values is not None else Identity()
        self.of = of

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map (..., n, d) to (..., n, w), w the width of the values."""
        values = _only(self.values(x, mask=mask), mask)
        source = values if self.of is None else self.of(x, mask=mask)
        return self.affinity(source, mask=mask) @ values


# ---------------------------------------------------------------------- parts


def _only(x: Tensor, mask: Tensor | None) -> Tensor:
    """``x`` with zeros at the rows that are not there, whatever they held."""
    return x if mask is None else torch.where(mask[..., None], x, torch.zeros_like(x))


def _centred(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return x - x.mean(dim=-2, keepdim=True)
    count = mask.sum(dim=-1).clamp_min(1)[..., None, None]
    return _only(x - x.sum(dim=-2, keepdim=True) / count, mask)


def _cosine(x: Tensor, mask: Tensor | None) -> Tensor:
    unit = normalize(_only(x, mask), dim=-1)
    return unit @ unit.transpose(-1, -2)


def _logits(x: Tensor, mask: Tensor | None, reg: float, *, keep_self: bool) -> tuple[Tensor, Tensor]:
    """``S / reg``, and where a match is allowed: between rows that exist and, mostly, not with oneself."""
    logits = _cosine(x, mask) / reg
    n = logits.shape[-1]
    allowed = torch.ones(n, n, dtype=torch.bool, device=x.device)
    if not keep_self:
        allowed = ~torch.eye(n, dtype=torch.bool, device=x.device)
    if mask is not None:
        allowed = allowed & mask[..., None, :] & mask[..., :, None]
    return logits, allowed


def _softmax(logits: Tensor, allowed: Tensor, *, dim: int) -> Tensor:
    """Softmax over the allowed entries; zero where there is none, with gradients that stay finite."""
    low = torch.finfo(logits.dtype).min / 2
    return torch.softmax(logits.masked_fill(~allowed, low), dim=dim) * allowed


def _stretched(affinity: Tensor) -> Tensor:
    """Divide by the largest entry of each set and put ones on the diagonal, as BPA does."""
    largest = affinity.detach().amax(dim=(-2, -1), keepdim=True)
    scaled = affinity / largest.clamp_min(torch.finfo(affinity.dtype).tiny)
    eye = torch.eye(affinity.shape[-1], dtype=torch.bool, device=affinity.device)
    return torch.where(eye, torch.ones_like(scaled), scaled)


def _widen(x: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x
