"""One file format for everything that was balanced once: an ``.npz`` without pickle, with a name and a version inside.

A file holds ``format`` (this package's word), ``version``, ``kind`` (what wrote it) and the arrays of that kind. What a
reader does not know, or what no plan can hold, is refused in one sentence before anything is computed from it.
"""

from __future__ import annotations

import math
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bpa.errors import FileError
from bpa.kernels._rows import COSTS, Preparation
from bpa.plans._plan import Plan, PreparedSet
from bpa.plans._potentials import Potentials
from bpa.records import Convergence

if TYPE_CHECKING:
    from bpa.plans._dense import DensePlan
    from bpa.plans._graph import GraphPlan

__all__ = ["PlanFile", "load_plan", "write_plan"]

_FORMAT = "bpa plan"
_VERSION = 1
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def load_plan(path: str | Path) -> DensePlan | GraphPlan:
    """Read what :meth:`DensePlan.save` or :meth:`GraphPlan.save` wrote. Pickled content is never executed.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    DensePlan or GraphPlan

    Raises
    ------
    FileError
        When the file is missing, damaged, something else, or of another version.

    Examples
    --------
    >>> import tempfile
    >>> from bpa.plans import DensePlan
    >>> plan = DensePlan.fit(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), reg=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plan.save(f"{folder}/set.plan")
    ...     back = load_plan(f"{folder}/set.plan")
    >>> torch.equal(back.log_u, plan.log_u)
    True
    """
    from bpa.plans._dense import DensePlan
    from bpa.plans._graph import GraphPlan

    file = PlanFile(path)
    if file.kind == "gallery":
        raise file.wrong("it holds a Gallery; read it with Gallery.load")
    file.check_kind("dense", "graph")
    plan = DensePlan.from_file(file) if file.kind == "dense" else GraphPlan.from_file(file)
    file.check_all_read()
    return plan


def write_plan(path: str | Path, kind: str, plan: Plan, **more: Any) -> None:
    """Write a balanced set and what else its ``kind`` needs; the file is there whole, or as it was before."""
    preparation, convergence = plan.preparation, plan.convergence
    arrays = {
        "format": _FORMAT, "version": _VERSION, "kind": kind, "cost": plan.cost, "features": plan.features,
        "mean": np.zeros(0) if preparation is None or preparation.mean is None else preparation.mean,
        "of_units": preparation is not None and preparation.of_units,
        "log_u": plan.log_u, "log_v": np.zeros(0) if plan.is_symmetric else plan.log_v,
        "reg": plan.reg, "scale": plan.scale, "diagonal": plan.diagonal, "n_iter": convergence.n_iter,
        "marginal_error": convergence.marginal_error, "tol": convergence.tol, **more,
    }  # fmt: skip
    ready = {
        name: v.numpy(force=True) if isinstance(v, Tensor) else np.array(v) for name, v in arrays.items()
    }
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            np.savez(file, **ready)  # type: ignore[arg-type]  # numpy types its own keyword only
        os.replace(partial, target)
    except OSError as error:
        raise FileError(f"The file {str(path)!r} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            partial.unlink()


class PlanFile:
    """A file that was read, and asked for one array or number after the other; each is checked as it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._arrays = self._read()
        if self._text("format") != _FORMAT:
            raise self.wrong("it was written by something else")
        version = self.count("version")
        if version != _VERSION:
            raise self.wrong(
                f"it is of version {version} of the format, and this package reads version {_VERSION}"
            )
        self.kind = self._text("kind")

    def _read(self) -> dict[str, np.ndarray]:
        # A damaged archive fails in many ways: BadZipFile, zlib.error, EOFError, OverflowError, MemoryError (a shape
        # no memory holds), NotImplementedError (unknown compression), RuntimeError (encryption), SyntaxError (header).
        try:
            with Path(self._path).open("rb") as file:
                if not zipfile.is_zipfile(file):
                    raise self.wrong("it was written by something else, or is damaged")
                file.seek(0)
                with np.load(file, allow_pickle=False) as stored:
                    return {name: stored[name] for name in stored.files}
        except FileError:
            raise
        except OSError as cause:
            raise self.wrong(f"{cause.strerror or cause}") from None
        except Exception as cause:
            raise self.wrong(
                f"it is damaged ({' '.join(str(cause).split())[:200] or type(cause).__name__})"
            ) from None

    def wrong(self, reason: str) -> FileError:
        """The error that says what is wrong with this file."""
        return FileError(f"The file {self._path!r} cannot be read as a plan: {reason}.")

    def check_kind(self, *known: str) -> None:
        """Refuse a file that holds something else."""
        if self.kind not in known:
            raise self.wrong(f"it holds a {self.kind!r}, not a {' or '.join(known)} plan")

    def check_all_read(self) -> None:
        """Refuse a file that holds more than was asked for."""
        if self._arrays:
            raise self.wrong(
                f"it holds {', '.join(map(repr, sorted(self._arrays)))}, which this version does not know"
            )

    def number(self, name: str, *, above: float = -math.inf, least: float = -math.inf) -> float:
        """A finite number."""
        array = self._take(name, ())
        value = float(array) if array.dtype.kind in "fiu" else math.nan
        if not (math.isfinite(value) and value > above and value >= least):
            raise self.wrong(f"{name!r} is {value:g}")
        return value

    def count(self, name: str, *, least: int = 0, most: int | None = None) -> int:
        """A whole number."""
        array = self._take(name, ())
        if array.dtype.kind not in "iu" or not least <= int(array) <= (int(array) if most is None else most):
            raise self.wrong(f"{name!r} is {array}")
        return int(array)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of some words."""
        word = self._text(name)
        if word not in choices:
            raise self.wrong(f"{name!r} is {word!r}")
        return word

    def floats(self, name: str, shape: tuple[int | None, ...], dtype: np.dtype | None = None) -> Tensor:
        """Finite numbers; None in ``shape`` stands for any size of at least one."""
        array = self._take(name, shape)
        if array.dtype not in (_FLOATS if dtype is None else (dtype,)) or not np.isfinite(array).all():
            raise self.wrong(f"{name!r} does not hold finite numbers of the type it should")
        return torch.from_numpy(array)

    def positions(self, name: str, shape: tuple[int | None, ...], most: int, *, least: int = 0) -> Tensor:
        """Whole numbers from ``least`` to ``most``, int32 or int64."""
        array = self._take(name, shape)
        if array.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise self.wrong(f"{name!r} does not hold whole numbers")
        if array.size and not (least <= array.min() and array.max() <= most):
            raise self.wrong(f"{name!r} holds positions outside {least}..{most}")
        return torch.from_numpy(array)

    def skip_empty(self, name: str) -> bool:
        """Whether an optional array was left out; an empty one is read with that."""
        if name not in self._arrays or self._arrays[name].size:
            return False
        del self._arrays[name]
        return True

    def balanced_set(self) -> tuple[PreparedSet, Potentials, float, float]:
        """What every plan knows: prepared rows and weight, potentials, scale, diagonal."""
        cost = self.choice("cost", (*COSTS, "precomputed"))
        rows = self.floats("features", (None, None))
        n, d = rows.shape
        if cost == "precomputed" and n != d:
            raise self.wrong(f"its costs have shape ({n}, {d})")
        dtype = np.dtype(np.float64 if rows.dtype == torch.float64 else np.float32)
        of_units, mean = self._flag("of_units"), None
        if not self.skip_empty("mean"):
            mean = self.floats("mean", (d,), dtype)
        if (mean is None) != (cost in ("cosine", "precomputed")):
            raise self.wrong(f"a plan with cost={cost!r} {'needs a' if mean is None else 'has no'} mean")
        preparation = None if cost == "precomputed" else Preparation(cost, mean, of_units)
        vector = (n,), np.dtype(np.float64)
        log_u = self.floats("log_u", *vector)
        log_v = log_u if self.skip_empty("log_v") else self.floats("log_v", *vector)
        convergence = Convergence(
            torch.tensor(self.count("n_iter")),
            torch.tensor(self.number("marginal_error", least=0), dtype=torch.float64),
            self.number("tol", above=0),
        )
        prepared = PreparedSet(rows, preparation, cost, self.number("reg", above=0))
        scale, diagonal = self.number("scale", above=0), self.number("diagonal")
        return prepared, Potentials(log_u, log_v, convergence), scale, diagonal

    def _flag(self, name: str) -> bool:
        array = self._take(name, ())
        if array.dtype.kind != "b":
            raise self.wrong(f"{name!r} is {array}")
        return bool(array)

    def _text(self, name: str) -> str:
        array = self._take(name, ())
        if array.dtype.kind != "U":
            raise self.wrong(f"{name!r} is not text")
        return str(array)

    def _take(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
        if name not in self._arrays:
            raise self.wrong(
                "it was written by something else" if name == "format" else f"{name!r} is missing"
            )
        array = self._arrays.pop(name)
        fits = array.ndim == len(shape) and all(
            have == want if want is not None else have >= 1
            for have, want in zip(array.shape, shape, strict=True)
        )
        if not fits:
            raise self.wrong(f"{name!r} has shape {array.shape}")
        return array
