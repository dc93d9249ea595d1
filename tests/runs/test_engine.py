"""The engine: a grid becomes records in order, in pieces that survive a stop, and pairs what it may pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bpa.runs.engine import Part, run
from bpa.runs.store import RunStore
from bpa.runs.way import Way
from bpa.transforms.names import NamedTransform


@dataclass(frozen=True)
class Counting:
    """A task: ``n`` pieces, ``none`` is left out of records."""

    n: int
    none: int | None = None


class Toy:
    """Piece k of a row is its host's length plus k; pieces come round robin, as few-shot blocks do."""

    name = "toy"

    def __init__(self) -> None:
        self.computed: list[tuple[str, int]] = []

    def data(self, _: Counting) -> dict[str, Any]:
        return {"source": "thin air"}

    def parts(self, task: Counting) -> int:
        return task.n

    def compute(self, task: Counting, missing: Mapping[Way, Sequence[int]]) -> Iterator[Part]:
        for k in range(task.n):
            for way, pieces in missing.items():
                if k in pieces:
                    self.computed.append((way.host, k))
                    yield Part(way, k, len(way.host) + k, 0.5)

    def score(
        self, _task: Counting, _way: Way, parts: Sequence[Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"score": [float(part) for part in parts]}, {"sum": sum(parts)}


A, BB, CCC = (Way(host, NamedTransform("identity")) for host in ("a", "bb", "ccc"))
GRID = [(Counting(3), [A, BB]), (Counting(2), [CCC, A])]


def test_a_grid_becomes_one_record_a_row_in_its_order() -> None:
    records = run("study", Toy(), GRID)
    assert [(r.task["n"], r.way["host"]) for r in records] == [(3, "a"), (3, "bb"), (2, "ccc"), (2, "a")]
    assert records[1].values == {"score": [2.0, 3.0, 4.0]}
    assert records[1].summary == {"sum": 9}
    assert records[1].task == {"field": "toy", "n": 3}
    assert records[1].data == {"source": "thin air"}
    assert records[1].seconds == 1.5
    assert {r.study for r in records} == {"study"}


@pytest.mark.parametrize("stop", range(1, 10))
def test_a_run_stopped_anywhere_goes_on_and_leaves_the_same_bytes(tmp_path: Path, stop: int) -> None:
    with RunStore(tmp_path / "whole") as store:
        whole = run("study", Toy(), GRID, store=store)

    def dies(done: int, total: int) -> None:
        assert total == 10
        if done == stop:
            raise KeyboardInterrupt

    with RunStore(tmp_path / "stopped") as store, pytest.raises(KeyboardInterrupt):
        run("study", Toy(), GRID, store=store, on_progress=dies)
    toy, ticks = Toy(), []
    with RunStore(tmp_path / "stopped") as store:
        resumed = run("study", toy, GRID, store=store, on_progress=lambda *tick: ticks.append(tick))
    assert (tmp_path / "stopped/results.jsonl").read_bytes() == (
        tmp_path / "whole/results.jsonl"
    ).read_bytes()
    assert (tmp_path / "stopped/plans.jsonl").read_bytes() == (tmp_path / "whole/plans.jsonl").read_bytes()
    assert resumed == whole
    assert len(toy.computed) == 10 - stop
    assert ticks[-1] == (10, 10)
    assert not list((tmp_path / "stopped/journal").glob("*"))


def test_finished_rows_are_kept_when_more_are_asked(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        run("study", Toy(), [(Counting(2), [A])], store=store)
        toy = Toy()
        run("study", toy, [(Counting(2), [BB, A])], store=store)
    assert {host for host, _ in toy.computed} == {"bb"}


def test_a_row_of_another_study_task_or_way_is_not_reused(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        run("study", Toy(), [(Counting(2), [A])], store=store)
        for study, task, way in (
            ("other", Counting(2), A),
            ("study", Counting(3), A),
            ("study", Counting(2), BB),
        ):
            toy = Toy()
            run(study, toy, [(task, [way])], store=store)
            assert toy.computed, (study, task, way)


def test_what_was_asked_for_is_written_before_the_first_row_and_not_without_one(tmp_path: Path) -> None:
    class Refuses(Toy):
        def compute(self, _task: Counting, _missing: Mapping[Way, Sequence[int]]) -> Iterator[Part]:
            raise ValueError("no such task")

    with RunStore(tmp_path) as store:
        with pytest.raises(ValueError, match="no such task"):
            run("study", Refuses(), GRID, store=store)
        assert store.plans() == []

        def dies(done: int, total: int) -> None:
            if done == 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run("study", Toy(), GRID, axes=("n",), store=store, on_progress=dies)
        (plan,) = store.plans()
        assert (plan.study, plan.axes, len(plan.rows)) == ("study", ("n",), 4)
        assert store.records() == []
        records = run("study", Toy(), GRID, axes=("n",), store=store)
        assert store.plans() == [plan]
    assert tuple(record.key for record in records) == plan.rows
