"""The few-shot hosts against independent loops, and the laws every host keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bpa import BPA
from bpa.errors import ArgumentError, DTypeError, ShapeError
from bpa.hosts.fewshot import PMF, VARIANTS, Prediction, ProtoNet, PTMap, PTMapPrediction, PTMapSettings
from bpa.records import Episode
from bpa.solvers import Sweeps
from bpa.transforms.alternatives import CentredUnitNorm, RowSoftmax
from bpa.transforms.contract import Identity

HOSTS: dict[str, Callable[..., Callable[[Episode], Prediction]]] = {
    "protonet": ProtoNet, "pmf": PMF, "ptmap": PTMap,
}  # fmt: skip
IDENTITY = Identity()


def task_of(
    support: Tensor, labels: Tensor, query: Tensor, *, n_way: int | None = None, **masks: Tensor
) -> Episode:
    """The episode, of as many classes as there are labels."""
    return Episode(support, labels, query, n_way=int(labels.max()) + 1 if n_way is None else n_way, **masks)


def predict(
    name: str, support: Tensor, labels: Tensor, query: Tensor, *, transform: Any = IDENTITY, **masks: Tensor
) -> Prediction:
    """What a host with its published settings says."""
    return HOSTS[name](transform)(task_of(support, labels, query, **masks))


def ptmap(
    support: Tensor,
    labels: Tensor,
    query: Tensor,
    *,
    transform: Any = IDENTITY,
    class_mass: Any = None,
    **settings: Any,
) -> PTMapPrediction:
    """What PT-MAP says with these settings."""
    found: PTMapPrediction = PTMap(transform, PTMapSettings(**settings))(
        task_of(support, labels, query), class_mass=class_mass
    )
    return found


def make_task(
    rng: np.random.Generator,
    *,
    k: int = 4,
    shots: int = 2,
    queries: int = 6,
    dim: int = 20,
    noise: float = 0.8,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One float64 task of non-negative features: support, its labels, query, its labels."""
    centres = 2.0 * rng.normal(size=(k, dim))
    ys, yq = np.tile(np.arange(k), shots), np.repeat(np.arange(k), queries)

    def make(y: np.ndarray) -> Tensor:
        return torch.from_numpy(np.maximum(centres[y] + noise * rng.normal(size=(len(y), dim)), 0.0))

    return make(ys), torch.from_numpy(ys), make(yq), torch.from_numpy(yq)


def ptmap_by_hand(
    support: np.ndarray,
    labels: np.ndarray,
    query: np.ndarray,
    k: int,
    *,
    transform: Any = None,
    epochs: int = 20,
) -> np.ndarray:
    """PT-MAP as its authors' script runs it, one task, loops and the scaling iteration; rows shot by shot or not."""

    def unit(v: np.ndarray) -> np.ndarray:
        return v / np.linalg.norm(v, axis=1, keepdims=True)

    def prepared(s: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        s, q = unit(s), unit(q)
        return unit(s - s.mean(0)), unit(q - q.mean(0))

    s, q = prepared(np.sqrt(support + 1e-6), np.sqrt(query + 1e-6))
    if transform is not None:
        both = transform(np.concatenate([s, q]))
        s, q = prepared(both[: len(s)], both[len(s) :])
    mu = np.stack([s[labels == c].mean(0) for c in range(k)])
    per_class = len(q) / k
    plan = np.zeros((len(q), k))
    for epoch in range(epochs + 1):
        cost = np.array([[((row - centre) ** 2).sum() for centre in mu] for row in q])
        plan = np.exp(-10.0 * cost)
        plan /= plan.sum()
        for _ in range(20_000):
            before = plan.sum(1)
            plan = plan * (1.0 / before)[:, None]
            plan = plan * (per_class / plan.sum(0))[None, :]
            if np.abs(before - plan.sum(1)).max() <= 1e-13:
                break
        if epoch == epochs:
            break
        for c in range(k):
            whole = s[labels == c].sum(0) + (plan[:, c : c + 1] * q).sum(0)
            mean = whole / ((labels == c).sum() + plan[:, c].sum())
            mu[c] = mu[c] + 0.2 * (mean - mu[c])
    return plan


def shuffled(rng: np.random.Generator, n: int) -> Tensor:
    return torch.from_numpy(rng.permutation(n))


def test_ptmap_is_the_published_loop(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng, noise=3.0)
    ours = ptmap(support, ys, query, tol=1e-12).scores.exp()
    hand = ptmap_by_hand(support.numpy(), ys.numpy(), query.numpy(), 4)
    np.testing.assert_allclose(ours.numpy(), hand, atol=1e-8)


def test_ptmap_with_a_transform_is_the_published_loop_on_its_rows(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng, noise=3.0)
    transform = BPA(reg=0.2)
    ours = ptmap(support, ys, query, transform=transform, tol=1e-12).scores.exp()
    hand = ptmap_by_hand(
        support.numpy(),
        ys.numpy(),
        query.numpy(),
        4,
        transform=lambda z: transform(torch.from_numpy(z)).numpy(),
    )
    np.testing.assert_allclose(ours.numpy(), hand, atol=1e-8)


@pytest.mark.parametrize("dim", [6, 200])
def test_inner_products_and_features_give_the_same_ptmap(rng: np.random.Generator, dim: int) -> None:
    # 32 rows: dim 6 goes by features, dim 200 by the Gram matrix; padding with zero columns switches between them
    support, ys, query, _ = make_task(rng, dim=dim)
    wide = torch.nn.functional.pad
    grown = ptmap(wide(support, (0, 300)), ys, wide(query, (0, 300)), power=1.0, nonneg="off", tol=1e-12)
    plain = ptmap(support, ys, query, power=1.0, nonneg="off", tol=1e-12)
    torch.testing.assert_close(grown.scores, plain.scores, rtol=0, atol=1e-8)


def test_protonet_is_the_nearest_class_mean(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng)
    out = ProtoNet(temperature=64.0)(task_of(support, ys, query)).scores.numpy()
    for i, row in enumerate(query.numpy()):
        for c in range(4):
            centre = support.numpy()[ys.numpy() == c].mean(0)
            assert out[i, c] == pytest.approx(-((row - centre) ** 2).sum() / 64.0, rel=1e-9)


def test_pmf_is_the_scaled_cosine_to_the_class_mean(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng)
    host = PMF().requires_grad_(False)
    host.scale_cls.fill_(7.0)
    host.bias.fill_(0.25)
    out = host(task_of(support, ys, query)).scores.numpy()
    for i, row in enumerate(query.numpy()):
        for c in range(4):
            centre = support.numpy()[ys.numpy() == c].mean(0)
            cosine = row @ centre / np.linalg.norm(row) / np.linalg.norm(centre)
            assert out[i, c] == pytest.approx(7.0 * (cosine + 0.25), rel=1e-9)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize(
    "transform", [Identity(), BPA(reg=0.2), CentredUnitNorm()], ids=["identity", "bpa", "centred"]
)
def test_shuffled_rows_give_the_same_predictions(rng: np.random.Generator, name: str, transform: Any) -> None:
    support, ys, query, _ = make_task(rng)
    plain = predict(name, support, ys, query, transform=transform).scores
    s, q = shuffled(rng, len(support)), shuffled(rng, len(query))
    mixed = predict(name, support[s], ys[s], query[q], transform=transform).scores
    torch.testing.assert_close(mixed, plain[q], rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize(
    "transform", [Identity(), BPA(), RowSoftmax(0.2)], ids=["identity", "bpa", "softmax"]
)
def test_padded_equals_unpadded(rng: np.random.Generator, name: str, transform: Any) -> None:
    small, ys, queries, _ = make_task(rng, shots=2, queries=5)
    large, yl, more, _ = make_task(rng, shots=3, queries=7)

    def pad(x: Tensor, n: int, fill: float) -> Tensor:
        return torch.cat([x, torch.full((n - len(x), *x.shape[1:]), fill, dtype=x.dtype)])

    support = torch.stack([pad(small, len(large), torch.nan), large])
    labels = torch.stack([pad(ys, len(yl), -5), yl])
    query = torch.stack([pad(queries, len(more), 1e4), more])
    support_mask = torch.arange(len(large)) < torch.tensor([[len(small)], [len(large)]])
    query_mask = torch.arange(len(more)) < torch.tensor([[len(queries)], [len(more)]])
    ragged = predict(
        name, support, labels, query, transform=transform, support_mask=support_mask, query_mask=query_mask
    ).scores
    torch.testing.assert_close(
        ragged[0, : len(queries)],
        predict(name, small, ys, queries, transform=transform).scores,
        rtol=0,
        atol=1e-8,
    )
    torch.testing.assert_close(
        ragged[1], predict(name, large, yl, more, transform=transform).scores, rtol=0, atol=1e-8
    )
    assert bool((ragged[0, len(queries) :] == 0).all())


@pytest.mark.parametrize("name", HOSTS)
def test_a_batch_is_its_tasks(rng: np.random.Generator, name: str) -> None:
    tasks = [make_task(rng) for _ in range(6)]
    support, labels, query = (torch.stack([t[i] for t in tasks]).unflatten(0, (2, 3)) for i in range(3))
    batch = predict(name, support, labels, query, transform=BPA()).scores
    assert batch.shape == (2, 3, 24, 4)
    for i, task in enumerate(tasks):
        alone = predict(name, task[0], task[1], task[2], transform=BPA()).scores
        torch.testing.assert_close(batch[i // 3, i % 3], alone, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", HOSTS)
def test_unbalanced_supports_are_means_over_what_is_there(rng: np.random.Generator, name: str) -> None:
    support, ys, query, truth = make_task(rng, shots=4, noise=0.3)
    keep = torch.tensor([0, 1, 2, 3, 4, 5, 8, 12])  # classes with 4, 2, 1 and 1 rows
    assert torch.bincount(ys[keep]).tolist() == [4, 2, 1, 1]
    found = predict(name, support[keep], ys[keep], query)
    assert float((found.labels == truth).double().mean()) > 0.9


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("transform", [Identity(), BPA(reg=0.3, scale_grad=True)], ids=["identity", "bpa"])
def test_hosts_pass_gradcheck(rng: np.random.Generator, name: str, transform: Any) -> None:
    support, ys, query, _ = make_task(rng, k=2, shots=2, queries=3, dim=4, noise=3.0)
    support, query = (support + 0.1).requires_grad_(), (query + 0.1).requires_grad_()
    more = (PTMapSettings(epochs=2, tol=1e-13),) if name == "ptmap" else ()
    host = HOSTS[name](transform, *more)

    def scores(s: Tensor, q: Tensor) -> Tensor:
        return host(task_of(s, ys, q)).scores

    assert torch.autograd.gradcheck(scores, (support, query), atol=1e-6)


def test_ptmap_gradcheck_through_an_estimated_prior(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng, k=2, shots=1, queries=3, dim=4, noise=3.0)
    query = (query + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q: ptmap(support + 0.1, ys, q, prior="estimate", epochs=2, tol=1e-13).scores.exp(),
        (query,),
        atol=1e-6,
    )


def test_the_true_prior_helps_unbalanced_queries_and_estimation_lies_between(
    rng: np.random.Generator,
) -> None:
    hits = dict.fromkeys(("uniform", "estimate", "true"), 0.0)
    for _ in range(30):
        support, ys, query, truth = make_task(rng, k=3, shots=1, queries=12, noise=2.0)
        keep = torch.cat([torch.arange(12), torch.arange(12, 16), torch.arange(24, 26)])
        counts = torch.bincount(truth[keep]).double()
        for prior in hits:
            how = {"class_mass": counts} if prior == "true" else {"prior": prior}
            found = ptmap(support, ys, query[keep], **how)
            hits[prior] += float((found.labels == truth[keep]).double().mean()) / 30
    assert hits["true"] > hits["uniform"] + 0.05
    assert hits["uniform"] < hits["estimate"] <= hits["true"] + 0.02


def test_the_class_masses_of_the_plan_are_those_given(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng)
    masses = torch.tensor([3.0, 1.0, 1.0, 1.0])
    found = ptmap(support, ys, query, class_mass=masses)
    np.testing.assert_allclose(found.scores.exp().sum(0).numpy(), [12.0, 4.0, 4.0, 4.0], atol=1e-5)
    free = ptmap(support, ys, query, class_mass=masses, relaxation=0.0)
    assert abs(float(free.scores.exp().sum(0)[0]) - 12.0) > 0.5


def test_queries_need_not_divide_among_classes(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng)
    found = ptmap(support, ys, query[:22])
    np.testing.assert_allclose(found.scores.exp().sum(0).numpy(), 5.5, atol=1e-5)
    assert bool(found.convergence.converged.all())


def test_identity_is_never_renormalised_and_a_transform_is(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng)
    torch.testing.assert_close(
        ptmap(support, ys, query, renormalize=True).scores,
        ptmap(support, ys, query, renormalize=False).scores,
    )
    with_it = ptmap(support, ys, query, transform=BPA()).scores
    without = ptmap(support, ys, query, transform=BPA(), renormalize=False).scores
    assert float((with_it - without).abs().max()) > 0.1


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_published_variant_runs_and_differs_where_it_says(
    rng: np.random.Generator, variant: str
) -> None:
    support, ys, query, truth = make_task(rng, noise=0.3)
    found = PTMap(BPA(reg=0.2), VARIANTS[variant])(Episode(support, ys, query, 4))
    assert float((found.labels == truth).double().mean()) > 0.95
    same = ptmap(support, ys, query, transform=BPA(reg=0.2)).scores
    assert torch.allclose(found.scores, same) == (variant in ("paper", "reference-eval"))


def test_variants_say_as_data_which_transform_was_published_with_them() -> None:
    assert {name: variant.reg for name, variant in VARIANTS.items()} == {
        "paper": 0.1, "reference-eval": 0.2, "reference-sweep": 0.1, "reference-train": 0.2, "reference-val": 0.2,
    }  # fmt: skip
    assert VARIANTS["paper"].solver == Sweeps(5)
    assert VARIANTS["reference-sweep"].reg_grid == (0.1, 0.2, 0.3, 0.4, 0.5)
    assert [name for name, variant in VARIANTS.items() if variant.knows_pairs] == ["reference-val"]
    assert VARIANTS["paper"].tol == PTMapSettings().tol


@pytest.mark.parametrize("kind", [ProtoNet, PMF])
def test_a_transform_for_training_is_left_out_in_eval_mode(rng: np.random.Generator, kind: Any) -> None:
    support, ys, query, _ = make_task(rng)
    task = Episode(support, ys, query, 4)
    host = kind(BPA(), apply="training")
    torch.testing.assert_close(host.train()(task).scores, kind(BPA())(task).scores)
    torch.testing.assert_close(host.eval()(task).scores, kind()(task).scores)
    assert not torch.allclose(kind(BPA())(task).scores, kind()(task).scores, atol=1e-3)


def test_pmf_learns_what_published_checkpoints_name() -> None:
    assert {name: tuple(value.shape) for name, value in PMF().named_parameters()} == {
        "scale_cls": (1,), "bias": (1,),
    }  # fmt: skip


def test_half_precision_is_computed_in_float32(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng)
    for name in HOSTS:
        half = predict(name, support.half(), ys, query.half(), transform=BPA()).scores
        full = predict(name, support.half().float(), ys, query.half().float(), transform=BPA()).scores
        assert half.dtype == torch.float32, name
        torch.testing.assert_close(half, full)


def test_the_power_transform_says_what_it_does_about_negative_features(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng)
    support = support - 0.5
    with pytest.raises(ArgumentError, match="nonneg='relu'"):
        ptmap(support, ys, query, nonneg="error")
    cut = ptmap(support, ys, query, nonneg="relu").scores
    torch.testing.assert_close(cut, ptmap(support.clamp_min(0), ys, query, nonneg="error").scores)
    assert float((cut - ptmap(support, ys, query, nonneg="signed").scores).abs().max()) > 1e-3


def test_one_labelled_row_in_all_is_a_defined_task() -> None:
    found = ptmap(torch.rand(1, 5), torch.tensor([0]), torch.rand(3, 5))
    assert found.labels.tolist() == [0, 0, 0]
    assert bool(torch.isfinite(found.scores).all())


@pytest.mark.parametrize("name", HOSTS)
def test_wrong_episodes_are_explained(rng: np.random.Generator, name: str) -> None:
    host = HOSTS[name]()
    support, ys, query, _ = make_task(rng)
    for wrong, error, match in (
        (task_of(support[:3], ys[:3], query, n_way=4), ArgumentError, "Class 3 of 4 has no labelled row"),
        (
            task_of(support, ys, query, n_way=3),
            ArgumentError,
            r"must lie in 0\.\.n_way - 1 = 0\.\.2\. Got 0\.\.3",
        ),
        (task_of(support, ys - 1, query), ArgumentError, r"Got -1\.\.2"),
        (task_of(support, ys, query[:, :5]), ShapeError, "agree in batch and width"),
        (
            task_of(support, ys[:3], query),
            ShapeError,
            r"must have shape \(8,\)\. Got \(3,\)\. Each labelled row",
        ),
        (task_of(support.long(), ys, query), DTypeError, "'support' parameter of Episode .* floating point"),
        (task_of(support, ys, query[0]), ShapeError, r"query\[None\]"),
        (task_of(support, ys.double(), query), DTypeError, "integers"),
        (task_of(support, ys, query, query_mask=ys > 0), ShapeError, r"'query_mask' .* \(24,\)"),
        (task_of(support, ys, query, support_mask=ys), DTypeError, "'support_mask' .* boolean"),
    ):
        with pytest.raises(error, match=match):
            host(wrong)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"step": 0.0}, r"'step' parameter of PTMapSettings must lie in \(0, 1\]\. Got 0\.0"),
        ({"prior_step": 1.5}, "'prior_step'"),
        ({"epochs": -1}, "'epochs' .* at least 0"),
        ({"sharpness": 0.0}, "'sharpness'"),
        ({"relaxation": -1.0}, "'relaxation'"),
        ({"prior": "even"}, "'prior' .* 'uniform', 'estimate'"),
        ({"nonneg": "abs"}, "'nonneg'"),
        ({"centre": "joint"}, "'centre'"),
        ({"epoch": 3}, "PTMapSettings has no parameter 'epoch'"),
        ({"alpha": 0.2}, "it is called 'step' here"),
    ],
)
def test_wrong_settings_are_explained(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        PTMapSettings(**settings)


def test_wrong_class_masses_are_explained(rng: np.random.Generator) -> None:
    support, ys, query, _ = make_task(rng)
    with pytest.raises(
        ShapeError, match=r"'class_mass' parameter of PTMap must have shape \(\.\.\., 4\)\. Got \(3,\)"
    ):
        ptmap(support, ys, query, class_mass=torch.ones(3))
    with pytest.raises(ArgumentError, match="positive sum"):
        ptmap(support, ys, query, class_mass=torch.zeros(4))
    with pytest.raises(ArgumentError, match="Got both"):
        ptmap(support, ys, query, class_mass=torch.ones(4), prior="estimate")


def test_what_belongs_into_the_settings_is_sent_there() -> None:
    with pytest.raises(
        ArgumentError, match=r"PTMap has no parameter 'epochs': write settings=PTMapSettings\(epochs=\.\.\.\)"
    ):
        PTMap(epochs=3)
    with pytest.raises(DTypeError, match=r"must be PTMapSettings\. Got str\. .* VARIANTS\['paper'\]"):
        PTMap(settings="paper")
    with pytest.raises(ArgumentError, match="'apply' parameter of ProtoNet"):
        ProtoNet(apply="eval")
    with pytest.raises(ArgumentError, match="'temperature' parameter of ProtoNet"):
        ProtoNet(temperature=0.0)
