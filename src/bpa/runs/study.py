"""What a study is: a named grid of tasks and ways, and what a user may say about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from bpa.errors import ArgumentError
from bpa.records import FeatureSet, RunRecord
from bpa.runs.engine import Field, Progress, run
from bpa.runs.store import RunStore
from bpa.runs.way import Way
from bpa.solvers._choice import Solver
from bpa.transforms.names import Reg

__all__ = ["Asked", "Grid", "Study", "run_study"]

Grid = tuple[Field[Any], Sequence[tuple[Any, Sequence[Way]]]]
"""A field, bound to what it reads, and its tasks with their ways."""


@dataclass(frozen=True)
class Asked:
    """What a user says about a study; what is None, empty or false is not said, and the study's own value holds.

    Parameters
    ----------
    transform : tuple of str
        Names as `NamedTransform.parse` reads them.
    reg : tuple of float or "auto"
        Entropy weights.
    solver : tuple of Sweeps or Converged
        How far to balance.
    shot : tuple of int
        Labelled rows a class.
    repeats : int, optional
        Repetitions: tasks, draws or runs, whatever the study repeats.
    seed : int, optional
        Start of every random stream.
    device, dtype : str, optional
        Where and in which precision to compute.
    budget : int, optional
        Most bytes one computation may hold.
    identities, each : int, optional
        Identities of a draw, and items of each at most.
    grid : int, optional
        Values along each axis of a grid.
    quick : bool
        The smallest run that still shows the effect.

    Examples
    --------
    >>> Asked(reg=(0.1, "auto"), quick=True).said()
    ['reg', 'quick']
    """

    transform: tuple[str, ...] = ()
    reg: tuple[Reg, ...] = ()
    solver: tuple[Solver, ...] = ()
    shot: tuple[int, ...] = ()
    repeats: int | None = None
    seed: int | None = None
    device: str | None = None
    dtype: Literal["float32", "float64"] | None = None
    budget: int | None = None
    identities: int | None = None
    each: int | None = None
    grid: int | None = None
    quick: bool = False

    def said(self) -> list[str]:
        """Return the names of what was said."""
        return [item.name for item in fields(self) if getattr(self, item.name) not in (None, (), False)]


@dataclass(frozen=True)
class Study:
    """A named experiment, as data.

    Parameters
    ----------
    name : str
        What ``bpa study NAME`` says, and what its records carry.
    summary : str
        One line for the list of studies.
    honours : tuple of str
        The names of `Asked` that change what it does; the others are refused.
    axes : tuple of str
        The fields it varies on purpose, first the one a chart has along its axis.
    grid : callable
        ``grid(features, asked) -> (field, [(task, ways), …])``.
    needs_features : bool
        Whether it reads a feature set; one that does not refuses one.

    Examples
    --------
    >>> from bpa.runs.studies import all_studies
    >>> study = all_studies()["sphere"]
    >>> study.axes, study.needs_features
    (('dim', 'noise'), False)
    >>> field, cells = study.asked_for(None, Asked(grid=2))
    >>> [(task.dim, task.noise) for task, _ in cells]
    [(10, 0.1), (10, 0.75), (1234, 0.1), (1234, 0.75)]
    """

    name: str
    summary: str
    honours: tuple[str, ...]
    axes: tuple[str, ...]
    grid: Callable[[Any, Asked], Grid]
    needs_features: bool = True

    def asked_for(self, features: FeatureSet | None = None, asked: Asked | None = None) -> Grid:
        """Return the grid that was asked for; what was said and cannot be honoured is refused in one sentence."""
        asked = asked or Asked()
        for name in asked.said():
            if name not in self.honours:
                takes = ", ".join(f"--{known}" for known in sorted(self.honours))
                raise ArgumentError(f"The study {self.name!r} cannot honour --{name}; it takes {takes}.")
        if self.needs_features and features is None:
            raise ArgumentError(
                f"The study {self.name!r} needs a feature file: bpa study {self.name} FEATURES."
            )
        if not self.needs_features and features is not None:
            raise ArgumentError(
                f"The study {self.name!r} makes its own data and reads no feature file. Leave it out."
            )
        return self.grid(features, asked)


def run_study(
    study: Study,
    features: FeatureSet | None = None,
    asked: Asked | None = None,
    *,
    store: RunStore | None = None,
    on_progress: Progress | None = None,
) -> list[RunRecord]:
    """Run a study.

    Parameters
    ----------
    study : Study
        One of `bpa.runs.studies.all_studies`, or one's own.
    features : FeatureSet, optional
        For studies that need one.
    asked : Asked, optional
        What to do differently.
    store, on_progress
        As in `bpa.runs.engine.run`.

    Returns
    -------
    list of RunRecord

    Raises
    ------
    ArgumentError
        For anything that was said and that the study cannot honour.

    Examples
    --------
    >>> from bpa.data import embedded_sketches
    >>> from bpa.runs.studies import all_studies
    >>> records = run_study(all_studies()["fewshot-sweeps"], embedded_sketches(), Asked(repeats=10, shot=(1,)))
    >>> len(records), records[-1].way["transform"]
    (9, {'name': 'bpa', 'reg': 0.1, 'solver': 'sweeps:16'})
    """
    field, grid = study.asked_for(features, asked)
    return run(study.name, field, grid, axes=study.axes, store=store, on_progress=on_progress)
