"""The door: what is public has a reference page with an example that runs, and what the documents teach is public."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference" / "index.rst"
PUBLIC = (
    "bpa", "bpa.cost", "bpa.data", "bpa.errors", "bpa.estimators", "bpa.hosts.clustering", "bpa.hosts.fewshot",
    "bpa.hosts.retrieval", "bpa.kernels", "bpa.metrics", "bpa.plans", "bpa.records", "bpa.runs", "bpa.runs.fields",
    "bpa.solvers", "bpa.transforms",
)  # fmt: skip
"""The modules people import from. Everything else is the house's own business."""
TAUGHT = [
    ROOT / "README.md",
    *sorted((ROOT / "examples").glob("*.py")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not page.stem.startswith("add-")),
]
"""What a user reads; the pages on adding something to the house open its private rooms on purpose."""


def names_of(module: str) -> list[str]:
    return list(importlib.import_module(module).__all__)


def pages() -> list[str]:
    """Full names with a page: the entries of every ``autosummary``, and tables by ``autodata``."""
    text = REFERENCE.read_text()
    listed = re.findall(r"^   ([A-Za-z_][\w.]*)$", text, re.MULTILINE)
    return [f"bpa.{name}" for name in listed] + re.findall(r"^\.\. autodata:: (\S+)$", text, re.MULTILINE)


def snippets(path: Path) -> list[str]:
    if path.suffix == ".py":
        return [path.read_text()]
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_says_what_it_offers(module: str) -> None:
    names = names_of(module)
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name)), (
        "unsorted"
    )
    assert not [name for name in names if name.startswith("_")]


def value_of(name: str) -> object:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def test_every_public_name_has_a_page_and_every_page_a_public_name() -> None:
    public = [f"{module}.{name}" for module in PUBLIC for name in names_of(module)]
    listed = pages()
    assert len(listed) == len(set(listed))
    assert sorted(set(listed) - set(public)) == [], "with a page, not public"
    shown = [value_of(name) for name in listed]  # one page serves a name that two doors offer
    assert [name for name in public if not any(value_of(name) is value for value in shown)] == [], (
        "without a page"
    )


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_class_and_function_shows_an_example_that_runs(module: str) -> None:
    room = importlib.import_module(module)
    without = []
    for name in names_of(module):
        value = getattr(room, name)
        if (inspect.isclass(value) or inspect.isroutine(value)) and ">>>" not in (
            inspect.getdoc(value) or ""
        ):
            without.append(name)
    assert without == []


@pytest.mark.parametrize("path", TAUGHT, ids=lambda path: path.stem)
def test_what_a_document_teaches_is_public(path: Path) -> None:
    strangers = []
    for snippet in snippets(path):
        for node in ast.walk(ast.parse(snippet)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bpa":
                module = node.module or ""
                for alias in node.names:
                    is_room = f"{module}.{alias.name}" in PUBLIC
                    if not is_room and (module not in PUBLIC or alias.name not in names_of(module)):
                        strangers.append(f"from {module} import {alias.name}")
            elif isinstance(node, ast.Import):
                strangers += [
                    f"import {alias.name}"
                    for alias in node.names
                    if alias.name.split(".")[0] == "bpa" and alias.name not in PUBLIC
                ]
    assert strangers == []
