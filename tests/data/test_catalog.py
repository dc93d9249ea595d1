"""The data inside the package."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from bpa.data import CATALOG, catalog, digits, embedded_sketches
from bpa.errors import FileError


def folder() -> Path:
    return Path(str(resources.files("bpa.data"))) / "embedded"


def test_the_embedded_data_is_small_licensed_and_credited() -> None:
    assert sum(path.stat().st_size for path in folder().rglob("*")) <= 6_000_000
    notice = (folder() / "LICENSE-sketches.txt").read_text()
    entry = CATALOG["sketches"]
    assert entry.attribution in notice
    assert entry.attribution == "The Quick, Draw! Dataset, Google"
    assert entry.licence == "CC BY 4.0"
    assert "creativecommons.org/licenses/by/4.0" in notice


def test_the_sketches_match_their_checksum_and_need_no_pickle() -> None:
    path = folder() / "sketches.npz"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == CATALOG["sketches"].sha256
    with np.load(path, allow_pickle=False) as arrays:
        assert arrays["features"].dtype == np.float16
        assert arrays["images"].dtype == np.uint8


def test_the_sketches_are_forty_of_each_of_fifty_classes() -> None:
    found = embedded_sketches()
    assert found.features.shape == (2000, 1280)
    assert found.features.dtype == np.float32
    assert np.isfinite(found.features).all()
    assert found.labels is not None
    assert found.class_names is not None
    assert np.bincount(found.labels).tolist() == [40] * 50
    assert len(set(found.class_names)) == 50
    assert found.images is not None
    assert found.images.shape == (2000, 28, 28)


def test_thumbnails_belong_to_their_rows() -> None:
    """Within a class, drawings whose bitmaps are alike have features alike: impossible under a wrong pairing."""
    found = embedded_sketches()
    assert found.images is not None
    assert found.labels is not None
    ink = found.images.reshape(2000, -1).astype(np.float64)
    gain = []
    for c in range(50):
        rows = np.flatnonzero(found.labels == c)
        a, b = found.features[rows].astype(np.float64), ink[rows]
        a, b = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (a - a.mean(0), b - b.mean(0)))
        off = ~np.eye(40, dtype=bool)
        gain.append(np.corrcoef((a @ a.T)[off], (b @ b.T)[off])[0, 1])
    assert np.mean(gain) > 0.2
    assert min(gain) > 0


def test_a_damaged_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "embedded").mkdir()
    raw = bytearray((folder() / "sketches.npz").read_bytes())
    raw[1000] ^= 1
    (tmp_path / "embedded" / "sketches.npz").write_bytes(raw)
    monkeypatch.setattr(catalog.resources, "files", lambda _: tmp_path)
    with pytest.raises(FileError, match="damaged"):
        embedded_sketches()


def test_the_digits_are_those_of_scikit_learn() -> None:
    found = digits()
    assert found.features.shape == (1797, 64)
    assert found.labels is not None
    assert found.images is not None
    assert np.bincount(found.labels).min() == 174
    assert np.corrcoef(found.images.reshape(1797, -1).ravel(), found.features.ravel())[0, 1] > 0.9999
