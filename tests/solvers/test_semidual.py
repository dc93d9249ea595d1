"""The semi-dual Newton against the scaling loop it replaces, and against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bpa.solvers import soft_assignment


def scaling_loop(
    logits: np.ndarray, mass: np.ndarray, kappa: float = 1.0, sweeps: int = 20_000
) -> np.ndarray:
    """The published iteration, in the log domain, run until it no longer moves."""
    log_v = np.zeros(len(mass))
    for _ in range(sweeps):
        log_u = -np.logaddexp.reduce(logits + log_v, axis=1)
        new = kappa * (np.log(mass) - np.logaddexp.reduce(logits + log_u[:, None], axis=0))
        moved = (
            np.abs((new - new.mean()) - (log_v - log_v.mean())).max()
            if kappa == 1
            else np.abs(new - log_v).max()
        )
        log_v = new
        if moved < 1e-15:
            break
    shifted = logits + log_v
    return np.exp(shifted - np.logaddexp.reduce(shifted, axis=1)[:, None])


def random_logits(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> torch.Tensor:
    return torch.from_numpy(-scale * rng.random(shape))


@pytest.mark.parametrize("scale", [1.0, 10.0, 30.0])
def test_newton_plan_is_the_limit_of_the_scaling_loop(rng: np.random.Generator, scale: float) -> None:
    logits = random_logits(rng, (4, 75, 5), scale)
    mass = torch.tensor([15.0, 10.0, 20.0, 12.5, 17.5], dtype=torch.float64)
    plan = soft_assignment(logits, mass, tol=1e-11).log_plan.exp().numpy()
    for task in range(4):
        np.testing.assert_allclose(plan[task], scaling_loop(logits[task].numpy(), mass.numpy()), atol=1e-8)


@pytest.mark.parametrize("weight", [0.02, 0.1, 1.0])
def test_relaxed_plan_is_the_limit_of_the_damped_scaling_loop(
    rng: np.random.Generator, weight: float
) -> None:
    lam = 10.0
    logits = random_logits(rng, (2, 30, 4), 8.0)
    mass = torch.tensor([5.0, 10.0, 7.0, 8.0], dtype=torch.float64)
    plan = soft_assignment(logits, mass, relaxation=1 / (lam * weight), tol=1e-12).log_plan.exp().numpy()
    kappa = weight / (weight + 1 / lam)
    for task in range(2):
        np.testing.assert_allclose(
            plan[task], scaling_loop(logits[task].numpy(), mass.numpy(), kappa), atol=1e-8
        )


def test_no_penalty_is_a_row_softmax(rng: np.random.Generator) -> None:
    logits = random_logits(rng, (3, 12, 4), 5.0)
    found = soft_assignment(logits, torch.full((4,), 3.0, dtype=torch.float64), relaxation=math.inf)
    torch.testing.assert_close(found.log_plan, torch.log_softmax(logits, dim=-1))


def test_hopelessly_separated_tasks_are_still_solved(rng: np.random.Generator) -> None:
    # costs of up to 400 between classes and masses that no hard assignment meets: the scaling loop would need far
    # more than its 1000 sweeps, and exp(-cost) underflows in float32
    logits = random_logits(rng, (50, 75, 5), 400.0)
    sure = rng.integers(0, 5, size=(50, 75))
    np.put_along_axis(logits.numpy(), sure[..., None], 0.0, axis=-1)
    found = soft_assignment(logits, torch.full((5,), 15.0, dtype=torch.float64), tol=1e-6)
    assert bool(found.convergence.converged.all())
    np.testing.assert_allclose(found.log_plan.exp().sum(dim=1).numpy(), 15.0, atol=1e-5)


def test_a_warm_start_saves_steps_and_changes_no_answer(rng: np.random.Generator) -> None:
    logits = random_logits(rng, (20, 40, 5), 20.0)
    mass = torch.full((5,), 8.0, dtype=torch.float64)
    cold = soft_assignment(logits, mass)
    warm = soft_assignment(logits, mass, start=cold.shift)
    assert int(warm.convergence.n_iter.max()) == 0
    assert int(cold.convergence.n_iter.min()) >= 2
    torch.testing.assert_close(warm.log_plan, cold.log_plan)


def test_a_task_is_not_moved_by_its_neighbours(rng: np.random.Generator) -> None:
    easy, hard = random_logits(rng, (1, 30, 3), 1.0), random_logits(rng, (1, 30, 3), 200.0)
    mass = torch.full((3,), 10.0, dtype=torch.float64)
    together = soft_assignment(torch.cat([easy, hard]), mass)
    assert int(together.convergence.n_iter[0]) < int(together.convergence.n_iter[1])
    torch.testing.assert_close(
        together.log_plan[:1], soft_assignment(easy, mass).log_plan, rtol=0, atol=1e-14
    )
    torch.testing.assert_close(
        together.log_plan[1:], soft_assignment(hard, mass).log_plan, rtol=0, atol=1e-12
    )


def test_masked_queries_carry_no_mass(rng: np.random.Generator) -> None:
    logits = random_logits(rng, (2, 12, 3), 6.0)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[:, 9:] = False
    padded = logits.clone()
    padded[:, 9:] = 1e3 * torch.randn(2, 3, 3, dtype=torch.float64)
    mass = torch.full((3,), 3.0, dtype=torch.float64)
    torch.testing.assert_close(
        soft_assignment(padded, mass, mask=mask).log_plan[:, :9],
        soft_assignment(logits[:, :9], mass).log_plan,
    )


def test_a_class_without_mass_receives_nothing(rng: np.random.Generator) -> None:
    logits = random_logits(rng, (10, 3), 3.0)
    found = soft_assignment(logits, torch.tensor([4.0, 0.0, 6.0], dtype=torch.float64), tol=1e-11)
    plan = found.log_plan.exp()
    np.testing.assert_allclose(plan.sum(0).numpy(), [4.0, 0.0, 6.0], atol=1e-9)
    two = soft_assignment(logits[:, [0, 2]], torch.tensor([4.0, 6.0], dtype=torch.float64), tol=1e-11)
    torch.testing.assert_close(plan[:, [0, 2]], two.log_plan.exp())


def test_masses_that_rounding_has_spoilt_are_still_met(rng: np.random.Generator) -> None:
    logits = random_logits(rng, (40, 75, 5), 10.0).float()
    mass = torch.from_numpy(rng.random((40, 5))).float()
    mass = 75 * mass / mass.sum(-1, keepdim=True)  # sums to 75 up to a few 1e-6
    found = soft_assignment(logits, mass, tol=1e-9)
    assert bool(found.convergence.converged.all())
    assert int(found.convergence.n_iter.max()) < 15


def test_unsolved_tasks_say_so(rng: np.random.Generator) -> None:
    found = soft_assignment(
        random_logits(rng, (3, 20, 4), 20.0), torch.full((4,), 5.0, dtype=torch.float64), max_iter=1
    )
    assert not bool(found.convergence.converged.any())
    assert float(found.convergence.marginal_error.min()) > 1e-9


@pytest.mark.parametrize("relaxation", [0.0, 0.4])
def test_gradients_agree_with_finite_differences(rng: np.random.Generator, relaxation: float) -> None:
    logits = random_logits(rng, (2, 6, 3), 3.0).requires_grad_()
    mass = torch.tensor([[2.0, 1.0, 3.0], [1.5, 2.5, 2.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 6, dtype=torch.bool)

    def plan(a: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return soft_assignment(a, c, relaxation=relaxation, mask=mask, tol=1e-13).log_plan

    assert torch.autograd.gradcheck(plan, (logits, mass))


def test_implicit_gradient_is_that_of_the_unrolled_loop(rng: np.random.Generator) -> None:
    logits = random_logits(rng, (8, 3), 2.0).requires_grad_()
    weights = torch.from_numpy(rng.normal(size=(8, 3)))
    mass = torch.tensor([2.0, 3.0, 3.0], dtype=torch.float64)
    implicit = torch.autograd.grad(
        (weights * soft_assignment(logits, mass, tol=1e-13).log_plan.exp()).sum(), logits
    )[0]
    log_v = torch.zeros(3, dtype=torch.float64)
    for _ in range(300):
        log_u = -torch.logsumexp(logits + log_v, dim=1)
        log_v = mass.log() - torch.logsumexp(logits + log_u[:, None], dim=0)
    plan = torch.softmax(logits + log_v, dim=1)
    unrolled = torch.autograd.grad((weights * plan).sum(), logits)[0]
    torch.testing.assert_close(implicit, unrolled, rtol=1e-9, atol=1e-10)
