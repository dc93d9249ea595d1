"""The real sets of the retrieval benchmarks, by name; those whose file is absent are left out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from stereo import build, centred

from bpa.data.features import read_features
from bpa.records import FeatureSet

DATA = Path(os.environ.get("BPA_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
# name: (file, identities a draw, items of each)
DRAWN = {
    "emoji": ("emoji_vendors_mnv2.npz", 300, None),
    "sketches": ("sketches_mnv2.npz", 75, 20),
    "mnist": ("mnist_mnv2.npz", 10, 150),
    "cifar10": ("cifar10_efflite0.npz", 10, 150),
    "news20": ("news20_minilm.npz", 20, 75),
}
# a draw of about a thousand items, for comparing everything with everything
COMPARED = {
    "emoji": (150, None),
    "sketches": (50, 20),
    "mnist": (10, 100),
    "cifar10": (10, 100),
    "news20": (20, 50),
}


def stereo(seed: int, *, centre: bool, step: int = 24) -> FeatureSet:
    """One realisation of the stereo-pair set."""
    made = build(step, seed)
    features = centred(made["features"]) if centre else made["features"]
    return FeatureSet(
        features.astype(np.float32),
        labels=made["ids"],
        cameras=made["cameras"],
        is_query=made["is_query"],
        source="stereo, centred" if centre else "stereo, raw",
        sha256=f"step {step}, seed {seed}",
    )


def stored(name: str) -> FeatureSet | None:
    """One of the stored sets, by name; with ``-centred``, unit rows minus their mean."""
    path = DATA / DRAWN[name.removesuffix("-centred")][0]
    if not path.exists():
        return None
    found = read_features(path)
    if name.endswith("-centred"):
        unit = found.features / np.maximum(np.linalg.norm(found.features, axis=1, keepdims=True), 1e-12)
        found = replace(found, features=centred(unit).astype(np.float32))
    return replace(found, source=name)
