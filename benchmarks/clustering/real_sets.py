"""k-means on real feature sets: raw, unit norm, the transform over a grid of reg, and the alternatives.

    BPA_DATA=... python benchmarks/clustering/real_sets.py

Every repeat draws 600 of the items (half of them, where there are fewer), the same for all ways, so that
the intervals cover the data as well as the seeds of k-means; differences are paired. Losses are shown as
they are. Finished sets are kept and not repeated.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from bpa.data.features import read_features
from bpa.records import FeatureSet
from bpa.report.comparison import compared, gain, table
from bpa.report.sections.clustering import KIND
from bpa.report.table import Table
from bpa.runs import RunStore, run
from bpa.runs.fields.clustering import Clustering, ClusterTask, clustering_ways
from bpa.runs.store import write_atomically

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("BPA_DATA", HERE.parents[2] / "shared" / "data"))
SETS = {
    "CIFAR-10, EfficientNet-Lite0": "cifar10_efflite0",
    "MNIST, MobileNetV2": "mnist_mnv2",
    "20 newsgroups, MiniLM": "news20_minilm",
    "sketches (50 unseen classes), MobileNetV2": "sketches_mnv2",
    "emoji (first 100), MobileNetV2": "emoji_vendors_mnv2",
    "digits, 8 × 8 pixels": "digits",
}
ITEMS = 600
"""Most items that a repeat draws; at most half of the set."""
WAYS = tuple(
    dict.fromkeys(
        [
            *clustering_ways(
                ("k-means",), ("identity", "unit", "centred", "cosine", "softmax"), baselines=False
            ),
            *clustering_ways(
                ("spectral", "spectral-knn", "bpa-smooth", "bpa-spectral"), reg=(0.1,), baselines=False
            ),
            *clustering_ways(("k-means",), reg=(0.05, 0.1, 0.25, 0.5, 1.0, "auto"), baselines=False),
        ]
    )
)


def load(name: str) -> FeatureSet:
    if name == "digits":
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        return FeatureSet(pixels.astype(np.float32), labels.astype(np.int64), source="scikit-learn digits")
    features = read_features(DATA / f"{name}.npz")
    if name == "sketches_mnv2":
        return features.of_split("val")
    if name == "emoji_vendors_mnv2":
        assert features.labels is not None
        return features.select(features.labels < 100)
    return features


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "clustering")
    parser.add_argument("--sets", nargs="*", default=list(SETS.values()))
    options = parser.parse_args()
    overview, tables, columns = [], [], ()
    for title, name in SETS.items():
        if name not in options.sets:
            continue
        features = load(name)
        assert features.labels is not None
        k = len(np.unique(features.labels))
        task = ClusterTask(k, repeats=10, share=min(0.5, ITEMS / len(features)), n_init=5 if k <= 20 else 3)
        with RunStore(options.out / "real_sets" / name) as store:
            records = run("real-sets", Clustering(features), [(task, WAYS)], store=store)
        (group,) = compared(records, KIND)
        tables.append(replace(table(group), title=f"{title} ({features.dim}-d, {k} classes)"))
        print(tables[-1].text())
        score, columns = KIND.scores[0], tuple(row.label for row in group.rows)
        free = group.best_free(group.rows[0])
        cells = [
            f"{row.mean(score).mean:.1f}" if row is free else gain(row, free, score) for row in group.rows
        ]
        overview.append((title, free.label, cells))
    summary = Table(
        "NMI gained over the best of raw, unit and centred unit rows (that one: its NMI)",
        ["way", *(title for title, _, _ in overview)],
        [[way, *(cells[i] for _, _, cells in overview)] for i, way in enumerate(columns)],
        [
            "Percent; k-means++ (5 starts; 3 for the sets with 50 classes or more); 10 repeats on 600 "
            "items each (at "
            "most half of the set), the same for all ways; paired differences with 95 % intervals (the "
            "repeats share "
            "items: read them as a guide).",
        ],
    )
    write_atomically(options.out / "real_sets.md", "\n".join(each.markdown() for each in (summary, *tables)))
    print(summary.text())


if __name__ == "__main__":
    main()
