"""Phase two on real images, small enough for every run: scikit-learn's 1,797 digits, projected, with crude
views."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="the digits and the scores are scikit-learn's")

from sklearn.datasets import load_digits

from bpa import BPA
from bpa.hosts.clustering import SpiceSettings, train_clustering_heads
from bpa.metrics.clustering import clustering_scores
from bpa.transforms.contract import Identity

SETTINGS = SpiceSettings(n_clusters=10, selection_size=898, epochs=6, n_heads=5, hidden=None, repeats=4)


def projected_digits():
    """24 principal components of the images, and of four copies moved by a pixel and made noisy."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels.reshape(-1, 8, 8) / 16).float()
    rng = torch.Generator().manual_seed(0)
    mean = images.flatten(1).mean(dim=0)
    components = torch.linalg.svd(images.flatten(1) - mean, full_matrices=False).Vh[:24].T

    def project(pictures):
        return (pictures.flatten(1) - mean) @ components

    def change(pictures):
        padded = torch.nn.functional.pad(pictures, (1, 1, 1, 1))
        moves = torch.randint(0, 3, (len(pictures), 2), generator=rng).tolist()
        moved = torch.stack([p[i : i + 8, j : j + 8] for p, (i, j) in zip(padded, moves, strict=True)])
        return moved + 0.1 * torch.randn(moved.shape, generator=rng)

    return project(images), torch.stack([project(change(images)) for _ in range(4)]), labels


@pytest.mark.slow
def test_ranking_neighbours_in_transformed_features_gains_on_digits():
    features, strong, labels = projected_digits()
    accuracy = {}
    for name, transform in (("f", Identity()), ("BPA", BPA(reg=0.1))):
        runs = [
            train_clustering_heads(features, features, strong, SETTINGS, transform=transform, seed=seed)
            for seed in range(4)
        ]
        scores = [clustering_scores(labels, run.labels.numpy(), nmi_average="geometric") for run in runs]
        accuracy[name] = np.mean([score.acc for score in scores])
    assert accuracy["f"] > 0.55
    assert accuracy["BPA"] > accuracy["f"] + 0.01
