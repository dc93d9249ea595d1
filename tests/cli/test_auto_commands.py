"""--reg auto: chosen, used, and told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("cyclopts", reason="needs the app extra")

from bpa import balanced_affinities, choose_reg
from bpa.cli.main import main


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


def test_cluster_tells_the_choice_it_used(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--reg", "auto", "--transform", "bpa", "--repeats", "1", "--no-compare")
    assert run("cluster", file, "--k", "4", *words) == 0
    assert "reg auto: " in capsys.readouterr().out


def test_doctor_forecasts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", file, "--reg", "0.1", "--reg", "0.01") == 0
    out = capsys.readouterr().out
    assert "reg=auto: likely helps" in out
    assert "reg=0.01: likely hurts" in out
