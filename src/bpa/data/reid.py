"""Person re-identification sets as they lie on disk: lists of (path, identity, camera), no image decoded.

=====================  =============================================================================================
Market-1501            ``bounding_box_train``, ``bounding_box_test``, ``query``; names ``PPPP_cCsS_FFFFFF_BB.jpg``
CUHK03, new protocol   767/700 identities, ``detected`` or ``labeled``: the split files (``.mat`` or ``.json``) beside
                       ``images_{variant}``, or the Market-style layout ``{variant}/bounding_box_train`` …
features               ``.npz`` with ``features``, ``ids``, ``cameras``, ``is_query`` and the set's name
=====================  =============================================================================================

Lists are sorted by file name. Cameras count from 0. Paths stored in split files belong to somebody else's machine;
only their base names are used. The old CUHK03 protocol (1367/100, twenty splits) gives much higher numbers, must not
be mixed with the new one, and is refused.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bpa.errors import ArgumentError, FileError, MissingExtraError
from bpa.records import QueryGallery

__all__ = [
    "ReidImage",
    "ReidSet",
    "extract_cuhk03",
    "read_cuhk03",
    "read_market1501",
    "read_reid_features",
    "write_reid_features",
]

_Path = str | os.PathLike[str]
Variant = Literal["detected", "labeled"]

_MARKET_NAME = re.compile(r"(-?\d+)_c(\d)")
_CUHK_NAME = re.compile(r"(\d+)_(\d+)_(\d)_(\d+)\.png$", re.IGNORECASE)
MARKET_COUNTS = {"train": 12_936, "query": 3_368, "gallery": 15_913, "gallery with junk": 19_732}
CUHK03_COUNTS = {
    "detected": {"train": 7_365, "query": 1_400, "gallery": 5_332},
    "labeled": {"train": 7_368, "query": 1_400, "gallery": 5_328},
}


@dataclass(frozen=True, order=True)
class ReidImage:
    """One picture: where it is, who is on it, which camera took it."""

    path: Path
    identity: int
    camera: int


@dataclass(frozen=True)
class ReidSet:
    """The three lists of a set.

    Attributes
    ----------
    name : str
        ``"market1501"``, ``"cuhk03-detected"`` or ``"cuhk03-labeled"``.
    train : tuple of ReidImage
        Identities relabelled 0, 1, … in ascending order.
    query, gallery : tuple of ReidImage
        Identities as the set numbers them; 0 is a distractor, −1 junk.
    """

    name: str
    train: tuple[ReidImage, ...]
    query: tuple[ReidImage, ...]
    gallery: tuple[ReidImage, ...]

    def task(self, features: np.ndarray) -> QueryGallery:
        """The retrieval task of features in the order query, gallery.

        Parameters
        ----------
        features : ndarray, shape (len(query) + len(gallery), d)

        Returns
        -------
        QueryGallery
        """
        images = (*self.query, *self.gallery)
        if len(features) != len(images):
            raise ArgumentError(
                f"The 'features' parameter of ReidSet.task must have one row for each of the {len(self.query)} queries "
                f"and {len(self.gallery)} gallery items, in this order. Got {len(features)} rows."
            )
        rows = np.arange(len(images), dtype=np.int64)
        return QueryGallery(
            np.ascontiguousarray(features, dtype=np.float32),
            rows[: len(self.query)],
            rows[len(self.query) :],
            np.array([image.identity for image in images], dtype=np.int64),
            np.array([image.camera for image in images], dtype=np.int64),
            self.name,
        )


# ---------------------------------------------------------------------------------------------- Market-1501


def read_market1501(root: _Path, *, keep_junk: bool = False, complete: bool = False) -> ReidSet:
    """Read the lists of Market-1501.

    Parameters
    ----------
    root : path
        The folder ``Market-1501-v15.09.15`` or the one above it.
    keep_junk : bool
        Keep gallery pictures of identity −1, which the toolboxes drop at load time (19,732 instead of 15,913).
    complete : bool
        Warn where the lists differ in size from those of the official archive.

    Returns
    -------
    ReidSet
    """
    folder = _descend(Path(root), "Market-1501-v15.09.15", "bounding_box_train", "read_market1501")
    made = _market_layout(folder, "market1501", (".jpg",), keep_junk=keep_junk, people=1501, cameras=6)
    if complete:
        gallery = MARKET_COUNTS["gallery with junk" if keep_junk else "gallery"]
        _warn_counts(made, {**MARKET_COUNTS, "gallery": gallery})
    return made


def _descend(root: Path, inner: str, needed: str, function: str) -> Path:
    for folder in (root, root / inner):
        if (folder / needed).is_dir():
            return folder
    if not root.is_dir():
        raise FileError(f"The folder {root} of {function} does not exist.")
    raise FileError(
        f"{function} looks for the folder {needed} in {root} (or in {root / inner}) and finds none."
    )


def _market_layout(
    folder: Path, name: str, suffixes: Sequence[str], *, keep_junk: bool, people: int, cameras: int
) -> ReidSet:
    lists = {}
    for key, part in (("train", "bounding_box_train"), ("query", "query"), ("gallery", "bounding_box_test")):
        place = folder / part
        if not place.is_dir():
            raise FileError(f"{folder} holds no folder {part}; a set in this layout has all three.")
        images = []
        for path in sorted(place.iterdir(), key=lambda path: path.name):
            if path.suffix.lower() not in suffixes:
                continue  # the official archive holds a Thumbs.db
            found = _MARKET_NAME.match(
                path.name
            )  # from the start of the base name: folders may be named x_1_c2
            if found is None:
                raise FileError(
                    f"The picture {path} is not named PPPP_cC…, identity and camera first. Rename it or move it away."
                )
            identity, camera = int(found[1]), int(found[2])
            if not -1 <= identity <= people or not 1 <= camera <= cameras:
                raise FileError(
                    f"The picture {path} names identity {identity} and camera {camera}; {name} has identities -1 to "
                    f"{people} and cameras 1 to {cameras}."
                )
            if identity == -1 and not (keep_junk and key == "gallery"):
                continue
            images.append(ReidImage(path, identity, camera - 1))
        if not images:
            raise FileError(f"The folder {place} holds no picture ending in {' or '.join(suffixes)}.")
        lists[key] = images
    return ReidSet(name, _relabelled(lists["train"]), tuple(lists["query"]), tuple(lists["gallery"]))


def _relabelled(images: Sequence[ReidImage]) -> tuple[ReidImage, ...]:
    label = {identity: k for k, identity in enumerate(sorted({image.identity for image in images}))}
    return tuple(ReidImage(image.path, label[image.identity], image.camera) for image in images)


def _warn_counts(made: ReidSet, expected: dict[str, int]) -> None:
    for key in ("train", "query", "gallery"):
        have = len(getattr(made, key))
        if have != expected[key]:
            warnings.warn(
                f"the {key} list of {made.name} has {have} pictures; the official one has {expected[key]}.",
                UserWarning,
                stacklevel=3,
            )


# ---------------------------------------------------------------------------------------------- CUHK03


def read_cuhk03(
    root: _Path,
    *,
    variant: Variant = "detected",
    layout: Literal["auto", "mat", "json", "market"] = "auto",
    complete: bool = False,
) -> ReidSet:
    """Read the lists of CUHK03 under the new protocol (767 training and 700 test identities).

    Parameters
    ----------
    root : path
        The set's folder: with ``images_{variant}`` and a split file, or with ``{variant}/bounding_box_train`` ….
    variant : {"detected", "labeled"}
        Boxes of a detector, or drawn by hand.
    layout : {"auto", "mat", "json", "market"}
        Which files say who is where: ``cuhk03_new_protocol_config_{variant}.mat`` (needs scipy),
        ``splits_new_{variant}.json``, or the folder layout of Market-1501. ``"auto"`` takes the first that is there.
    complete : bool
        Warn where the lists differ in size from the official ones.

    Returns
    -------
    ReidSet
        A person's two views are cameras 0 and 1, whatever the pair of cameras.
    """
    if variant not in ("detected", "labeled"):
        raise ArgumentError(
            f"The 'variant' parameter of read_cuhk03 must be 'detected' or 'labeled'. Got {variant!r}."
        )
    if layout not in ("auto", "mat", "json", "market"):
        raise ArgumentError(
            f"The 'layout' parameter of read_cuhk03 must be auto, mat, json or market. Got {layout!r}."
        )
    root = Path(root)
    if not root.is_dir():
        raise FileError(f"The folder {root} of read_cuhk03 does not exist.")
    mat = _first(root, f"cuhk03_new_protocol_config_{variant}.mat")
    split = _first(root, f"splits_new_{variant}.json")
    market = next((f for f in (root / variant, root / "cuhk03-np" / variant) if (f / "query").is_dir()), None)
    if layout in ("auto", "json") and split is not None:
        made = _from_json(root, split, variant)
    elif layout in ("auto", "mat") and mat is not None:
        made = _from_mat(root, mat, variant)
    elif layout in ("auto", "market") and market is not None:
        made = _market_layout(
            market, f"cuhk03-{variant}", (".png", ".jpg"), keep_junk=False, people=1467, cameras=2
        )
    else:
        classic = next(iter(root.rglob("splits_classic_*.json")), None)
        old = " The old protocol (splits_classic_…) is another benchmark and is not read." if classic else ""
        raise FileError(
            f"read_cuhk03 finds none of splits_new_{variant}.json, cuhk03_new_protocol_config_{variant}.mat and "
            f"{variant}/query in {root}.{old}"
        )
    if complete:
        _warn_counts(made, CUHK03_COUNTS[variant])
    return made


def _first(root: Path, name: str) -> Path | None:
    return next((path for path in (root / name, root / "cuhk03_release" / name) if path.is_file()), None)


def _images_folder(root: Path, variant: str) -> Path:
    folder = root / f"images_{variant}"
    if not folder.is_dir():
        raise FileError(
            f"{root} holds no folder images_{variant}; make it from the raw archive with bpa.data.reid.extract_cuhk03."
        )
    return folder


def _cuhk_image(folder: Path, name: str, identity: int, camera: int | None) -> ReidImage:
    found = _CUHK_NAME.match(name)
    if found is None:
        raise FileError(f"The split names {name!r}; pictures of CUHK03 are named P_NNN_V_II.png.")
    view = int(found[3]) - 1
    if view not in (0, 1) or (camera is not None and camera != view):
        raise FileError(f"The split gives {name!r} camera {camera}, and its name says view {view + 1}.")
    path = folder / name
    if not path.is_file():
        raise FileError(f"The split names {name!r}, and {folder} does not hold it.")
    return ReidImage(path, identity, view)


def _from_json(root: Path, path: Path, variant: str) -> ReidSet:
    try:
        content = json.loads(path.read_text())
        lists = content[0] if isinstance(content, list) and len(content) == 1 else None
        if not isinstance(lists, dict):
            raise FileError(
                f"{path} holds {len(content) if isinstance(content, list) else 'no'} splits; the new protocol has one. "
                "The old protocol (twenty splits) is another benchmark and is not read."
            )
        folder = _images_folder(root, variant)
        read = {
            key: sorted(
                _cuhk_image(folder, re.split(r"[/\\]", str(place))[-1], int(identity), int(camera))
                for place, identity, camera in lists[key]
            )
            for key in ("train", "query", "gallery")
        }
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} cannot be read as a split of CUHK03: {error!r}.") from None
    return ReidSet(
        f"cuhk03-{variant}", _relabelled(read["train"]), tuple(read["query"]), tuple(read["gallery"])
    )


def _from_mat(root: Path, path: Path, variant: str) -> ReidSet:
    try:
        from scipy.io import loadmat
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "scipy":
            raise
        raise MissingExtraError("reading .mat split files", "vision") from None
    try:
        content = loadmat(path)
        names = [str(np.ravel(cell)[0]) for cell in np.ravel(content["filelist"])]
        labels = np.ravel(content["labels"]).astype(np.int64)
        cameras = np.ravel(content["camId"]).astype(np.int64) - 1
        lists = {
            key: np.ravel(content[f"{key}_idx"]).astype(np.int64) - 1 for key in ("train", "query", "gallery")
        }
    except (ValueError, KeyError, TypeError, NotImplementedError, OSError) as error:
        raise FileError(f"{path} cannot be read as a split of CUHK03: {error!r}.") from None
    for key, index in lists.items():
        if len(index) == 0 or index.min() < 0 or index.max() >= len(names):
            raise FileError(f"{key}_idx of {path} must number the {len(names)} files from 1.")
    folder = _images_folder(root, variant)
    read = {
        key: sorted(_cuhk_image(folder, names[i], int(labels[i]), int(cameras[i])) for i in index)
        for key, index in lists.items()
    }
    return ReidSet(
        f"cuhk03-{variant}", _relabelled(read["train"]), tuple(read["query"]), tuple(read["gallery"])
    )


def extract_cuhk03(archive: _Path, out: _Path, *, variant: Variant = "detected") -> int:
    """Write the pictures of the raw archive ``cuhk-03.mat`` as ``images_{variant}/P_NNN_V_II.png``.

    Parameters
    ----------
    archive : path
        MATLAB v7.3 (needs h5py and pillow).
    out : path
        The set's folder.
    variant : {"detected", "labeled"}

    Returns
    -------
    int
        Pictures written; empty cells are left out.
    """
    if variant not in ("detected", "labeled"):
        raise ArgumentError(
            f"The 'variant' parameter of extract_cuhk03 must be 'detected' or 'labeled'. Got {variant!r}."
        )
    try:
        import h5py
        from PIL import Image
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("h5py", "PIL"):
            raise
        raise MissingExtraError("extracting the raw CUHK03 archive", "vision") from None
    archive, folder = Path(archive), Path(out) / f"images_{variant}"
    if not archive.is_file():
        raise FileError(f"The archive {archive} of extract_cuhk03 does not exist.")
    written = 0
    try:
        with h5py.File(archive, "r") as file:
            if variant not in file:
                raise FileError(f"{archive} holds no cell array {variant!r}.")
            folder.mkdir(parents=True, exist_ok=True)
            for pair, reference in enumerate(np.ravel(file[variant][()])):
                cells: Any = file[reference][()].T  # persons × 10 pictures; HDF5 stores columns first
                for person, row in enumerate(cells):
                    for number, cell in enumerate(row):
                        pixels = file[cell][()].T
                        if pixels.size == 0 or pixels.ndim < 3:
                            continue
                        view = 1 if number < 5 else 2
                        name = f"{pair + 1}_{person + 1:03d}_{view}_{number + 1:02d}.png"
                        Image.fromarray(np.ascontiguousarray(pixels.astype(np.uint8))).save(folder / name)
                        written += 1
    except (OSError, KeyError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{archive} cannot be read as the raw CUHK03 archive: {error}.") from None
    return written


# ---------------------------------------------------------------------------------------------- stored features


def read_reid_features(path: _Path) -> tuple[QueryGallery, str | None]:
    """Read features of a re-identification set from an ``.npz`` without pickle.

    Parameters
    ----------
    path : path
        Arrays ``features`` (n, d), ``ids`` (or ``pids``, ``labels``), optional ``cameras`` (or ``camids``),
        ``is_query`` and ``dataset``, a word such as ``"market1501"``.

    Returns
    -------
    task : QueryGallery
        Without ``is_query`` every item queries the others.
    dataset : str or None
        The name the file gives; the paper's numbers are shown only for the paper's sets.
    """
    place = Path(path)
    if not place.is_file():
        raise FileError(f"The feature file {place} of read_reid_features does not exist.")
    try:
        with np.load(place, allow_pickle=False) as stored:
            content = {name: stored[name] for name in stored.files if name not in ("images", "class_names")}
    except (OSError, ValueError) as error:
        raise FileError(f"{place} cannot be read as an .npz without pickle: {error}.") from None
    if "features" not in content or content["features"].ndim != 2:
        raise FileError(f"{place} holds no array 'features' of shape (n, d); it has {', '.join(content)}.")
    features = np.ascontiguousarray(content["features"], dtype=np.float32)
    bad = ~np.isfinite(features).all(axis=1)
    if bad.any():
        raise FileError(
            f"{place}: {int(bad.sum())} feature rows hold NaN or Inf, the first is row {int(bad.argmax())}."
        )
    ids = _column(place, content, ("ids", "pids", "labels"), len(features))
    if ids is None:
        raise FileError(f"{place} holds no identities; name them 'ids'. It has {', '.join(content)}.")
    cameras = _column(place, content, ("cameras", "camids"), len(features))
    rows = np.arange(len(features), dtype=np.int64)
    query = gallery = rows
    if "is_query" in content:
        asks = content["is_query"].astype(bool)
        if asks.shape != rows.shape or not asks.any() or asks.all():
            raise FileError(
                f"'is_query' of {place} must have one entry a row, true for some and false for others."
            )
        query, gallery = rows[asks], rows[~asks]
    dataset = str(content["dataset"]) if "dataset" in content else None
    return QueryGallery(features, query, gallery, ids, cameras, dataset or place.name), dataset


def _column(place: Path, content: dict[str, Any], names: Sequence[str], n: int) -> np.ndarray | None:
    name = next((name for name in names if name in content), None)
    if name is None:
        return None
    column = content[name]
    if column.shape != (n,) or not np.issubdtype(column.dtype, np.integer):
        raise FileError(
            f"{name!r} of {place} must be {n} integers, one a row. Got {column.dtype} {column.shape}."
        )
    out: np.ndarray = column.astype(np.int64)
    return out


def write_reid_features(path: _Path, task: QueryGallery, *, dataset: str | None = None) -> Path:
    """Write a task so that :func:`read_reid_features` (and anyone else) can read it.

    Parameters
    ----------
    path : path
        Ends in ``.npz``.
    task : QueryGallery
        Whose queries and gallery share no item, or are the same items.
    dataset : str, optional
        Name of the set.

    Returns
    -------
    Path
    """
    place = Path(path)
    if place.suffix != ".npz":
        raise ArgumentError(
            f"The 'path' parameter of write_reid_features must end in .npz. Got {place.name}."
        )
    arrays: dict[str, Any] = {"features": task.features, "ids": task.ids}
    if task.cameras is not None:
        arrays["cameras"] = task.cameras
    shared = np.intersect1d(task.query, task.gallery)
    if len(shared) == 0:
        asks = np.zeros(len(task.features), dtype=bool)
        asks[task.query] = True
        arrays["is_query"] = asks
    elif len(shared) != len(task.features):
        raise ArgumentError(
            "A task whose queries are only partly in the gallery has no place in this file format."
        )
    if dataset is not None:
        arrays["dataset"] = np.array(dataset)
    np.savez(place, **arrays)
    return place
