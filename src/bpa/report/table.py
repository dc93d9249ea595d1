"""The one table printer: the same rows as plain text, Markdown or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bpa.errors import ShapeError
from bpa.records.runs import plain

__all__ = ["HasInterval", "Table", "as_sort_key", "shown"]


@runtime_checkable
class HasInterval(Protocol):
    """A mean with the half width of its interval, as `bpa.metrics.intervals.Interval` has them."""

    @property
    def mean(self) -> float: ...  # noqa: D102 - the names say it

    @property
    def half_width(self) -> float: ...  # noqa: D102 - the names say it


@dataclass(frozen=True)
class Table:
    """Rows under named columns, with a title and notes.

    Parameters
    ----------
    title : str
        One line above the table.
    columns : sequence of str
        Names of the columns.
    rows : sequence of sequence
        Cells: text, numbers, None (shown as "–"), or anything with ``mean`` and ``half_width`` (shown as "m ± h").
    notes : sequence of str
        Lines below the table: what was measured on what, and how.

    Examples
    --------
    >>> print(Table("Accuracy", ["method", "1-shot"], [["raw", 47.0], ["BPA", 55.93]]).text())
    Accuracy
    method  1-shot
    ------  ------
    raw      47.00
    BPA      55.93
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ShapeError(
                    f"The 'rows' parameter of Table must have {len(self.columns)} cells in each row. Row {number} of "
                    f"{self.title!r} has {len(row)}."
                )

    def text(self) -> str:
        """Return the table for a terminal: columns aligned, numbers to the right."""
        cells = [[shown(cell) for cell in row] for row in self.rows]
        head = [str(name) for name in self.columns]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        right = self.number_columns()

        def line(items: Sequence[str]) -> str:
            padded = (
                item.rjust(w) if r else item.ljust(w) for item, w, r in zip(items, widths, right, strict=True)
            )
            return "  ".join(padded).rstrip()

        parts = [self.title, line(head), "  ".join("-" * w for w in widths), *map(line, cells), *self.notes]
        return "\n".join(part for part in parts if part)

    def markdown(self) -> str:
        """Return the table as Markdown, the title in bold above it and the notes below."""
        rule = ["---:" if right else "---" for right in self.number_columns()]
        lines = [f"**{self.title}**", ""] if self.title else []
        for row in ([*map(str, self.columns)], rule, *([shown(c) for c in row] for row in self.rows)):
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
        if self.notes:
            lines += ["", *(f"{note}  " for note in self.notes[:-1]), self.notes[-1]]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values; an interval becomes ``{"mean", "half_width", "n"}``."""
        return {
            "title": self.title,
            "columns": [str(name) for name in self.columns],
            "rows": [[_plain_cell(cell) for cell in row] for row in self.rows],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """Return `to_dict` as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Table:
        """Return the table that `to_dict` described."""
        return cls(raw["title"], raw["columns"], raw["rows"], raw.get("notes", ()))

    def number_columns(self) -> list[bool]:
        """Say of each column whether it holds numbers."""
        out = []
        for k in range(len(self.columns)):
            cells = [row[k] for row in self.rows if row[k] is not None]
            out.append(bool(cells) and all(_is_number(c) for c in cells))
        return out


def _interval(cell: Any) -> tuple[float, float] | None:
    """Return (mean, half width) of a cell that has them."""
    if isinstance(cell, Mapping) and "mean" in cell and "half_width" in cell:
        mean, half = (math.nan if cell[key] is None else float(cell[key]) for key in ("mean", "half_width"))
        return mean, half
    if isinstance(cell, HasInterval):
        return float(cell.mean), float(cell.half_width)
    return None


def _is_number(cell: Any) -> bool:
    if _interval(cell) is not None or (isinstance(cell, int | float) and not isinstance(cell, bool)):
        return True
    if not isinstance(cell, str):
        return False
    first = cell.strip().lstrip("+-−±").split(" ")[0].rstrip("%×")
    try:
        float(first.replace(",", "").replace("_", ""))
    except ValueError:
        return cell.strip() in {"", "–", "-"}
    return True


def shown(cell: Any) -> str:
    """Return a cell as a person reads it.

    Examples
    --------
    >>> shown(55.934), shown(1e-4), shown(None), shown({"mean": 8.9, "half_width": 0.25})
    ('55.93', '0.0001', '–', '8.90 ± 0.25')
    """
    found = _interval(cell)
    if found is not None:
        mean, half = found
        if not math.isfinite(mean):
            return "–"
        return f"{mean:.2f}" if not math.isfinite(half) else f"{mean:.2f} ± {half:.2f}"
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        if not math.isfinite(cell):
            return "–" if math.isnan(cell) else str(cell)
        size = abs(cell)
        return f"{cell:.2f}" if size == 0 or 0.05 <= size < 1e5 else f"{cell:.3g}"
    return str(cell).replace("\n", " ")


def _plain_cell(cell: Any) -> Any:
    found = _interval(cell)
    if found is None:
        return plain(cell)
    out = {"mean": plain(found[0]), "half_width": plain(found[1])}
    n = cell.get("n") if isinstance(cell, Mapping) else getattr(cell, "n", None)
    return out if n is None else {**out, "n": int(n)}


def as_sort_key(cell: Any) -> str:
    """Return what a cell sorts by: a number in full, lower-case text, or nothing where there is no value.

    Examples
    --------
    >>> as_sort_key({"mean": 8.9, "half_width": 0.25}), as_sort_key("Raw"), as_sort_key(None)
    ('8.9', 'raw', '')
    """
    found = _interval(cell)
    value = found[0] if found is not None else cell
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, int | float):
        return repr(float(value))
    return str(value).lower()
