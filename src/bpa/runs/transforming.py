"""A feature file transformed into a file: all of W where it fits, or what a large set is really wanted for."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from bpa.data.features import write_features
from bpa.errors import ArgumentError, FileError, MemoryBudgetError
from bpa.memory import estimate_affinities, format_bytes
from bpa.plans.dense import DensePlan
from bpa.records import FeatureSet
from bpa.runs.store import write_atomically
from bpa.solvers import PAPER_SWEEPS, Sweeps
from bpa.transforms.names import make_transform

Want = Literal["rows", "top-k", "blocks", "distances"]
Progress = Callable[[int, int], None]
DEFAULT_BUDGET = 4 * 10**9
"""Bytes a dense W may take where nothing else is said."""
_SUFFIXES: dict[Want, tuple[str, ...]] = {
    "rows": (".npy", ".npz", ".parquet", ".safetensors"),
    "top-k": (".npz",),
    "blocks": (".npy",),
    "distances": (".npy",),
}


@dataclass(frozen=True)
class TransformConfig:
    """What to compute and what to write.

    Parameters
    ----------
    want : {"rows", "top-k", "blocks", "distances"}
        Every transformed row; the ``k`` largest affinities of every item as a CSR graph; W written in blocks of rows,
        never held; distances between the W-rows of ``items`` and of all items.
    transform : str
        For "rows": a name of `bpa.transforms.names`. The others are for ``bpa``.
    reg : float or "auto"
        Entropy weight.
    n_iter : int, optional
        Sweeps; None is 5.
    k : int
        Entries a row of the graph.
    items : tuple of int
        For "distances".
    device, dtype : str
        Where and in which precision.
    """

    want: Want = "rows"
    transform: str = "bpa"
    reg: float | Literal["auto"] = 0.1
    n_iter: int | None = None
    k: int = 20
    items: tuple[int, ...] = ()
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"


def transform_to_file(
    features: FeatureSet,
    target: Path,
    config: TransformConfig,
    *,
    budget: int | None = None,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Transform a set and write the result whole or not at all.

    Parameters
    ----------
    features : FeatureSet
        One set.
    target : Path
        File to write. ``.npy`` holds the array alone; ``.npz``, ``.parquet`` and ``.safetensors`` of "rows" keep
        labels and names and read back as features; ``.npz`` of "top-k" is what ``scipy.sparse.load_npz`` reads.
    config : TransformConfig
        What to do.
    budget : int, optional
        Bytes allowed beyond the input; `DEFAULT_BUDGET` for a dense W.
    on_progress : callable, optional
        Called with (rows done, rows).

    Returns
    -------
    dict
        ``shape``, ``estimate`` (bytes planned), and, with potentials, ``marginal_error``.
    """
    if target.suffix.lower() not in _SUFFIXES[config.want]:
        raise FileError(
            f"'{config.want}' is written as {' or '.join(_SUFFIXES[config.want])}. Got {target.name}."
        )
    if config.want != "rows" and config.transform != "bpa":
        raise ArgumentError(
            f"'{config.want}' is offered for the transform bpa. Got {config.transform!r}; use 'rows'."
        )
    x = torch.from_numpy(features.features).to(device=config.device, dtype=getattr(torch, config.dtype))
    if config.want == "rows":
        return _rows(features, x, target, config, DEFAULT_BUDGET if budget is None else budget)
    if config.reg == "auto":
        raise ArgumentError(f"'{config.want}' needs a number for reg. Got 'auto'; 'bpa doctor' names one.")
    lazy = DensePlan.fit(
        x,
        reg=config.reg,
        solver="alternating",
        n_iter=5 if config.n_iter is None else config.n_iter,
        budget=budget,
    )
    said = {"estimate": lazy.report.bytes_estimated, "marginal_error": lazy.report.marginal_error}
    write = {"top-k": _top_k, "blocks": _blocks, "distances": _distances}[config.want]
    return {"shape": write(lazy, target, config, on_progress), **said}


def _rows(
    features: FeatureSet, x: torch.Tensor, target: Path, config: TransformConfig, budget: int
) -> dict[str, Any]:
    n, d = x.shape
    estimate = estimate_affinities(n, d, dtype=x.dtype).total
    if config.transform not in ("identity", "unit", "centred", "pca") and estimate > budget:
        graph = 16 * n * config.k
        raise MemoryBudgetError(
            f"all of W for {n:,} items needs {format_bytes(estimate)}, more than {format_bytes(budget)}. Say what you "
            f"want of it: --want top-k ({format_bytes(graph)} for k={config.k}), --want blocks (W on disk), --want "
            "distances --items 0 1 2; or raise --budget."
        )
    rows = (
        make_transform(
            config.transform,
            reg=config.reg,
            solver=PAPER_SWEEPS if config.n_iter is None else Sweeps(config.n_iter),
        )(x)
        .detach()
        .cpu()
        .numpy()
    )
    if target.suffix.lower() == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, rows, allow_pickle=False)
        write_atomically(target, buffer.getvalue())
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_features(target, replace(features, features=np.ascontiguousarray(rows, dtype=np.float32)))
    return {"shape": list(rows.shape), "estimate": estimate}


def _top_k(lazy: DensePlan, target: Path, config: TransformConfig, _: Progress | None) -> list[int]:
    if config.k > lazy.n - 1:
        raise ArgumentError(f"--k may be at most {lazy.n - 1} for {lazy.n} items. Got {config.k}.")
    best = lazy.top_k(config.k)
    order = best.indices.argsort(dim=1)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        format=np.array(b"csr"),
        shape=np.array([lazy.n, lazy.n], dtype=np.int64),
        indptr=np.arange(0, config.k * lazy.n + 1, config.k, dtype=np.int64),
        indices=best.indices.gather(1, order).flatten().cpu().numpy(),
        data=best.values.gather(1, order).flatten().cpu().numpy(),
    )
    write_atomically(target, buffer.getvalue())
    return [lazy.n, lazy.n]


def _blocks(lazy: DensePlan, target: Path, config: TransformConfig, tell: Progress | None) -> list[int]:
    """Write W from the top, one block of rows at a time, beside the target; then put it in place."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            header = {"descr": np.dtype(config.dtype).str, "fortran_order": False, "shape": (lazy.n, lazy.n)}
            np.lib.format.write_array_header_1_0(file, header)
            for rows, block in lazy.row_blocks():
                file.write(np.ascontiguousarray(block.cpu().numpy()).data)
                if tell is not None:
                    tell(rows.stop, lazy.n)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise FileError(
            f"{target} cannot be written: {error.strerror or error}. Name another place, or make room there."
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()
    return [lazy.n, lazy.n]


def _distances(lazy: DensePlan, target: Path, config: TransformConfig, _: Progress | None) -> list[int]:
    if not config.items or not all(0 <= item < lazy.n for item in config.items):
        raise ArgumentError(
            f"--want distances needs --items, positions from 0 to {lazy.n - 1}. Got {config.items}."
        )
    buffer = io.BytesIO()
    np.save(buffer, lazy.distances(list(config.items)).cpu().numpy(), allow_pickle=False)
    write_atomically(target, buffer.getvalue())
    return [len(config.items), lazy.n]
