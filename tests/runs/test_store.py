"""The run store: a kill, a full disk or a second writer never spoils what is on the disk."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bpa.errors import DTypeError, FileError
from bpa.records import RunPlan, RunRecord
from bpa.records.runs import canonical_json, plain
from bpa.runs import store as store_module
from bpa.runs.store import RunStore, write_atomically


def record(seed: int, seconds: float = 1.0) -> RunRecord:
    return RunRecord(
        "toy",
        {"seed": seed, "reg": (0.1, 0.2)},
        {"host": "h"},
        {"sha256": "ab"},
        {"accuracy": [0.1 * seed, 1 / 3, math.nan]},
        {"mean": 0.25},
        {"torch": "2"},
        seconds,
    )


def test_a_record_equals_its_round_trip() -> None:
    first = RunRecord(
        "s", {"a": (1, 2), "p": Path("x/y"), "n": np.float64(0.1)}, values={"v": [1, 1 / 3]}, seconds=2
    )
    again = RunRecord.from_json(first.to_json())
    assert again == first
    assert first.task == {"a": [1, 2], "p": "x/y", "n": 0.1}
    assert RunRecord.from_json(record(1).to_json()).values["accuracy"][:2] == record(1).values["accuracy"][:2]
    assert math.isnan(RunRecord.from_json(record(1).to_json()).values["accuracy"][2])


def test_a_record_is_strict_json_even_with_nan_and_infinity() -> None:
    odd = RunRecord("s", {"reg": math.inf}, values={"v": [math.nan, -math.inf]}, summary={"m": math.nan})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(odd.to_json(), parse_constant=refuse)
    values = RunRecord.from_json(odd.to_json()).values["v"]
    assert math.isnan(values[0])
    assert values[1] == -math.inf


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"study": "s", "surprise": 1}', "{"])
def test_text_that_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(FileError, match="RunRecord"):
        RunRecord.from_json(text)


def test_a_record_refuses_what_json_cannot_hold() -> None:
    with pytest.raises(DTypeError, match="object"):
        RunRecord("s", {"x": object()})


def test_records_come_back_in_order_with_their_wall_times(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for seed in range(3):
        store.append(record(seed, seconds=seed + 0.5))
    back = RunStore(tmp_path).records()
    assert [r.task["seed"] for r in back] == [0, 1, 2]
    assert [r.seconds for r in back] == [0.5, 1.5, 2.5]


def test_a_row_is_found_by_study_task_way_and_data(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.append(record(1))
    row = {
        "study": "toy",
        "task": {"seed": 1, "reg": (0.1, 0.2)},
        "way": {"host": "h"},
        "data": {"sha256": "ab"},
    }
    found = store.find(**row)
    assert found is not None
    assert found.to_json(seconds=False) == record(1).to_json(seconds=False)
    assert store.find(**{**row, "task": {"reg": [0.1, 0.2], "seed": 1}}) is not None
    for other in (
        {"study": "other"},
        {"task": {"seed": 1}},
        {"way": {"host": "g"}},
        {"data": {"sha256": "cd"}},
    ):
        assert store.find(**{**row, **other}) is None


def test_a_row_written_by_somebody_else_is_found_and_the_newest_counts(tmp_path: Path) -> None:
    mine, yours = RunStore(tmp_path), RunStore(tmp_path)
    assert mine.find(study="s", task={"k": 0}) is None
    for k in range(3):
        yours.append(RunRecord("s", {"k": k}, summary={"round": 1}))
    yours.append(RunRecord("s", {"k": 1}, summary={"round": 2}))
    found = [mine.find(study="s", task={"k": k}) for k in range(3)]
    assert [r.summary["round"] for r in found if r is not None] == [1, 2, 1]
    (tmp_path / "results.jsonl").write_bytes(
        (tmp_path / "results.jsonl").read_bytes().split(b"\n")[0] + b"\n"
    )
    assert mine.find(study="s", task={"k": 1}) is None


def test_finding_a_row_reads_a_line_and_not_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path)
    values = np.random.default_rng(0).random(2000)
    for k in range(30):
        store.append(RunRecord("s", {"k": k}, values={"v": values}))
    assert store.find(study="s", task={"k": 3}) is not None
    parsed: list[str] = []
    read = RunRecord.from_json
    monkeypatch.setattr(RunRecord, "from_json", lambda text: (parsed.append(text), read(text))[1])
    for k in range(60):
        assert (store.find(study="s", task={"k": k}) is not None) == (k < 30)
    assert len(parsed) == 30


def test_a_plan_is_kept_once_and_read_back(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        assert store.plans() == []
        for _ in range(2):
            store.plan(RunPlan("s", ("reg",), ("a", "b")))
            store.plan(RunPlan("s", ["reg"], ["a", "b", "c"]))
    assert RunStore(tmp_path).plans() == [
        RunPlan("s", ("reg",), ("a", "b")),
        RunPlan("s", ("reg",), ("a", "b", "c")),
    ]
    (tmp_path / "plans.jsonl").write_text("nothing\n")
    with pytest.raises(FileError, match=r"line 1 of .*RunPlan"):
        RunStore(tmp_path).plans()


def test_wall_time_does_not_reach_the_results_file(tmp_path: Path) -> None:
    for folder, seconds in (("a", 1.0), ("b", 99.0)):
        with RunStore(tmp_path / folder) as store:
            store.append(record(5, seconds))
    assert (tmp_path / "a/results.jsonl").read_bytes() == (tmp_path / "b/results.jsonl").read_bytes()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(min_value=0, max_value=10_000))
def test_a_file_cut_at_any_byte_loses_at_most_its_last_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    with RunStore(folder) as store:
        for seed in range(3):
            store.append(record(seed))
    path = folder / "results.jsonl"
    whole = path.read_bytes()
    kept = whole[: cut % (len(whole) + 1)]
    path.write_bytes(kept)
    with RunStore(folder) as again:
        left = again.records()
        assert [r.task["seed"] for r in left] == list(range(kept.count(b"\n")))
        for seed in range(len(left), 3):
            again.append(record(seed))
    assert path.read_bytes() == whole


def test_a_full_disk_leaves_whole_lines_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path)
    store.append(record(0))
    before = (tmp_path / "results.jsonl").read_bytes()
    write, left = os.write, 40

    def nearly_full(handle: int, data: memoryview) -> int:
        nonlocal left
        if left == 0:
            raise OSError(28, "No space left on device")
        done = write(handle, bytes(data[:left]))
        left -= done
        return done

    monkeypatch.setattr(store_module.os, "write", nearly_full)
    with pytest.raises(FileError, match="No space left on device"):
        store.append(record(1))
    monkeypatch.undo()
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert (tmp_path / "timings.jsonl").read_bytes().endswith(b"\n")
    store.append(record(1))
    assert len(RunStore(tmp_path).records()) == 2


def test_a_second_process_may_read_but_not_write(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append(record(0))
        script = (
            "import sys\nfrom bpa.runs.store import RunStore\nfrom bpa.records import RunRecord\n"
            "s = RunStore(sys.argv[1])\nprint(len(s.records()))\ns.append(RunRecord('x'))"
        )
        done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)
        assert done.stdout == "1\n"
        assert "is being written by another process" in done.stderr
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(RunStore(tmp_path).records()) == 2


def test_two_stores_of_one_process_share_a_folder(tmp_path: Path) -> None:
    with RunStore(tmp_path) as first, RunStore(tmp_path) as second:
        first.append(record(0))
        second.append(record(1))
        assert len(first.records()) == 2


def test_a_journal_remembers_every_value_exactly(tmp_path: Path) -> None:
    journal = RunStore(tmp_path).journal({"seed": 1})
    journal.add(0, [1 / 3, math.nan, math.inf])
    journal.add(7, {"a": (1, 2)})
    assert journal.done[7] == {"a": [1, 2]}
    again = RunStore(tmp_path).journal({"seed": 1})
    assert again.done[0][0] == 1 / 3
    assert math.isnan(again.done[0][1])
    assert again.done[0][2] == math.inf
    assert again.done[7] == {"a": [1, 2]}
    assert RunStore(tmp_path).journal({"seed": 2}).done == {}
    again.discard()
    assert RunStore(tmp_path).journal({"seed": 1}).done == {}


def test_journals_of_similar_names_are_different_files(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    names = ["a b", "a-b", "a/b", "../a-b", "", "x" * 300]
    paths = {store.journal(name).path for name in names}
    assert len(paths) == len(names)
    assert all(path.parent == tmp_path / "journal" for path in paths)


JOB = """
import sys, time
from bpa.runs.store import RunStore
from bpa.records import RunPlan, RunRecord
from bpa.records.runs import plain
from bpa.records.runs import canonical_json
store = RunStore(sys.argv[1])
for seed in range(4):
    task = {"seed": seed}
    if store.find(study="job", task=task) is not None:
        continue
    journal = store.journal(task)
    for step in range(12):
        if step not in journal.done:
            time.sleep(0.004)
            journal.add(step, [((seed + 1) * 7919 * (step + 1)) % 1000 / 999, float("nan")])
    values = [journal.done[k][0] for k in range(12)]
    summary = {"mean": sum(values) / 12}
    store.append(RunRecord("job", task, values={"v": values}, summary=summary, seconds=time.time()))
    journal.discard()
"""


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_with_the_same_bytes(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    command = [sys.executable, "-c", JOB]
    subprocess.run([*command, tmp_path / "whole"], check=True)
    kills = 0
    while True:
        job = subprocess.Popen([*command, tmp_path / "killed"])
        journal = tmp_path / "killed/journal"
        began = time.monotonic()
        while job.poll() is None and not journal.exists() and time.monotonic() - began < 30:
            time.sleep(0.005)
        time.sleep(float(rng.uniform(0, 0.12)))
        if kills < 4 and job.poll() is None:
            job.send_signal(signal.SIGKILL)
            job.wait()
            kills += 1
        else:
            assert job.wait(timeout=60) == 0
            break
    assert kills >= 1
    whole, killed = (tmp_path / name / "results.jsonl" for name in ("whole", "killed"))
    assert killed.read_bytes() == whole.read_bytes()


def test_a_broken_line_in_the_middle_is_reported_with_its_number(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append(record(0))
    path = tmp_path / "results.jsonl"
    path.write_text("not a record\n" + path.read_text())
    with pytest.raises(FileError, match="line 1 of"):
        RunStore(tmp_path).records()


def test_a_store_says_when_its_folder_is_a_file_or_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="is a file"):
        RunStore(tmp_path / "file")
    with pytest.raises(FileError, match="cannot be written"):
        RunStore(tmp_path / "file" / "below").append(record(0))


def test_an_atomic_write_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomically(tmp_path / "deep" / "page.html", "old")
    assert path.read_text() == "old"

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", fail)
    with pytest.raises(FileError, match="No space left"):
        write_atomically(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]
    write_atomically(path, b"new")
    assert path.read_text() == "new"


def test_configurations_compare_by_content_not_by_spelling() -> None:
    assert canonical_json({"b": (1,), "a": np.int64(2)}) == canonical_json({"a": 2, "b": [1]})
    assert canonical_json({"a": 1}) != canonical_json({"a": 1.5})


@pytest.mark.parametrize(
    "value", [np.arange(5), list(range(5)), [0.5, 2], [True, False], ["a", None], np.ones((2, 2))]
)
def test_long_lists_of_plain_things_are_not_walked_in_python(
    value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bpa.records import runs

    calls: list[object] = []
    walk = runs.plain
    monkeypatch.setattr(runs, "plain", lambda item, **more: (calls.append(item), walk(item, **more))[1])
    out = runs.plain(value)
    assert len(calls) == 1
    assert out == (value.tolist() if isinstance(value, np.ndarray) else value)


def test_lists_that_are_not_plain_become_so() -> None:
    assert plain([1.0, math.nan, math.inf]) == [1.0, None, "inf"]
    assert plain(np.array([1.0, math.inf])) == [1.0, "inf"]
    assert plain([np.float64(0.5), (1, 2)]) == [0.5, [1, 2]]
    kept = plain([1.0, math.nan], keep_nonfinite=True)
    assert math.isnan(kept[1])
