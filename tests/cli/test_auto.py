"""What is chosen, used and told: the weight of the rule, and how far from balanced a plan is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("cyclopts", reason="needs the app extra")

from bpa import balance, balanced_affinities, choose_reg
from bpa.cli.main import main
from bpa.cost import cosine_cost


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4, 1, 32)) + 0.4 * rng.standard_normal((4, 20, 32))
    path = tmp_path / "groups.npz"
    np.savez(path, features=rows.reshape(80, 32).astype(np.float32), labels=np.repeat(np.arange(4), 20))
    return path


def run(*words: str | Path) -> int:
    try:
        return int(main([str(word) for word in words]) or 0)
    except SystemExit as stop:
        return int(stop.code or 0)


def test_transform_tells_the_choice_it_used(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("transform", file, "-o", tmp_path / "w.npy", "--reg", "auto", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    x = torch.from_numpy(np.load(file)["features"])
    assert told["reg auto"] == pytest.approx(float(choose_reg(x).reg), abs=1e-4)
    np.testing.assert_allclose(
        np.load(tmp_path / "w.npy"), balanced_affinities(x, reg="auto").numpy(), atol=1e-5
    )


def test_auto_is_what_happens_where_nothing_is_said(file: Path, tmp_path: Path) -> None:
    assert run("transform", file, "-o", tmp_path / "a.npy") == 0
    assert run("transform", file, "-o", tmp_path / "b.npy", "--reg", "Auto") == 0
    assert run("transform", file, "-o", tmp_path / "p.npy", "--paper") == 0
    x = torch.from_numpy(np.load(file)["features"])
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), balanced_affinities(x).numpy(), atol=1e-6)


def test_a_large_set_is_balanced_by_the_rule_too(file: Path, tmp_path: Path) -> None:
    assert run("transform", file, "-o", tmp_path / "w.npy", "--want", "blocks", "--dtype", "float64") == 0
    x = torch.from_numpy(np.load(file)["features"]).double()
    unit = x / x.norm(dim=1, keepdim=True)
    expected = balanced_affinities(unit - unit.mean(dim=0), reg=float(choose_reg(x).reg))
    np.testing.assert_allclose(np.load(tmp_path / "w.npy"), expected.numpy(), atol=1e-6)


def test_transform_says_how_far_from_balanced_it_stopped(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.from_numpy(np.load(file)["features"])

    def told(*words: str) -> tuple[float, str]:
        assert run("transform", file, "-o", tmp_path / "w.npy", "--json", *words) == 0
        out, err = capsys.readouterr()
        return json.loads(out)["marginal_error"], err

    error, said = told("--reg", "1.0")
    assert error == pytest.approx(
        float(balance(cosine_cost(x), reg=1.0).convergence.marginal_error), abs=1e-6
    )
    assert said == ""
    for words in (
        ("--reg", "0.003"),
        ("--reg", "0.003", "--want", "blocks"),
        ("--reg", "0.003", "--transform", "bpa-attn"),
    ):
        error, said = told(*words)
        assert error > 1e-3
        assert "not balanced" in said
        assert "--solver converged" in said
    error, said = told("--reg", "0.03", "--solver", "converged:1e-5")
    assert error <= 1.1e-5
    assert said == ""


def test_doctor_forecasts_in_words(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", file, "--reg", "0.1", "--reg", "0.01") == 0
    out = capsys.readouterr().out
    assert "Forecast for reg=auto" in out
    assert "likely helps" in out
    assert "Forecast for reg=0.01" in out
    assert "likely hurts" in out
    assert "not balanced (more than 0.001)" in out
    assert re.search(r"W itself +25.6 kB +n × n numbers", out)


def test_doctor_without_a_file_describes_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") == 0
    out = capsys.readouterr().out
    assert "torch" in out
    assert "Forecast" not in out
