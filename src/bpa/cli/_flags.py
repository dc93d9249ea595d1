"""The flags of the verbs, each declared once: one name, one meaning, one sentence where a value is wrong.

A verb takes groups of them as dataclasses, which the command line lays flat::

    def cluster(features: Features, *, reading: Reading = Reading(), weights: Weights = Weights(), ...) -> None:
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from cyclopts import Parameter, Token

from bpa.data.features import read_features
from bpa.errors import ArgumentError
from bpa.memory import parse_bytes
from bpa.paper import check
from bpa.records import FeatureSet, RunRecord
from bpa.report.claims import claims_table
from bpa.report.table import Table
from bpa.runs.store import RunStore
from bpa.runs.way import Way, refuse_unheard
from bpa.solvers._choice import Solver, solver_named
from bpa.transforms.names import PUBLISHED_REG, TRANSFORMS, Reg

# ---------------------------------------------------------------------- reading values


def parse_reg(text: str) -> Reg:
    """Return the entropy weight a text names: a positive number, or ``auto``."""
    if text.strip().lower() == "auto":
        return "auto"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ArgumentError(f"--reg takes positive numbers or 'auto'. Got {text!r}.")
    return value


def check_device(name: str) -> str:
    """Return ``name`` where it is a device this machine has; say what there is where it is not."""
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = "?"
    have = ["cpu"] + ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.backends.mps.is_available()
    if kind not in have:
        raise ArgumentError(
            f"--device takes one of the devices of this machine: {', '.join(have)}. Got {name!r}."
        )
    return name


def _parts(tokens: Sequence[Token]) -> list[str]:
    return [part.strip() for token in tokens for part in token.value.split(",") if part.strip()]


def _read_regs(_: Any, tokens: Sequence[Token]) -> tuple[Reg, ...]:
    return tuple(parse_reg(part) for part in _parts(tokens))


def _read_solvers(_: Any, tokens: Sequence[Token]) -> tuple[Solver, ...]:
    return tuple(solver_named(part) for part in _parts(tokens))


def _read_names(_: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    return tuple(_parts(tokens))


def _read_budget(_: Any, tokens: Sequence[Token]) -> int:
    try:
        return parse_bytes(tokens[0].value)
    except ArgumentError:
        raise ArgumentError(
            f"--budget takes bytes such as 500MB, 2GB or 4GiB. Got {tokens[0].value!r}."
        ) from None


def _read_whole_number(_: Any, tokens: Sequence[Token]) -> int:
    """Read a whole number; 1.5 is a mistake, not 1."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(
            f"{tokens[0].keyword or 'this flag'} takes a whole number. Got {text!r}."
        ) from None


def _read_device(_: Any, tokens: Sequence[Token]) -> str:
    return check_device(tokens[0].value)


def _at_least(least: int) -> Callable[[Any, Any], None]:
    def check(_: Any, value: Any) -> None:
        if value is not None and value < least:
            raise ValueError(f"must be at least {least}.")

    return check


def _several(name: str, converter: Callable[..., Any], text: str) -> Parameter:
    """A flag that takes one or more values, with spaces or commas between them."""
    return Parameter(
        name=name,
        converter=converter,
        consume_multiple=True,
        negative=(),
        n_tokens=1,
        help=text,
        show_default=_if_any,
    )


def _if_any(value: Any) -> str:
    """Show the names that are taken where none is said; nothing where there are none."""
    return " ".join(value) if value else ""


def names(flag: str, text: str) -> Parameter:
    """A flag that takes one or more names."""
    return _several(flag, _read_names, text)


def whole(flag: str, text: str, *, least: int = 1) -> Parameter:
    """A flag that takes a whole number."""
    return Parameter(name=flag, converter=_read_whole_number, validator=_at_least(least), help=text)


# ---------------------------------------------------------------------- one flag each

Features = Annotated[
    Path, Parameter(help="Feature file: .npy, .npz, .parquet, .safetensors or an old pickle.")
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON instead of tables.")]
_SEED = whole("--seed", "Start of every random stream.", least=0)
Seed = Annotated[int, _SEED]
MaybeSeed = Annotated[int | None, _SEED]
Shots = Annotated[
    tuple[int, ...],
    Parameter(
        name="--shot",
        consume_multiple=True,
        negative=(),
        help="Labelled rows a class, one or more.",
        show_default=False,
    ),
]
Repeats = Annotated[int | None, whole("--repeats", "Repetitions.")]
Out = Annotated[
    Path | None,
    Parameter(
        name="--out", help="Folder that keeps the run; the same command with the same folder resumes it."
    ),
]
RegNames = Annotated[
    tuple[Reg, ...],
    _several(
        "--reg", _read_regs, "Entropy weight of the transform: positive numbers, or auto, a rule for bpa."
    ),
]
Solvers = Annotated[
    tuple[Solver, ...],
    _several(
        "--solver", _read_solvers, "How far to balance: sweeps:5 (the paper's), converged, or converged:1e-6."
    ),
]
Transforms = Annotated[
    tuple[str, ...],
    names("--transform", f"Transforms: {' '.join(TRANSFORMS)}; settings follow a colon, as in pca:width=40."),
]
Device = Annotated[
    str | None,
    Parameter(
        name="--device",
        converter=_read_device,
        n_tokens=1,
        help="Where to compute: cpu (if not given), cuda or mps.",
    ),
]
Dtype = Annotated[
    Literal["float32", "float64"] | None,
    Parameter(name="--dtype", help="Precision to compute in; float32 where not given."),
]
Budget = Annotated[
    int | None,
    Parameter(
        name="--budget",
        converter=_read_budget,
        n_tokens=1,
        help="Most memory one computation may take, e.g. 1GB.",
    ),
]
Baselines = Annotated[
    bool,
    Parameter(name="--baselines", help="Show what everybody has beside it: raw, unit and centred features."),
]
Paper = Annotated[
    bool, Parameter(name="--paper", negative=(), help="The published settings, where nothing else is said.")
]
PaperTable = Annotated[
    str | None,
    Parameter(name="--paper-table", help="Show the paper's gains on this set of features beside ours."),
]
AreThePapers = Annotated[
    bool,
    Parameter(
        name="--these-are-the-paper-features",
        negative=(),
        help="Your word that FEATURES are the paper's own: then levels are compared, too.",
    ),
]


# ---------------------------------------------------------------------- groups


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Reading:
    """What to read of a feature file."""

    labels: Annotated[
        str | None,
        Parameter(
            name="--labels", help="Labels: a .npy file, or the name of an array or column of FEATURES."
        ),
    ] = None
    key: Annotated[
        str | None, Parameter(name="--key", help="Name of the array or column that holds the features.")
    ] = None

    def read(self, path: Path) -> FeatureSet:
        """Return the features of a file."""
        return read_features(path, labels=self.labels, key=self.key)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Weights:
    """The transform's weight and solver."""

    reg: RegNames = ()
    solver: Solvers = ()
    paper: Paper = False

    def regs(self, published: float) -> tuple[Reg, ...]:
        """What was said, else the published weight with ``--paper``, else nothing: the rule."""
        return self.reg or ((published,) if self.paper else ())

    def check(self, transforms: Sequence[str], *, host_has_reg: bool = False) -> None:
        """Refuse what was said and would change nothing."""
        published: tuple[Reg, ...] = (PUBLISHED_REG,) if self.paper else ()
        refuse_unheard(transforms, reg=() if host_has_reg else self.reg or published, solver=self.solver)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Computing:
    """Where and in which precision to compute, and in how much memory."""

    device: Device = None
    dtype: Dtype = None
    budget: Budget = None

    @property
    def place(self) -> dict[str, Any]:
        """Device and type as tasks take them."""
        return {"device": self.device or "cpu", "dtype": self.dtype or "float32"}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Where results go."""

    out: Out = None
    json: Json = False

    @property
    def store(self) -> RunStore | None:
        """The folder of the run, where there is one."""
        return None if self.out is None else RunStore(self.out)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The paper's numbers beside ours."""

    paper_table: PaperTable = None
    these_are_the_paper_features: AreThePapers = False

    def check(self, field: str, grid: Sequence[tuple[Any, Sequence[Way]]]) -> None:
        """Refuse words that change nothing, and a set the paper has no row of the grid for."""
        if self.paper_table is not None:
            check(self.paper_table, field, grid)
        elif self.these_are_the_paper_features:
            raise ArgumentError(
                "--these-are-the-paper-features says what --paper-table may compare. Name a set, too."
            )

    def tables(self, records: Sequence[RunRecord]) -> list[Table]:
        """The paper's numbers beside ours, where they were asked for."""
        if self.paper_table is None:
            return []
        return [claims_table(records, self.paper_table, are_the_papers=self.these_are_the_paper_features)]


READING, WEIGHTS, COMPUTING, KEEPING, CLAIMED = Reading(), Weights(), Computing(), Keeping(), Claimed()
"""The groups with nothing said, for the defaults of verbs."""
