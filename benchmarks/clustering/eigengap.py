"""Look for the number of classes of real sets in the gaps between eigenvalues of the plan.

BPA_DATA=... python benchmarks/clustering/eigengap.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from real_sets import SETS, load

from bpa.estimators import BPAClusterer
from bpa.report.table import Table
from bpa.runs.store import write_atomically

RESULTS = Path(__file__).resolve().parents[1] / "results" / "clustering"


def main() -> None:
    rows = []
    for title, name in SETS.items():
        features = load(name)
        assert features.labels is not None
        n_classes = len(np.unique(features.labels))
        count = min(2 * n_classes + 20, len(features) // 5)
        row: list[str] = [title, str(n_classes)]
        for n_neighbors in (10, 20):
            clusterer = BPAClusterer(
                count, method="spectral", reg=0.1, n_neighbors=n_neighbors, n_init=1, random_state=0
            )
            values = clusterer.fit(features.features).eigenvalues_
            gaps = values[1:-1] - values[2:]  # a gap after the first eigenvalue would mean one cluster
            row.append(", ".join(str(number) for number in np.argsort(-gaps)[:3] + 2))
        rows.append(row)
    table = Table(
        "Where the three largest gaps between eigenvalues of the plan lie",
        ["set", "classes", "10 neighbours", "20 neighbours"],
        rows,
        ["Number of eigenvalues above the gap, the largest gap first; reg 0.1, centred unit rows."],
    )
    write_atomically(RESULTS / "eigengap.md", table.markdown())
    print(table.text())


if __name__ == "__main__":
    main()
