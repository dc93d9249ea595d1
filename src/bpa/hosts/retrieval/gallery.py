"""Frozen retrieval: balance the gallery once, then rank queries as they arrive.

The gallery's potentials stay as they are; a query gets the row that they give it (:mod:`bpa.plans`), and is compared
with the gallery's rows, each completed by the query's own column (:mod:`._kept`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bpa._blocks import block_rows, spans
from bpa._checks import check_count
from bpa._words import REG_WORDS, SOLVER_WORDS, explains
from bpa.errors import ArgumentError, MemoryBudgetError, ShapeError
from bpa.hosts.retrieval._kept import KeptRows, LargestEntries, WholeRows, kept_rows
from bpa.memory import format_bytes, parse_bytes
from bpa.plans import DensePlan, RowComparison
from bpa.plans._comparison import METRICS
from bpa.plans._files import PlanFile, write_plan
from bpa.plans._late import Late
from bpa.plans._pairs import holds_numbers
from bpa.plans._plan import Options
from bpa.solvers import Converged
from bpa.solvers._choice import Solver

__all__ = ["Gallery"]

_ROWS = RowComparison.retrieval()
_SOLVER = Converged(1e-4)
_STORAGES = {"": None, "torch.bfloat16": torch.bfloat16, "torch.float16": torch.float16}


class Gallery:
    """A balanced gallery that ranks itself for queries it has not seen.

    Made by :meth:`fit` or :meth:`load`; never changed afterwards (:meth:`add` returns another one).

    Attributes
    ----------
    plan : DensePlan
        The plan of the gallery (and of the bank behind it).
    rows : RowComparison
        How rows are compared.
    n_gallery : int
        The first so many fitted items are ranked; the others are third parties only.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> items = torch.randn(100, 8, generator=generator)
    >>> gallery = Gallery.fit(items)
    >>> query = items[:3] + 0.01 * torch.randn(3, 8, generator=generator)
    >>> gallery.distances(query).argmin(dim=1).tolist()
    [0, 1, 2]
    """

    def __init__(self, plan: DensePlan, rows: RowComparison, n_gallery: int, kept: KeptRows) -> None:
        self.plan = plan
        self.rows = rows
        self.n_gallery = n_gallery
        self._kept = kept

    @classmethod
    @explains(**REG_WORDS, **SOLVER_WORDS)
    def fit(
        cls,
        gallery: Tensor,
        bank: Tensor | None = None,
        *,
        reg: float | Literal["auto"] = "auto",
        cost: Literal["cosine", "centred-cosine", "sqeuclidean"] = "cosine",
        rows: RowComparison = _ROWS,
        solver: Solver = _SOLVER,
        storage: torch.dtype | None = None,
        budget: str | int | None = None,
    ) -> Gallery:
        """Balance a gallery and keep what ranking needs.

        Parameters
        ----------
        gallery : Tensor, shape (m, d)
        bank : Tensor, shape (b, d), optional
            Further items that take part as third parties, such as training queries; they are never ranked.
        reg : float or "auto"
            Entropy weight; ``"auto"`` as in :meth:`DensePlan.fit`. The mean it subtracts is kept for queries and later
            items.
        cost : {"cosine", "centred-cosine", "sqeuclidean"}
            What differs between two items.
        rows : RowComparison
            With ``top`` the rows are kept sparse; otherwise all of W is kept, (m + b)² numbers.
        solver : Converged or Sweeps
            Potentials converged to one in ten thousand (default), or some sweeps (the paper: ``Sweeps(5)``). On four
            real sets no query's average precision moved by 0.01 points between 1e-4 and 1e-6; 1e-3 moved some by 1.
        storage : torch.dtype, optional
            Type in which dense rows are kept: ``torch.bfloat16`` or ``torch.float16``.
        budget : str or int, optional
            Bytes allowed beyond the input, such as ``"2GB"``.

        Returns
        -------
        Gallery

        Raises
        ------
        MemoryBudgetError
            When dense rows would exceed the budget.
        """
        function = "Gallery.fit"
        if rows.neighbours is not None:
            raise ArgumentError(
                f"{function} keeps the plan over all pairs; use a RowComparison without 'neighbours' (rows may still "
                f"be truncated with 'top')."
            )
        if storage not in _STORAGES.values():
            raise ArgumentError(
                f"The 'storage' parameter of {function} must be torch.bfloat16 or torch.float16. Got {storage}."
            )
        items = gallery if bank is None else torch.cat([gallery, bank])
        if rows.top is None and budget is not None:
            need, limit = len(items) ** 2 * (storage or torch.float32).itemsize, parse_bytes(budget)
            if need > limit:
                raise MemoryBudgetError(
                    f"{function} keeps dense rows of {len(items)} items, {format_bytes(need)}, and the budget is "
                    f"{format_bytes(limit)}; pass rows=RowComparison(top=50) or storage=torch.bfloat16."
                )
        options = Options.checked(
            function, reg=reg, cost=cost, solver=solver, scale="max", diagonal=1.0, given_costs=False
        )
        held = rows.top is None and storage is None and holds_numbers(options.reg, cost, items.dtype)
        plan = DensePlan.of(items, options, keep=True if held else None, budget=budget)
        return cls._keeping(plan, rows, len(gallery), storage)

    @classmethod
    def _keeping(
        cls, plan: DensePlan, rows: RowComparison, n_gallery: int, storage: torch.dtype | None
    ) -> Gallery:
        plan, kept = kept_rows(plan, rows, n_gallery, storage)
        return cls(plan, rows, n_gallery, kept)

    @property
    def reg(self) -> float:
        """Entropy weight, as a number."""
        return self.plan.reg

    @property
    def potentials(self) -> Tensor:
        """Per-item log potentials of the gallery, shape (m,).

        ``cosine / reg + potential`` ranks like the entry :math:`w_{qj}`: append the potential to an inner-product index
        for a cheap first stage.
        """
        return self.plan.log_v[: self.n_gallery]

    def __repr__(self) -> str:
        return f"Gallery(n_gallery={self.n_gallery}, rows={self.rows.name!r}, plan={self.plan!r})"

    def row(self, query: Tensor) -> Tensor:
        """Rows of W for new items, shape (q, m + bank)."""
        query = self._prepared(query, "query", "row")
        return torch.cat([self.plan.met(query[span], recognise=False).rows() for span in self._blocks(query)])

    def distances(self, query: Tensor, candidates: Tensor | None = None) -> Tensor:
        """Compare queries with the gallery.

        Parameters
        ----------
        query : Tensor, shape (q, d)
            New items; a query that equals a gallery item is still another item.
        candidates : Tensor of int64, shape (q, c), optional
            Gallery positions to compare each query with; all of them where it is left out.

        Returns
        -------
        Tensor, shape (q, c) or (q, n_gallery)
            Distances of completed rows, as ``rows.measure`` says.
        """
        query = self._prepared(query, "query", "distances")
        if candidates is not None:
            self._check_candidates(candidates, len(query))
        width = self.n_gallery if candidates is None else candidates.shape[1]
        out = torch.empty(len(query), width, dtype=self.plan.features.dtype)
        for span in self._blocks(query):
            late = self.plan.met(query[span], recognise=False)
            out[span] = self._compare(late, None if candidates is None else candidates[span])
        return out

    def search(self, query: Tensor, *, shortlist: int = 200, top: int | None = None) -> tuple[Tensor, Tensor]:
        """Rank a short-list for every query: one product with the gallery, then rows of the candidates only.

        Parameters
        ----------
        query : Tensor, shape (q, d)
        shortlist : int
            Candidates, the nearest by plain cost.
        top : int, optional
            Answers kept; all candidates where it is left out.

        Returns
        -------
        index, distance : Tensor, shape (q, min(top, shortlist, n_gallery))
            Gallery positions, nearest first, and their distances.
        """
        query = self._prepared(query, "query", "search")
        check_count(shortlist, argument="shortlist", function="Gallery.search")
        shortlist = min(shortlist, self.n_gallery)
        top = shortlist if top is None else min(top, shortlist)
        index, distance = [], []
        for span in self._blocks(query):
            late = self.plan.met(query[span], recognise=False)
            candidates = self._nearest(late, shortlist)
            near, order = torch.sort(self._compare(late, candidates), dim=1)
            index.append(candidates.gather(1, order[:, :top]))
            distance.append(near[:, :top])
        return torch.cat(index), torch.cat(distance)

    def shortlist(self, query: Tensor, size: int) -> Tensor:
        """The nearest gallery items by plain cost, nearest first, (q, min(size, n_gallery)), for ``candidates``."""
        query = self._prepared(query, "query", "shortlist")
        check_count(size, argument="size", function="Gallery.shortlist")
        lates = (self.plan.met(query[span], recognise=False) for span in self._blocks(query))
        return torch.cat([self._nearest(late, min(size, self.n_gallery), in_order=True) for late in lates])

    def distances_to_new(self, query: Tensor, items: Tensor) -> Tensor:
        """Compare queries with items that arrived after the fit, too.

        Parameters
        ----------
        query : Tensor, shape (q, d)
        items : Tensor, shape (a, d)

        Returns
        -------
        Tensor, shape (q, a)
            Distances of rows completed by a coordinate for the query and one for the item.
        """
        query = self._prepared(query, "query", "distances_to_new")
        items = self._prepared(items, "items", "distances_to_new")
        right = self.plan.met(items, recognise=False)
        right_rows = right.rows()
        out = right_rows.new_empty(len(query), len(items))
        for span in self._blocks(query):
            left = self.plan.met(query[span], recognise=False)
            out[span] = self._kept.between_late(left.rows(), right_rows, left.exchanged(right))
        return out

    def fitted_distances(self, i: Tensor, j: Tensor | None = None) -> Tensor:
        """Distances between rows of fitted items, shape (len(i), len(j)); without ``j`` to the whole gallery."""
        return self._kept.between(i, torch.arange(self.n_gallery) if j is None else j)

    def add(self, items: Tensor, *, solver: Solver = _SOLVER) -> Gallery:
        """A gallery with further items, balanced again from the potentials found so far.

        Parameters
        ----------
        items : Tensor, shape (a, d)
            Appended behind the gallery (only where no bank was given).
        solver : Converged or Sweeps
            As in :meth:`fit`.

        Returns
        -------
        Gallery
            With the same weight and the same mean.
        """
        if self.n_gallery != self.plan.n:
            raise ArgumentError("Gallery.add needs a gallery fitted without a bank; fit both again together.")
        grown = self.plan.add(items, solver=solver)
        return self._keeping(grown, self.rows, grown.n, self._storage)

    def save(self, path: str | Path) -> None:
        """Write the plan and kept sparse rows to a file that needs no pickle; :meth:`load` reads it.

        Dense rows are not written; :meth:`load` builds them again from the potentials.

        Parameters
        ----------
        path : str or Path
            Replaced at once, when everything is written.
        """
        kept = {"values": torch.zeros(0), "columns": torch.zeros(0)}
        if isinstance(self._kept, LargestEntries):
            kept = {"values": self._kept.values, "columns": self._kept.columns}
        write_plan(
            path, "gallery", self.plan, n_gallery=self.n_gallery, measure=self.rows.measure, top=self.rows.top or 0,
            storage="" if self._storage is None else str(self._storage), **kept,
        )  # fmt: skip

    @classmethod
    def load(cls, path: str | Path) -> Gallery:
        """Read what :meth:`save` wrote; pickled content is never executed.

        Parameters
        ----------
        path : str or Path

        Returns
        -------
        Gallery

        Raises
        ------
        FileError
            When the file is missing, damaged, something else, or of another version.
        """
        file = PlanFile(path)
        file.check_kind("gallery")
        plan = DensePlan.from_file(file)
        if plan.preparation is None:
            raise file.wrong("a gallery has features, not costs")
        n_gallery = file.count("n_gallery", least=1, most=plan.n)
        measure: Any = file.choice("measure", METRICS)
        rows = RowComparison(measure, top=file.count("top") or None)
        storage = _STORAGES[file.choice("storage", tuple(_STORAGES))]
        if rows.top is None:
            for name in ("values", "columns"):
                file.skip_empty(name)
            file.check_all_read()
            return cls._keeping(plan, rows, n_gallery, storage)
        shape = n_gallery, min(rows.top, plan.n - 1)
        columns = file.positions("columns", shape, plan.n - 1).long()
        values = file.floats("values", shape)
        file.check_all_read()
        return cls(plan, rows, n_gallery, LargestEntries(values, columns, rows, plan.n))

    # ------------------------------------------------------------------ comparing

    @property
    def _storage(self) -> torch.dtype | None:
        """Type of dense rows, where it is not that of the features."""
        held = self._kept.rows.dtype if isinstance(self._kept, WholeRows) else self.plan.features.dtype
        return None if held == self.plan.features.dtype else held

    def _prepared(self, items: Tensor, argument: str, method: str) -> Tensor:
        """Items as the fitted ones were prepared."""
        if items.dim() == 1:
            raise ShapeError(
                f"The {argument!r} parameter of Gallery.{method} must have shape (n, d). Got {tuple(items.shape)}. "
                f"A single one is {argument}[None]."
            )
        return self.plan.prepared(items, argument=argument, function=f"Gallery.{method}")

    def _check_candidates(self, candidates: Tensor, n_query: int) -> None:
        if candidates.dim() != 2 or len(candidates) != n_query:
            raise ShapeError(
                f"The 'candidates' parameter of Gallery.distances must have shape ({n_query}, c). "
                f"Got {tuple(candidates.shape)}."
            )
        if candidates.numel():
            low, high = int(candidates.min()), int(candidates.max())
            if low < 0 or high >= self.n_gallery:
                raise ArgumentError(
                    f"The 'candidates' parameter of Gallery.distances must hold positions 0..{self.n_gallery - 1}. "
                    f"Got {low}..{high}."
                )

    def _blocks(self, query: Tensor) -> list[slice]:
        return list(spans(len(query), block_rows(self.plan.n, 8)))

    def _nearest(self, late: Late, size: int, *, in_order: bool = False) -> Tensor:
        """Positions of the nearest gallery items by plain cost."""
        return torch.topk(late.closeness()[:, : self.n_gallery], size, dim=1, sorted=in_order).indices

    def _compare(self, late: Late, candidates: Tensor | None) -> Tensor:
        row, column = late.rows_and_columns()
        column = column[:, : self.n_gallery] if candidates is None else column.gather(1, candidates)
        return self._kept.compare(row, column, candidates)
