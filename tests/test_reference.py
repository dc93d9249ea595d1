"""The reference: every public name of a door has a page and an example, and every page a name."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

INDEX = (Path(__file__).resolve().parents[1] / "docs" / "reference" / "index.rst").read_text()
PAGES = re.findall(r"^(?:   |\.\. autodata:: bpa\.)([A-Za-z_][\w.]*)$", INDEX, re.MULTILINE)
DOORS = (
    "bpa.data", "bpa.diagnostics", "bpa.errors", "bpa.hosts.clustering", "bpa.hosts.fewshot", "bpa.hosts.retrieval",
    "bpa.memory", "bpa.metrics", "bpa.paper", "bpa.plans", "bpa.runs", "bpa.runs.fields", "bpa.transforms.alternatives",
    *(["bpa.estimators"] if importlib.util.find_spec("sklearn") else []),
)  # fmt: skip
NAMES = [(door, name) for door in DOORS for name in importlib.import_module(door).__all__]


def resolved(page: str) -> object:
    """What a page of the index is about."""
    module, _, name = f"bpa.{page}".rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("door", "name"), NAMES, ids=lambda word: str(word))
def test_a_public_name_has_a_page_and_an_example_that_runs(door: str, name: str) -> None:
    value = getattr(importlib.import_module(door), name)
    assert any(resolved(page) is value for page in PAGES), f"{door}.{name} has no page in docs/reference"
    if callable(value):  # tables are shown by what they hold
        assert "    >>> " in (value.__doc__ or ""), f"{door}.{name} has no example"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_about_something_that_exists_and_is_described(page: str) -> None:
    value = resolved(page)
    if callable(value):  # a table is described beside it
        assert (value.__doc__ or "").strip()


def test_no_name_has_two_pages() -> None:
    assert len(PAGES) == len(set(PAGES))


@pytest.mark.parametrize("door", DOORS)
def test_a_door_lists_its_names_in_order(door: str) -> None:
    names = importlib.import_module(door).__all__
    assert len(names) == len(set(names))
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
