"""Large work in pieces: where they start and stop, and how large they may be."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["BLOCK_BYTES", "block_rows", "spans"]

BLOCK_BYTES = 64 << 20
"""Room for one block of rows where a whole extra matrix would be wasteful."""


def spans(n: int, step: int) -> Iterator[slice]:
    """Cut 0..n into slices of ``step``, the last one shorter.

    Examples
    --------
    >>> [(s.start, s.stop) for s in spans(5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, step)
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def block_rows(n: int, item_bytes: int, *, least: int = 16, room: int = BLOCK_BYTES) -> int:
    """Rows of an n-wide block that fit the room, at least ``least`` and at most ``n``."""
    return int(max(least, min(n, room // max(1, n * item_bytes))))
