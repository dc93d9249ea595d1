"""Arrays in, arrays out: the transform and its clusters as scikit-learn estimators, also for items to come."""

from __future__ import annotations

from bpa._extras import needs

with needs("sklearn", "sklearn", "scipy", feature="bpa.estimators"):
    from bpa.estimators._clusterer import BPAClusterer
    from bpa.estimators._transformer import BPATransformer

__all__ = ["BPAClusterer", "BPATransformer"]
