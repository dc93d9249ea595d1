"""What an estimate says of its parts; that it is an upper bound is held beside the plans."""

from __future__ import annotations

import pytest

from bpa import memory
from bpa.errors import ArgumentError


def test_w_itself_and_what_the_libraries_take_are_told_apart() -> None:
    needed = memory.estimate_affinities(600, 64)
    assert needed.part("W") == 600 * 600 * 4
    assert needed.part("workspace") == memory.WORKSPACE
    assert needed.total == sum(needed.part(name) for name, _ in needed.parts)
    with pytest.raises(
        ArgumentError, match=r"MemoryEstimate\.part must be one of 'W', 'vectors', 'workspace'"
    ):
        needed.part("kernel")
