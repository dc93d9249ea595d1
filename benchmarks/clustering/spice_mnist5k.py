"""Phase two of SPICE on cached views of 5,000 MNIST digits: features to rank neighbours in.

    python benchmarks/clustering/spice_mnist5k.py --views /tmp/mnist5k-0.npz /tmp/mnist5k-1.npz --seeds 4

The views come from ``mnist_views.py``, one file per encoder. Every variant sees the same views, seeds,
settings and selection rule (lowest label-free loss over heads and epochs); only the features E differ in
which prototypes are averaged and neighbours ranked. Finished runs are kept in the folder of ``--out`` and
not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from bpa import BPA
from bpa.hosts.clustering import SPICE_SETTINGS, reliable_labels, train_clustering_heads
from bpa.metrics.clustering import clustering_scores
from bpa.metrics.intervals import mean_interval, paired_difference
from bpa.records import RunRecord
from bpa.report.table import Table
from bpa.runs.environment import describe_environment
from bpa.runs.fields.clustering import k_means
from bpa.runs.store import RunStore, write_atomically
from bpa.transforms.alternatives import CosineRows, RowSoftmax
from bpa.transforms.contract import Identity, SetTransform

HERE = Path(__file__).resolve().parent
VARIANTS: dict[str, SetTransform] = {
    "f (host)": Identity(),
    "BPA 0.1": BPA(reg=0.1),
    "BPA 0.1 unscaled": BPA(reg=0.1, scale=None),
    "row softmax 0.1": RowSoftmax(0.1),
    "cosine rows": CosineRows(),
    "BPA 0.05": BPA(reg=0.05),
    "BPA 0.2": BPA(reg=0.2),
    "BPA 0.5": BPA(reg=0.5),
    "BPA literal (reg 10)": BPA(reg=10.0),
}
FEW = {"f (host), k = 3": Identity(), "BPA 0.1, k = 3": BPA(reg=0.1)}


def one_run(
    views: dict[str, torch.Tensor], truth: np.ndarray, name: str, seed: int, inputs: str
) -> dict[str, float]:
    settings = SPICE_SETTINGS["mnist5k"]
    if name in FEW:
        settings = dataclasses.replace(settings, n_confident=3)
    transform = FEW.get(name) or VARIANTS[name]
    clean = views[inputs]
    found = train_clustering_heads(
        views["features"], clean, views["strong" if inputs == "features" else "strong_pooled"], settings,
        transform=transform, seed=seed,
    )  # fmt: skip
    scores = clustering_scores(truth, found.labels.numpy(), nmi_average="geometric")
    kept = reliable_labels(found.probabilities, views["features"], consistency=0.9, balance=False)
    chosen = kept.labels.numpy() >= 0
    return {
        "acc": scores.acc,
        "nmi": scores.nmi,
        "ari": scores.ari,
        "loss": found.loss,
        "mean_cosine": found.diagnostics.mean_cosine,
        "reliable": float(chosen.sum()),
        "reliable_smallest": float(kept.n_agreeing.min()),
        "reliable_purity": _purity(truth[chosen], found.labels.numpy()[chosen]),
    }


def _purity(truth: np.ndarray, clusters: np.ndarray) -> float:
    if len(truth) == 0:
        return float("nan")
    return sum(np.bincount(truth[clusters == c]).max() for c in np.unique(clusters)) / len(truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--views", type=Path, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument(
        "--inputs", choices=["features", "pooled"], default="features", help="what the heads see"
    )
    parser.add_argument("--variants", nargs="*", default=None)
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "clustering" / "spice_mnist5k")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    names = options.variants or [*VARIANTS, *FEW]
    store = RunStore(options.out)
    records: dict[str, RunRecord] = {}
    for name in names:
        values: dict[str, list[float]] = {}
        config = {
            "variant": name, "inputs": options.inputs, "seeds": options.seeds,
            "settings": dataclasses.asdict(SPICE_SETTINGS["mnist5k"]),
        }  # fmt: skip
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in options.views]
        data = {"views": digests, "n": 5000, "protocol": "5,000 MNIST digits, labels used in the scores only"}
        found = store.find(study="spice-mnist5k", task=config, data=data)
        if found is None:
            started = time.perf_counter()
            for path in options.views:
                with np.load(path, allow_pickle=False) as file:
                    arrays = {key: file[key] for key in file.files}
                truth = arrays.pop("labels")
                views = {key: torch.from_numpy(value).float() for key, value in arrays.items()}
                for seed in range(options.seeds):
                    for key, value in one_run(views, truth, name, seed, options.inputs).items():
                        values.setdefault(key, []).append(value)
            found = RunRecord(
                study="spice-mnist5k", task=config, data=data, values=values,
                summary={
                    key: dataclasses.asdict(mean_interval(v))
                    for key, v in values.items()
                    if np.isfinite(v).all()
                },
                environment=describe_environment(), seconds=time.perf_counter() - started,
            )  # fmt: skip
            store.append(found)
        records[name] = found
        print(name, *(f"{key} {np.mean(v):.3f}" for key, v in found.values.items()), flush=True)

    rows, first = [], records[names[0]]
    for name, record in records.items():
        v = {key: 100 * np.array(record.values[key]) for key in ("acc", "nmi", "ari")}
        gain = None if record is first else paired_difference(v["acc"], 100 * np.array(first.values["acc"]))
        rows.append(
            [
                name, *(mean_interval(v[key]) for key in ("acc", "nmi", "ari")), gain,
                round(float(np.mean(record.values["reliable"]))),
                round(float(np.mean(record.values["reliable_smallest"]))),
                100 * float(np.mean(record.values["reliable_purity"])),
            ]
        )  # fmt: skip
    plain = []
    for path in options.views:
        with np.load(path, allow_pickle=False) as file:
            f = file["features"].astype(np.float32)
            labels, _ = k_means(f / np.linalg.norm(f, axis=1, keepdims=True), 10, n_init=10, seed=0)
            plain.append(100 * clustering_scores(file["labels"], labels, nmi_average="geometric").acc)
    table = Table(
        "SPICE phase two, 5,000 MNIST digits",
        ["E", "ACC", "NMI", "ARI", f"ACC minus {names[0]}", "reliable", "smallest cluster", "purity"],
        rows,
        [
            f"Percent, mean ± 95 % over {len(options.views)} encoder(s) × {options.seeds} seeds of the "
            f"heads; the head with "
            f"the lowest label-free loss; head inputs: {options.inputs}; NMI with the geometric mean.",
            f"k-means on unit f: ACC {', '.join(f'{a:.1f}' for a in plain)} (one value an encoder). "
            f"Reliable: items kept at "
            "consistency 0.90 and confidence 0.99, before balancing.",
        ],
    )
    suffix = "" if options.inputs == "features" else f"_{options.inputs}"
    write_atomically(options.out / f"table{suffix}.md", table.markdown())
    print(table.text())


if __name__ == "__main__":
    main()
