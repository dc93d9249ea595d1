"""``bpa report``: one HTML page from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bpa.cli import _flags as flags
from bpa.cli._output import emit
from bpa.errors import FileError
from bpa.report.page import render
from bpa.report.sections import build_page
from bpa.runs.store import RunStore, write_atomically


def report(
    folder: Annotated[Path, Parameter(help="Folder that --out named.")],
    target: Annotated[
        Path | None, Parameter(help="File to write; FOLDER/report.html where not given.")
    ] = None,
    *,
    title: Annotated[str, Parameter(help="Heading of the page.")] = "Run report",
    json: flags.Json = False,
) -> None:
    """Make one self-contained HTML page from the records of finished runs; it says which runs are not whole.

    Example: bpa report runs/
    """
    if not folder.is_dir():
        raise FileError(f"{folder} is not a folder of runs. Name the folder that --out named.")
    store = RunStore(folder)
    records = store.records()
    if not records:
        raise FileError(f"{folder} holds no finished run. Run a verb with --out {folder} first.")
    page = build_page(records, store.plans(), title=title)
    emit(json=json, files={"report": write_atomically(target or folder / "report.html", render(page))})
