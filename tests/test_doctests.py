"""The examples in docstrings, and the snippets of the tutorials and of some guides."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bpa

MODULES = ["bpa", *(m.name for m in pkgutil.walk_packages(bpa.__path__, "bpa."))]
DOCS = Path(__file__).resolve().parents[1] / "docs"
TUTORIALS = [
    *sorted((DOCS / "tutorials").glob("*.md")),
    *sorted((DOCS / "howto").glob("add-*.md")),
    *(DOCS / "howto" / f"{name}.md" for name in ("large-sets", "convert-old-files", "few-shot")),
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testmod(module, optionflags=flags).failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_the_snippets_of_a_tutorial_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    if not snippets:
        assert page.stem in ("index", "command-line")
        return
    flags = ["-W", "error::UserWarning", "-W", "error::RuntimeWarning"]
    done = subprocess.run(
        [sys.executable, *flags, "-c", "\n".join(snippets)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
