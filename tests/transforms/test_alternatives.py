"""The naive transforms against slow definitions, and the laws every set transform keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA as SklearnPCA
from torch import Tensor

from bpa import BPA, BPAAttention
from bpa.errors import ArgumentError
from bpa.solvers import Sweeps
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
from bpa.transforms.contract import Identity

ALL: dict[str, Any] = {
    "unit": UnitNorm(),
    "centred": CentredUnitNorm(),
    "cosine": CosineRows(),
    "softmax": RowSoftmax(0.2),
    "plain softmax": RowSoftmax(0.2, plain=True),
    "dual": DualSoftmax(0.2),
    "pca": PCA(4),
    "spectral": SpectralRows(3, 0.2),
    "spectral rows": SpectralRows(3, 0.2, normalize_rows=True),
    "attention": Attention(RowSoftmax(0.2)),
    "attention of pca": Attention(RowSoftmax(0.2), PCA(3)),
}


def distances(z: Tensor) -> Tensor:
    """What every host sees of a transform: signs of components and column order drop out."""
    return ((z[..., :, None, :] - z[..., None, :, :]) ** 2).sum(-1)


@pytest.fixture
def x(rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.normal(size=(3, 9, 6)))


@pytest.mark.parametrize("name", ALL)
def test_permuting_the_set_permutes_the_distances(x: Tensor, rng: np.random.Generator, name: str) -> None:
    order = torch.from_numpy(rng.permutation(9))
    plain, mixed = distances(ALL[name](x)), distances(ALL[name](x[:, order]))
    torch.testing.assert_close(mixed, plain[:, order][:, :, order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_a_batch_is_its_sets(x: Tensor, name: str) -> None:
    batch = distances(ALL[name](x))
    for i in range(3):
        torch.testing.assert_close(distances(ALL[name](x[i])), batch[i], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_padding_changes_nothing(x: Tensor, name: str) -> None:
    padded = torch.cat([x, torch.full((3, 2, 6), torch.nan, dtype=x.dtype)], dim=1)
    mask = torch.arange(11).expand(3, 11) < 9
    out = ALL[name](padded, mask=mask)
    torch.testing.assert_close(distances(out[:, :9]), distances(ALL[name](x)), rtol=0, atol=1e-10)
    assert bool((out[:, 9:] == 0).all())


@pytest.mark.parametrize("name", ALL)
def test_one_item_and_two_are_defined(x: Tensor, name: str) -> None:
    for n in (1, 2):
        assert bool(torch.isfinite(ALL[name](x[:, :n])).all())


# the stretch is a constant of the gradient, as in BPA, so what is stretched is checked by its plain form
@pytest.mark.parametrize("name", ["unit", "centred", "cosine", "plain softmax"])
def test_gradients_agree_with_finite_differences(x: Tensor, name: str) -> None:
    assert torch.autograd.gradcheck(ALL[name], (x[0, :4, :3].clone().requires_grad_(),))


def test_row_softmax_is_its_definition(x: Tensor) -> None:
    z = x[0].numpy() / np.linalg.norm(x[0].numpy(), axis=1, keepdims=True)
    rows = np.zeros((9, 9))
    for i in range(9):
        weights = [np.exp(z[i] @ z[j] / 0.2) if j != i else 0.0 for j in range(9)]
        rows[i] = np.array(weights) / sum(weights)
    rows /= rows.max()
    np.fill_diagonal(rows, 1.0)
    np.testing.assert_allclose(RowSoftmax(0.2)(x[0]).numpy(), rows, rtol=1e-10)


def test_row_softmax_is_a_half_sweep_of_bpa(x: Tensor) -> None:
    # one sweep is rows, then columns: dividing BPA's columns out again leaves the row softmax
    one = BPA(reg=0.2, solver=Sweeps(1))(x[0])
    half = RowSoftmax(0.2)(x[0])
    off = ~torch.eye(9, dtype=torch.bool)
    ratio = torch.where(off, one / half, torch.nan)
    spread = (ratio.nan_to_num(0).amax(0) / torch.where(off, ratio, torch.inf).amin(0)) - 1
    assert float(spread.abs().max()) < 1e-9


def test_dual_softmax_is_its_definition(x: Tensor) -> None:
    z = torch.nn.functional.normalize(x[0], dim=-1)
    logits = (z @ z.T / 0.2).fill_diagonal_(-torch.inf)
    dual = logits.softmax(0) * logits.softmax(1)
    dual = (dual / dual.max()).fill_diagonal_(1.0)
    torch.testing.assert_close(DualSoftmax(0.2)(x[0]), dual)


@pytest.mark.parametrize("dim", [2, 6, 8, 12])
def test_pca_has_the_distances_of_sklearns(x: Tensor, dim: int) -> None:
    reference = SklearnPCA(min(dim, 6)).fit_transform(x[0].numpy())
    out = PCA(dim)(x[0])
    assert out.shape == (9, dim)
    torch.testing.assert_close(distances(out), distances(torch.from_numpy(reference)), rtol=0, atol=1e-9)


def test_spectral_rows_span_the_leading_eigenvectors(x: Tensor) -> None:
    z = torch.nn.functional.normalize(x[0], dim=-1)
    affinity = ((z @ z.T - 1) / 0.2).exp().fill_diagonal_(0.0)
    root = affinity.sum(1).rsqrt()
    vectors = torch.linalg.eigh(root[:, None] * affinity * root[None]).eigenvectors[:, -3:]
    out = SpectralRows(3, 0.2)(x[0])
    torch.testing.assert_close(out @ out.T, vectors @ vectors.T)


def test_all_eigenvectors_make_all_rows_equidistant(x: Tensor) -> None:
    out = distances(SpectralRows(9)(x[0]))
    torch.testing.assert_close(out, 2.0 * (1.0 - torch.eye(9, dtype=x.dtype)), rtol=0, atol=1e-9)


def test_attention_with_bpa_is_bpa_attention(x: Tensor) -> None:
    torch.testing.assert_close(Attention(BPA(reg=0.2))(x), BPAAttention(reg=0.2)(x))


def test_attention_takes_its_weights_from_where_it_is_told(x: Tensor) -> None:
    reduced = Attention(BPA(reg=0.2), PCA(3))(x)
    torch.testing.assert_close(reduced, BPA(reg=0.2)(PCA(3)(x)) @ PCA(3)(x))
    whole = Attention(BPA(reg=0.2), PCA(3), of=Identity())(x)
    torch.testing.assert_close(whole, BPA(reg=0.2)(x) @ PCA(3)(x))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PCA(0), r"'dim' parameter of PCA must be a whole number of at least 1\. Got 0"),
        (
            lambda: RowSoftmax(0.0),
            r"'reg' parameter of RowSoftmax must be a finite number above 0\. Got 0\.0",
        ),
        (lambda: SpectralRows(2, -1.0), "'reg' parameter of SpectralRows"),
        (lambda: DualSoftmax("auto"), r"Got 'auto', a rule for BPA .* bpa\.choose_reg"),
        (
            lambda: RowSoftmax(temperature=0.2),
            "RowSoftmax has no parameter 'temperature': it is called 'reg' here",
        ),
        (lambda: PCA(n_components=3), "PCA has no parameter 'n_components': it is called 'dim' here"),
    ],
)
def test_wrong_settings_name_themselves_and_the_way_out(make, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()
