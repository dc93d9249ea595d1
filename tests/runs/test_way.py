"""Ways: JSON both ways, labels that tell apart what differs and say nothing twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpa.errors import ArgumentError
from bpa.runs.way import Way, labels, said, shared, told_apart, transforms_asked
from bpa.solvers import Converged, Sweeps
from bpa.transforms.names import NamedTransform

BPA, UNIT, RAW = NamedTransform("bpa"), NamedTransform("unit"), NamedTransform("identity")

named = st.one_of(
    st.sampled_from(
        [RAW, UNIT, NamedTransform("centred"), NamedTransform("pca", width=5), NamedTransform("pca", width=9)]
    ),
    st.builds(
        NamedTransform,
        st.just("bpa"),
        reg=st.sampled_from([0.1, 0.2, "auto"]),
        solver=st.sampled_from([Sweeps(1), Sweeps(5), Converged(), Converged(1e-4)]),
        unscaled=st.sampled_from([None, True]),
        diagonal=st.sampled_from([None, 0.0]),
    ),
    st.builds(
        NamedTransform,
        st.just("bpa-attn"),
        values=st.sampled_from(
            [None, NamedTransform("pca", width=5), NamedTransform("spectral", reg=0.1, width=5)]
        ),
    ),
)
settings = st.dictionaries(
    st.sampled_from(["epochs", "prior", "rows", "reg"]),
    st.sampled_from(
        [1, 2, "uniform", {"measure": "cosine", "top": 50}, {"measure": "cosine", "top": None}, True]
    ),
    max_size=2,
)
ways = st.lists(
    st.builds(Way, st.sampled_from(["protonet", "ptmap"]), named, settings), max_size=8, unique=True
)


@given(ways)
def test_a_way_survives_json_and_is_its_own_key(made: list[Way]) -> None:
    again = [Way.from_dict(json.loads(json.dumps(way.to_dict()))) for way in made]
    assert again == made
    assert len({*again, *made}) == len(made)


@given(ways)
def test_no_two_ways_share_a_label(made: list[Way]) -> None:
    found = labels(made)
    assert len(set(found)) == len(made), found
    assert all(found)


@given(ways, st.randoms())
def test_a_label_does_not_depend_on_the_order_of_the_ways(made: list[Way], random) -> None:
    mixed = random.sample(made, len(made))
    assert dict(zip(made, labels(made), strict=True)) == dict(zip(mixed, labels(mixed), strict=True))


def test_a_label_says_what_differs_and_nothing_else() -> None:
    plain = [Way("protonet", RAW), Way("protonet", BPA)]
    assert labels(plain) == ["identity", "bpa"]
    assert shared(plain) == ["reg 0.1", "5 sweeps"]
    regs = [Way("protonet", NamedTransform("bpa", reg=reg)) for reg in (0.1, "auto")]
    assert labels(regs) == ["bpa, reg 0.1", "bpa, reg auto"]
    sweeps = [
        Way("protonet", NamedTransform("bpa", solver=s)) for s in (Sweeps(1), Sweeps(8), Converged(1e-6))
    ]
    assert labels(sweeps) == ["bpa, 1 sweep", "bpa, 8 sweeps", "bpa, converged to 1e-06"]
    hosts = [
        Way("protonet", BPA),
        Way("ptmap", BPA, {"prior": "uniform"}),
        Way("ptmap", BPA, {"prior": "oracle"}),
    ]
    assert labels(hosts) == ["protonet, bpa", "ptmap, bpa, prior uniform", "ptmap, bpa, prior oracle"]


def test_a_transform_that_could_not_follow_says_its_own_weight() -> None:
    asked = transforms_asked(["bpa", "softmax"], reg=("auto",))
    assert labels([Way("protonet", transform) for transform in asked]) == [
        "identity", "unit", "centred", "bpa, reg auto", "softmax, reg 0.1",
    ]  # fmt: skip


def test_a_host_that_takes_features_as_they_are_is_its_own_name() -> None:
    made = [Way("nearest", RAW), Way("nearest", BPA), Way("csls", RAW), Way("k-reciprocal", RAW, {"k1": 20})]
    assert labels(made) == ["nearest, identity", "nearest, bpa", "csls", "k-reciprocal"]


def test_a_setting_that_only_one_of_two_has_tells_them_apart() -> None:
    assert labels([Way("k-means", BPA), Way("k-means", NamedTransform("bpa", unscaled=True))]) == [
        "bpa",
        "bpa, unscaled",
    ]
    mixed = NamedTransform("bpa-attn", values=NamedTransform("pca", width=40))
    assert labels([Way("h", NamedTransform("bpa-attn")), Way("h", mixed)]) == [
        "bpa-attn",
        "bpa-attn, of pca, width 40",
    ]


def test_what_only_some_have_is_not_said_of_all() -> None:
    made = [Way("h", BPA), Way("h", BPA, {"known_pairs": True})]
    assert shared(made) == ["reg 0.1", "5 sweeps"]
    assert labels(made) == ["bpa", "bpa, known pairs"]


def test_tasks_are_told_apart_in_words() -> None:
    assert told_apart([{"n_way": 5, "n_shot": 1, "seed": 0}, {"n_way": 5, "n_shot": 5, "seed": 0}]) == [
        "1-shot",
        "5-shot",
    ]
    assert told_apart([{"dim": 10, "noise": 0.1}, {"dim": 10, "noise": 0.25}]) == ["σ = 0.1", "σ = 0.25"]
    assert told_apart([{"source": "x.npz"}]) == [""]
    assert said("renormalize", False) == "no renormalize"


def test_what_was_asked_becomes_transforms_each_once() -> None:
    found = transforms_asked(["bpa", "unit", "cosine"], reg=(0.1, 0.3), solver=(Sweeps(1), Sweeps(5)))
    assert [t.name for t in found] == ["identity", "unit", "centred", "bpa", "bpa", "bpa", "bpa", "cosine"]
    assert transforms_asked(["bpa"], baselines=False) == [NamedTransform("bpa", reg="auto")]
    assert transforms_asked(["softmax"], baselines=False) == [NamedTransform("softmax", reg=0.1)]
    assert [t.reg for t in transforms_asked(["softmax"], reg=("auto", 0.3), baselines=False)] == [0.3]


def test_auto_is_refused_where_nothing_asked_for_has_the_rule() -> None:
    with pytest.raises(ArgumentError, match="rule for bpa and bpa-attn, not for softmax, spectral"):
        transforms_asked(["unit", "softmax", "spectral"], reg=("auto",))
    assert len(transforms_asked(["unit", "cosine"], reg=("auto",))) == 4  # nothing there has a weight


def test_a_way_from_elsewhere_is_refused() -> None:
    with pytest.raises(ArgumentError, match="host, transform and settings"):
        Way.from_dict({"host": "ptmap"})
