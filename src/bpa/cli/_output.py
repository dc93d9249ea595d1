"""What verbs say: progress and notes on stderr, tables or one JSON object on stdout."""

from __future__ import annotations

import contextlib
import json as _json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bpa.records import RunRecord
from bpa.records.runs import plain
from bpa.report.table import Table
from bpa.transforms.choosing import choose_reg
from bpa.transforms.names import Reg


@contextlib.contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr how far a job is, once it has taken two seconds; nothing where stderr is not a terminal.

    Examples
    --------
    ::

        with progress("few-shot tasks", 1000) as tick:
            run("fewshot", field, grid, on_progress=tick)
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


def told_choice(regs: Sequence[Reg | None], x: NDArray[np.float32]) -> dict[str, Any]:
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
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in more.items()}
    lines = [f"{name}: {value}" for name, value in {**shown, **written}.items()]
    say("\n\n".join([*blocks, *(["\n".join(lines)] if lines else [])]))
