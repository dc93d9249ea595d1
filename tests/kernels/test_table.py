"""The table of kernels: who takes a call, who does not and why, and that all of them give the same W."""

from __future__ import annotations

import pytest
import torch

from bpa import balanced_affinities
from bpa.errors import ArgumentError
from bpa.kernels import explain, explain_plan
from bpa.kernels._recipe import PlanRequest, Recipe
from bpa.kernels._table import AFFINITIES, choose, choose_plan, request_of
from bpa.plans import DensePlan
from bpa.solvers import Converged, Sweeps
from bpa.transforms import affinities_and_convergence


@pytest.fixture
def x(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(3, 20, 6, generator=generator, dtype=torch.float64)


IN_THE_WAY = {
    "auto": ({"reg": "auto"}, "centres the set"),
    "another cost": ({"cost": "sqeuclidean"}, "cosine cost only"),
    "a tolerance": ({"solver": Converged()}, "count of sweeps"),
    "an average": ({"symmetrize": True}, "symmetrize=True"),
    "the largest differentiated": ({"scale_grad": True}, "scale_grad=True"),
    "a mask": ({"mask": torch.ones(3, 20, dtype=torch.bool)}, "a mask"),
    "labels": ({"support_labels": torch.full((3, 20), -1)}, "known labels"),
    "a tiny weight": ({"reg": 1e-3}, "leaves the range of torch.float64"),
}


@pytest.mark.parametrize("case", IN_THE_WAY)
def test_the_fused_kernel_says_what_is_in_the_way(x: torch.Tensor, case: str) -> None:
    options, reason = IN_THE_WAY[case]
    told = explain(x, **options)
    assert told.chosen == "dense"
    assert reason in str(dict(told.reasons)["fused"])
    assert str(told).splitlines()[1] == "dense: used"


def test_the_default_call_is_fused_and_one_item_is_not(x: torch.Tensor) -> None:
    assert explain(x).chosen == "fused"
    assert explain(x[:, :1]).chosen == "dense"
    assert explain(x.half()).chosen == "fused"


@pytest.mark.parametrize(
    "options", [{}, {"scale": None, "diagonal": 0.3}, {"solver": Sweeps(2), "reg": 0.5}], ids=str
)
def test_every_kernel_that_takes_a_call_gives_the_same_values_and_gradients(
    x: torch.Tensor, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(3, 20, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = {}
    for entry in AFFINITIES:
        monkeypatch.setenv("BPA_KERNEL", entry.name)
        leaf = x.clone().requires_grad_()
        assert explain(leaf, **options).chosen == entry.name
        w = balanced_affinities(leaf, **options)
        (gradient,) = torch.autograd.grad((w * weight).sum(), leaf)
        found[entry.name] = (w.detach(), gradient)
    assert len(found) > 1
    for w, gradient in found.values():
        torch.testing.assert_close(w, found["dense"][0], rtol=0, atol=1e-12)
        torch.testing.assert_close(gradient, found["dense"][1], rtol=0, atol=1e-11)


def test_forcing_a_kernel_that_cannot_says_why(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPA_KERNEL", "fused")
    with pytest.raises(
        ArgumentError, match=r"BPA_KERNEL=fused cannot take this call: it runs a count of sweeps"
    ):
        balanced_affinities(x, solver=Converged())
    monkeypatch.setenv("BPA_KERNEL", "fast")
    with pytest.raises(
        ArgumentError, match=r"BPA_KERNEL may name fused, dense, ranks, graph, kept, streamed\. Got 'fast'"
    ):
        balanced_affinities(x)


def test_the_last_entry_takes_everything(x: torch.Tensor) -> None:
    for options, _ in IN_THE_WAY.values():
        given = {key: value for key, value in options.items() if key not in ("mask", "support_labels")}
        request = request_of(x, Recipe(**given), options.get("mask"), options.get("support_labels"))
        assert AFFINITIES[-1].why_not(request) is None
        assert choose(request).why_not(request) is None


@pytest.mark.parametrize("kernel", ["fused", "dense"])
def test_what_is_reported_is_the_error_of_the_row_sums(
    x: torch.Tensor, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BPA_KERNEL", kernel)
    for reg in (0.02, 0.1, 2.0):
        w, found = affinities_and_convergence(x, reg=reg, scale=None, diagonal=0.0)
        sums = w.sum(dim=-1)
        torch.testing.assert_close(found.marginal_error, (sums - 1).abs().amax(dim=-1), rtol=1e-9, atol=1e-13)
        assert found.n_iter.tolist() == [5, 5, 5]
        assert found.converged.tolist() == (found.marginal_error <= 1e-3).tolist()
        torch.testing.assert_close(
            w, balanced_affinities(x, reg=reg, scale=None, diagonal=0.0), rtol=0, atol=1e-13
        )


def test_known_labels_of_missing_items_are_not_written(x: torch.Tensor) -> None:
    mask = torch.arange(20) < 15
    labels = torch.full((20,), 1)
    for reg in (0.1, "auto"):
        w = balanced_affinities(x, reg=reg, mask=mask, support_labels=labels)
        assert bool((w[:, :15, :15] == 1).all())
        assert bool((w[:, 15:] == 0).all())
        assert bool((w[:, :, 15:] == 0).all())


def test_a_plan_is_kept_where_its_numbers_may_be_and_else_streamed() -> None:
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cases = (
        ({}, "kept"),
        ({"reg": 0.003}, "streamed"),
        ({"reg": "auto"}, "kept"),
        ({"keep": False}, "streamed"),
        ({"budget": "60MB"}, "kept"),
        ({"budget": "1kB"}, None),
        ({"neighbours": 20}, "graph"),
        ({"cost": "sqeuclidean", "reg": 1e-3}, "streamed"),
    )
    for options, chosen in cases:
        told = explain_plan(x, **{"reg": 0.1, **options})
        assert told.chosen == chosen, options
        assert [name for name, _ in told.reasons] == ["ranks", "graph", "kept", "streamed"]
        if chosen in ("kept", "streamed"):
            assert DensePlan.fit(x, solver=Sweeps(1), **{"reg": 0.1, **options}).kept == (chosen == "kept")


def test_the_environment_forces_a_plan_onto_tiles_and_leaves_other_calls_alone(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = DensePlan.fit(x[0], reg=0.1)
    monkeypatch.setenv("BPA_KERNEL", "streamed")
    forced = DensePlan.fit(x[0], reg=0.1)
    assert (free.kept, forced.kept) == (True, False)
    torch.testing.assert_close(free.affinities(), forced.affinities(), rtol=0, atol=1e-9)
    assert explain(x).chosen == "fused"
    with pytest.raises(
        ArgumentError, match="BPA_KERNEL=streamed cannot take this call: the n × n numbers were asked"
    ):
        DensePlan.fit(x[0], reg=0.1, keep=True)


def test_tiles_leave_a_shared_set_and_a_graph_to_those_who_were_asked() -> None:
    told = choose_plan(PlanRequest(100, 8, torch.float32, is_shared=True))
    assert told.chosen is None
    assert "process group" in str(dict(told.reasons)["ranks"])
    for name in ("kept", "streamed"):
        assert dict(told.reasons)[name] == "several processes share the set"
    told = choose_plan(PlanRequest(100, 8, torch.float32, neighbours=9))
    assert told.chosen == "graph"
    assert dict(told.reasons)["kept"] == "a neighbour graph was asked for, not all pairs"
