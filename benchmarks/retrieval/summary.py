"""One table over all sets from the files compare.py has left: mAP / Rank-1 of the rankings a reader chooses among.

python benchmarks/retrieval/summary.py
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from bpa.report.table import Table
from bpa.runs.fields.retrieval import PRESETS
from bpa.runs.way import Way

FOLDER = Path(__file__).resolve().parents[1] / "results" / "retrieval" / "compare"
HUBNESS = (
    "csls", "nnn", "inverted-softmax", "qb-norm", "dual-is", "sinkhorn", "mutual-proximity", "local-scaling", "nicdm",
)  # fmt: skip
PAPER, OURS = PRESETS["paper"], PRESETS["retrieval"]


def shown(row: dict) -> str:
    return f"{100 * row['mAP']:.1f} / {100 * row['Rank-1']:.1f}"


def row_of(
    rows: list[dict], host: str, transform: str, reg: object = None, rows_of: object = None, **settings
) -> dict:
    """The row of one way among those a set has."""
    if rows_of is not None:
        settings["rows"] = asdict(rows_of)
    for row in rows:
        way = Way.from_dict(row["way"])
        same = (way.host, way.transform.name, way.transform.reg) == (host, transform, reg)
        if same and all(way.settings.get(key) == value for key, value in settings.items()):
            return row
    raise KeyError((host, transform, reg, settings))


def lines(names: list[str]) -> list[list[str]]:
    tables = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in names}
    regs = (0.05, 0.1, 0.15, 0.25)
    wanted: list[tuple[str, tuple, dict]] = [
        ("cosine", ("nearest", "unit"), {}),
        ("centred cosine", ("nearest", "centred"), {}),
        ("BPA, the paper's rows, reg 0.25", ("nearest", "bpa", 0.25, PAPER), {}),
        *((f"BPA, the paper's rows, reg {reg}", ("nearest", "bpa", reg, PAPER), {}) for reg in regs[:3]),
        ("BPA, default rows, reg auto", ("nearest", "bpa", "auto", OURS), {}),
        *((f"BPA, default rows, reg {reg}", ("nearest", "bpa", reg, OURS), {}) for reg in regs),
        *(
            (name, (name, "identity"), {})
            for name in (*HUBNESS, "average-qe", "alpha-qe", "dba", "gnn", "diffusion")
        ),
        *(
            (f"k-reciprocal {k1}/{k2}", ("k-reciprocal", "unit"), {"k1": k1, "k2": k2})
            for k1, k2 in ((20, 6), (6, 3))
        ),
        *(
            (
                f"BPA auto, then k-reciprocal {k1}/{k2}",
                ("k-reciprocal", "bpa", "auto", OURS),
                {"k1": k1, "k2": k2},
            )
            for k1, k2 in ((20, 6), (6, 3))
        ),
        (
            "BPA 0.25, the paper's rows, then k-reciprocal 20/6",
            ("k-reciprocal", "bpa", 0.25, PAPER),
            {"k1": 20, "k2": 6},
        ),
    ]
    return [
        [label, *(shown(row_of(tables[name], *asked, **settings)) for name in names)]
        for label, asked, settings in wanted
    ]


if __name__ == "__main__":
    order = ["emoji", "stereo-centred", "stereo-raw", "sketches", "news20", "mnist", "cifar10"]
    have = [name for name in order if (FOLDER / f"{name}.json").exists()]
    table = Table(
        "Retrieval on real sets: mAP / Rank-1",
        ["ranking", *have],
        lines(have),
        [
            "Same protocol, our features; one draw a set (about 1,000 items; stereo 2,620 of which 740 query).",
            "Baselines with the parameters of their papers, not tuned. Emoji and stereo have cameras; other sets have "
            "20 to 100 relevant items a query.",
            "95 % intervals of every row and of its difference to cosine are in the tables of the sets.",
        ],
    )
    (FOLDER / "summary.md").write_text(table.markdown() + "\n")
    print(table.text())
