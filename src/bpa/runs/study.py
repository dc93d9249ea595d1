"""What a study is: a named experiment that turns options, and features where it needs them, into records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bpa.records import FeatureSet, RunRecord
from bpa.report.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class StudyOptions:
    """What a user may say about any study; a study uses what applies to it.

    Parameters
    ----------
    seed : int
        Start of every random stream.
    reg : tuple of float or "auto"
        Entropy weights to run; empty for the study's own.
    transforms : tuple of str
        Names for `bpa.transforms.names.make_transform`; empty for the study's own.
    n_iter : int, optional
        Sweeps; None for the transform's own.
    repeats : int, optional
        Number of repetitions, whatever the study repeats; None for the study's own.
    device, dtype : str
        Where and in which precision to compute.
    budget : int, optional
        Most bytes one computation may allocate.
    out : Path, optional
        Folder of the run store; None keeps records in memory only.
    quick : bool
        Ask for the smallest run that still shows the effect.
    on_progress : callable, optional
        Called with (done, total).
    extra : mapping
        Settings of one study only, by name.
    """

    seed: int = 0
    reg: tuple[float | Literal["auto"], ...] = ()
    transforms: tuple[str, ...] = ()
    n_iter: int | None = None
    repeats: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    budget: int | None = None
    out: Path | None = None
    quick: bool = False
    on_progress: Progress | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyResult:
    """What a study gives: its records, the tables made from them, and figures drawn when asked for."""

    records: Sequence[RunRecord] = ()
    tables: Sequence[Table] = ()
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A named experiment.

    Parameters
    ----------
    name : str
        What ``bpa study NAME`` says.
    summary : str
        One line for the list of studies.
    needs_features : bool
        Whether it reads a feature set.
    run : callable
        ``run(features, options) -> StudyResult``.
    """

    name: str
    summary: str
    needs_features: bool
    run: Callable[[FeatureSet | None, StudyOptions], StudyResult]
