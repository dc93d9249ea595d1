"""The engine: a grid of tasks and ways becomes records, resumably. It knows no task; a field does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bpa.records import RunPlan, RunRecord
from bpa.records.runs import plain, row_key
from bpa.runs.environment import describe_environment
from bpa.runs.store import Journal, RunStore
from bpa.runs.way import Way

__all__ = ["Field", "Part", "Progress", "once", "run"]

Progress = Callable[[int, int], None]
Task = TypeVar("Task")
AnyTask = TypeVar("AnyTask", contravariant=True)


@dataclass(frozen=True)
class Part:
    """One piece of one row: which way, which piece, what it gave (as JSON can hold it), and how long it took."""

    way: Way
    index: int
    value: Any
    seconds: float


class Field(Protocol[AnyTask]):
    """A kind of task, bound to what it reads: how many pieces a row has, how they are computed, what they amount to."""

    @property
    def name(self) -> str:
        """Which kind of task, as records name it."""
        ...

    def data(self, task: AnyTask, /) -> Mapping[str, Any]:
        """What the task reads: source, checksum, sizes."""
        ...

    def parts(self, task: AnyTask, /) -> int:
        """Number of pieces of every row of the task; a journal keeps finished ones where there are several."""
        ...

    def compute(self, task: AnyTask, missing: Mapping[Way, Sequence[int]], /) -> Iterator[Part]:
        """Compute the missing pieces of some ways, in whatever order is cheapest, the same in every run."""
        ...

    def score(
        self, task: AnyTask, way: Way, parts: Sequence[Any], /
    ) -> tuple[Mapping[str, Sequence[float]], Mapping[str, Any]]:
        """Put the pieces of a row together: its values, and its summary."""
        ...


def run(
    study: str,
    field: Field[Task],
    grid: Sequence[tuple[Task, Sequence[Way]]],
    *,
    axes: Sequence[str] = (),
    store: RunStore | None = None,
    on_progress: Progress | None = None,
) -> list[RunRecord]:
    """Do every task in every way that the grid has for it.

    Parameters
    ----------
    study : str
        The name the records carry.
    field : Field
        How such a task is done.
    grid : sequence of (task, ways)
        Tasks are dataclasses of the field; ways of one task see the same data, so that they can be paired.
    axes : sequence of str
        The fields that are varied on purpose, for whoever draws the records.
    store : RunStore, optional
        Where finished rows are kept and unfinished ones journalled; rows found there are not run again. The same call
        leaves the same bytes there, however often it was interrupted.
    on_progress : callable, optional
        Called with (pieces done, pieces in all).

    Returns
    -------
    list of RunRecord
        One a row, in the order of the grid.

    Examples
    --------
    >>> from bpa.data import embedded_sketches
    >>> from bpa.transforms.names import NamedTransform
    >>> from bpa.runs.fields import FewShot, FewShotTask, fewshot_ways
    >>> ways = fewshot_ways(("protonet",), [NamedTransform("identity"), NamedTransform("bpa", reg="auto")])
    >>> raw, balanced = run("mine", FewShot(embedded_sketches()), [(FewShotTask(n_tasks=30), ways)])
    >>> raw.summary["accuracy"] < balanced.summary["accuracy"], len(raw.values["accuracy"])
    (True, 30)
    """
    whole = [_Rows(study, field, task, ways) for task, ways in grid]
    total, done = sum(len(rows.ways) * rows.parts for rows in whole), 0
    keeper = _Keeper(
        store, RunPlan(study, tuple(axes), tuple(rows.key(way) for rows in whole for way in rows.ways))
    )
    records: list[RunRecord] = []
    for rows in whole:
        for fresh in rows.run(keeper):
            done += fresh
            if on_progress is not None:
                on_progress(done, total)
        records += [rows.found[way] for way in rows.ways]
    return records


def once(
    study: str,
    task: Mapping[str, Any],
    data: Mapping[str, Any],
    compute: Callable[[], Mapping[str, Any]],
    *,
    store: RunStore | None = None,
) -> RunRecord:
    """Return the record of something that is no way of doing a task, such as a picture: stored, or computed now.

    Parameters
    ----------
    study : str
        The name the record carries.
    task, data : mapping
        What was asked, its ``"field"`` among it, and on what.
    compute : callable
        Gives the summary.
    store : RunStore, optional
        Where the record is kept, and taken from.

    Returns
    -------
    RunRecord
    """
    known = None if store is None else store.find(study=study, task=task, data=data)
    if known is not None:
        return known
    began = time.perf_counter()
    summary = dict(compute())
    made = RunRecord(
        study, dict(task), data=dict(data), summary=summary, environment=describe_environment(),
        seconds=time.perf_counter() - began,
    )  # fmt: skip
    if store is not None:
        store.append(made)
    return made


class _Keeper:
    """The store, where there is one; it learns what was asked for when the first piece is done."""

    def __init__(self, store: RunStore | None, plan: RunPlan) -> None:
        self.store, self._plan = store, plan
        self._planned = store is None
        self.environment = describe_environment()

    def begin(self) -> None:
        if self.store is not None and not self._planned:
            self.store.plan(self._plan)
            self._planned = True

    def find(self, study: str, task: Any, way: Way, data: Any) -> RunRecord | None:
        return (
            None
            if self.store is None
            else self.store.find(study=study, task=task, way=way.to_dict(), data=data)
        )

    def append(self, record: RunRecord) -> None:
        if self.store is not None:
            self.store.append(record)


class _Rows:
    """The rows of one task."""

    def __init__(self, study: str, field: Field[Task], task: Task, ways: Sequence[Way]) -> None:
        self.study, self.field, self.task = study, field, task
        self.ways = list(dict.fromkeys(ways))
        self.parts = field.parts(task)
        self.described = {"field": field.name, **{k: v for k, v in plain(task).items() if v is not None}}
        self.data = plain(field.data(task))
        self.found: dict[Way, RunRecord] = {}

    def key(self, way: Way) -> str:
        return row_key(self.study, self.described, way.to_dict(), self.data)

    def run(self, keeper: _Keeper) -> Iterator[int]:
        """Find or compute every row, and say after each piece how many are done since; rows are stored in order."""
        tallies: dict[Way, _Tally] = {}
        for way in self.ways:
            known = keeper.find(self.study, self.described, way, self.data)
            if known is not None:
                self.found[way] = known
            elif keeper.store is not None and self.parts > 1:
                tallies[way] = _Tally(keeper.store.journal(self.key(way)))
            else:
                tallies[way] = _Tally(None)
        waiting = deque(tallies)
        missing = {
            way: [k for k in range(self.parts) if k not in tally.done] for way, tally in tallies.items()
        }
        yield len(self.ways) * self.parts - sum(map(len, missing.values()))
        self._keep(waiting, tallies, keeper)
        for part in self.field.compute(self.task, missing) if any(missing.values()) else ():
            keeper.begin()
            tallies[part.way].add(part)
            self._keep(waiting, tallies, keeper)
            yield 1

    def _keep(self, waiting: deque[Way], tallies: Mapping[Way, _Tally], keeper: _Keeper) -> None:
        """Store every row that is whole and has no unfinished row before it."""
        while waiting and len(tallies[waiting[0]].done) == self.parts:
            way = waiting.popleft()
            tally = tallies[way]
            values, summary = self.field.score(self.task, way, [tally.done[k][0] for k in range(self.parts)])
            self.found[way] = RunRecord(
                study=self.study,
                task=self.described,
                way=way.to_dict(),
                data=self.data,
                values={key: list(items) for key, items in values.items()},
                summary=dict(summary),
                environment=keeper.environment,
                seconds=sum(tally.done[k][1] for k in range(self.parts)),
            )
            keeper.append(self.found[way])
            tally.discard()


class _Tally:
    """The finished pieces of a row: number → (value, seconds), on disk where there is a journal."""

    def __init__(self, journal: Journal | None) -> None:
        self.journal = journal
        self.done: dict[int, Any] = {} if journal is None else journal.done

    def add(self, part: Part) -> None:
        if self.journal is None:
            self.done[part.index] = (part.value, part.seconds)
        else:
            self.journal.add(part.index, [part.value, part.seconds])

    def discard(self) -> None:
        if self.journal is not None:
            self.journal.discard()
