"""Fixtures shared by every room."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

# The gate draws the same examples every time; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def rng() -> np.random.Generator:
    """A numpy generator that starts at the same place in every test."""
    return np.random.default_rng(20240721)


@pytest.fixture
def generator() -> torch.Generator:
    """A torch generator that starts at the same place in every test."""
    return torch.Generator().manual_seed(20240721)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder the checkout lies in."""
    return ROOT


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real feature sets, $BPA_DATA or shared/data beside the checkout; skips without one."""
    folder = Path(os.environ.get("BPA_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real feature sets at {folder} (set BPA_DATA)")
    return folder


@pytest.fixture
def clusters(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Five separated classes of twelve items in 16 dimensions: features (60, 16), labels (60,)."""
    centres = rng.normal(size=(5, 16))
    labels = np.repeat(np.arange(5, dtype=np.int64), 12)
    features = (centres[labels] + 0.4 * rng.normal(size=(60, 16))).astype(np.float32)
    return features, labels
