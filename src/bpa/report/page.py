"""One self-contained HTML page: sections of tables and figures in, one file out, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from bpa._extras import needs
from bpa.report.table import Table, as_sort_key, shown

__all__ = ["Figure", "Page", "Section", "Strip", "render"]


@dataclass(frozen=True)
class Figure:
    """Markup made by `bpa.report.figures`, what it shows, and how to read it."""

    title: str
    markup: str
    caption: str = ""


@dataclass(frozen=True)
class Strip:
    """One query and its answers: rows of (name, answers); an answer is (label, address of a picture or "", right?)."""

    query: tuple[str, str]
    rows: Sequence[tuple[str, Sequence[tuple[str, str, bool]]]]


@dataclass(frozen=True)
class Section:
    """One tab of the page."""

    key: str
    title: str
    lead: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    strips: Sequence[Strip] = ()


@dataclass(frozen=True)
class Page:
    """A whole report.

    Parameters
    ----------
    title, lead : str
        Heading, and what the reader should know first.
    findings : sequence of (str, str)
        Sentences with their kind: ``"better"``, ``"worse"`` or ``"same"``.
    sections : sequence of Section
        The tabs.
    facts : mapping
        What was run and on what: nested plain values.
    """

    title: str
    lead: str = ""
    findings: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def render(page: Page) -> str:
    """Return the page as HTML; every text in it is escaped.

    Parameters
    ----------
    page : Page
        What to show.

    Returns
    -------
    str
        One HTML document with its style, script and pictures inside.

    Examples
    --------
    >>> table = Table("Accuracy", ["method", "1-shot"], [["raw", 47.0]])
    >>> html = render(Page("A small report", sections=[Section("one", "Results", tables=[table])]))
    >>> html.lstrip()[:15].lower(), "47.00" in html, "http://" in html
    ('<!doctype html>', True, False)
    """
    with needs("app", "jinja2", "markupsafe", feature="the HTML report"):
        from jinja2 import Environment, StrictUndefined
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = shown
    environment.filters["sort_key"] = as_sort_key
    environment.tests["mapping_like"] = lambda value: isinstance(value, Mapping)
    source = resources.files("bpa.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(page=page)
