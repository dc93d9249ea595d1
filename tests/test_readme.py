"""What the README says is run: its snippets, its commands, its links, its numbers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bpa.data import embedded_sketches
from bpa.runs import labels, run, transforms_asked
from bpa.runs.fields.fewshot import FewShot, FewShotTask, fewshot_ways

README = Path(__file__).resolve().parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("snippet", blocks("python"), ids=lambda s: s.split("\n")[1][:30])
def test_every_python_snippet_runs_without_a_warning(snippet: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-W", "error::RuntimeWarning", "-c", snippet],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_command_runs_and_writes_what_it_names(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("bpa")
    assert command.exists() or shutil.which("bpa")
    np.save(tmp_path / "emb.npy", np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    assert len(lines) >= 4
    for line in lines:
        words = line.split()
        done = subprocess.run([str(command), *words[1:]], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stderr == "", line
    assert np.load(tmp_path / "w.npy").shape == (60, 60)
    assert (tmp_path / "graph.npz").is_file()


def test_every_link_to_a_file_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text()):
        assert (README.parent / target).is_file(), target


@pytest.mark.slow
def test_the_table_holds_what_the_demonstration_measures() -> None:
    ways = fewshot_ways(("protonet",), transforms_asked(["bpa"], reg=(0.1, 0.5, "auto")))
    tasks = [FewShotTask(n_shot=shot, n_tasks=400, protocol="balanced") for shot in (1, 5)]
    records = run("readme", FewShot(embedded_sketches()), [(task, ways) for task in tasks])
    measured = {
        (label, record.task["n_shot"]): record.summary["accuracy"]
        for label, record in zip(2 * labels(ways), records, strict=True)
    }
    names = {
        "raw": "identity",
        "unit norm": "unit",
        "centred unit norm": "centred",
        "BPA, reg 0.1 (the paper's)": "bpa, reg 0.1",
        "BPA, reg 0.5": "bpa, reg 0.5",
        'BPA, reg "auto"': "bpa, reg auto",
    }
    rows = re.findall(r"^\| ([^|]+?) \| ([0-9.]+) \| ([0-9.]+) \|$", README.read_text(), re.MULTILINE)
    assert {row[0] for row in rows} == set(names)
    for name, one, five in rows:
        assert float(one) == pytest.approx(measured[names[name], 1], abs=0.3), name
        assert float(five) == pytest.approx(measured[names[name], 5], abs=0.3), name
