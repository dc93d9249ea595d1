"""What the retrieval studies share: draws of a set, where there is something to draw."""

from __future__ import annotations

from bpa.errors import ArgumentError
from bpa.runs.fields.retrieval import RetrievalTask
from bpa.runs.study import Asked

HONOURS = ("reg", "solver", "identities", "each", "seed", "dtype", "budget", "quick")
"""What every retrieval study honours."""


def draws(asked: Asked, *, repeats: int) -> list[RetrievalTask]:
    """Return one task a draw, or the whole set where neither --identities nor --each says how much to draw."""
    dtype = asked.dtype or "float32"
    if asked.identities is None and asked.each is None:
        moot = [flag for flag in ("seed", "repeats") if getattr(asked, flag) is not None]
        if moot:
            raise ArgumentError(
                f"The whole set is ranked, so --{moot[0]} changes nothing. Say how much to draw (--identities, --each)."
            )
        return [RetrievalTask(dtype=dtype)]
    first = asked.seed or 0
    return [
        RetrievalTask(identities=asked.identities, each=asked.each, seed=first + draw, dtype=dtype)
        for draw in range(asked.repeats or repeats)
    ]
