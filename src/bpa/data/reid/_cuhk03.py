"""CUHK03 under the new protocol: three layouts of its split, and the raw archive."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from bpa._checks import check_choice
from bpa._extras import needs
from bpa.data.reid._market1501 import market_layout
from bpa.data.reid._sets import AnyPath, ReidImage, ReidSet, relabelled, warn_counts
from bpa.errors import FileError

Variant = Literal["detected", "labeled"]
Layout = Literal["auto", "mat", "json", "market"]

_NAME = re.compile(r"(\d+)_(\d+)_(\d)_(\d+)\.png$", re.IGNORECASE)
_COUNTS = {
    "detected": {"train": 7_365, "query": 1_400, "gallery": 5_332},
    "labeled": {"train": 7_368, "query": 1_400, "gallery": 5_328},
}


def read_cuhk03(
    root: AnyPath,
    *,
    variant: Variant = "detected",
    layout: Layout = "auto",
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

    Raises
    ------
    FileError
        When no split is there, or names pictures that are not.

    Examples
    --------
    >>> from pathlib import Path
    >>> for folder in ("bounding_box_train", "bounding_box_test", "query"):
    ...     (Path("labeled") / folder).mkdir(parents=True)
    ...     (Path("labeled") / folder / "0007_c2_1.png").touch()
    >>> read_cuhk03(".", variant="labeled").name
    'cuhk03-labeled'
    """
    check_choice(variant, get_args(Variant), argument="variant", function="read_cuhk03")
    check_choice(layout, get_args(Layout), argument="layout", function="read_cuhk03")
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
        made = market_layout(
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
        warn_counts(made, _COUNTS[variant])
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
    found = _NAME.match(name)
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
        f"cuhk03-{variant}", relabelled(read["train"]), tuple(read["query"]), tuple(read["gallery"])
    )


def _from_mat(root: Path, path: Path, variant: str) -> ReidSet:
    with needs("vision", "scipy", feature="Reading .mat split files"):
        from scipy.io import loadmat
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
        f"cuhk03-{variant}", relabelled(read["train"]), tuple(read["query"]), tuple(read["gallery"])
    )


def extract_cuhk03(archive: AnyPath, out: AnyPath, *, variant: Variant = "detected") -> int:
    """Write the pictures of the raw archive ``cuhk-03.mat`` as ``images_{variant}/P_NNN_V_II.png``.

    Parameters
    ----------
    archive : path
        MATLAB v7.3 (needs h5py and pillow).
    out : path
        The set's folder.
    variant : {"detected", "labeled"}
        Boxes of a detector, or drawn by hand.

    Returns
    -------
    int
        Pictures written; empty cells are left out.

    Raises
    ------
    FileError
        When the archive is missing or is another file.

    Examples
    --------
    >>> extract_cuhk03("cuhk-03.mat", "cuhk03")
    Traceback (most recent call last):
    ...
    bpa.errors.FileError: The archive cuhk-03.mat of extract_cuhk03 does not exist.
    """
    check_choice(variant, get_args(Variant), argument="variant", function="extract_cuhk03")
    archive, folder = Path(archive), Path(out) / f"images_{variant}"
    if not archive.is_file():
        raise FileError(f"The archive {archive} of extract_cuhk03 does not exist.")
    with needs("vision", "h5py", "PIL", feature="Extracting the raw CUHK03 archive"):
        import h5py
        from PIL import Image
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
