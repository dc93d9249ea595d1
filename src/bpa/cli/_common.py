"""What every verb shares: the flags with one name and one meaning everywhere, progress, and output.

A verb is a function whose parameters carry these types::

    def cluster(features: Features, *, labels: Labels = None, transform: Transforms = (), reg: Reg = (),
                seed: Seed = 0, out: Out = None, json: Json = False) -> None:

It reads, calls ``bpa.runs``, and ends with ``emit(...)``. It raises what went wrong; `bpa.cli.main`
turns a `BPAError` into one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import contextlib
import json as _json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from cyclopts import Parameter, Token
from numpy.typing import NDArray

from bpa.errors import ArgumentError
from bpa.memory import parse_bytes
from bpa.records import RunRecord, plain
from bpa.report.table import Table
from bpa.transforms.choosing import choose_reg


def parse_reg(text: str) -> float | Literal["auto"]:
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


def _read_budget(_: Any, tokens: Sequence[Token]) -> int:
    try:
        return parse_bytes(tokens[0].value)
    except ArgumentError:
        raise ArgumentError(
            f"--budget takes bytes such as 500MB, 2GB or 4GiB. Got {tokens[0].value!r}."
        ) from None


def _read_regs(_: Any, tokens: Sequence[Token]) -> tuple[float | Literal["auto"], ...]:
    return tuple(parse_reg(part) for token in tokens for part in token.value.split(",") if part)


def _read_names(_: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    return tuple(part.strip() for token in tokens for part in token.value.split(",") if part.strip())


def read_whole_number(_: Any, tokens: Sequence[Token]) -> int:
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


def _at_least(least: int) -> Callable[[Any, Any], None]:
    def check(_: Any, value: Any) -> None:
        if value is not None and value < least:
            raise ValueError(f"must be at least {least}.")

    return check


Features = Annotated[
    Path,
    Parameter(help="Feature file: .npy, .npz, .parquet, .safetensors or an old pickle."),
]
Labels = Annotated[
    str | None,
    Parameter(name="--labels", help="Labels: a .npy file, or the name of an array or column of FEATURES."),
]
Key = Annotated[
    str | None, Parameter(name="--key", help="Name of the array or column that holds the features.")
]
Transforms = Annotated[
    tuple[str, ...],
    Parameter(
        name="--transform",
        converter=_read_names,
        consume_multiple=True,
        negative=(),
        n_tokens=1,
        help="Transforms: identity unit centred cosine softmax dual-softmax pca spectral bpa bpa-attn.",
    ),
]
Reg = Annotated[
    tuple[float | Literal["auto"], ...],
    Parameter(
        name="--reg",
        converter=_read_regs,
        consume_multiple=True,
        negative=(),
        n_tokens=1,
        help="Entropy weight of the transform: one or more positive numbers, or auto.",
    ),
]
NIter = Annotated[
    int | None,
    Parameter(
        name="--n-iter",
        converter=read_whole_number,
        validator=_at_least(1),
        help="Sweeps of the balancing; 5 where not given.",
    ),
]
Seed = Annotated[
    int,
    Parameter(
        name="--seed",
        converter=read_whole_number,
        validator=_at_least(0),
        help="Start of every random stream.",
    ),
]
Repeats = Annotated[
    int | None,
    Parameter(name="--repeats", converter=read_whole_number, validator=_at_least(1), help="Repetitions."),
]
Out = Annotated[
    Path | None,
    Parameter(
        name="--out", help="Folder that keeps the run; the same command with the same folder resumes it."
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON instead of tables.")]
Device = Annotated[
    str,
    Parameter(
        name="--device", converter=_read_device, n_tokens=1, help="Where to compute: cpu, cuda or mps."
    ),
]
Dtype = Annotated[Literal["float32", "float64"], Parameter(name="--dtype", help="Precision to compute in.")]
Budget = Annotated[
    int | None,
    Parameter(
        name="--budget",
        converter=_read_budget,
        n_tokens=1,
        help="Most memory one computation may take, e.g. 1GB.",
    ),
]


@contextlib.contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr how far a job is, once it has taken two seconds; nothing where stderr is not a terminal.

    Examples
    --------
    ::

        with progress("few-shot tasks", 1000) as tick:
            run_fewshot(features, config, on_progress=tick)
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=total)
    began, shown = time.monotonic(), False

    def tick(done: int, whole: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - began > 2:
            bar.start()
            shown = True
        bar.update(task, completed=done, total=whole)

    try:
        yield tick
    finally:
        if shown:
            bar.stop()


def told_choice(regs: Sequence[float | Literal["auto"] | None], x: NDArray[np.float32]) -> dict[str, Any]:
    """What ``reg="auto"`` chose for the set ``x`` (n, d), for `emit`; nothing where it was not asked for."""
    if "auto" not in regs:
        return {}
    choice = choose_reg(torch.from_numpy(x))
    return {"reg auto": round(float(choice.reg), 4), "because": " ".join(choice.reasons())}


def say(text: str) -> None:
    """Write one line (or several) to stdout."""
    sys.stdout.write(text.rstrip("\n") + "\n")


def note(text: str) -> None:
    """Write one line to stderr: what a person wants to know and a program does not."""
    sys.stderr.write(text.rstrip("\n") + "\n")


def emit(
    *,
    json: bool,
    tables: Sequence[Table] = (),
    records: Sequence[RunRecord] = (),
    files: Mapping[str, Any] | None = None,
    **more: Any,
) -> None:
    """End a verb: tables and file names as text, or everything as one JSON object.

    Parameters
    ----------
    json : bool
        The verb's ``--json``.
    tables : sequence of Table
        Printed one after the other.
    records : sequence of RunRecord
        In the JSON only.
    files : mapping, optional
        What was written, by a word that says what it is.
    **more
        Further plain values of the JSON object; as text, one ``name: value`` line each.
    """
    written = {name: str(path) for name, path in (files or {}).items()}
    if json:
        whole: dict[str, Any] = {**more}
        if tables:
            whole["tables"] = [table.to_dict() for table in tables]
        if records:
            whole["records"] = [record.to_dict() for record in records]
        if written:
            whole["files"] = written
        say(_json.dumps(plain(whole), ensure_ascii=False, allow_nan=False))
        return
    blocks = [table.text() for table in tables]
    lines = [f"{name}: {value}" for name, value in {**more, **written}.items()]
    say("\n\n".join([*blocks, *(["\n".join(lines)] if lines else [])]))
