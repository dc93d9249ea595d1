"""What the library computed at commit f219ccd, it computes today: see today/README.md."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import _calls as calls  # noqa: E402
import _entries as entries  # noqa: E402
import _inputs as make  # noqa: E402
import _records as records  # noqa: E402

TODAY = HERE / "today"
ENTRIES = {entry.name: entry for entry in entries.all_entries()}
EXTRAS = dict.fromkeys(entries.RUNS, ("sklearn", "cyclopts"))
RUN_PRECISION = "float32"


@pytest.fixture(scope="module")
def stored() -> dict[str, entries.Arrays]:
    """Stored arrays by entry."""
    found: dict[str, entries.Arrays] = {}
    for path in sorted(TODAY.glob("*.npz")):
        with np.load(path, allow_pickle=False) as file:
            found |= entries.unpack({key: file[key] for key in file.files})
    return found


def test_inputs_are_those_the_goldens_were_made_from(stored) -> None:
    for name, value in make.checksums().items():
        np.testing.assert_allclose(value, stored["inputs"][name], rtol=1e-14, atol=1e-12, err_msg=name)


def test_every_stored_entry_is_computed_and_every_entry_is_stored(stored) -> None:
    assert set(stored) - {"inputs"} == set(ENTRIES)
    assert {path.name for path in (TODAY / "runs").iterdir()} == set(entries.RUNS)


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_is_as_it_was(name: str, stored) -> None:
    entry = ENTRIES[name]
    for package in entry.needs:
        pytest.importorskip(package)
    assert entries.differences(entry.compute(), stored[name], entry.precision) == []


@pytest.mark.parametrize("name", entries.RUNS)
def test_run_leaves_the_numbers_it_left(name: str, tmp_path: Path) -> None:
    for package in EXTRAS[name]:
        pytest.importorskip(package)
    then = records.read(TODAY / "runs" / name / "results.jsonl")
    now = records.flat(entries.RUNS[name](tmp_path))
    assert set(now) == set(then)
    for label, numbers in then.items():
        assert entries.differences(now[label], numbers, RUN_PRECISION) == [], label


def test_published_settings_and_names_are_as_they_were() -> None:
    assert calls.ptmap_variants() == entries.VARIANTS
    assert calls.ranker_names() == sorted(entries.RANKERS)


@pytest.mark.parametrize(
    "name",
    ["affinities/one default", "plans/sparse converged", "few-shot/ptmap paper bpa", "rankings/joint dense"],
)
def test_a_number_that_moves_is_seen(name: str, stored) -> None:
    assert entries.differences(stored[name], stored[name], "float64") == []
    for field, before in stored[name].items():
        if before.dtype.kind == "f" and np.abs(before).max() < 1e-3:
            continue  # an error that is nothing but rounding
        moved = {key: value.copy() for key, value in stored[name].items()}
        if before.dtype.kind == "f":
            moved[field].flat[np.abs(before).argmax()] *= 1 + 1e-8
        else:
            moved[field].flat[0] += 1
        assert entries.differences(moved, stored[name], "float64") != [], field
