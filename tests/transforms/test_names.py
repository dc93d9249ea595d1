"""Transforms as data: every name, every setting, JSON both ways, and one text form."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bpa import BPA, BPAAttention
from bpa.errors import ArgumentError
from bpa.solvers import Converged, Sweeps
from bpa.transforms.alternatives import PCA, RowSoftmax, SpectralRows
from bpa.transforms.names import FREE, TRANSFORMS, NamedTransform, has_rule, uses_reg

SETTINGS: dict[str, Any] = {
    "reg": st.sampled_from([0.05, 0.1, 0.3, 2.0]),
    "solver": st.sampled_from([Sweeps(1), Sweeps(5), Converged(), Converged(1e-4)]),
    "width": st.integers(1, 90),
    "values": st.sampled_from(
        [None, NamedTransform("pca", width=3), NamedTransform("spectral", reg=0.2, width=2)]
    ),
    "weights_of": st.none(),
    "self_included": st.sampled_from([None, True]),
    "cost": st.sampled_from([None, "relative-euclidean"]),
    "unscaled": st.sampled_from([None, True]),
    "diagonal": st.sampled_from([None, 0.0, 0.5]),
}


@st.composite
def transforms(draw: st.DrawFn) -> NamedTransform:
    name = draw(st.sampled_from(list(TRANSFORMS)))
    settings = {key: draw(SETTINGS[key]) for key in TRANSFORMS[name].takes}
    if has_rule(name) and settings.get("cost") is None and draw(st.booleans()):
        settings["reg"] = "auto"
    if settings.get("values") is not None:
        settings["weights_of"] = draw(st.sampled_from([None, "values", "features"]))
    return NamedTransform(name, **settings)


@pytest.fixture
def x(rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.normal(size=(3, 9, 6)))


@given(transforms())
def test_a_transform_survives_json(transform: NamedTransform) -> None:
    assert NamedTransform.from_dict(json.loads(json.dumps(transform.to_dict()))) == transform


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_name_makes_a_transform_that_its_reg_moves(x: Tensor, name: str) -> None:
    out = NamedTransform.parse(name, reg=0.3)
    assert out.build()(x).shape[:2] == (3, 9)
    changed = NamedTransform.parse(name, reg=0.9).build()(x)
    assert bool(torch.equal(out.build()(x), changed)) == (not uses_reg(name))
    assert set(FREE) <= set(TRANSFORMS)


def test_a_built_transform_is_the_one_that_was_named(x: Tensor) -> None:
    bpa = NamedTransform("bpa", reg=0.2, solver=Sweeps(7)).build()
    torch.testing.assert_close(bpa(x), BPA(reg=0.2, solver=Sweeps(7))(x))
    converged = NamedTransform("bpa", reg=0.2, solver=Converged(), unscaled=True, diagonal=0.0).build()
    torch.testing.assert_close(converged(x), BPA(reg=0.2, solver=Converged(), scale=None, diagonal=0.0)(x))
    attention = NamedTransform("bpa-attn", reg="auto").build()
    torch.testing.assert_close(attention(x), BPAAttention(reg="auto")(x))
    softmax = NamedTransform("softmax", reg=0.2, self_included=True).build()
    torch.testing.assert_close(softmax(x), RowSoftmax(0.2, plain=True)(x))
    assert NamedTransform("spectral", width=4).build()(x).shape == SpectralRows(4)(x).shape


def test_attention_mixes_the_values_it_is_told_with_the_weights_it_is_told(x: Tensor) -> None:
    reduced = NamedTransform("pca", width=3)
    mixed = NamedTransform("bpa-attn", reg=0.2, values=reduced).build()
    torch.testing.assert_close(mixed(x), BPA(reg=0.2)(PCA(3)(x)) @ PCA(3)(x))
    whole = NamedTransform("bpa-attn", reg=0.2, values=reduced, weights_of="features").build()
    torch.testing.assert_close(whole(x), BPA(reg=0.2)(x) @ PCA(3)(x))


def test_a_relative_distance_is_the_distance_over_the_largest_of_its_set(x: Tensor) -> None:
    found = NamedTransform("bpa", reg=0.2, cost="relative-euclidean").build()(x)
    for one, part in zip(x, found, strict=True):
        distance = torch.cdist(one, one)
        torch.testing.assert_close(part, BPA(reg=0.2, cost="precomputed")(distance / distance.max()))


def test_what_is_left_out_is_what_was_published() -> None:
    assert NamedTransform("bpa").to_dict() == {"name": "bpa", "reg": 0.1, "solver": "sweeps:5"}
    assert NamedTransform("pca") == NamedTransform("pca", width=5)
    assert NamedTransform("unit").to_dict() == {"name": "unit"}


def test_the_text_form_holds_a_name_and_its_settings() -> None:
    assert NamedTransform.parse("pca:width=40") == NamedTransform("pca", width=40)
    assert NamedTransform.parse("unit", reg=0.3, solver=Sweeps(2)) == NamedTransform("unit")
    assert NamedTransform.parse("bpa:reg=0.3", reg=0.1) == NamedTransform("bpa", reg=0.3)
    found = NamedTransform.parse("bpa-attn:values=spectral:width=7:weights_of=features", reg="auto")
    assert found == NamedTransform(
        "bpa-attn", reg="auto", values=NamedTransform("spectral", width=7), weights_of="features"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bqa", "is not known"),
        ("pca:40", "NAME:setting=value"),
        ("pca:breadth=40", "width"),
        ("pca:width=x", "cannot be 'x'"),
        ("pca:width=0", "'width'"),
        ("unit:width=3", "has no 'width'"),
        ("softmax:reg=auto", "a rule for BPA"),
        ("bpa:reg=-1", "'reg'"),
        ("bpa-attn:values=unit", "'values'"),
        ("bpa-attn:weights_of=features", "give both"),
    ],
)
def test_what_a_name_does_not_have_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        NamedTransform.parse(text)


def test_a_solver_without_a_name_and_a_stranger_field_are_refused() -> None:
    with pytest.raises(ArgumentError, match="must have a name"):
        NamedTransform("bpa", solver=Converged(1e-4, max_iter=7))
    with pytest.raises(ArgumentError, match="has the fields"):
        NamedTransform.from_dict({"name": "bpa", "n_iter": 5})
