"""``bpa fewshot`` end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="needs the app extra")

from bpa.cli.main import main
from bpa.data.features import write_features
from bpa.metrics.intervals import mean_interval
from bpa.records import FeatureSet
from bpa.runs import run, transforms_asked
from bpa.runs.fields.fewshot import FewShot, FewShotTask, fewshot_ways


@pytest.fixture
def features(rng: np.random.Generator) -> FeatureSet:
    labels = np.repeat(np.arange(8), 30)
    x = np.maximum(rng.normal(size=(8, 24))[labels] + 1.6 * rng.normal(size=(240, 24)), 0.0)
    return FeatureSet(x.astype(np.float32), labels=labels)


@pytest.fixture
def file(features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_features(tmp_path / "toy.npz", features)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "toy.npz"


def said(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    code = main(line.split())
    return code, *capsys.readouterr()


def told(capsys: pytest.CaptureFixture[str], line: str) -> dict:
    code, out, err = said(capsys, f"{line} --json")
    assert code == 0, err
    return json.loads(out)


SMALL = "fewshot toy.npz --query 6 --tasks 12"


def test_it_prints_what_the_library_finds_and_resumes(
    file: Path, features: FeatureSet, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"{SMALL} --host protonet ptmap --reg 0.1 0.3 --shot 1 2 --out runs"
    code, out, err = said(capsys, line)
    assert (code, err) == (0, "")
    ways = fewshot_ways(("protonet", "ptmap"), transforms_asked(["bpa"], reg=(0.1, 0.3)))
    tasks = [FewShotTask(n_shot=shot, n_query=6, n_tasks=12) for shot in (1, 2)]
    for record in run("fewshot", FewShot(features), [(task, ways) for task in tasks]):
        mean = mean_interval(100 * np.array(record.values["accuracy"]))
        assert f"{mean.mean:.2f} ± {mean.half_width:.2f}" in out
    before = Path("runs/results.jsonl").read_bytes()
    assert len(told(capsys, line)["records"]) == 20
    assert Path("runs/results.jsonl").read_bytes() == before


def test_the_default_is_the_rule_beside_what_everybody_has(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [r["way"]["transform"] for r in told(capsys, SMALL)["records"]]
    assert [t["name"] for t in found] == ["identity", "unit", "centred", "bpa"]
    assert found[3] == {"name": "bpa", "reg": "auto", "solver": "sweeps:5"}
    alone = told(capsys, f"{SMALL} --no-baselines")["records"]
    assert [r["way"]["transform"]["name"] for r in alone] == ["bpa"]
    paper = told(capsys, f"{SMALL} --no-baselines --paper")["records"]
    assert paper[0]["way"]["transform"] == {"name": "bpa", "reg": 0.1, "solver": "sweeps:5"}
    both = told(capsys, f"{SMALL} --no-baselines --paper --reg 0.3 --solver sweeps:2,converged")["records"]
    assert [(r["way"]["transform"]["reg"], r["way"]["transform"]["solver"]) for r in both] == [
        (0.3, "sweeps:2"), (0.3, "converged"),
    ]  # fmt: skip


def test_a_transform_without_the_rule_says_its_own_weight(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = said(capsys, f"{SMALL} --transform bpa softmax --reg auto")
    assert "bpa, reg auto" in out
    assert "softmax, reg 0.1" in out
    code, out, err = said(capsys, f"{SMALL} --transform softmax --reg auto")
    assert (code, out) == (2, "")
    assert "a rule for bpa and bpa-attn, not for softmax" in err


def test_a_published_variant_is_one_word(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, f"{SMALL} --variant reference-eval")["records"]
    assert [r["way"]["transform"]["name"] for r in found] == ["identity", "unit", "centred", "bpa"]
    assert found[3]["way"]["transform"] == {"name": "bpa", "reg": 0.2, "solver": "sweeps:10"}
    Path("c.toml").write_text('[fewshot]\nvariant = "reference-sweep"\nquery = 6\ntasks = 3\n')
    found = told(capsys, "--config c.toml fewshot toy.npz")["records"]
    assert [r["way"]["transform"].get("reg") for r in found] == [None] * 3 + [0.1, 0.2, 0.3, 0.4, 0.5]
    code, _, err = said(capsys, f"{SMALL} --variant paper --reg 0.3")
    assert code == 2
    assert "Leave out --prior" in err


def test_the_papers_levels_need_the_users_word(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "fewshot toy.npz --tasks 6 --paper --paper-table miniimagenet-wrn"
    _, out, _ = said(capsys, line)
    assert "Same protocol, your features: gains beside the paper's on miniimagenet-wrn" in out
    assert "82.92" not in out
    assert "difference" not in out
    assert "No row of this run" not in out
    _, out, _ = said(capsys, line.replace("--paper ", ""))
    assert "No row of this run with the transform is one of the paper's" in out
    _, out, _ = said(capsys, f"{line} --these-are-the-paper-features")
    assert "82.92" in out
    assert "difference" in out


def test_what_cannot_be_done_is_one_sentence(
    file: Path, features: FeatureSet, capsys: pytest.CaptureFixture[str]
) -> None:
    write_features("bare.npz", replace(features, labels=None))
    for line, match in (
        ("fewshot bare.npz", "--labels"),
        ("fewshot toy.npz --way 9", "has 8"),
        ("fewshot toy.npz --shot 40", "Class '0'"),
        ("fewshot toy.npz --host simpleshot", "protonet"),
        ("fewshot toy.npz --host protonet --prior oracle", "'prior' belongs to PT-MAP"),
        ("fewshot toy.npz --concentration 1", "belongs to protocol='dirichlet'"),
        ("fewshot toy.npz --variant newest", "'variant'"),
        ("fewshot toy.npz --paper-table imagenet", "no numbers for 'imagenet'; it has"),
        (f"{SMALL} --way 4 --paper --paper-table miniimagenet-wrn", "None of these rows"),
        ("fewshot toy.npz --these-are-the-paper-features", "Name a set, too"),
        ("fewshot toy.npz --solver newton", "sweeps:N"),
        ("fewshot none.npz", "does not exist"),
    ):
        code, out, err = said(capsys, line)
        assert (code, out) == (2, ""), line
        assert match in err
        assert err.count("\n") == 1
