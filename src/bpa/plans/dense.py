r"""Large sets: one lazy object answers everything about W without holding W.

It keeps the features and the potentials, n·d + 2n numbers, and rebuilds what is asked for, tile by tile:

.. math:: W_{ij} = \frac{1}{M} \exp(\log u_i + \log v_j - C_{ij}/\mathrm{reg}), \qquad W_{ii} =
\text{diagonal}.

Both costs are a Gram matrix and a vector, :math:`-C_{ij}/\mathrm{reg} = \alpha\langle x_i, x_j\rangle - q_i
- q_j`, so a tile is one matrix product and one exponential, and every tile above the diagonal serves its
mirror image too. New items get the row that the fitted potentials give them,
:math:`f(x) = -\operatorname{logsumexp}_j(\log v_j - c_j/\mathrm{reg})`.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from bpa import memory
from bpa._checks import check_choice, check_count, check_features, check_finite, check_positive
from bpa.cost import unit_rows
from bpa.errors import ArgumentError, ConvergenceWarning, FileError, ShapeError
from bpa.solvers import alternate, is_exponential_safe, symmetrise

__all__ = ["DensePlan", "LazyReport", "TopK"]

_KEEP_BYTES = 2**30
"""Without a budget, the n × n matrix is kept when it is at most this large."""
_BLOCK = 1024
"""Side of a tile: 4 MB in float32, which the last-level cache holds through the product and the
exponential."""
_TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-6}


class TopK(NamedTuple):
    """Largest entries of every row: ``values`` and ``indices``, each (n, k)."""

    values: Tensor
    indices: Tensor


@dataclass(frozen=True)
class LazyReport:
    """How the potentials of a lazy affinity were found.

    Attributes
    ----------
    solver : str
        ``"symmetric"`` or ``"alternating"``.
    n_iter : int
        Iterations (symmetric) or full sweeps (alternating) done.
    marginal_error : float
        Largest deviation of a row sum or column sum of the plan from one.
    converged : bool
        Whether the tolerance was reached; true for a fixed number of sweeps, which has no tolerance.
    kept : bool
        Whether the n × n matrix was held.
    bytes_estimated : int
        The memory planner's bound, beyond the input.
    """

    solver: str
    n_iter: int
    marginal_error: float
    converged: bool
    kept: bool
    bytes_estimated: int


class DensePlan:
    r"""The balanced affinities of one large set, and of items that arrive later.

    Made by :meth:`fit` or :meth:`load`; never changed afterwards.

    Attributes
    ----------
    features : Tensor, shape (n, d)
        Unit rows (cosine cost) or rows moved by the set's mean (squared Euclidean cost).
    log_u, log_v : Tensor, shape (n,), float64
        Potentials: the plan is exp(log_u_i + log_v_j − C_ij/reg) off the diagonal. Equal for the symmetric
        solver.
    scale : float
        What the plan is divided by: its largest off-diagonal entry, or 1 with ``scale=None``.
    reg : float
        Entropy weight.
    cost : str
        ``"cosine"`` or ``"sqeuclidean"``.
    diagonal : float
        W's diagonal.
    block : int
        Side of a tile.
    report : LazyReport
        How the potentials were found.

    Notes
    -----
    Time of one pass over the kernel is half a Gram product and n²/2 exponentials; :meth:`fit` makes one pass
    and keeps the kernel (4·n² bytes) when that is allowed, or one pass an iteration in O(n·(d + block))
    memory. Products are accumulated in float32 (float64 for float64 features); nothing here records
    gradients.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    >>> lazy = DensePlan.fit(x, reg=0.1)
    >>> lazy.dense().shape, lazy.rows([3, 5]).shape, lazy.top_k(10).indices.shape
    (torch.Size([200, 200]), torch.Size([2, 200]), torch.Size([200, 10]))
    >>> bool((lazy.transform(x[:4]) - lazy.rows([0, 1, 2, 3])).abs().max() < 1e-4)
    True
    """

    def __init__(
        self,
        features: Tensor,
        log_u: Tensor,
        log_v: Tensor,
        *,
        reg: float,
        cost: str,
        scale: float,
        diagonal: float,
        block: int,
        centre: Tensor | None,
        report: LazyReport,
    ) -> None:
        self.features = features
        self.log_u = log_u
        self.log_v = log_v
        self.reg = reg
        self.cost = cost
        self.diagonal = diagonal
        self.block = block
        self.report = report
        self._centre = centre
        self._gram = _Gram(features, cost, reg, block)
        self._matrix: Tensor | None = None
        self._symmetric = report.solver == "symmetric"
        self._set_scale(scale)

    @classmethod
    def fit(
        cls,
        x: Tensor | np.ndarray,
        *,
        reg: float,
        cost: Literal["cosine", "sqeuclidean"] = "cosine",
        solver: Literal["symmetric", "alternating"] = "symmetric",
        tol: float | None = None,
        n_iter: int | None = None,
        max_iter: int | None = None,
        scale: Literal["max"] | None = "max",
        diagonal: float = 1.0,
        block: int | None = None,
        budget: str | int | None = None,
        keep: bool | None = None,
        start: Tensor | None = None,
    ) -> DensePlan:
        """Balance one set and remember its potentials.

        Parameters
        ----------
        x : Tensor or ndarray, shape (n, d)
            Features of one set, n ≥ 2. Half precision is computed in float32. Copied; the input may be freed.
        reg : float
            Entropy weight.
        cost : {"cosine", "sqeuclidean"}
            What differs between two items.
        solver : {"symmetric", "alternating"}
            The converged symmetric plan (default: its potentials extend exactly to new items), or ``n_iter``
            sweeps.
        tol : float, optional
            Largest marginal error of the symmetric solver; 1e-6 (float64) or 3e-6.
        n_iter : int, optional
            Full sweeps of the alternating solver; 5.
        max_iter : int, optional
            Iterations of the symmetric solver, at most.
        scale : {"max"} or None
            Divide by the largest off-diagonal entry, or not.
        diagonal : float
            W's diagonal.
        block : int, optional
            Side of a streamed tile; never changes results beyond rounding.
        budget : str or int, optional
            Bytes allowed beyond the input, such as ``"2GB"``.
        keep : bool, optional
            Keep W (n × n) once it is built: the solver then needs one Gram product instead of one an
            iteration, and every later answer reads W. None keeps it where the budget allows (without a
            budget: up to 1 GiB).

        start : Tensor, shape (n,), optional
            Potentials to start the symmetric solver from, such as those of a set that has grown a little.

        Returns
        -------
        DensePlan

        Raises
        ------
        MemoryBudgetError
            When even the streamed computation would exceed the budget.
        """
        function = "DensePlan.fit"
        check_positive(reg, argument="reg", function=function)
        check_choice(cost, ("cosine", "sqeuclidean"), argument="cost", function=function)
        check_choice(solver, ("symmetric", "alternating"), argument="solver", function=function)
        check_choice(scale, ("max", None), argument="scale", function=function)
        if solver == "alternating" and (tol is not None or max_iter is not None):
            raise ArgumentError(
                f"The 'tol' and 'max_iter' parameters of {function} belong to solver='symmetric'."
            )
        if solver == "symmetric" and n_iter is not None:
            raise ArgumentError(
                f"The 'n_iter' parameter of {function} belongs to solver='alternating'; use max_iter."
            )
        x = _as_set(x, function)
        n, d = x.shape
        dtype = _compute_dtype(x)
        block = min(n, _BLOCK) if block is None else block
        check_count(block, argument="block", function=function)
        # What is kept is K, then W: numbers, so only where the exponential domain holds them.
        may_keep = cost == "cosine" and is_exponential_safe(2 / reg, dtype)
        keep, estimate = _plan_memory(n, d, dtype, block, budget, keep, may_keep)

        features, centre = _prepare(x, cost, dtype)
        gram = _Gram(features, cost, reg, block)
        if start is not None:
            if solver != "symmetric" or start.shape != (n,):
                raise ArgumentError(
                    f"The 'start' parameter of {function} holds one potential an item, ({n},), and belongs to "
                    f"solver='symmetric'. Got shape {tuple(start.shape)} with solver={solver!r}."
                )
            gram.offset = gram.offset - start.to(gram.offset)  # the solver looks for what is still missing
        kernel: _GramKernel = _KeptKernel(gram) if keep else _StreamedKernel(gram)
        if solver == "symmetric":
            tol = _TOLERANCE[dtype] if tol is None else tol
            check_positive(tol, argument="tol", function=function)
            ones = torch.zeros(n, dtype=torch.float64, device=features.device)
            found = symmetrise(kernel, ones, tol=tol, max_iter=500 if max_iter is None else max_iter)
            log_u = log_v = found.log_u if start is None else found.log_u + start.to(found.log_u)
            done, error = int(found.n_iter), float(found.marginal_error)
            converged = error <= tol
            if not converged:
                warnings.warn(
                    f"DensePlan.fit reached a marginal error of {error:.1e} after {done} iterations, not "
                    f"tol={tol:.1e}. Raise reg, tol or max_iter.",
                    ConvergenceWarning,
                    stacklevel=2,
                )
        else:
            done = 5 if n_iter is None else n_iter
            check_count(done, argument="n_iter", function=function)
            sweeps = alternate(kernel, n_iter=done)
            log_u, log_v = sweeps.log_u[-1].double(), sweeps.log_v[-1].double()
            error = float(torch.expm1(log_u + kernel.log_apply(log_v)).abs().max())  # columns are exact
            converged = True
        report = LazyReport(solver, done, error, converged, keep, estimate.total)
        fitted = cls(
            features, log_u, log_v, reg=float(reg), cost=cost, scale=1.0, diagonal=float(diagonal),
            block=block, centre=centre, report=report,
        )  # fmt: skip
        if keep:
            fitted._keep(cast(_KeptKernel, kernel), scale)
        elif scale == "max":
            fitted._set_scale(fitted._largest())
        return fitted

    @property
    def n(self) -> int:
        """Number of fitted items."""
        return self.features.shape[0]

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """All of W.

        Parameters
        ----------
        dtype : torch.dtype, optional
            Storage type, also ``torch.float16`` or ``torch.bfloat16``: entries are computed in float32, then
            rounded.

        Returns
        -------
        Tensor, shape (n, n)
            The kept matrix itself where there is one of that type: do not write into it.
        """
        dtype = self.features.dtype if dtype is None else dtype
        if self._matrix is not None:
            return self._matrix.to(dtype)
        out = torch.empty(self.n, self.n, dtype=dtype, device=self.features.device)
        for rows, columns, tile in self._gram.upper_tiles():
            if not self._symmetric:
                out[columns, rows] = self._finish(tile.T.clone(), columns, rows)
            self._finish(tile, rows, columns)
            if self._symmetric and rows == columns:
                _mirror(tile)
            out[rows, columns] = tile
            if self._symmetric and rows != columns:
                out[columns, rows] = tile.T
        out.fill_diagonal_(self.diagonal)
        return out

    def rows(self, index: Sequence[int] | Tensor | np.ndarray) -> Tensor:
        """Rows of W of chosen items.

        Parameters
        ----------
        index : sequence of int, shape (m,)
            Positions in the fitted set.

        Returns
        -------
        Tensor, shape (m, n)
        """
        index = self._index(index, "rows")
        if self._matrix is not None:
            return self._matrix[index]
        out = self.features.new_empty(len(index), self.n)
        for columns in _spans(self.n, self.block):
            self._block(index, columns, out=out[:, columns])
        return out

    def row_blocks(self, block: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Walk over W from the top: ``(rows, W[rows])``, ``block`` rows at a time.

        Yields
        ------
        tuple of (slice, Tensor of shape (block, n))
            A fresh tensor each time.
        """
        step = self.block if block is None else block
        check_count(step, argument="block", function="DensePlan.row_blocks")
        for rows in _spans(self.n, step):
            yield rows, self.rows(torch.arange(rows.start, rows.stop))

    def distances(
        self,
        i: Sequence[int] | Tensor | np.ndarray,
        j: Sequence[int] | Tensor | np.ndarray | None = None,
        *,
        metric: Literal["euclidean", "sqeuclidean", "cosine"] = "euclidean",
    ) -> Tensor:
        r"""Distances between W-rows of chosen items.

        Parameters
        ----------
        i : sequence of int, shape (m,)
            Positions in the fitted set.
        j : sequence of int, shape (p,), optional
            The other side; every item where it is left out.
        metric : {"euclidean", "sqeuclidean", "cosine"}
            :math:`\|W_i - W_j\|`, its square, or one minus the cosine of the rows.

        Returns
        -------
        Tensor, shape (m, p)
            Exactly 0 between an item and itself.

        Notes
        -----
        Every needed entry of W is built once: (m + p)·n·d + m·p·n multiply-adds, O((m + p)·block) memory
        beyond the answer.
        """
        check_choice(
            metric,
            ("euclidean", "sqeuclidean", "cosine"),
            argument="metric",
            function="DensePlan.distances",
        )
        left = self._index(i, "distances")
        right = torch.arange(self.n) if j is None else self._index(j, "distances")
        same = left.shape == right.shape and bool((left == right).all())
        out = self.features.new_zeros(len(left), len(right))
        left_squared, right_squared = out.new_zeros(len(left)), out.new_zeros(len(right))
        for columns in _spans(self.n, self.block):
            w_left = self._block(left, columns)
            w_right = w_left if same else self._block(right, columns)
            left_squared += w_left.square().sum(dim=1)
            right_squared += w_right.square().sum(dim=1)
            out.addmm_(w_left, w_right.T)
        if metric == "cosine":
            out.div_((left_squared[:, None] * right_squared).sqrt_()).neg_().add_(1)
        else:
            out.mul_(-2).add_(left_squared[:, None]).add_(right_squared)
        out.clamp_(min=0).masked_fill_(left[:, None] == right, 0)  # the same item: no rounding
        return out.sqrt_() if metric == "euclidean" else out

    def top_k(self, k: int) -> TopK:
        """The ``k`` largest entries of every row, the diagonal left out.

        Parameters
        ----------
        k : int
            At most n − 1.

        Returns
        -------
        TopK
            Named pair ``values``, ``indices``, each (n, k), largest first.
        """
        check_count(k, argument="k", function="DensePlan.top_k")
        if k > self.n - 1:
            raise ArgumentError(
                f"The 'k' parameter of DensePlan.top_k must be at most n − 1 = {self.n - 1}. Got {k}."
            )
        values = self.features.new_empty(self.n, k)
        indices = torch.empty(self.n, k, dtype=torch.int64, device=self.features.device)
        for rows in _spans(self.n, self.block):
            item = torch.arange(rows.start, rows.stop)
            best, where = values[rows][:, :0], indices[rows][:, :0]
            for columns in _spans(self.n, max(self.block, 2 * k)):
                tile = self._block(item, columns, diagonal=-1.0)  # below every entry
                there = torch.arange(columns.start, columns.stop).expand(len(item), -1)
                if tile.shape[1] > k:
                    tile, local = tile.topk(k, dim=1)
                    there = local + columns.start
                best, order = torch.cat([best, tile], dim=1).topk(
                    min(k, best.shape[1] + tile.shape[1]), dim=1
                )
                where = torch.cat([where, there], dim=1).gather(1, order)
            values[rows], indices[rows] = best, where
        return TopK(values, indices)

    def transform(self, x_new: Tensor | np.ndarray, *, recognise: bool = True) -> Tensor:
        """Rows for new items, from the fitted potentials.

        Parameters
        ----------
        x_new : Tensor or ndarray, shape (m, d)
            Features of items, as they were given to :meth:`fit`.
        recognise : bool
            Treat an item whose features equal those of a fitted item as that item: it does not match itself,
            and its entry there is ``diagonal``. The row then equals the fitted one to the reported marginal
            error.

        Returns
        -------
        Tensor, shape (m, n)
            Entry (q, j) is exp(f_q + log v_j − c_qj/reg) / scale with f_q such that the row of the plan sums
            to one.
        """
        return self._extend(x_new, self.log_v, recognise)

    def columns(self, x_new: Tensor | np.ndarray, *, recognise: bool = True) -> Tensor:
        """What each fitted item would send to each new item: the entries W_jq, shape (m, n).

        The coordinate that the rows of fitted items lack when a new item is compared with them. Equals
        :meth:`transform` for the symmetric solver.
        """
        return self._extend(x_new, self.log_u, recognise)

    def save(self, path: str | Path) -> None:
        """Write the object to an ``.npz`` file that needs no pickle. W itself is not written."""
        report = self.report
        with Path(path).open("wb") as file:
            np.savez(
                file,
                format=np.array("bpa.plans.dense.DensePlan/1"),
                features=self.features.numpy(force=True),
                log_u=self.log_u.numpy(force=True),
                log_v=self.log_v.numpy(force=True),
                centre=np.zeros(0) if self._centre is None else self._centre.numpy(force=True),
                numbers=np.array([self.reg, self.scale, self.diagonal, report.marginal_error]),
                counts=np.array(
                    [self.block, report.n_iter, report.converged, report.kept, report.bytes_estimated]
                ),
                names=np.array([self.cost, report.solver]),
            )

    @classmethod
    def load(cls, path: str | Path) -> DensePlan:
        """Read what :meth:`save` wrote.

        Raises
        ------
        FileError
            When the file is missing or is something else. Pickled content is never executed.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                if "format" not in stored or str(stored["format"]) != "bpa.plans.dense.DensePlan/1":
                    raise FileError(f"The file {str(path)!r} was not written by DensePlan.save.")
                content = {key: stored[key] for key in stored.files}
                features, log_u, log_v = (
                    torch.from_numpy(content[key]) for key in ("features", "log_u", "log_v")
                )
                reg, scale, diagonal, error = (float(value) for value in content["numbers"])
                block, n_iter, converged, kept, estimated = (int(value) for value in content["counts"])
                cost, solver = (str(value) for value in content["names"])
                centre = torch.from_numpy(content["centre"]) if content["centre"].size else None
        except FileError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error_of_file:
            raise FileError(
                f"The file {str(path)!r} cannot be read as a DensePlan: {error_of_file}."
            ) from None
        if features.dim() != 2 or log_u.shape != features.shape[:1] or log_v.shape != log_u.shape:
            raise FileError(f"The file {str(path)!r} holds arrays whose shapes do not belong together.")
        return cls(
            features, log_u, log_u if solver == "symmetric" else log_v, reg=reg, cost=cost, scale=scale,
            diagonal=diagonal, block=block, centre=centre,
            report=LazyReport(solver, n_iter, error, bool(converged), bool(kept), estimated),
        )  # fmt: skip

    # ------------------------------------------------------------------ pieces of W

    def _finish(self, tile: Tensor, rows: slice | Tensor, columns: slice) -> Tensor:
        """Turn a Gram tile into a tile of W in place; the diagonal is not set."""
        return tile.add_(self._log_left[rows][:, None]).add_(self._log_right[columns]).exp_()

    def _block(
        self, index: Tensor, columns: slice, *, diagonal: float | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Entries of W at the rows in ``index`` and a span of columns."""
        if self._matrix is not None:
            tile = self._matrix[:, columns][index]
        else:
            tile = self._gram.product(self.features[index], self.features[columns], out)
            self._finish(tile, index, columns)
        inside = ((index >= columns.start) & (index < columns.stop)).nonzero()[:, 0]
        tile[inside, index[inside] - columns.start] = self.diagonal if diagonal is None else diagonal
        return tile

    def _set_scale(self, scale: float) -> None:
        self.scale = scale
        offset = self._gram.offset
        dtype = self.features.dtype
        self._log_left = (self.log_u - offset - math.log(scale)).to(dtype)
        self._log_right = (self.log_v - offset).to(dtype)

    def _largest(self) -> float:
        """Largest off-diagonal entry of the plan."""
        left, right = self._log_left, self._log_right
        top = -math.inf
        for rows, columns, tile in self._gram.upper_tiles():
            if rows == columns:
                tile.fill_diagonal_(-math.inf)
            if not self._symmetric:
                top = max(top, float((tile + right[rows][:, None]).add_(left[columns]).max()))
            top = max(top, float(tile.add_(left[rows][:, None]).add_(right[columns]).max()))
        return math.exp(top)

    def _keep(self, kernel: _KeptKernel, scale: str | None) -> None:
        """Turn the kept kernel into W, in place."""
        matrix = kernel.matrix
        offset = self._gram.offset
        right = (self.log_v - offset).exp().to(matrix.dtype)
        left = (self.log_u - offset).exp().to(matrix.dtype)
        spans = _spans(self.n, max(1, self.block**2 // self.n))
        top = 0.0
        for rows in spans:  # one pass writes the plan and finds its maximum; u_i v_j first keeps it symmetric
            top = max(top, float(matrix[rows].mul_(torch.outer(left[rows], right)).max()))
        if scale == "max":
            self._set_scale(top)
            matrix.div_(top)
        self._matrix = matrix.fill_diagonal_(self.diagonal)

    def _extend(self, x_new: Tensor | np.ndarray, log_potential: Tensor, recognise: bool) -> Tensor:
        x_new = _as_set(x_new, "DensePlan.transform", minimum=1)
        if x_new.shape[1] != self.features.shape[1]:
            raise ShapeError(
                f"The 'x_new' parameter of DensePlan.transform must have {self.features.shape[1]} "
                f"features, as the fitted set. Got {x_new.shape[1]}."
            )
        dtype = self.features.dtype
        new, _ = _prepare(x_new, self.cost, dtype, centre=self._centre)
        right = (log_potential - self._gram.offset).to(dtype)
        out = self.features.new_empty(len(new), self.n)
        step = max(1, self.block**2 // self.n)
        for rows in _spans(len(new), step):
            logits = self._gram.product(new[rows], self.features, out[rows])
            offset = self._gram.offset.to(dtype)
            fitted = _same_item(new[rows], self.features, logits - offset) if recognise else None
            logits.add_(right)
            if fitted is not None:
                logits[fitted[0], fitted[1]] = -math.inf
            logits.sub_(torch.logsumexp(logits, dim=1, keepdim=True)).sub_(math.log(self.scale)).exp_()
            if fitted is not None:
                logits[fitted[0], fitted[1]] = self.diagonal
        return out

    def _index(self, index: Sequence[int] | Tensor | np.ndarray, function: str) -> Tensor:
        return _positions(index, self.n, f"DensePlan.{function}", self.features.device)


class _Gram:
    """Tiles of α·⟨x_i, x_j⟩, with the vector q such that −C_ij/reg = α⟨x_i, x_j⟩ − q_i − q_j."""

    def __init__(self, features: Tensor, cost: str, reg: float, block: int) -> None:
        self.features = features
        self.block = block
        if cost == "cosine":
            self.alpha = 1 / reg
            self.offset = torch.full_like(features[:, 0], 0.5 / reg, dtype=torch.float64)
        else:
            self.alpha = 2 / reg
            self.offset = (
                torch.cat(
                    [features[rows].double().square().sum(dim=1) for rows in _spans(len(features), block)]
                )
                / reg
            )
        self._spread = 4 * float(self.offset.max())  # |α⟨x_i, x_j⟩| ≤ 2·max q for both costs

    def is_exponential_safe(self) -> bool:
        """Whether exp(α⟨x_i, x_j⟩) can be held as numbers."""
        return is_exponential_safe(self._spread, self.features.dtype)

    def product(self, left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        """α · left rightᵀ."""
        out = left.new_empty(len(left), len(right)) if out is None else out
        return torch.addmm(out, left, right.T, beta=0, alpha=self.alpha, out=out)

    def upper_tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Tiles on and above the diagonal; one buffer, overwritten by the next tile."""
        spans = _spans(len(self.features), self.block)
        buffer = self.features.new_empty(self.block * self.block)
        for first, rows in enumerate(spans):
            for columns in spans[first:]:
                height, width = rows.stop - rows.start, columns.stop - columns.start
                tile = buffer[: height * width].view(height, width)
                yield rows, columns, self.product(self.features[rows], self.features[columns], tile)


class _GramKernel(ABC):
    """A symmetric kernel with marginals of one, as both solvers see it; its scalings are logarithms."""

    def __init__(self, gram: _Gram) -> None:
        self._gram = gram

    @abstractmethod
    def log_apply(self, log_u: Tensor) -> Tensor:
        """Return log(K exp(log_u)), in the number type of ``log_u``."""

    @abstractmethod
    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map w → diag(u) K diag(u) w."""

    @abstractmethod
    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        """For every row of diag(u) K diag(u), where its largest entry stands, and that entry's logarithm."""

    def start(self) -> Tensor:
        return torch.zeros_like(self._gram.offset)

    def match_rows(self, v: Tensor) -> Tensor:
        return -self.log_apply(v)

    def match_columns(self, u: Tensor) -> Tensor:
        return -self.log_apply(u)

    def log_row_scaling(self, u: Tensor) -> Tensor:
        return u

    def log_column_scaling(self, v: Tensor) -> Tensor:
        return v


class _KeptKernel(_GramKernel):
    """The kernel's numbers, n × n, built once from tiles above the diagonal."""

    def __init__(self, gram: _Gram) -> None:
        super().__init__(gram)
        n = len(gram.features)
        self.matrix = gram.features.new_empty(n, n)
        for rows, columns, tile in gram.upper_tiles():
            tile.exp_()
            if rows == columns:
                _mirror(tile)
            else:
                self.matrix[columns, rows] = tile.T
            self.matrix[rows, columns] = tile
        self.matrix.fill_diagonal_(0)

    def log_apply(self, log_u: Tensor) -> Tensor:
        w = log_u - self._gram.offset
        top = w.max()
        product = self.matrix @ (w - top).exp().to(self.matrix.dtype)
        return (product.to(w.dtype).log() + (top - self._gram.offset)).to(log_u.dtype)

    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        u = (log_u - self._gram.offset).exp()
        return lambda w: u * (self.matrix @ (u * w).to(self.matrix.dtype)).to(w.dtype)

    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        w = log_u - self._gram.offset
        u = (w - w.max()).exp().to(self.matrix.dtype)
        rows = _spans(len(u), max(1, self._gram.block**2 // len(u)))
        best = [(self.matrix[span] * u).max(dim=1) for span in rows]
        entry = torch.cat([found.values for found in best]).to(log_u.dtype)
        return torch.cat([found.indices for found in best]), (w + w.max() + entry.log()).to(log_u.dtype)


class _StreamedKernel(_GramKernel):
    """The kernel, rebuilt tile by tile at every application."""

    def log_apply(self, log_u: Tensor) -> Tensor:
        w = log_u.double() - self._gram.offset
        result = self._by_products(w) if self._gram.is_exponential_safe() else None
        if result is None or not bool(result.isfinite().all()):
            result = self._by_logarithms(w)
        return (result - self._gram.offset).to(log_u.dtype)

    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        a = (log_u - self._gram.offset).to(self._gram.features.dtype)

        def apply(w: Tensor) -> Tensor:
            w_tile = w.to(a.dtype)
            total = torch.zeros_like(w)
            for rows, columns, tile in self._gram.upper_tiles():
                tile.add_(a[rows][:, None]).add_(a[columns]).exp_()
                if rows == columns:
                    tile.fill_diagonal_(0)
                else:
                    total[columns] += w_tile[rows] @ tile
                total[rows] += tile @ w_tile[columns]
            return total

        return apply

    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        a = (log_u - self._gram.offset).to(self._gram.features.dtype)
        entry = torch.full_like(a, -math.inf)
        partner = torch.zeros_like(a, dtype=torch.int64)

        def improve(span: slice, start: int, value: Tensor, index: Tensor) -> None:
            better = value > entry[span]
            entry[span] = torch.where(better, value, entry[span])
            partner[span] = torch.where(better, index + start, partner[span])

        for rows, columns, tile in self._gram.upper_tiles():
            tile.add_(a[rows][:, None]).add_(a[columns])
            if rows == columns:
                tile.fill_diagonal_(-math.inf)
            else:
                improve(columns, rows.start, *tile.max(dim=0))
            improve(rows, columns.start, *tile.max(dim=1))
        return partner, entry.to(log_u.dtype)

    def _by_products(self, w: Tensor) -> Tensor:
        top = w.max()
        v = (w - top).exp().to(self._gram.features.dtype)
        total = torch.zeros_like(w)
        for rows, columns, tile in self._gram.upper_tiles():
            tile.exp_()
            if rows == columns:
                tile.fill_diagonal_(0)
            else:
                total[columns] += v[rows] @ tile
            total[rows] += tile @ v[columns]
        return total.log() + top

    def _by_logarithms(self, w: Tensor) -> Tensor:
        v = w.to(self._gram.features.dtype)
        total = torch.full_like(w, -math.inf)
        for rows, columns, tile in self._gram.upper_tiles():
            if rows == columns:
                tile.fill_diagonal_(-math.inf)
            else:
                part = torch.logsumexp(tile + v[rows][:, None], dim=0)
                total[columns] = torch.logaddexp(total[columns], part.double())
            part = torch.logsumexp(tile.add_(v[columns]), dim=1)
            total[rows] = torch.logaddexp(total[rows], part.double())
        return total


def _spans(n: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _positions(
    index: Sequence[int] | Tensor | np.ndarray, n: int, function: str, device: torch.device
) -> Tensor:
    """A list of positions in a set of ``n``, negative ones counted from the end."""
    position = torch.as_tensor(index, device=device)
    if position.dim() != 1 or position.dtype.is_floating_point or position.dtype == torch.bool:
        raise ArgumentError(
            f"{function} needs a list of positions (whole numbers). Got {position.dtype}, "
            f"shape {tuple(position.shape)}."
        )
    position = position.long()
    if position.numel() and not (-n <= int(position.min()) and int(position.max()) < n):
        raise ArgumentError(f"{function} got a position outside the {n} fitted items.")
    return position % n


def _mirror(tile: Tensor) -> None:
    """Copy what is above the diagonal below it: a product of rows is symmetric up to rounding only."""
    tile.triu_(1).add_(tile.T.clone())


def _as_set(x: Tensor | np.ndarray, function: str, *, minimum: int = 2) -> Tensor:
    """One set of floating point features."""
    x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    check_features(x, argument="x", function=function)
    if x.dim() != 2 or x.shape[0] < minimum:
        raise ShapeError(
            f"The 'x' parameter of {function} must have shape (n, d) with n ≥ {minimum}. "
            f"Got {tuple(x.shape)}."
        )
    for rows in _spans(len(x), 65536):
        check_finite(x[rows], argument="x", function=function)
    return x.detach()


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _prepare(
    x: Tensor, cost: str, dtype: torch.dtype, centre: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Features as the tiles want them, made block by block, and what was subtracted from them."""
    if cost == "cosine":
        out = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
        for rows in _spans(len(x), max(1, 2**20 // x.shape[1])):
            out[rows] = unit_rows(x[rows].to(dtype))
        return out, None
    centre = x.mean(dim=0, dtype=torch.float64).to(dtype) if centre is None else centre
    return x.to(dtype) - centre, centre


def _same_item(new: Tensor, fitted: Tensor, closeness: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs (row of ``new``, row of ``fitted``) that hold the same numbers; at most one a new row.

    ``closeness`` (m, n) is largest, up to rounding, where two rows are equal.
    """
    eps = torch.finfo(new.dtype).eps
    top = closeness.amax(dim=1, keepdim=True)
    return _equal_pairs(new, fitted, (closeness >= top - 64 * eps * (1 + top.abs())).nonzero())


def _equal_pairs(new: Tensor, fitted: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
    """Of candidate pairs, shape (c, 2), those that hold the same numbers; the first of each new row."""
    eps = torch.finfo(new.dtype).eps
    gap = (new[pair[:, 0]] - fitted[pair[:, 1]]).abs().amax(dim=1)
    pair = pair[gap <= 8 * eps * fitted[pair[:, 1]].abs().amax(dim=1)]
    first = torch.ones(len(pair), dtype=torch.bool, device=pair.device)
    first[1:] = pair[1:, 0] != pair[:-1, 0]
    pair = pair[first]
    return pair[:, 0], pair[:, 1]


def _plan_memory(
    n: int,
    d: int,
    dtype: torch.dtype,
    block: int,
    budget: str | int | None,
    keep: bool | None,
    may_keep: bool,
) -> tuple[bool, memory.MemoryEstimate]:
    """Decide whether the n × n matrix is kept, and refuse what exceeds the budget."""
    kept = memory.estimate_lazy(n, d, dtype=dtype, block=block, keep=True)
    streamed = memory.estimate_lazy(n, d, dtype=dtype, block=block, keep=False)
    if keep and not may_keep:
        raise ArgumentError(
            "The 'keep' parameter of DensePlan.fit needs a cosine cost and reg ≥ 0.03: below that the "
            "kernel's numbers leave float32. Pass keep=False."
        )
    if keep is None:
        limit = _KEEP_BYTES if budget is None else memory.parse_bytes(budget)
        size = n * n * dtype.itemsize if budget is None else kept.total
        keep = may_keep and size <= limit
    if keep:
        return True, memory.check(kept, budget, way_out="Pass keep=False to stream the kernel in tiles.")
    way_out = "Lower block, use a sparse plan (bpa.plans.graph), or raise the budget."
    return False, memory.check(streamed, budget, way_out=way_out)
