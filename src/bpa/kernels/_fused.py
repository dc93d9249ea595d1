r"""Cosine features to W in one buffer: what the default call of the transform runs.

The same numbers as cost → log K → plan → W room by room, for the case almost everybody uses: cosine cost, alternating
sweeps, no mask. The Gram matrix is written into the output and turned, in place, into K and then into W. Since
:math:`e^{(\cos - 1)/\mathrm{reg}}` and :math:`e^{\cos/\mathrm{reg}}` balance to the same plan, the constant
is left out, which also centres the range of K around one. The backward pass keeps x, W and n-vectors.

Small sets go through in chunks that stay in the cache; a large set goes through in panels of rows, of which only those
on and above the diagonal are computed. No second n × n buffer is ever held, forward or backward, and the one there is
lies on huge pages where the system gives them: touching 64 MB for the first time costs 30 ms in pages of 4 kB, more
than all ten half-sweeps at n = 4,000, and 7 ms in pages of 2 MB.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor

from bpa._checks import check_finite, is_tracing
from bpa.cost import unit_rows
from bpa.kernels._dense import cosine_bounds
from bpa.kernels._recipe import Recipe, Request
from bpa.records import Convergence
from bpa.solvers import Sweeps
from bpa.solvers._gradients import ScaledPlan, alternating_adjoint
from bpa.solvers._plan import KernelFacts, move_batch_first, refuse_second_derivative
from bpa.solvers._sinkhorn import Scalings, alternate

__all__ = ["Fused"]

_PANEL = 256
"""Rows of one panel of a large set."""
_LARGE = 600
"""Sets of more items than this are computed by panels."""
_ORDINARY_SQUARED_NORM = (1e-24, 1e30)
"""Squared row norms between these are normalised after the Gram product; others, zero among them, beforehand."""
_CHUNK_BYTES = 1 << 22
"""Room for the affinities of one chunk of small sets."""
_FEATURE_BYTES = 1 << 21
"""Room for the feature gradients that are worked on at a time."""
_HUGE_PAGES_FROM = 1 << 23
_MADV_HUGEPAGE = 14


class Fused:
    """Cosine costs and alternating sweeps in one buffer: what the default call of the transform runs."""

    name = "fused"

    def why_not(self, request: Request) -> str | None:
        """The first thing in the way, or None."""
        recipe = request.recipe
        if recipe.reg == "auto":
            return "reg='auto' centres the set and finishes its rows another way"
        if recipe.cost != "cosine":
            return "it knows the cosine cost only"
        if not isinstance(recipe.solver, Sweeps):
            return "it runs a count of sweeps, not to a tolerance"
        for option, given in (
            ("a mask", request.mask is not None),
            ("known labels", request.labels is not None),
            ("symmetrize=True", recipe.symmetrize),
            ("scale_grad=True", recipe.scale_grad),
        ):
            if given:
                return f"it has no place for {option}"
        if torch.compiler.is_compiling():
            return "compilers trace the plain operations of the dense entry"
        if request.x.shape[-2] < 2:
            return "one item alone has no pair"
        if not KernelFacts(cosine_bounds(recipe.reg)).keeps_plan_exact(request.x.dtype):
            return f"at reg={recipe.reg:g} the kernel leaves the range of {request.x.dtype}"
        return None

    def affinities(self, request: Request) -> tuple[Tensor, Convergence | None]:
        """W (..., n, n), and how balanced its plan is where that was asked for."""
        x, recipe = request.x, request.recipe
        needs_graph = is_tracing() or (x.requires_grad and torch.is_grad_enabled())
        # apply costs 0.1 ms a call
        compute = _FusedAffinities.apply if needs_graph else _FusedAffinities.forward
        affinity, *_, error = compute(x, recipe, request.wants_convergence)
        if error is None:
            return affinity, None
        n_iter = torch.full_like(error, _numbers(recipe)[1], dtype=torch.int64)
        return affinity, Convergence(n_iter, error, recipe.solver.tolerance(x.dtype))


class _FusedAffinities(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, recipe: Recipe, wants_convergence: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        check = partial(check_finite, x, argument="x", function=recipe.function)
        reg, n_iter = _numbers(recipe)
        shape = x.shape
        sets = x.reshape(-1, *shape[-2:])
        count, n = sets.shape[:2]
        affinity = _on_huge_pages(sets.new_empty((count, n, n)))
        log_us, log_vs = sets.new_empty((count, n_iter, n)), sets.new_empty((count, n_iter, n))
        largest, inverse = sets.new_ones(count), sets.new_empty((count, n))
        error = sets.new_empty(count) if wants_convergence else None
        for chunk in _chunks(count, n, sets.element_size()):
            out = affinity[chunk]
            inverse[chunk] = _write_kernel(sets[chunk], reg, out, check)
            kernel = _RowKernel(out)
            sweeps = alternate(kernel, n_iter=n_iter)
            log_us[chunk], log_vs[chunk] = sweeps.log_u, sweeps.log_v
            u, v = sweeps.log_u[:, -1].exp(), sweeps.log_v[:, -1].exp()
            if error is not None:
                error[chunk] = (u / kernel.match_rows(v[:, None])[:, 0] - 1).abs().amax(dim=-1)
            largest[chunk] = _write_affinity(out, u, v, recipe.scale == "max")
        affinity.diagonal(dim1=-2, dim2=-1).fill_(recipe.diagonal)
        lead = shape[:-2]
        return (
            affinity.view(*lead, n, n),
            log_us.view(*lead, n_iter, n),
            log_vs.view(*lead, n_iter, n),
            largest.view(lead),
            inverse.view(*lead, n),
            None if error is None else error.view(lead),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, recipe, _ = inputs
        affinity, *vectors, error = output
        ctx.mark_non_differentiable(*vectors, *([] if error is None else [error]))
        ctx.save_for_backward(x, affinity, *vectors)
        ctx.recipe = recipe

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, None, None]:
        return _FusedBackward.apply(grad, *ctx.saved_tensors, ctx.recipe), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        outputs = _FusedAffinities.apply(*move_batch_first(inputs, in_dims, info.batch_size))
        return outputs, tuple(None if output is None else 0 for output in outputs)


class _FusedBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        grad: Tensor,
        x: Tensor,
        affinity: Tensor,
        log_us: Tensor,
        log_vs: Tensor,
        largest: Tensor,
        inverse: Tensor,
        recipe: Recipe,
    ) -> Tensor:
        reg, diagonal = _numbers(recipe)[0], recipe.diagonal
        n, d = x.shape[-2:]
        sets, grad_x = x.reshape(-1, n, d), _on_huge_pages(x.new_empty(x.shape))
        out = grad_x.view(-1, n, d)
        grad, affinity = grad.reshape(-1, n, n), affinity.reshape(-1, n, n)
        log_us, log_vs = log_us.reshape(-1, *log_us.shape[-2:]), log_vs.reshape(-1, *log_vs.shape[-2:])
        largest, inverse = largest.reshape(-1), inverse.reshape(-1, n)
        for chunk in _chunks(len(sets), n, x.element_size()):
            sweeps = Scalings(log_us[chunk], log_vs[chunk])
            plan = _PlanOfAffinity(affinity[chunk], sweeps, largest[chunk], diagonal)
            adjoint = _KernelAdjoint(grad[chunk], plan)
            terms = alternating_adjoint(sweeps, plan, *adjoint.row_and_column_sums())
            adjoint.subtract(terms)
            for rows in _panels(n):
                panel = adjoint.symmetric_panel(rows).mul_((inverse[chunk] / reg)[:, None, :])
                _write_feature_gradient(panel, sets[chunk], inverse[chunk], rows, out[chunk])
        return grad_x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(_ctx: Any, *_grads: Tensor) -> Any:
        refuse_second_derivative()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _FusedBackward.apply(*move_batch_first(inputs, in_dims, info.batch_size)), 0


def _numbers(recipe: Recipe) -> tuple[float, int]:
    """The weight and the count of sweeps of a recipe this entry has taken."""
    return cast(float, recipe.reg), cast(Sweeps, recipe.solver).n


class _RowKernel:
    """K = Kᵀ (b, n, n) with marginals of one, as the sweeps see it; scalings are rows, (b, 1, n).

    One product and one reciprocal a half-sweep, both into fresh small memory: fewer calls than the general kernel,
    which is what counts for sets of a few hundred items.
    """

    def __init__(self, kernel: Tensor) -> None:
        self._kernel = kernel

    def start(self) -> Tensor:
        return self._kernel.new_ones((len(self._kernel), 1, self._kernel.shape[-1]))

    def match_rows(self, v: Tensor) -> Tensor:
        return torch.bmm(v, self._kernel).reciprocal_()

    match_columns = match_rows

    def log_row_scaling(self, u: Tensor) -> Tensor:
        return u[:, 0].log()

    log_column_scaling = log_row_scaling


class _PlanOfAffinity(ScaledPlan):
    """The plan read out of W: times the stretch, less the diagonal."""

    def __init__(self, affinity: Tensor, sweeps: Scalings, largest: Tensor, diagonal: float) -> None:
        super().__init__(affinity, sweeps.log_u[:, -1], sweeps.log_v[:, -1])
        self.largest = largest[:, None]
        self.diagonal = diagonal

    def apply(self, log_u: Tensor, log_v: Tensor | None, w: Tensor) -> Tensor:
        rows, cols = self._ratios(log_u, log_v)
        w = cols * w
        return rows * self.largest * (_times(w, self.plan.mT) - self.diagonal * w)

    def apply_transposed(self, log_u: Tensor, log_v: Tensor | None, w: Tensor) -> Tensor:
        rows, cols = self._ratios(log_u, log_v)
        w = rows * w
        return cols * self.largest * (_times(w, self.plan) - self.diagonal * w)


class _KernelAdjoint:
    """The derivative with respect to log K, from that with respect to W (the stretch is a constant), by panels."""

    def __init__(self, grad: Tensor, plan: _PlanOfAffinity) -> None:
        self._grad, self._affinity, self._plan = grad, plan.plan, plan
        self._whole: Tensor | None = None

    def row_and_column_sums(self) -> tuple[Tensor, Tensor]:
        """Sums of A = dL/dW ∘ W off the diagonal."""
        own = self._grad.diagonal(dim1=-2, dim2=-1) * self._plan.diagonal
        row_sums, col_sums = [], -own
        for rows in _panels(self._affinity.shape[-1]):
            product = self._grad[:, rows] * self._affinity[:, rows]
            row_sums.append(product.sum(dim=-1))
            col_sums = col_sums + product.sum(dim=-2)
        if len(row_sums) == 1:
            self._whole = product
        return torch.cat(row_sums, dim=-1) - own, col_sums

    def subtract(self, terms: list[Any]) -> None:
        """Take the terms of the sweeps off: A − P ∘ (L Rᵀ)."""
        left, right = self._plan.low_rank(terms)
        self._left, self._right = left * self._plan.largest[..., None], right

    def symmetric_panel(self, rows: slice) -> Tensor:
        """Rows of the derivative plus its transpose, diagonal zero."""
        if self._whole is not None:
            panel = self._reduced(self._whole, self._affinity, self._left, self._right)
            panel = panel + panel.mT
        else:
            wide, tall = self._affinity[:, rows], self._affinity[:, :, rows]
            left, right = self._left[:, rows], self._right[:, rows]
            panel = self._reduced(self._grad[:, rows] * wide, wide, left, self._right)
            panel += self._reduced(self._grad[:, :, rows] * tall, tall, self._left, right).mT
        panel.diagonal(offset=rows.start, dim1=-2, dim2=-1).zero_()
        return panel

    @staticmethod
    def _reduced(adjoint: Tensor, affinity: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return adjoint.addcmul_(torch.bmm(left, right.mT), affinity, value=-1.0)


def _times(w: Tensor, matrix: Tensor) -> Tensor:
    """Multiply rows w (b, n) into matrices (b, n, n); seven times faster than the column form for small sets."""
    return torch.bmm(w[:, None, :], matrix)[:, 0, :]


def _on_huge_pages(buffer: Tensor) -> Tensor:
    """Ask the system to back a large fresh buffer with huge pages; where it cannot, nothing changes."""
    size = buffer.numel() * buffer.element_size()
    if size >= _HUGE_PAGES_FROM and buffer.device.type == "cpu":
        advise = _madvise()
        if advise is not None:
            start = -(-buffer.data_ptr() // 4096) * 4096
            advise(start, (buffer.data_ptr() + size - start) // 4096 * 4096, _MADV_HUGEPAGE)
    return buffer


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return cast(Callable[[int, int, int], int], advise)


def _panels(n: int) -> Iterator[slice]:
    """Rows of a set that are worked on at a time: all of a small one."""
    step = n if n <= _LARGE else _PANEL
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _chunks(count: int, n: int, element_size: int) -> Iterator[slice]:
    """Slices of the batch whose affinities fit the cache together."""
    size = max(1, _CHUNK_BYTES // (n * n * element_size))
    for start in range(0, count, size):
        yield slice(start, start + size)


def _write_kernel(x: Tensor, reg: float, out: Tensor, check: Callable[[], None]) -> Tensor:
    """Write exp(cos/reg), diagonal 0, of the sets x (b, n, d) into ``out``; return one over the row norms (b, n).

    ``check`` refuses NaN and Inf; it is called only where the norms say that something is out of the ordinary.
    """
    is_large = x.shape[-2] > _LARGE
    if is_large:
        squared: Tensor = torch.linalg.vector_norm(x, dim=-1).square()
    else:
        squared = torch.bmm(x, x.mT, out=out).diagonal(dim1=-2, dim2=-1)
    low, high = _ORDINARY_SQUARED_NORM
    if bool(((squared >= low) & (squared <= high)).all()):
        rows, inverse = x, squared.rsqrt()
        factor = inverse
    else:
        check()
        rows, inverse = _unit_rows_and_inverse_norms(x)
        factor = torch.ones_like(inverse)
    factor = factor * reg**-0.5
    if is_large:
        for one, own, kernel in zip(rows, factor, out, strict=True):
            _write_large_kernel(one, own, kernel)
    else:
        if rows is not x:
            torch.bmm(rows, rows.mT, out=out)
        out.mul_(factor[..., :, None]).mul_(factor[..., None, :]).exp_()
    out.diagonal(dim1=-2, dim2=-1).zero_()
    return inverse


def _unit_rows_and_inverse_norms(x: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise rows of any finite length; zero rows get zero for both, and so pass no gradient."""
    largest = x.abs().amax(dim=-1)
    unit = unit_rows(x)
    norm = largest * (x / torch.where(largest > 0, largest, 1.0)[..., None]).norm(dim=-1)
    return unit, torch.where(norm > 0, 1 / norm, 0.0)


def _write_large_kernel(rows: Tensor, factor: Tensor, kernel: Tensor) -> None:
    """Write exp(factor_i ⟨rows_i, rows_j⟩ factor_j): panels of the upper triangle, each mirrored below the diagonal."""
    n = len(rows)
    for start in range(0, n, _PANEL):
        stop = min(start + _PANEL, n)
        panel = kernel[start:stop, start:]
        torch.mm(rows[start:stop], rows[start:].T, out=panel)
        panel.mul_(factor[start:stop, None]).mul_(factor[start:]).exp_()
        kernel[stop:, start:stop] = panel[:, stop - start :].T


def _write_affinity(kernel: Tensor, u: Tensor, v: Tensor, stretch: bool) -> Tensor | float:
    """Turn ``kernel`` (b, n, n) into diag(u) K diag(v), over its largest entry if asked; return that entry (b,)."""
    largest = []
    for rows in _panels(kernel.shape[-1]):
        panel = kernel[:, rows].mul_(u[:, rows, None]).mul_(v[:, None, :])
        if stretch:
            largest.append(panel.amax(dim=(-2, -1)))
    if not stretch:
        return 1.0
    top = torch.stack(largest).amax(dim=0)
    kernel.div_(top[:, None, None])
    return top


def _write_feature_gradient(adjoint: Tensor, x: Tensor, inverse: Tensor, rows: slice, out: Tensor) -> None:
    """Write the gradient of x (b, n, d) at these rows, given that of the cosines, (b, rows, n), over the norms."""
    step = max(1, _FEATURE_BYTES // (x[0].numel() * x.element_size()))
    for start in range(0, len(x), step):
        sets = slice(start, start + step)
        part, own, length = out[sets, rows], x[sets, rows], inverse[sets, rows]
        torch.bmm(adjoint[sets], x[sets], out=part)  # with respect to the unit rows
        # project on the sphere, and back to the length of x
        along = torch.linalg.vecdot(part, own) * length.square()
        part.addcmul_(along[..., None], own, value=-1.0).mul_(length[..., None])
