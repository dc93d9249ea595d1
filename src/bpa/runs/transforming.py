"""A feature file transformed into a file: all of W where it fits, or what a large set is really wanted for."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from bpa.data.features import write_features
from bpa.errors import ArgumentError, FileError, MemoryBudgetError
from bpa.memory import estimate_affinities, format_bytes
from bpa.plans import DensePlan
from bpa.records import FeatureSet
from bpa.runs.engine import Progress
from bpa.runs.store import write_atomically
from bpa.solvers._choice import BALANCED, PAPER_SWEEPS
from bpa.transforms.functional import affinities_and_convergence
from bpa.transforms.names import NamedTransform

__all__ = ["TransformConfig", "transform_to_file"]

Want = Literal["rows", "top-k", "blocks", "distances"]
DEFAULT_BUDGET = 4 * 10**9
"""Bytes a dense W may take where nothing else is said."""
_SUFFIXES: dict[Want, tuple[str, ...]] = {
    "rows": (".npy", ".npz", ".parquet", ".safetensors"),
    "top-k": (".npz",),
    "blocks": (".npy",),
    "distances": (".npy",),
}
_NARROW = ("identity", "unit", "centred", "pca")
"""Transforms without n × n numbers."""


@dataclass(frozen=True)
class TransformConfig:
    """What to compute and what to write.

    Parameters
    ----------
    want : {"rows", "top-k", "blocks", "distances"}
        Every transformed row; the ``k`` largest affinities of every item as a CSR graph; W written in blocks of rows,
        never held; distances between the W-rows of ``items`` and of all items.
    transform : NamedTransform
        Any for "rows"; the others are for ``bpa``.
    k : int
        Entries a row of the graph.
    items : tuple of int
        For "distances".
    device, dtype : str
        Where and in which precision.
    """

    want: Want = "rows"
    transform: NamedTransform = field(default_factory=lambda: NamedTransform("bpa", reg="auto"))
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
        ``shape``, ``estimate`` (bytes planned), and for bpa and bpa-attn ``marginal_error``, the largest relative
        error of a row sum that the solver left, with a ``note`` and the way out where that is not balanced.

    Notes
    -----
    With ``reg="auto"``, "rows" are those of `bpa.balanced_affinities`; the others balance the same plan, of unit rows
    minus their mean at the weight that `bpa.choose_reg` chooses, and stretch it by its largest entry.
    """
    if target.suffix.lower() not in _SUFFIXES[config.want]:
        raise FileError(
            f"'{config.want}' is written as {' or '.join(_SUFFIXES[config.want])}. Got {target.name}."
        )
    asked = config.transform
    if config.want != "rows" and asked.name != "bpa":
        raise ArgumentError(
            f"'{config.want}' is offered for the transform bpa. Got {asked.name!r}; use 'rows'."
        )
    x = torch.from_numpy(features.features).to(device=config.device, dtype=getattr(torch, config.dtype))
    if config.want == "rows":
        done = _rows(features, x, target, config, DEFAULT_BUDGET if budget is None else budget)
    else:
        assert asked.reg is not None  # noqa: S101 - bpa has one
        solver = PAPER_SWEEPS if asked.solver is None else asked.solver
        plan = DensePlan.fit(x, reg=asked.reg, solver=solver, budget=budget)
        write = {"top-k": _top_k, "blocks": _blocks, "distances": _distances}[config.want]
        shape = write(plan, target, config, on_progress)
        balance = float(plan.convergence.marginal_error)
        done = {"shape": shape, "estimate": plan.estimate.total, "marginal_error": balance}
    error = done.get("marginal_error")
    if error is not None and error > BALANCED:
        done["note"] = (
            f"the plan is not balanced: its worst row sum is off by {error:.2g}, so some rows count more than others. "
            f"Pass --solver sweeps:20, or --solver converged."
        )
    return done


def _rows(
    features: FeatureSet, x: torch.Tensor, target: Path, config: TransformConfig, budget: int
) -> dict[str, Any]:
    n, d = x.shape
    estimate = estimate_affinities(n, d, dtype=x.dtype).total
    if config.transform.name not in _NARROW and estimate > budget:
        graph = 16 * n * config.k
        raise MemoryBudgetError(
            f"all of W for {n:,} items needs {format_bytes(estimate)}, more than {format_bytes(budget)}. Say what you "
            f"want of it: --want top-k ({format_bytes(graph)} for k={config.k}), --want blocks (W on disk), --want "
            "distances --items 0 1 2; or raise --budget."
        )
    made, error = _transformed(x, config.transform)
    rows = made.detach().cpu().numpy()
    if target.suffix.lower() == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, rows, allow_pickle=False)
        write_atomically(target, buffer.getvalue())
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_features(target, replace(features, features=np.ascontiguousarray(rows, dtype=np.float32)))
    done: dict[str, Any] = {"shape": list(rows.shape), "estimate": estimate}
    return done if error is None else {**done, "marginal_error": error}


def _transformed(x: torch.Tensor, asked: NamedTransform) -> tuple[torch.Tensor, float | None]:
    """The rows, and for bpa and bpa-attn how far from balanced the plan behind them is."""
    if (
        asked.name not in ("bpa", "bpa-attn")
        or asked.values is not None
        or asked.reg is None
        or asked.solver is None
    ):
        return asked.build()(x), None
    diagonal = 1.0 if asked.diagonal is None else asked.diagonal
    found = affinities_and_convergence(x, reg=asked.reg, solver=asked.solver, diagonal=diagonal)
    rows = found.affinity if asked.name == "bpa" else found.affinity @ x
    return rows, float(found.convergence.marginal_error)


def _top_k(plan: DensePlan, target: Path, config: TransformConfig, _: Progress | None) -> list[int]:
    if config.k > plan.n - 1:
        raise ArgumentError(f"--k may be at most {plan.n - 1} for {plan.n} items. Got {config.k}.")
    best = plan.top_k(config.k)
    order = best.indices.argsort(dim=1)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        format=np.array(b"csr"),
        shape=np.array([plan.n, plan.n], dtype=np.int64),
        indptr=np.arange(0, config.k * plan.n + 1, config.k, dtype=np.int64),
        indices=best.indices.gather(1, order).flatten().cpu().numpy(),
        data=best.values.gather(1, order).flatten().cpu().numpy(),
    )
    write_atomically(target, buffer.getvalue())
    return [plan.n, plan.n]


def _blocks(plan: DensePlan, target: Path, config: TransformConfig, tell: Progress | None) -> list[int]:
    """Write W from the top, one block of rows at a time, beside the target; then put it in place."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            header = {"descr": np.dtype(config.dtype).str, "fortran_order": False, "shape": (plan.n, plan.n)}
            np.lib.format.write_array_header_1_0(file, header)
            for rows, block in plan.row_blocks():
                file.write(np.ascontiguousarray(block.cpu().numpy()).data)
                if tell is not None:
                    tell(rows.stop, plan.n)
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
    return [plan.n, plan.n]


def _distances(plan: DensePlan, target: Path, config: TransformConfig, _: Progress | None) -> list[int]:
    if not config.items or not all(0 <= item < plan.n for item in config.items):
        raise ArgumentError(
            f"--want distances needs --items, positions from 0 to {plan.n - 1}. Got {config.items}."
        )
    buffer = io.BytesIO()
    np.save(buffer, plan.distances(list(config.items)).cpu().numpy(), allow_pickle=False)
    write_atomically(target, buffer.getvalue())
    return [len(config.items), plan.n]
