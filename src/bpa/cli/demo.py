"""``bpa demo``: the whole tool on the data inside the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bpa.cli import _flags as flags
from bpa.cli._output import emit, progress
from bpa.report.page import render
from bpa.report.sections import build_page, tables_of
from bpa.report.table import Table
from bpa.runs.demo import DemoConfig, run_demo
from bpa.runs.store import RunStore, write_atomically

_LEAD = (
    "Two thousand human sketches (The Quick, Draw! Dataset, Google, CC BY 4.0) as MobileNetV2 features: few-shot "
    "classification, clustering and retrieval, with the transform and without. Settings were fixed beforehand; rows "
    "where the transform loses are shown like the others."
)


def demo(
    *,
    out: Annotated[Path, Parameter(name="--out", help="Folder for the records and the report.")] = Path(
        "demo-output"
    ),
    tasks: Annotated[int, flags.whole("--tasks", "Few-shot tasks.")] = DemoConfig.tasks,
    seed: flags.Seed = 0,
    json: flags.Json = False,
) -> None:
    """Run few-shot, clustering and retrieval on embedded data and write a report.

    A second run with the same folder reads what the first has done.

    Example: bpa demo --out demo-output
    """
    with RunStore(out) as store, progress("demo") as tick:
        records = run_demo(store, DemoConfig(tasks=tasks, seed=seed), on_progress=tick)
        page = build_page(
            records, store.plans(), title="Balanced pairwise affinities: a demonstration", lead=_LEAD
        )
    path = write_atomically(out / "report.html", render(page))
    words = {"better": "helps", "same": "makes no difference", "worse": "does not help"}
    verdicts = Table("Findings", ("verdict", "what"), [(words[kind], text) for kind, text in page.findings])
    emit(json=json, tables=[*tables_of(records), verdicts], files={"report": path.resolve()})
