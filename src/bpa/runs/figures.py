"""Figures and tables of a study, saved beside its records."""

from __future__ import annotations

import io
from pathlib import Path

from bpa.errors import MissingExtraError
from bpa.runs.store import write_atomically
from bpa.runs.study import StudyResult


def save_figures(result: StudyResult, folder: Path) -> dict[str, Path]:
    """Draw every figure of a result as SVG and write its tables as Markdown, each whole or not at all.

    Parameters
    ----------
    result : StudyResult
        What a study gave.
    folder : Path
        Made where missing.

    Returns
    -------
    dict
        Paths written, by name.
    """
    written: dict[str, Path] = {}
    if result.tables:
        text = "\n".join(table.markdown() for table in result.tables)
        written["tables"] = write_atomically(folder / "tables.md", text)
    if not result.figures:
        return written
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise MissingExtraError("drawing the figures of a study", "app") from None
    with matplotlib.rc_context({"svg.hashsalt": "bpa"}):
        for name, draw in result.figures.items():
            buffer = io.BytesIO()
            draw().savefig(buffer, format="svg", metadata={"Date": None})
            written[name] = write_atomically(folder / f"{name}.svg", buffer.getvalue())
    return written
