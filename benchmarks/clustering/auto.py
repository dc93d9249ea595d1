"""Which weight BPAClusterer should take when nobody names one: 0.1, or what the rule chooses for the set.

    BPA_DATA=... python benchmarks/clustering/auto.py

Both methods on the graph, on ten parts of each real set (600 items, at most half of it), the same parts and the same
seeds of k-means for both weights: differences are paired. About three minutes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from real_sets import ITEMS, SETS, load

from bpa.estimators import BPAClusterer
from bpa.metrics import clustering_scores, mean_interval, paired_difference
from bpa.report.table import Table
from bpa.runs.store import write_atomically

RESULTS = Path(__file__).resolve().parents[1] / "results" / "clustering"
METHODS = ("smooth", "spectral")
REPEATS = 10


def measure(name: str) -> dict[str, np.ndarray]:
    """NMI in percent by "method reg", and the weight chosen, one number a repeat."""
    features = load(name)
    n_classes = len(np.unique(features.labels))
    found: dict[str, list[float]] = {}
    for repeat in range(REPEATS):
        draw = np.random.default_rng((0, repeat))
        items = np.sort(draw.permutation(len(features))[: min(ITEMS, len(features) // 2)])
        seed = int(draw.integers(2**31 - 1))
        for method in METHODS:
            for reg in (0.1, "auto"):
                clusterer = BPAClusterer(
                    n_classes, method=method, reg=reg, n_init=5 if n_classes <= 20 else 3, random_state=seed
                ).fit(features.features[items])
                scores = clustering_scores(features.labels[items], clusterer.labels_, nmi_average="geometric")
                found.setdefault(f"{method} {reg}", []).append(100 * scores.nmi)
        found.setdefault("reg", []).append(clusterer._places.plan.reg)
    return {key: np.array(values) for key, values in found.items()}


def main() -> None:
    rows, gains = [], {method: [] for method in METHODS}
    for title, name in SETS.items():
        found = measure(name)
        row = [title, f"{found['reg'].mean():.3f}"]
        for method in METHODS:
            gain = paired_difference(found[f"{method} auto"], found[f"{method} 0.1"])
            gains[method].append(gain.mean)
            row += [f"{found[f'{method} 0.1'].mean():.1f}", gain]
        rows.append(row)
        print(row, flush=True)
    rows.append(
        ["mean of the sets", "", *(cell for method in METHODS for cell in ("", mean_interval(gains[method])))]
    )
    table = Table(
        "NMI of BPAClusterer at reg 0.1, and what reg='auto' gains over it",
        ["set", "auto chose", *(column for method in METHODS for column in (f"{method}, 0.1", "auto gains"))],
        rows,
        [
            f"Percent; {REPEATS} parts of {ITEMS} items (at most half of the set), the same for both weights; "
            f"k-means++ with 5 starts, 3 for the sets with 50 classes or more; paired differences with 95 % intervals "
            f"(the parts share items: read them as a guide).",
        ],
    )
    write_atomically(RESULTS / "auto.md", table.markdown())
    print(table.text())


if __name__ == "__main__":
    main()
