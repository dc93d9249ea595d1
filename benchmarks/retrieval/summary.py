"""One table over all sets from the files compare.py has left: mAP / Rank-1 of the rankings a reader chooses among.

python benchmarks/retrieval/summary.py
"""

from __future__ import annotations

import json
from pathlib import Path

from bpa.report.table import Table

FOLDER = Path(__file__).resolve().parents[1] / "results" / "retrieval" / "compare"
HUBNESS = (
    "csls", "nnn", "inverted-softmax", "qb-norm", "dual-is", "sinkhorn", "mutual-proximity", "local-scaling", "nicdm",
)  # fmt: skip
PAPER, OURS = "(euclidean rows)", "(cosine top-50 rows)"


def shown(row: dict) -> str:
    return f"{100 * row['mAP']:.1f} / {100 * row['Rank-1']:.1f}"


def lines(sets: list[str]) -> list[tuple[str, ...]]:
    out: list[list] = []
    tables = {}
    for name in sets:
        tables[name] = {row["way"]: row for row in json.loads((FOLDER / f"{name}.json").read_text())}
    regs = ("0.05", "0.1", "0.15", "0.25")
    wanted = [
        ("cosine", lambda r: shown(r["unit"])),
        ("centred cosine", lambda r: shown(r["centred"])),
        ("BPA, the paper's rows, reg 0.25", lambda r: shown(r[f"bpa reg=0.25 {PAPER}"])),
        *[
            (f"BPA, the paper's rows, reg {reg}", lambda r, reg=reg: shown(r[f"bpa reg={reg} {PAPER}"]))
            for reg in regs[:3]
        ],
        ("BPA, default rows, reg auto", lambda r: shown(r[f"bpa reg=auto {OURS}"])),
        *[
            (f"BPA, default rows, reg {reg}", lambda r, reg=reg: shown(r[f"bpa reg={reg} {OURS}"]))
            for reg in regs
        ],
        *[
            (name, lambda r, name=name: shown(r[name]))
            for name in (*HUBNESS, "average-qe", "alpha-qe", "dba", "gnn")
        ],
        ("diffusion", lambda r: shown(r["diffusion"])),
        ("k-reciprocal 20/6", lambda r: shown(r["unit + k-reciprocal"])),
        ("k-reciprocal 6/3", lambda r: shown(r["unit + k-reciprocal 6/3"])),
        ("BPA auto, then k-reciprocal 20/6", lambda r: shown(r[f"bpa reg=auto {OURS} + k-reciprocal"])),
        ("BPA auto, then k-reciprocal 6/3", lambda r: shown(r[f"bpa reg=auto {OURS} + k-reciprocal 6/3"])),
        (
            "BPA 0.25, the paper's rows, then k-reciprocal 20/6",
            lambda r: shown(r[f"bpa reg=0.25 {PAPER} + k-reciprocal"]),
        ),
    ]
    for label, of in wanted:
        out.append([label, *[of(tables[name]) for name in sets]])
    return out


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
