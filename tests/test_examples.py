"""Every gallery script runs to its end, with its own assertions, drawing to no screen."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("plot_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_a_gallery_script_runs_without_a_warning(script: Path, tmp_path: Path) -> None:
    flags = [
        "-W",
        "error::UserWarning",
        "-W",
        "error::RuntimeWarning",
        "-W",
        "ignore:FigureCanvasAgg is non-interactive",
    ]
    done = subprocess.run(
        [sys.executable, *flags, str(script)],
        cwd=tmp_path, env={**os.environ, "MPLBACKEND": "agg"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_a_gallery_script_makes_one_claim_and_checks_it(script: Path) -> None:
    tree = ast.parse(script.read_text())
    lines = (ast.get_docstring(tree) or "").splitlines()
    assert len(lines) > 3
    assert set(lines[1]) == {"="}
    assert any(isinstance(node, ast.Assert) for node in ast.walk(tree)), "nothing in it can fail"
