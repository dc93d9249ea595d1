"""``bpa cluster`` end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("cyclopts", reason="the command line needs the app extra")
pytest.importorskip("sklearn", reason="k-means is scikit-learn's")

from bpa.cli.main import main
from bpa.data.features import write_features
from bpa.data.synthetic import sphere_clusters


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_features(tmp_path / "set.npz", sphere_clusters(60, 0.3, n_clusters=5, n_per_cluster=12, seed=1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


LINE = "cluster set.npz --k 5 --repeats 2 --n-init 2"


def test_it_writes_clusters_and_prints_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"{LINE} --reg 0.25 0.5 --clusters c.csv --out run".split()) == 0
    shown = capsys.readouterr().out
    for word in ("k-means, bpa, reg 0.25", "spectral, reg 0.5", "over best free", "5 clusters"):
        assert word in shown
    assert len(Path("c.csv").read_text().splitlines()) == 61
    assert Path("run/clusters.csv").read_bytes() == Path("c.csv").read_bytes()
    assert main(f"{LINE} --reg 0.25 0.5 --json --out run".split()) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["records"][0]["values"]["acc"]) == 2
    assert told["records"][0]["way"] == {
        "host": "bpa-smooth", "transform": {"name": "identity"}, "settings": {"reg": 0.25},
    }  # fmt: skip


def test_raw_unit_and_centred_rows_stand_beside_it_unless_told_not_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rows(flags: str) -> list[tuple[str, str]]:
        assert main(f"{LINE} {flags} --json".split()) == 0
        records = json.loads(capsys.readouterr().out)["records"]
        return [(r["way"]["host"], r["way"]["transform"]["name"]) for r in records]

    assert {("k-means", name) for name in ("identity", "unit", "centred")} <= set(rows(""))
    assert rows("--no-baselines") == [("bpa-smooth", "identity"), ("k-means", "bpa")]
    assert rows("--no-baselines --host spectral-knn") == [("spectral-knn", "identity")]


def test_auto_is_told_and_what_has_no_rule_says_its_weight(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(LINE.split()) == 0
    out = capsys.readouterr().out
    assert "reg auto: " in out
    for label in ("bpa-smooth, reg auto", "k-means, bpa, reg auto", "k-means, softmax, reg 0.1"):
        assert label in out
    assert main(f"{LINE} --paper".split()) == 0
    assert "auto" not in capsys.readouterr().out


def test_a_small_budget_is_refused_with_exit_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "set.npz", "--k", "5", "--budget", "10kB"]) == 2
    assert "exceeds the budget of 10 kB" in capsys.readouterr().err
