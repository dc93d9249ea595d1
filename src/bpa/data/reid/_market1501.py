"""Market-1501, and every set that is laid out like it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bpa.data.reid._sets import AnyPath, ReidImage, ReidSet, relabelled, warn_counts
from bpa.errors import FileError

_NAME = re.compile(r"(-?\d+)_c(\d)")  # matched from the start of the base name: folders may be named x_1_c2
_COUNTS = {"train": 12_936, "query": 3_368, "gallery": 15_913, "gallery with junk": 19_732}


def read_market1501(root: AnyPath, *, keep_junk: bool = False, complete: bool = False) -> ReidSet:
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

    Raises
    ------
    FileError
        When a folder is missing, or a picture is not named by identity and camera.

    Examples
    --------
    >>> root = Path("Market-1501-v15.09.15")
    >>> for folder in ("bounding_box_train", "bounding_box_test", "query"):
    ...     (root / folder).mkdir(parents=True)
    ...     (root / folder / "0002_c3s1_000451_01.jpg").touch()
    >>> read_market1501(".").query[0].camera
    2
    """
    folder = _descend(Path(root), "Market-1501-v15.09.15", "bounding_box_train", "read_market1501")
    made = market_layout(folder, "market1501", (".jpg",), keep_junk=keep_junk, people=1501, cameras=6)
    if complete:
        gallery = _COUNTS["gallery with junk" if keep_junk else "gallery"]
        warn_counts(made, {**_COUNTS, "gallery": gallery})
    return made


def market_layout(
    folder: Path, name: str, suffixes: Sequence[str], *, keep_junk: bool, people: int, cameras: int
) -> ReidSet:
    """The lists of a folder with ``bounding_box_train``, ``query`` and ``bounding_box_test``."""
    lists = {}
    for key, part in (("train", "bounding_box_train"), ("query", "query"), ("gallery", "bounding_box_test")):
        place = folder / part
        if not place.is_dir():
            raise FileError(f"{folder} holds no folder {part}; a set in this layout has all three.")
        images = []
        for path in sorted(place.iterdir(), key=lambda path: path.name):
            if path.suffix.lower() not in suffixes:
                continue  # the official archive holds a Thumbs.db
            found = _NAME.match(path.name)
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
    return ReidSet(name, relabelled(lists["train"]), tuple(lists["query"]), tuple(lists["gallery"]))


def _descend(root: Path, inner: str, needed: str, function: str) -> Path:
    for folder in (root, root / inner):
        if (folder / needed).is_dir():
            return folder
    if not root.is_dir():
        raise FileError(f"The folder {root} of {function} does not exist.")
    raise FileError(
        f"{function} looks for the folder {needed} in {root} (or in {root / inner}) and finds none."
    )
