"""What is timed: the transform, the floor under it, and everything a user could take instead.

Every method maps features ``x`` (..., n, d) to W by five full sweeps (or what comes nearest to them), reg 0.1. A method
is a pair of functions: ``forward(x)`` and, where it can be differentiated, the same function under autograd. Peers that
are not installed are left out, and the result says so.

The naive implementations are written from the description of what the published code does: rows normalised, a cost
matrix with a large number on its diagonal, half-sweeps that are log-sum-exps over full matrices (or products with an
exponentiated one), a new matrix at every step.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

REG = 0.1
N_ITER = 5


@dataclass(frozen=True)
class Case:
    """One size: ``batch`` sets (0: one set without a batch dimension) of n items in d dimensions."""

    name: str
    batch: int
    n: int
    d: int
    rounds: int
    backward: bool = True

    def features(self) -> Tensor:
        """Clustered, non-negative features such as a network's last layer gives."""
        generator = torch.Generator().manual_seed(0)
        count = max(self.batch, 1)
        n_classes = 5 if self.n <= 100 else self.n // 10
        x = torch.empty(count, self.n, self.d)
        for one in x:
            centres = torch.rand(n_classes, self.d, generator=generator)
            label = torch.arange(self.n) % n_classes
            torch.randn(self.n, self.d, generator=generator, out=one)
            one.mul_(0.5).add_(centres[label]).relu_()
        return x if self.batch else x[0]


CASES = {
    case.name: case
    for case in (
        Case("1000x80x640", 1000, 80, 640, 7),
        Case("200x100x640", 200, 100, 640, 9),
        Case("200x512", 0, 200, 512, 31),
        Case("1000x512", 0, 1000, 512, 15),
        Case("4000x640", 0, 4000, 640, 5),
        Case("15000x2048", 0, 15000, 2048, 3, backward=False),
    )
}

Forward = Callable[[Any], Any]


@dataclass(frozen=True)
class Method:
    """A way to compute W; ``prepare`` turns features into its own kind of array."""

    name: str
    forward: Forward
    differentiable: bool = True
    prepare: Callable[[Tensor], Any] = lambda x: x
    exact: bool = True
    """Whether it computes W; the floor and peers with other iterations do not."""
    single_set_only: bool = False
    batch_only: bool = False
    largest_n: int = 4000


def gram(x: Tensor) -> Tensor:
    return x @ x.mT


def bpa_transform(x: Tensor) -> Tensor:
    from bpa import balanced_affinities
    from bpa.solvers import Sweeps

    return balanced_affinities(x, reg=REG, solver=Sweeps(N_ITER))


def _finish(plan: Tensor) -> Tensor:
    w = plan / plan.amax(dim=(-2, -1), keepdim=True).detach()
    eye = torch.eye(w.shape[-1], dtype=torch.bool, device=w.device)
    return torch.where(eye, 1.0, w)


def _cost(x: Tensor) -> Tensor:
    x = F.normalize(x, dim=-1)
    cost = 1 - x @ x.mT
    eye = torch.eye(cost.shape[-1], device=x.device)
    return cost + 1e5 * eye


def naive_log(x: Tensor) -> Tensor:
    log_kernel = -_cost(x) / REG
    v = torch.zeros_like(log_kernel[..., 0])
    for _ in range(N_ITER):
        u = -torch.logsumexp(log_kernel + v[..., None, :], dim=-1)
        v = -torch.logsumexp(log_kernel + u[..., :, None], dim=-2)
    return _finish(torch.exp(u[..., :, None] + log_kernel + v[..., None, :]))


def naive_exp(x: Tensor) -> Tensor:
    kernel = torch.exp(-_cost(x) / REG)
    v = torch.ones_like(kernel[..., 0])
    for _ in range(N_ITER):
        u = 1 / (kernel @ v[..., None])[..., 0]
        v = 1 / (kernel.mT @ u[..., None])[..., 0]
    return _finish(u[..., :, None] * kernel * v[..., None, :])


def numpy_exp(x: np.ndarray) -> np.ndarray:
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    kernel = np.exp((x @ x.swapaxes(-1, -2) - 1) / np.float32(REG))
    own = np.arange(kernel.shape[-1])
    kernel[..., own, own] = 0
    v = np.ones_like(kernel[..., 0])
    for _ in range(N_ITER):
        u = 1 / (kernel @ v[..., None])[..., 0]
        v = 1 / (u[..., None, :] @ kernel)[..., 0, :]
    kernel *= u[..., :, None]
    kernel *= v[..., None, :]
    kernel /= kernel.max(axis=(-2, -1), keepdims=True)
    kernel[..., own, own] = 1
    return kernel


def _pot() -> list[Method]:
    import ot
    from ot.batch import solve_batch

    def single(x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _finish(ot.sinkhorn([], [], _cost(x), REG, numItermax=N_ITER, stopThr=0, warn=False))

    def single_numpy(x: np.ndarray) -> np.ndarray:
        x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        cost = 1 - x @ x.T
        np.fill_diagonal(cost, 1e5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = ot.sinkhorn([], [], cost, REG, numItermax=N_ITER, stopThr=0, warn=False)
        w = plan / plan.max()
        np.fill_diagonal(w, 1)
        return w

    def batch(x: Tensor) -> Tensor:
        cost = _cost(x if x.dim() == 3 else x[None])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = solve_batch(
                cost, reg=REG, max_iter=N_ITER, tol=0, method="log_sinkhorn", grad="autodiff"
            ).plan
        return _finish(plan if x.dim() == 3 else plan[0])

    return [
        Method("POT sinkhorn (NumPy)", single_numpy, False, to_numpy, single_set_only=True),
        Method("POT sinkhorn (torch)", single, True, single_set_only=True),
        Method("POT solve_batch (log)", batch, True),
    ]


def _geomloss() -> list[Method]:
    from geomloss import ot as geometric

    def solve(x: Tensor) -> Tensor:
        plan = geometric.solve(_cost(x), reg=REG, max_iter=N_ITER).plan
        return _finish(plan)

    return [Method("geomloss ot.solve", solve, False, exact=False)]


def _torchdr() -> list[Method]:
    from torchdr import SinkhornAffinity

    def affinity(x: Tensor) -> Tensor:
        unit = F.normalize(x, dim=-1)  # squared distances of unit rows are twice the cosine cost
        model = SinkhornAffinity(eps=2 * REG, tol=0.0, max_iter=2 * N_ITER, device="cpu", zero_diag=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _finish(model(unit))

    return [Method("TorchDR SinkhornAffinity", affinity, False, exact=False, single_set_only=True)]


def _jax() -> list[Method]:
    import jax
    import jax.numpy as jnp
    from ott.geometry import geometry
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    def cost_of(x: Any) -> Any:
        x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        cost = 1 - x @ x.T
        return cost.at[jnp.diag_indices(cost.shape[0])].set(1e5)

    def naive(x: Any) -> Any:
        kernel = jnp.exp(-cost_of(x) / REG)
        v = jnp.ones(kernel.shape[0])
        for _ in range(N_ITER):
            u = 1 / (kernel @ v)
            v = 1 / (u @ kernel)
        plan = u[:, None] * kernel * v
        w = plan / jax.lax.stop_gradient(plan.max())
        return w.at[jnp.diag_indices(w.shape[0])].set(1)

    def ott(x: Any) -> Any:
        cost = cost_of(x)
        problem = linear_problem.LinearProblem(geometry.Geometry(cost_matrix=cost, epsilon=REG))
        solver = sinkhorn.Sinkhorn(lse_mode=True, min_iterations=N_ITER, max_iterations=N_ITER, threshold=0.0)
        plan = solver(problem).matrix
        w = plan / jax.lax.stop_gradient(plan.max())
        return w.at[jnp.diag_indices(w.shape[0])].set(1)

    def lift(function: Any) -> tuple[Forward, Any]:
        def both(x: Any) -> Any:
            return jax.jit(jax.vmap(function) if x.ndim == 3 else function)

        cache: dict[Any, Any] = {}

        def forward(x: Any) -> Any:
            if x.shape not in cache:
                cache[x.shape] = both(x)
            return np.asarray(cache[x.shape](x).block_until_ready())

        def backward(x: Any, grad: Any) -> Any:
            key = ("grad", x.shape)
            if key not in cache:
                mapped = jax.vmap(function) if x.ndim == 3 else function

                def loss_gradient(y: Any, g: Any) -> Any:
                    return jax.vjp(mapped, y)[1](g)[0]

                cache[key] = jax.jit(loss_gradient)
            return cache[key](x, grad).block_until_ready()

        forward.backward = backward  # type: ignore[attr-defined]
        return forward, backward

    return [
        Method("JAX naive exponential, jit", lift(naive)[0], True, lambda x: jnp.asarray(x.numpy())),
        Method("ott-jax (jit, log)", lift(ott)[0], True, lambda x: jnp.asarray(x.numpy()), exact=False),
    ]


def to_numpy(x: Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.numpy())


def _reference(path: Path) -> list[Method]:
    """Load the published implementation from the reader's own checkout; nothing of it is part of this project."""
    sys.path.insert(0, str(path))
    spec = importlib.util.find_spec("bpa.balanced_pairwise_affinities") or importlib.util.find_spec(
        "balanced_pairwise_affinities"
    )
    folder = path / "bpa"
    file = folder / "balanced_pairwise_affinities.py"
    if not file.is_file():
        raise SystemExit(f"--reference: {file} not found; give the root of a checkout of the published code.")
    del spec
    package = importlib.util.spec_from_file_location(
        "reference_bpa", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    module = importlib.util.module_from_spec(package)  # type: ignore[arg-type]
    sys.modules["reference_bpa"] = module
    package.loader.exec_module(module)  # type: ignore[union-attr]
    published = importlib.import_module("reference_bpa.balanced_pairwise_affinities").BPA

    def forward(x: Tensor) -> Tensor:
        return published(ot_reg=REG, sinkhorn_iterations=N_ITER)(x)

    return [Method("published code (--reference)", forward, True, exact=False)]


def all_methods(reference: Path | None = None) -> tuple[list[Method], dict[str, str]]:
    """Every method that runs here, and why the others do not."""
    compiled = torch.compile(naive_exp, dynamic=False)
    methods = [
        Method("Gram product (floor)", gram, exact=False, largest_n=10**9),
        Method("bpa", bpa_transform, largest_n=10**9),
        Method("naive log domain", naive_log, largest_n=10**9),
        Method("naive exponential domain", naive_exp, largest_n=10**9),
        Method("naive exponential, torch.compile", compiled),
        Method("NumPy exponential domain", numpy_exp, False, to_numpy, largest_n=10**9),
    ]
    missing: dict[str, str] = {}
    for name, make in (("POT", _pot), ("geomloss", _geomloss), ("TorchDR", _torchdr), ("ott-jax", _jax)):
        try:
            methods += make()
        except ImportError as error:
            missing[name] = f"not installed ({error.name})"
    if reference is not None:
        methods += _reference(reference)
    return methods, missing
