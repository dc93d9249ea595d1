"""The command line as a whole: help, JSON, configuration files, completion, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bpa import balanced_affinities
from bpa.cli._flags import parse_reg
from bpa.cli._output import progress
from bpa.cli.main import VERBS, build_app, main
from bpa.data.features import read_features, write_features
from bpa.memory import estimate_affinities
from bpa.records import FeatureSet
from bpa.solvers import Sweeps


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6, dtype=np.int64), 10)
    x = (rng.normal(size=(6, 8))[labels] + 0.5 * rng.normal(size=(60, 8))).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    write_features(tmp_path / "good.npz", FeatureSet(x, labels, tuple("abcdef")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], line: str) -> str:
    assert main(line.split()) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, f"{verb} --help")
    assert f"Usage: bpa {verb}" in text
    assert re.search(rf"Example:\s+bpa\s+{verb}", text)
    assert "--json" in text


def test_help_lists_every_verb_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--help")
    for verb in VERBS:
        assert re.search(rf"│ {verb} +\w", text), verb


def test_one_flag_has_one_meaning_in_every_verb() -> None:
    app = build_app()
    meanings: dict[str, set[str]] = {}
    for verb in VERBS:
        for argument in app[verb].assemble_argument_collection():
            for name in argument.names:
                meanings.setdefault(name, set()).add(str(argument.parameter.help))
    shared = (
        "--seed",
        "--json",
        "--labels",
        "--key",
        "--solver",
        "--transform",
        "--baselines",
        "--paper",
        "--reg",
        "--device",
        "--dtype",
        "--budget",
        "--repeats",
    )
    for name in shared:
        assert len(meanings.get(name, {""})) == 1, f"{name}: {meanings[name]}"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    import bpa

    assert output(capsys, "--version").strip() == bpa.__version__


def test_completion_can_be_installed() -> None:
    script = build_app().generate_completion(shell="bash")  # noqa: S604 - the name of a shell
    assert "retrieve" in script


@pytest.mark.parametrize(
    "line",
    [
        "transform x.npy -o w.npy",
        "doctor good.npz",
        "doctor",
        "study",
        "convert x.npy y.npz",
        "cluster good.npz --k 6 --repeats 1 --n-init 1",
        "fewshot good.npz --way 3 --query 3 --tasks 5 --protocol balanced",
        "retrieve good.npz",
    ],
)
def test_json_is_one_object_and_nothing_else(
    place: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(output(capsys, f"{line} --json"), parse_constant=refuse)
    assert isinstance(found, dict)
    assert found


def test_a_configuration_file_holds_flags_and_the_command_line_wins(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "c.toml").write_text(
        '[transform]\nreg = [0.3]\nsolver = ["sweeps:7"]\ndtype = "float64"\njson = true\n'
    )
    output(capsys, "--config c.toml transform x.npy -o a.npy")
    output(capsys, "transform x.npy -o b.npy --reg 0.3 --solver sweeps:7 --dtype float64")
    np.testing.assert_array_equal(np.load("a.npy"), np.load("b.npy"))
    output(capsys, "--config=c.toml transform x.npy -o c.npy --reg 0.1")
    assert not np.allclose(np.load("a.npy"), np.load("c.npy"))


def test_transform_writes_what_the_library_computes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.from_numpy(np.load("x.npy"))
    w = balanced_affinities(x, reg=0.2, solver=Sweeps(3))
    output(capsys, "transform x.npy -o w.npy --reg 0.2 --solver sweeps:3")
    np.testing.assert_allclose(np.load("w.npy"), w.numpy(), rtol=1e-6)
    for suffix in ("npz", "parquet", "safetensors"):
        output(capsys, f"transform good.npz -o w.{suffix} --reg 0.2 --solver sweeps:3")
        back = read_features(place / f"w.{suffix}")
        np.testing.assert_allclose(back.features, w.numpy(), rtol=1e-6)
        assert back.labels is not None
        assert back.labels.tolist() == np.repeat(range(6), 10).tolist()
        assert back.class_names == tuple("abcdef")


def test_what_a_large_set_is_wanted_for_agrees_with_all_of_w(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from scipy import sparse

    x = torch.from_numpy(np.load("x.npy"))
    w = balanced_affinities(x, reg=0.2, solver=Sweeps(3)).numpy()
    flags = "--reg 0.2 --solver sweeps:3"
    output(capsys, f"transform x.npy -o blocks.npy --want blocks {flags}")
    np.testing.assert_allclose(np.load("blocks.npy"), w, atol=2e-5)
    output(capsys, f"transform x.npy -o d.npy --want distances --items 4 0 {flags}")
    expected = np.linalg.norm(w[[4, 0]][:, None] - w[None], axis=2)
    np.testing.assert_allclose(np.load("d.npy"), expected, atol=2e-3)
    output(capsys, f"transform x.npy -o g.npz --want top-k --k 4 {flags}")
    graph = sparse.load_npz("g.npz")
    off = w - np.eye(60)
    assert graph.shape == (60, 60)
    assert (graph.getnnz(axis=1) == 4).all()
    np.testing.assert_allclose(np.sort(graph.toarray())[:, -4:], np.sort(off)[:, -4:], atol=2e-5)
    np.testing.assert_allclose(graph.toarray()[graph.toarray() > 0], off[graph.toarray() > 0], atol=2e-5)


def test_the_memory_refused_is_the_memory_estimated(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need = estimate_affinities(60, 8).total
    assert main(f"transform x.npy -o w.npy --budget {need}".split()) == 0
    assert main(f"transform x.npy -o w.npy --budget {need - 1}".split()) == 2
    assert "--want top-k" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "value"), [("0.1", 0.1), ("AUTO", "auto"), ("1e-3", 1e-3)])
def test_a_reg_is_a_number_or_auto(text: str, value: object) -> None:
    assert parse_reg(text) == value


def test_progress_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work", 3) as tick:
        for k in range(3):
            tick(k + 1, 3)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_a_study_keeps_records_tables_and_a_page_and_repeats_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = json.loads(output(capsys, "study sphere --quick --repeats 2 --out s --json"))["files"]
    assert set(files) == {"tables", "report"}
    assert "<svg" in (place / "s/report.html").read_text()
    assert "| way |" in (place / "s/tables.md").read_text()
    first = {path.name: path.read_bytes() for path in (place / "s").iterdir() if path.is_file()}
    output(capsys, "study sphere --quick --repeats 2 --out s")
    assert {path.name: path.read_bytes() for path in (place / "s").iterdir() if path.is_file()} == first


@pytest.mark.slow
def test_a_study_shows_the_papers_numbers_on_the_users_word_alone(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6, dtype=np.int64), 25)
    x = np.abs(rng.normal(size=(6, 8))[labels] + rng.normal(size=(150, 8))).astype(np.float32)
    write_features(place / "wide.npz", FeatureSet(x, labels))
    line = "study fewshot-sweeps wide.npz --repeats 3"
    assert "70.71" not in output(capsys, line)
    assert "70.71" in output(capsys, f"{line} --these-are-the-paper-features")
    assert main(["study", "fewshot-priors", "wide.npz", "--these-are-the-paper-features"]) == 2
    assert "cannot honour --these-are-the-paper-features" in capsys.readouterr().err


def test_a_partial_run_is_called_partial(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "fewshot good.npz --way 3 --query 3 --tasks 5 --protocol balanced --out runs")
    lines = (place / "runs/results.jsonl").read_bytes().splitlines(keepends=True)
    (place / "runs/results.jsonl").write_bytes(b"".join(lines[:2]))
    output(capsys, "report runs")
    assert "Partial: 2 of 4 rows are there" in (place / "runs/report.html").read_text()


LONG = "fewshot good.npz --way 3 --query 3 --tasks 2000 --protocol balanced --reg 0.1 --shot 1 5 --out"


def bpa(place: Path, line: str) -> subprocess.Popen[str]:
    script = "import sys; from bpa.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", script, *line.split()],
        cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def results(folder: Path) -> bytes:
    """Return the results file; a checkout may move to another commit between two runs of this test."""
    return re.sub(rb'"commit":"[0-9a-f]+"', b"", (folder / "results.jsonl").read_bytes())


def wait_for(job: subprocess.Popen[str], folder: Path, seconds: float = 60) -> None:
    """Wait until a job has written something, or has ended."""
    began = time.monotonic()
    while job.poll() is None and not any(folder.rglob("*.jsonl")) and time.monotonic() - began < seconds:
        time.sleep(0.01)


@pytest.mark.slow
def test_a_killed_run_resumed_gives_the_same_bytes(place: Path, rng: np.random.Generator) -> None:
    whole = bpa(place, f"{LONG} whole")
    out, err = whole.communicate(timeout=120)
    assert whole.returncode == 0, err
    kills = 0
    for _ in range(3):
        job = bpa(place, f"{LONG} killed")
        wait_for(job, place / "killed")
        time.sleep(float(rng.uniform(0, 0.6)))
        if job.poll() is None:
            job.kill()
            kills += 1
        job.communicate()
    last = bpa(place, f"{LONG} killed")
    again, err = last.communicate(timeout=120)
    assert last.returncode == 0, err
    assert kills >= 1
    assert results(place / "killed") == results(place / "whole")
    cut = [re.sub(r" +\S+$", "", line) for line in out.splitlines()]  # the last column is the time it took
    assert [re.sub(r" +\S+$", "", line) for line in again.splitlines()] == cut


@pytest.mark.slow
def test_a_killed_retrieval_resumed_gives_the_same_bytes(place: Path, rng: np.random.Generator) -> None:
    labels = np.repeat(np.arange(120, dtype=np.int64), 10)
    x = rng.normal(size=(120, 32))[labels] + rng.normal(size=(1200, 32))
    write_features(place / "gallery.npz", FeatureSet(x.astype(np.float32), labels))
    line = "retrieve gallery.npz --reg 0.05 0.1 0.2 0.3 0.5 --out"
    whole = bpa(place, f"{line} whole")
    _, err = whole.communicate(timeout=120)
    assert whole.returncode == 0, err
    kills = 0
    for _ in range(2):
        job = bpa(place, f"{line} killed")
        wait_for(job, place / "killed")
        time.sleep(float(rng.uniform(0, 0.3)))
        if job.poll() is None:
            job.kill()
            kills += 1
        job.communicate()
    last = bpa(place, f"{line} killed")
    _, err = last.communicate(timeout=120)
    assert last.returncode == 0, err
    assert kills >= 1
    assert results(place / "killed") == results(place / "whole")


@pytest.mark.slow
def test_ctrl_c_leaves_a_folder_from_which_the_run_goes_on(place: Path) -> None:
    job = bpa(place, f"{LONG} stopped")
    wait_for(job, place / "stopped")
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=60)
    if job.returncode != 0:
        assert job.returncode == 130
        assert err.strip().splitlines()[-1].startswith("bpa: stopped")
        assert "Traceback" not in err
    again = bpa(place, f"{LONG} stopped")
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_fault(place: Path) -> None:
    command = f"{sys.executable} -c 'from bpa.cli.main import run; run()' study --json"
    script = f"{command} | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=place, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")
