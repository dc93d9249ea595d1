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

from bpa.data.reid._cuhk03 import extract_cuhk03, read_cuhk03
from bpa.data.reid._features import read_reid_features, write_reid_features
from bpa.data.reid._market1501 import read_market1501
from bpa.data.reid._sets import ReidImage, ReidSet

__all__ = [
    "ReidImage",
    "ReidSet",
    "extract_cuhk03",
    "read_cuhk03",
    "read_market1501",
    "read_reid_features",
    "write_reid_features",
]
