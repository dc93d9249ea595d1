r"""Frozen retrieval: balance the gallery once, then rank queries as they arrive.

The gallery's potentials stay as they are. A query with costs :math:`c_j` to the gallery gets the row

.. math:: w_{qj} = \frac{1}{M}\exp(f_q + g_j - c_j/\mathrm{reg}), \qquad f_q = -\operatorname{logsumexp}_j(g_j
- c_j/\mathrm{reg}),

and is compared with a gallery row :math:`W_j` that is completed by the query's own column:

.. math:: D^2(q, j) = \sum_k (w_{qk} - W_{jk})^2 + (1 - w_{jq})^2.

Without the last term, the coordinate in which the query itself lies, mean average precision drops by up to
0.055.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bpa._checks import check_count
from bpa.cost import cosine_cost, sqeuclidean_cost, unit_rows
from bpa.errors import ArgumentError, FileError, MemoryBudgetError, ShapeError
from bpa.memory import format_bytes, parse_bytes
from bpa.plans.comparison import (
    RETRIEVAL,
    RowComparison,
    centred_rows,
    chosen_reg,
    compare_dense,
    compare_sparse,
    squared_norms,
    truncate,
)
from bpa.plans.dense import DensePlan, LazyReport
from bpa.plans.neighbours import block_rows, spans
from bpa.plans.sparse_rows import SparseRows, products

__all__ = ["Gallery"]

_FORMAT = "bpa.hosts.retrieval.Gallery/1"


class Gallery:
    """A balanced gallery that ranks itself for queries it has not seen.

    Made by :meth:`fit` or :meth:`load`; never changed afterwards (:meth:`add` returns another one).

    Attributes
    ----------
    lazy : DensePlan
        Features and potentials of the gallery (and of the bank behind it).
    rows : RowComparison
        How rows are compared.
    n_gallery : int
        The first so many fitted items are ranked; the others are third parties only.
    mean : Tensor, shape (d,), or None
        Subtracted from unit rows before anything else.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> gallery = torch.randn(100, 8, generator=generator)
    >>> frozen = Gallery.fit(gallery, reg=0.2)
    >>> query = gallery[:3] + 0.01 * torch.randn(3, 8, generator=generator)
    >>> frozen.distances(query).argmin(dim=1).tolist()
    [0, 1, 2]
    """

    def __init__(
        self,
        lazy: DensePlan,
        rows: RowComparison,
        n_gallery: int,
        *,
        dense: Tensor | None = None,
        columns: Tensor | None = None,
        shares: Tensor | None = None,
        totals: Tensor | None = None,
        smallest: Tensor | None = None,
        mean: Tensor | None = None,
    ) -> None:
        self.lazy = lazy
        self.mean = mean
        self.rows = rows
        self.n_gallery = n_gallery
        dtype = lazy.features.dtype
        # only differences of potentials matter here, and their exponentials must fit the number type
        self._u = (lazy.log_u - lazy.log_u.max()).exp().to(dtype)
        self._v = (lazy.log_v - lazy.log_v.max()).exp().to(dtype)
        self._lengths = squared_norms(lazy.features) if lazy.cost != "cosine" else torch.zeros(1, dtype=dtype)
        self._dense = dense
        self._columns, self._shares, self._totals, self._smallest = columns, shares, totals, smallest
        if shares is not None and columns is not None:
            self._share_norm = shares.square().sum(dim=1)
            self._inverted = _off_diagonal(columns, shares, lazy.n).transpose()
        elif dense is not None:
            self._dense_norm = squared_norms(dense)

    @classmethod
    def fit(
        cls,
        gallery: Tensor,
        bank: Tensor | None = None,
        *,
        reg: float | Literal["auto"],
        centre: bool = False,
        cost: Literal["cosine", "sqeuclidean"] = "cosine",
        rows: RowComparison = RETRIEVAL,
        tol: float = 1e-4,
        max_iter: int | None = None,
        n_iter: int | None = None,
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
            Entropy weight; ``"auto"`` centres the features and takes 0.15.
        centre : bool
            Subtract the mean of the unit rows first; the mean is kept for queries and later items.
        cost : {"cosine", "sqeuclidean"}
        rows : RowComparison
            With ``top`` the rows are kept sparse; otherwise all of W is kept, (m + b)² numbers.
        tol : float
            Largest marginal error of the converged potentials.
        max_iter : int, optional
            Iterations, at most.
        n_iter : int, optional
            That many alternating sweeps (the paper: 5) instead of converged potentials.
        storage : torch.dtype, optional
            Type in which dense rows are kept, such as ``torch.bfloat16``.
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
        if rows.neighbours is not None:
            raise ArgumentError(
                "Gallery keeps the plan over all pairs; use a RowComparison without 'neighbours' (rows "
                "may still be "
                "truncated with 'top')."
            )
        items = gallery if bank is None else torch.cat([gallery, bank])
        n = len(items)
        reg, centre = chosen_reg(reg, centre, cost, "Gallery.fit")
        mean = None
        if centre:
            items, mean = centred_rows(items)
        if rows.top is None and budget is not None:
            need = n * n * (torch.float32 if storage is None else storage).itemsize
            if need > parse_bytes(budget):
                raise MemoryBudgetError(
                    f"Gallery.fit keeps dense rows of {n} items, {format_bytes(need)}, and the budget is "
                    f"{format_bytes(parse_bytes(budget))}; pass rows=RowComparison(top=50) or "
                    f"storage=torch.bfloat16."
                )
        keep = (
            True if rows.top is None and storage is None and _fits_numbers(cost, reg, items.dtype) else None
        )
        if n_iter is None:
            lazy = DensePlan.fit(
                items, reg=reg, cost=cost, tol=tol, max_iter=max_iter, budget=budget, keep=keep
            )
        else:
            lazy = DensePlan.fit(
                items, reg=reg, cost=cost, solver="alternating", n_iter=n_iter, budget=budget, keep=keep
            )
        return cls._keep(lazy, rows, len(gallery), storage, mean)

    @classmethod
    def _keep(
        cls,
        lazy: DensePlan,
        rows: RowComparison,
        n_gallery: int,
        storage: torch.dtype | None,
        mean: Tensor | None,
    ) -> Gallery:
        if rows.top is None:
            return cls(lazy, rows, n_gallery, dense=lazy.dense(storage)[:n_gallery], mean=mean)
        best = lazy.top_k(min(rows.top, lazy.n - 1))
        values, columns = best.values[:n_gallery], best.indices[:n_gallery]
        totals = values.sum(dim=1)
        shares = values / totals.clamp_min(torch.finfo(values.dtype).tiny)[:, None]
        lean = DensePlan(
            lazy.features, lazy.log_u, lazy.log_v, reg=lazy.reg, cost=lazy.cost, scale=lazy.scale,
            diagonal=lazy.diagonal, block=lazy.block, centre=lazy._centre, report=lazy.report,
        )  # fmt: skip
        return cls(
            lean,
            rows,
            n_gallery,
            columns=columns,
            shares=shares,
            totals=totals,
            smallest=values[:, -1].clone(),
            mean=mean,
        )

    @property
    def reg(self) -> float:
        """Entropy weight."""
        return self.lazy.reg

    @property
    def potentials(self) -> Tensor:
        """Per-item log potentials of the gallery, shape (m,).

        ``cosine / reg + potential`` ranks like the entry :math:`w_{qj}`: append the potential to an
        inner-product index for a cheap first stage.
        """
        return self.lazy.log_v[: self.n_gallery]

    def row(self, query: Tensor) -> Tensor:
        """Rows of W for new items, shape (q, m + bank)."""
        return self.lazy.transform(self._moved(query), recognise=False)

    def _moved(self, items: Tensor) -> Tensor:
        """New items where the fitted ones are: centred, where those were."""
        items = items.to(self.lazy.features.dtype)
        return items if self.mean is None else unit_rows(items) - self.mean

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
            Squared Euclidean distances, or one minus cosines, of completed rows.
        """
        if query.dim() != 2:
            raise ShapeError(
                "The 'query' parameter of Gallery.distances must have shape (q, d). "
                f"Got {tuple(query.shape)}. A single query is query[None]."
            )
        if candidates is not None and (candidates.dim() != 2 or len(candidates) != len(query)):
            raise ShapeError(
                f"The 'candidates' parameter of Gallery.distances must have shape ({len(query)}, c). "
                f"Got {tuple(candidates.shape)}."
            )
        if candidates is not None and candidates.numel():
            low, high = int(candidates.min()), int(candidates.max())
            if low < 0 or high >= self.n_gallery:
                raise ArgumentError(
                    f"The 'candidates' parameter of Gallery.distances must hold positions "
                    f"0..{self.n_gallery - 1}. "
                    f"Got {low}..{high}."
                )
        width = self.n_gallery if candidates is None else candidates.shape[1]
        out = torch.empty(len(query), width, dtype=self.lazy.features.dtype)
        for start, stop in spans(len(query), block_rows(self.lazy.n, 8)):
            chosen = None if candidates is None else candidates[start:stop]
            out[start:stop] = self._compare(self._kernel(query[start:stop]), chosen)
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
        check_count(shortlist, argument="shortlist", function="Gallery.search")
        shortlist = min(shortlist, self.n_gallery)
        top = shortlist if top is None else min(top, shortlist)
        index, distance = [], []
        for start, stop in spans(len(query), block_rows(self.lazy.n, 8)):
            logits = self._kernel(query[start:stop])
            candidates = torch.topk(logits[:, : self.n_gallery], shortlist, dim=1, sorted=False).indices
            near, order = torch.sort(self._compare(logits, candidates), dim=1)
            index.append(candidates.gather(1, order[:, :top]))
            distance.append(near[:, :top])
        return torch.cat(index), torch.cat(distance)

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
        left, right = self.row(query), self.row(items)
        dtype = left.dtype
        pairwise = cosine_cost if self.lazy.cost == "cosine" else sqeuclidean_cost
        mutual = pairwise(self._moved(items), self._moved(query)).double() / self.lazy.reg
        potential = self._late_potential(items)[:, None] + self._late_potential(query)[None]
        entries = ((potential - mutual).exp() / self.lazy.scale).to(
            dtype
        )  # what an item and a query exchange
        out = left.new_empty(len(query), len(items))
        for a in range(len(items)):
            for q in range(len(query)):
                entry = entries[a, q : q + 1]
                mine = self._completed(torch.cat([left[q], entry]))
                other = self._completed(torch.cat([right[a], entry]))
                # last coordinates: the query's column, the item's column
                mine = torch.cat([mine[:-1], torch.ones_like(entry), mine[-1:]])
                other = torch.cat([other, torch.ones_like(entry)])
                out[q, a] = compare_dense(mine[None], other[None], self.rows.measure)[0, 0]
        return out

    def _late_potential(self, items: Tensor) -> Tensor:
        """Row potentials of new items, minus the log-sum-exp of what the fitted ones offer."""
        before = self.lazy.features
        if self.lazy._centre is not None:
            before = before + self.lazy._centre.to(before.dtype)
        pairwise = cosine_cost if self.lazy.cost == "cosine" else sqeuclidean_cost
        cost = pairwise(before, self._moved(items)).T.double()
        return -torch.logsumexp(self.lazy.log_v - cost / self.lazy.reg, dim=1)

    def _completed(self, row: Tensor) -> Tensor:
        """One row as it is compared: whole, or its largest entries shared out."""
        if self.rows.top is None:
            return row
        value, index = torch.topk(row, min(self.rows.top, len(row)))
        return torch.zeros_like(row).scatter_(
            0, index, value / value.sum().clamp_min(torch.finfo(row.dtype).tiny)
        )

    def shortlist(self, query: Tensor, size: int) -> Tensor:
        """The nearest gallery items by plain cost, shape (q, min(size, n_gallery)), for ``candidates``."""
        check_count(size, argument="size", function="Gallery.shortlist")
        size = min(size, self.n_gallery)
        pieces = [
            torch.topk(self._kernel(query[start:stop])[:, : self.n_gallery], size, dim=1).indices
            for start, stop in spans(len(query), block_rows(self.lazy.n, 8))
        ]
        return torch.cat(pieces)

    def fitted_distances(self, i: Tensor, j: Tensor | None = None) -> Tensor:
        """Distances between rows of fitted items, shape (len(i), len(j)); without ``j`` to the whole gallery."""
        right = torch.arange(self.n_gallery) if j is None else j
        if self._columns is not None:
            left_rows, right_rows = self._fitted(i), self._fitted(right)
            return compare_sparse(left_rows, right_rows, self.rows.measure)
        assert self._dense is not None  # noqa: S101 - one of the two is kept
        compute = self.lazy.features.dtype
        return compare_dense(self._dense[i].to(compute), self._dense[right].to(compute), self.rows.measure)

    def add(self, items: Tensor, *, tol: float = 1e-4, max_iter: int | None = None) -> Gallery:
        """A gallery with further items, balanced again from the potentials found so far.

        Parameters
        ----------
        items : Tensor, shape (a, d)
            Appended behind the gallery (only where no bank was given).
        tol, max_iter
            As in :meth:`fit`.

        Returns
        -------
        Gallery
        """
        if self.n_gallery != self.lazy.n:
            raise ArgumentError("Gallery.add needs a gallery fitted without a bank; fit both again together.")
        lazy = self.lazy
        before = (
            lazy.features if lazy._centre is None else lazy.features + lazy._centre.to(lazy.features.dtype)
        )
        after = torch.cat([before, self._moved(items)])
        late = [self._late_potential(part) for part in torch.split(items, 1024)]
        held = self._dense is not None and self._dense.dtype == lazy.features.dtype
        keep = True if held and _fits_numbers(lazy.cost, lazy.reg, lazy.features.dtype) else None
        grown = DensePlan.fit(
            after,
            reg=lazy.reg,
            cost="cosine" if lazy.cost == "cosine" else "sqeuclidean",
            tol=tol,
            max_iter=max_iter,
            keep=keep,
            start=torch.cat([lazy.log_v, *late]),
        )
        storage = None if self._dense is None else self._dense.dtype
        return self._keep(grown, self.rows, grown.n, storage, self.mean)

    def save(self, path: str | Path) -> None:
        """Write potentials, features and kept sparse rows to an ``.npz`` that needs no pickle.

        Dense rows are not written; :meth:`load` builds them again from the potentials.
        """
        lazy = self.lazy
        empty = np.zeros(0)
        storage, values = "", empty
        if self._dense is not None and self._dense.dtype != lazy.features.dtype:
            storage = str(self._dense.dtype)
        if self._shares is not None and self._totals is not None:
            values = (self._shares * self._totals[:, None]).numpy()
        with Path(path).open("wb") as file:
            np.savez(
                file,
                format=np.array(_FORMAT),
                features=lazy.features.numpy(),
                log_u=lazy.log_u.numpy(),
                log_v=lazy.log_v.numpy(),
                centre=empty if lazy._centre is None else lazy._centre.numpy(),
                numbers=np.array([lazy.reg, lazy.scale, lazy.diagonal, lazy.report.marginal_error]),
                counts=np.array(
                    [
                        lazy.block,
                        lazy.report.n_iter,
                        lazy.report.converged,
                        self.n_gallery,
                        0 if self.rows.top is None else self.rows.top,
                    ]
                ),
                names=np.array([lazy.cost, lazy.report.solver, self.rows.measure, storage]),
                mean=empty if self.mean is None else self.mean.numpy(),
                columns=empty if self._columns is None else self._columns.numpy(),
                values=values,
            )

    @classmethod
    def load(cls, path: str | Path) -> Gallery:
        """Read what :meth:`save` wrote; pickled content is never executed.

        Raises
        ------
        FileError
            When the file is missing or is something else.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                if "format" not in stored or str(stored["format"]) != _FORMAT:
                    raise FileError(f"The file {str(path)!r} was not written by Gallery.save.")
                content = {key: stored[key] for key in stored.files}
            features, log_u, log_v = (
                torch.from_numpy(content[key]) for key in ("features", "log_u", "log_v")
            )
            reg, scale, diagonal, error = (float(value) for value in content["numbers"])
            block, n_iter, converged, n_gallery, top = (int(value) for value in content["counts"])
            cost, solver, measure, storage = (str(value) for value in content["names"])
            _ = content["mean"], content["centre"]
        except FileError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as cause:
            raise FileError(f"The file {str(path)!r} cannot be read as a Gallery: {cause}.") from None
        n = len(features)
        if features.ndim != 2 or log_u.shape != (n,) or log_v.shape != (n,) or not 1 <= n_gallery <= n:
            raise FileError(f"The file {str(path)!r} holds arrays whose shapes do not belong together.")
        report = LazyReport(solver, n_iter, error, bool(converged), False, 0)
        centre = torch.from_numpy(content["centre"]) if content["centre"].size else None
        mean = torch.from_numpy(content["mean"]) if content["mean"].size else None
        lazy = DensePlan(
            features, log_u, log_u if solver == "symmetric" else log_v, reg=reg, cost=cost, scale=scale,
            diagonal=diagonal, block=block, centre=centre, report=report,
        )  # fmt: skip
        rows = RowComparison(measure="cosine" if measure == "cosine" else "euclidean", top=top or None)
        if not top:
            kept = {"torch.bfloat16": torch.bfloat16, "torch.float16": torch.float16}.get(storage)
            return cls._keep(lazy, rows, n_gallery, kept, mean)
        values, columns = torch.from_numpy(content["values"]), torch.from_numpy(content["columns"])
        if values.shape != columns.shape or len(values) != n_gallery or columns.max() >= n:
            raise FileError(f"The file {str(path)!r} holds arrays whose shapes do not belong together.")
        totals = values.sum(dim=1)
        shares = values / totals.clamp_min(torch.finfo(values.dtype).tiny)[:, None]
        return cls(
            lazy,
            rows,
            n_gallery,
            columns=columns,
            shares=shares,
            totals=totals,
            smallest=values[:, -1].clone(),
            mean=mean,
        )

    # ------------------------------------------------------------------ comparing

    def _kernel(self, query: Tensor) -> Tensor:
        """exp(−cost/reg) of queries to all fitted items, each row up to its own factor; one product, (q, n)."""
        lazy = self.lazy
        dtype = lazy.features.dtype
        moved = self._moved(query)
        if lazy.cost == "cosine":
            return _scores(unit_rows(moved), lazy.features, 1 / lazy.reg)
        if lazy._centre is not None:
            moved = moved - lazy._centre.to(dtype)
        return _scores(moved, lazy.features, 2 / lazy.reg).sub_(self._lengths / lazy.reg)

    def _compare(self, logits: Tensor, candidates: Tensor | None) -> Tensor:
        """Distances from −cost/reg, which is overwritten."""
        kernel = logits.sub_(logits.amax(dim=1, keepdim=True)).exp_()
        # row: f_q = −log Σ_j K_qj v_j; column: g_q = −log Σ_j K_qj u_j
        row_factor = 1 / (self.lazy.scale * (kernel @ self._v))
        column_factor = 1 / (self.lazy.scale * (kernel @ self._u))
        if candidates is None:
            column = kernel[:, : self.n_gallery] * self._u[: self.n_gallery] * column_factor[:, None]
        else:
            column = kernel.gather(1, candidates) * self._u[candidates] * column_factor[:, None]
        row = kernel.mul_(row_factor[:, None]).mul_(self._v)
        if self._columns is not None:
            return self._compare_sparse(row, column, candidates)
        return self._compare_dense(row, column, candidates)

    def _compare_dense(self, row: Tensor, column: Tensor, candidates: Tensor | None) -> Tensor:
        assert self._dense is not None  # noqa: S101 - chosen by the caller
        dense = self._dense
        q = len(row)
        own = row.square().sum(dim=1) + 1
        if candidates is None:
            dot = row.new_empty(q, self.n_gallery)
            for start, stop in spans(self.n_gallery, block_rows(self.lazy.n, 4)):
                torch.mm(row, dense[start:stop].to(row.dtype).T, out=dot[:, start:stop])
            norm = self._dense_norm.to(row.dtype)[None].expand(q, -1)
        else:
            dot = row.new_empty(candidates.shape)
            piece = 16  # rows gathered at once stay in cache
            buffer = dense.new_empty(piece, dense.shape[1])
            for i in range(q):
                for start, stop in spans(candidates.shape[1], piece):
                    part = buffer[: stop - start]
                    torch.index_select(dense, 0, candidates[i, start:stop], out=part)
                    dot[i, start:stop] = part.to(row.dtype) @ row[i]
            norm = self._dense_norm.to(row.dtype)[candidates]
        return _complete(dot + column, own, norm + column.square(), self.rows.measure)

    def _compare_sparse(self, row: Tensor, column: Tensor, candidates: Tensor | None) -> Tensor:
        assert self._columns is not None  # noqa: S101 - chosen by the caller
        assert self._shares is not None  # noqa: S101
        assert self._totals is not None  # noqa: S101
        assert self._smallest is not None  # noqa: S101
        q, k = len(row), min(self._columns.shape[1], row.shape[1])
        value, index = torch.topk(row, k, dim=1)
        value = value / value.sum(dim=1, keepdim=True).clamp_min(torch.finfo(row.dtype).tiny)
        own = value.square().sum(dim=1) + 1
        kept = torch.zeros_like(row).scatter_(1, index, value)
        if candidates is None:
            dot = products(_off_diagonal(index, value, row.shape[1]), self._inverted)
            totals, smallest, norm = self._totals[None], self._smallest[None], self._share_norm[None]
            at_item = kept[:, : self.n_gallery]
        else:
            dot = row.new_empty(candidates.shape)
            for i in range(q):
                rows = candidates[i]
                dot[i] = (kept[i][self._columns[rows]] * self._shares[rows]).sum(dim=1)
            totals, smallest, norm = (
                self._totals[candidates],
                self._smallest[candidates],
                self._share_norm[candidates],
            )
            at_item = kept.gather(1, candidates)
        # the query joins the item's list where it is large enough, and the list is shared out again
        joins = torch.where(column >= smallest, column, torch.zeros_like(column))
        shrink = totals / (totals + joins).clamp_min(torch.finfo(row.dtype).tiny)
        share = 1 - shrink
        dot = dot * shrink + at_item + share
        return _complete(dot, own, norm * shrink.square() + 1 + share.square(), self.rows.measure)

    def _fitted(self, index: Tensor) -> SparseRows:
        assert self._columns is not None  # noqa: S101 - chosen by the caller
        assert self._shares is not None  # noqa: S101
        return truncate(self._shares[index], self._columns[index], index, self.lazy.n)


def _fits_numbers(cost: str, reg: float, dtype: torch.dtype) -> bool:
    """Whether the kernel can be held as numbers: its logarithms span at most 2 / reg for the cosine cost."""
    return cost == "cosine" and 2 / reg <= (600.0 if dtype == torch.float64 else 67.0)


def _scores(left: Tensor, right: Tensor, factor: float) -> Tensor:
    if len(left) == 1:  # a matrix-vector product reads the gallery once, at the speed of memory
        return torch.mv(right, left[0]).mul_(factor)[None]
    out = left.new_empty(len(left), len(right))
    return torch.addmm(out, left, right.T, beta=0, alpha=factor, out=out)


def _off_diagonal(columns: Tensor, values: Tensor, n: int) -> SparseRows:
    """Rows of k entries each, columns ascending."""
    m, k = columns.shape
    column, order = torch.sort(columns, dim=1)
    return SparseRows(
        torch.arange(m + 1) * k, column.reshape(-1), values.gather(1, order).reshape(-1), (m, n)
    )


def _complete(dot: Tensor, own: Tensor, norm: Tensor, measure: str) -> Tensor:
    """Distances from inner products and squared norms, the latter per pair."""
    if measure == "cosine":
        return 1 - dot * (own[:, None] * norm).clamp_min(torch.finfo(dot.dtype).tiny).rsqrt()
    return (own[:, None] + norm - 2 * dot).clamp_min(0)
