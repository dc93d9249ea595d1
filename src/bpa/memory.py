"""Bytes before they are allocated: parse, format, estimate, refuse.

Every estimate counts the bytes *beyond the input* that a computation holds at its peak, part by part, from
shapes alone. ``check`` compares one with a budget and refuses with the way out. The numbers are upper
bounds: measured peaks lie below them (the tests hold this), usually by the library workspace that is counted
once a process.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch

from bpa._blocks import block_rows
from bpa._checks import check_choice
from bpa.errors import ArgumentError, MemoryBudgetError

__all__ = [
    "MemoryEstimate",
    "check",
    "estimate_affinities",
    "estimate_dense_plan",
    "estimate_graph_plan",
    "format_bytes",
    "parse_bytes",
]

_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
WORKSPACE = 48 * 2**20
"""Bytes granted to the libraries themselves: packing buffers of the matrix product, thread stacks, small vectors."""
PANEL_ROWS = 512
"""Rows of one symmetric panel of a large set, at most."""


def parse_bytes(size: str | int | float) -> int:
    """Read a number of bytes: ``1_000_000``, ``"800MB"``, ``"1.5 GiB"``, ``"4g"``.

    Parameters
    ----------
    size : str, int or float
        A count of bytes, or a number with a unit. ``KB MB GB TB`` (also ``K M G T``) are powers of 1,000,
        ``KiB MiB GiB TiB`` powers of 1,024; case does not matter.

    Returns
    -------
    int
        Bytes, at least 1.

    Examples
    --------
    >>> parse_bytes("1.5GB"), parse_bytes("2 MiB"), parse_bytes(4096)
    (1500000000, 2097152, 4096)
    """
    expected = (
        "The 'size' parameter of parse_bytes must be a positive number of bytes, such as 1000000 or '1.5GB'."
    )
    if isinstance(size, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*", size.replace("_", ""))
        if match is None or match[2].lower() not in _UNITS:
            raise ArgumentError(f"{expected} Got {size!r}; units are B KB MB GB TB KiB MiB GiB TiB.")
        value = float(match[1]) * _UNITS[match[2].lower()]
    elif isinstance(size, bool) or not isinstance(size, (int, float)):
        raise ArgumentError(f"{expected} Got {type(size).__name__}.")
    else:
        value = float(size)
    if not math.isfinite(value) or value < 1:
        raise ArgumentError(f"{expected} Got {size!r}.")
    return int(value)


def format_bytes(n_bytes: int | float) -> str:
    """Write a number of bytes for a reader: three digits and a decimal unit.

    Parameters
    ----------
    n_bytes : int or float

    Returns
    -------
    str

    Examples
    --------
    >>> format_bytes(1_487_000_000), format_bytes(812)
    ('1.49 GB', '812 B')
    """
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"
        value /= 1000.0
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes a computation will hold at its peak, beyond its input.

    Attributes
    ----------
    what : str
        The computation, in words, with its sizes.
    parts : tuple of (str, int)
        Name and bytes of every buffer alive at the peak; ``"workspace"`` is what the libraries take for themselves,
        once a process and whatever the size of the set.

    Examples
    --------
    >>> needed = estimate_affinities(600, 64)
    >>> format_bytes(needed.part("W")), format_bytes(needed.part("workspace")), format_bytes(needed.total)
    ('1.44 MB', '50.3 MB', '51.8 MB')
    """

    what: str
    parts: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Sum of the parts, in bytes."""
        return sum(size for _, size in self.parts)

    def part(self, name: str) -> int:
        """Bytes of one part."""
        sizes = dict(self.parts)
        check_choice(name, tuple(sizes), argument="name", function="MemoryEstimate.part")
        return sizes[name]

    def text(self) -> str:
        """One line for a command to print before it allocates."""
        listed = " + ".join(f"{name} {format_bytes(size)}" for name, size in self.parts)
        return f"{self.what}: {format_bytes(self.total)} beyond the input ({listed})"


def check(estimate: MemoryEstimate, budget: str | int | None, *, way_out: str) -> MemoryEstimate:
    """Refuse a computation that would need more than the budget, before anything is allocated.

    Parameters
    ----------
    estimate : MemoryEstimate
        What the computation needs.
    budget : str, int or None
        Bytes allowed beyond the input, as in :func:`parse_bytes`; None allows everything.
    way_out : str
        What the caller can do instead; ends the error's sentence.

    Returns
    -------
    MemoryEstimate
        ``estimate``, unchanged.

    Raises
    ------
    MemoryBudgetError
        When the estimate exceeds the budget.

    Examples
    --------
    >>> check(estimate_affinities(10**6, 64), "8GB", way_out="Use bpa.plans.GraphPlan.")
    Traceback (most recent call last):
    ...
    bpa.errors.MemoryBudgetError: balanced affinities of 1,000,000 items: 4 TB beyond the input (...), which exceeds the
    budget of 8 GB. Use bpa.plans.GraphPlan.
    """
    if budget is not None and estimate.total > parse_bytes(budget):
        raise MemoryBudgetError(
            f"{estimate.text()}, which exceeds the budget of {format_bytes(parse_bytes(budget))}. {way_out}"
        )
    return estimate


def _item_bytes(dtype: torch.dtype) -> int:
    return max(4, dtype.itemsize)  # half precision is computed in float32


def estimate_affinities(
    n: int,
    d: int,
    *,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    sweeps: int = 5,
    backward: bool = False,
) -> MemoryEstimate:
    """Bytes that ``balanced_affinities`` needs: cosine cost, alternating sweeps.

    Parameters
    ----------
    n, d : int
        Items a set and dimension.
    batch : int
        Number of sets.
    dtype : torch.dtype
        Of the features; half precision adds the float32 copies it is computed in.
    sweeps : int
        Of the solver.
    backward : bool
        Whether a backward pass follows (its peak is counted, together with what the forward pass saved for
        it).

    Returns
    -------
    MemoryEstimate

    Examples
    --------
    >>> format_bytes(estimate_affinities(10_000, 512).part("W"))
    '400 MB'
    """
    item = _item_bytes(dtype)
    square, features = batch * n * n * item, batch * n * d * item
    parts = [("W", square), ("vectors", (2 * sweeps + 8) * batch * n * item), ("workspace", WORKSPACE)]
    if n > 600:
        parts.append(("unit features", features))
    if dtype.itemsize < 4:
        parts += [("float32 features", features), ("W in half precision", batch * n * n * dtype.itemsize)]
    if backward:
        panel = min(n, PANEL_ROWS) * n * item
        parts += [("gradient of W", square), ("gradient of the features", features), ("panels", 6 * panel)]
    sets = f"{batch:,} × " if batch > 1 else ""
    return MemoryEstimate(f"balanced affinities of {sets}{n:,} items", tuple(parts))


def estimate_dense_plan(
    n: int, d: int, *, dtype: torch.dtype = torch.float32, block: int, keep: bool = False, vectors: int = 16
) -> MemoryEstimate:
    """Bytes that ``DensePlan.fit`` needs.

    Parameters
    ----------
    n, d : int
        Items and dimension.
    dtype : torch.dtype
        Of the computation.
    block : int
        Side of a streamed tile of the kernel.
    keep : bool
        Whether the n × n matrix is kept.
    vectors : int
        Vectors of length n the solver holds (depth-5 mixing keeps ten; the rest is scratch).

    Returns
    -------
    MemoryEstimate

    Examples
    --------
    >>> kept, streamed = (estimate_dense_plan(50_000, 128, block=1024, keep=keep) for keep in (True, False))
    >>> format_bytes(kept.total), format_bytes(streamed.total)
    ('10.1 GB', '91.7 MB')
    """
    item = _item_bytes(dtype)
    tile = min(block, n) ** 2 * item
    parts = [("unit features", n * d * item), ("vectors", vectors * n * item)]
    parts.append(("kernel", n * n * item) if keep else ("tiles", 3 * tile))
    if keep:
        parts.append(("tiles", 2 * tile))
    parts.append(("workspace", WORKSPACE))
    return MemoryEstimate(f"dense plan of {n:,} items", tuple(parts))


def estimate_graph_plan(n: int, d: int, *, k: int, dtype: torch.dtype = torch.float32) -> MemoryEstimate:
    """Bytes that ``GraphPlan.fit`` needs.

    The symmetrised graph has at most 2·n·k entries (a neighbour relation and its mirror image) and the
    repair adds at most two a row; building it sorts their 64-bit keys.

    Parameters
    ----------
    n, d : int
        Items and dimension.
    k : int
        Neighbours of each item before symmetrising.
    dtype : torch.dtype
        Of the computation.

    Returns
    -------
    MemoryEstimate

    Examples
    --------
    >>> format_bytes(estimate_graph_plan(10**6, 128, k=64).part("CSR rows"))
    '2.09 GB'
    """
    item = _item_bytes(dtype)
    entries = 2 * n * k + 2 * n
    parts = (
        ("unit features", n * d * item),
        ("lists", n * k * (8 + item)),
        ("keys and their sort", entries * 8 * 5),
        ("CSR rows", entries * (8 + 2 * item) + 8 * n),
        ("vectors", 24 * n * item),
        ("search block", block_rows(n, item) * n * item),
        ("workspace", WORKSPACE),
    )
    return MemoryEstimate(f"graph plan of {n:,} items, {k} neighbours each", parts)
