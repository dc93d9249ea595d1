"""BPATransformer(reg="auto"): the rule behind fit and transform."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="needs the sklearn extra")

from sklearn.utils.estimator_checks import check_estimator

from bpa import balanced_affinities, choose_reg
from bpa.errors import ArgumentError
from bpa.estimators import BPATransformer
from bpa.solvers import Converged


def draw(noise: float = 1.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.maximum(rng.standard_normal((5, 1, 64)) + noise * rng.standard_normal((5, 16, 64)), 0).reshape(
        80, 64
    )


@pytest.mark.parametrize("noise", [0.8, 2.5, 9.0])
@pytest.mark.parametrize("metric", ["cosine", "sqeuclidean"])
def test_fitted_rows_are_the_rows_of_the_converged_transform(noise: float, metric: str) -> None:
    x = draw(noise)
    fitted = BPATransformer(reg="auto", metric=metric, solver=Converged(1e-10)).fit(x)
    expected = balanced_affinities(torch.from_numpy(x), reg="auto", cost=metric, solver=Converged(1e-10))
    np.testing.assert_allclose(fitted.transform(x), expected.numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(fitted.transform(x[7:9]), fitted.transform(x)[7:9])


def test_the_choice_is_kept_and_is_that_of_the_function() -> None:
    fitted = BPATransformer(reg="auto").fit(draw())
    choice = choose_reg(torch.from_numpy(draw()))
    assert fitted.reg_ == pytest.approx(float(choice.reg))
    assert float(fitted.choice_.evidence) == pytest.approx(float(choice.evidence), abs=0.02)
    assert BPATransformer(reg=0.2).fit(draw()).reg_ == 0.2


def test_a_new_item_is_nearest_to_its_group() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((5, 1, 64))
    x = (centres + 0.8 * rng.standard_normal((5, 16, 64))).reshape(80, 64)
    new = (centres + 0.8 * rng.standard_normal((5, 4, 64))).reshape(20, 64)
    rows = BPATransformer(reg="auto").fit(x).transform(new)
    assert (rows.argmax(axis=1) // 16 == np.repeat(np.arange(5), 4)).all()
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-6)


def test_what_cannot_be_centred_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'reg' parameter of BPATransformer must be a finite number"):
        BPATransformer(reg="auto", metric="precomputed").fit(np.ones((4, 4)) - np.eye(4))


@pytest.mark.slow
def test_it_passes_every_check_of_scikit_learn() -> None:
    results = check_estimator(BPATransformer(reg="auto"), on_skip=None, on_fail=None)
    assert [r["check_name"] for r in results if r["status"] not in ("passed", "skipped")] == []
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= {"check_array_api_input"}
