"""How rows of W should be compared in retrieval: every comparison at every reg, on draws of one set."""

from __future__ import annotations

from bpa.plans import RowComparison
from bpa.records import FeatureSet
from bpa.runs.fields.retrieval import Retrieval, retrieval_ways
from bpa.runs.studies._retrieval import HONOURS, draws
from bpa.runs.study import Asked, Grid, Study
from bpa.runs.way import Way
from bpa.solvers._choice import Solver
from bpa.transforms.names import Reg

REGS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.25, 0.5)
COMPARISONS = tuple(
    RowComparison(measure, top=top, neighbours=neighbours)
    for top, neighbours in ((None, None), (20, None), (50, None), (200, None), (None, 20), (None, 100))
    for measure in ("euclidean", "cosine")
)
QUICK = tuple(
    comparison for comparison in COMPARISONS if comparison.neighbours is None and comparison.top in (None, 50)
)


def rows_ways(
    comparisons: tuple[RowComparison, ...], regs: tuple[Reg, ...] = REGS, solver: tuple[Solver, ...] = ()
) -> list[Way]:
    """Return plain features, and BPA with every comparison at every weight."""
    return retrieval_ways(reg=regs, solver=solver, rows=comparisons)


def _grid(features: FeatureSet, asked: Asked) -> Grid:
    ways = rows_ways(
        QUICK if asked.quick else COMPARISONS,
        asked.reg or (REGS[1::3] if asked.quick else REGS),
        asked.solver,
    )
    tasks = draws(asked, repeats=1 if asked.quick else 3)
    return Retrieval(features, budget=asked.budget, every_query=False), [(task, ways) for task in tasks]


STUDY = Study(
    "retrieval-rows",
    "How rows of W should be compared in retrieval, over reg and draws.",
    ("repeats", *HONOURS),
    ("reg", "rows"),
    _grid,
)
