"""The loop: heads are trained on their own pseudo-labels, and one is selected by its label-free loss."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from bpa._checks import check_shape
from bpa.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError
from bpa.hosts.clustering.spice._diagnostics import EmbeddingDiagnostics, embedding_diagnostics
from bpa.hosts.clustering.spice._heads import ClusteringHeads
from bpa.hosts.clustering.spice._pseudo_labels import (
    PseudoLabels,
    double_softmax_loss,
    prototype_pseudo_labels,
)
from bpa.hosts.clustering.spice._settings import SpiceSettings
from bpa.transforms.contract import Identity, SetTransform

_COLLAPSED_COSINE = 0.5
_IDENTITY = Identity()


@dataclass(frozen=True)
class SpiceResult:
    """The head that was selected without labels, and what it says.

    Attributes
    ----------
    labels : Tensor of int64, shape (n,)
        Its clusters.
    probabilities : Tensor, shape (n, K)
        Its probabilities on the clean views.
    head : ClusteringHeads
        The head itself, one only: ``head(x)[0]`` gives the probabilities of new head inputs.
    selected_head, selected_epoch : int
        Where it was found.
    loss : float
        Its label-free loss, the smallest of all heads and epochs.
    losses : tuple of tuple of float
        The label-free loss of every epoch (outer) and head (inner).
    diagnostics : EmbeddingDiagnostics
        Of the features the neighbours were ranked in before the transform.
    settings : SpiceSettings
        The numbers it was trained with.
    seed : int
        The seed it was trained with.

    Examples
    --------
    >>> from bpa.hosts.clustering import SpiceSettings
    >>> x = torch.eye(2, 4).repeat(10, 1)
    >>> settings = SpiceSettings(n_clusters=2, selection_size=20, epochs=2, n_heads=3, batch_size=10)
    >>> found = train_clustering_heads(x, x, x, settings)
    >>> found.loss == min(min(row) for row in found.losses), found.head(x).shape
    (True, torch.Size([1, 20, 2]))
    """

    labels: Tensor
    probabilities: Tensor
    head: ClusteringHeads
    selected_head: int
    selected_epoch: int
    loss: float
    losses: tuple[tuple[float, ...], ...]
    diagnostics: EmbeddingDiagnostics
    settings: SpiceSettings
    seed: int = 0


def train_clustering_heads(
    features: Tensor,
    weak: Tensor,
    strong: Tensor,
    settings: SpiceSettings,
    *,
    transform: SetTransform = _IDENTITY,
    clean: Tensor | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> SpiceResult:
    """Train H heads on their own pseudo-labels and return the one with the smallest label-free loss.

    Parameters
    ----------
    features : Tensor, shape (n, d)
        The frozen features f in which neighbours are looked for; rows are L2-normalised here.
    weak : Tensor, shape (n, w) or (v, n, w)
        Head inputs from weakly changed views, one or v per item; confidence is read on them. The published
        heads take un-normalised pooled features.
    strong : Tensor, shape (n, w) or (v, n, w)
        Head inputs from strongly changed views; the heads are trained on them. With several, each round
        draws one for every item.
    settings : SpiceSettings
        See `SPICE_SETTINGS`.
    transform : SetTransform
        Applied to the features of each selection batch, before prototypes and neighbours. The identity is the
        published host.
    clean : Tensor, shape (n, w), optional
        Head inputs from unchanged views, for judging heads and for the labels returned; the first weak view
        if not given.
    seed : int
        Decides the first weights, the selection batches, the views and the order of training.
    on_progress : callable, optional
        Called with (rounds done, rounds in all).

    Returns
    -------
    SpiceResult

    Raises
    ------
    ShapeError
        When views and features are not of the same items, or are fewer than one selection.
    ArgumentError
        When the settings would never take a step.

    Notes
    -----
    Heads are judged every epoch on all items with plain f, with and without a transform, so that the rule
    that selects is the same for the host and its variant. True labels are no argument of this function, on
    purpose: the released training script also keeps the head with the best accuracy, which is not a result.

    Cached views imply a frozen encoder in evaluation mode. The released code leaves its batch norms in
    training mode during the gradient steps, so that their statistics drift; that cannot be had from cached
    features.

    Time O(rounds · (M²·w_E + H·M·w·hidden)); memory one M × M matrix where the transform returns one.

    Examples
    --------
    >>> from bpa import BPA
    >>> from bpa.hosts.clustering import SpiceSettings
    >>> rng = torch.Generator().manual_seed(0)
    >>> centres, truth = torch.eye(3, 8), torch.arange(3).repeat_interleave(20)
    >>> views = centres[truth] + 0.1 * torch.randn(4, 60, 8, generator=rng)
    >>> settings = SpiceSettings(n_clusters=3, selection_size=60, epochs=8, n_heads=4, batch_size=20)
    >>> found = train_clustering_heads(views[0], views[0], views[1:], settings, transform=BPA())
    >>> found.labels.view(3, 20).unique(dim=1).shape  # one cluster a class
    torch.Size([3, 1])
    """
    f, weak, strong, clean = _checked_views(features, weak, strong, clean, settings)
    n = f.shape[0]
    diagnostics = embedding_diagnostics(f, n_neighbours=min(20, n - 1))
    if diagnostics.mean_cosine > _COLLAPSED_COSINE:
        warnings.warn(
            f"train_clustering_heads was given features whose mean cosine between items is "
            f"{diagnostics.mean_cosine:.2f}, above {_COLLAPSED_COSINE}: they have collapsed towards one direction and "
            f"neighbours will say little. Projection-head features, or features minus their mean, often do better.",
            UserWarning,
            stacklevel=2,
        )

    rng = torch.Generator().manual_seed(seed)
    heads = ClusteringHeads(weak.shape[-1], settings, rng).to(device=f.device, dtype=f.dtype)
    adam = torch.optim.Adam(heads.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    n_rounds = n // settings.selection_size
    best = (math.inf, -1, -1)
    best_state: dict[str, Tensor] = {}
    losses: list[tuple[float, ...]] = []
    for epoch in range(settings.epochs):
        for round_ in range(n_rounds):
            batch = torch.randperm(n, generator=rng)[: settings.selection_size].to(f.device)
            taught = _pseudo_labels_of_all_heads(
                heads, f[batch], _draw_view(weak, batch, rng), transform, settings
            )
            _train_one_round(heads, adam, taught, _draw_view(strong, batch, rng), settings, rng)
            if on_progress is not None:
                on_progress(epoch * n_rounds + round_ + 1, settings.epochs * n_rounds)
        losses.append(_label_free_losses(heads, f, clean, settings))
        for head, loss in enumerate(losses[-1]):
            if loss < best[0]:
                best = (loss, head, epoch)
                best_state = heads.state_of(head)

    selected = ClusteringHeads.from_state(best_state)
    with torch.no_grad():
        probabilities = selected(clean)[0]
    return SpiceResult(
        labels=probabilities.argmax(dim=-1),
        probabilities=probabilities,
        head=selected,
        selected_head=best[1],
        selected_epoch=best[2],
        loss=best[0],
        losses=tuple(losses),
        diagnostics=diagnostics,
        settings=settings,
        seed=seed,
    )


@torch.no_grad()
def _pseudo_labels_of_all_heads(
    heads: ClusteringHeads, f: Tensor, weak: Tensor, transform: SetTransform, settings: SpiceSettings
) -> list[PseudoLabels]:
    n_confident, n_labelled = settings.counts(f.shape[0])
    embedding = transform(f)  # E, once a round and shared by the heads
    return [
        prototype_pseudo_labels(p, embedding, n_confident=n_confident, n_labelled=n_labelled)
        for p in heads(weak)
    ]


def _train_one_round(
    heads: ClusteringHeads,
    adam: torch.optim.Optimizer,
    taught: list[PseudoLabels],
    strong: Tensor,
    settings: SpiceSettings,
    rng: torch.Generator,
) -> None:
    indices = torch.stack([t.indices for t in taught])  # (H, K·n)
    labels = torch.stack([t.labels for t in taught])
    n_pairs = indices.shape[1]
    for _ in range(settings.repeats):
        order = torch.randperm(n_pairs, generator=rng).to(indices.device)
        for start in range(0, n_pairs - settings.batch_size + 1, settings.batch_size):
            chunk = order[
                start : start + settings.batch_size
            ]  # one order; each head its own items and labels
            probabilities = heads(strong[indices[:, chunk]])
            loss = _loss(probabilities, labels[:, chunk], settings)
            adam.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            adam.step()


@torch.no_grad()
def _label_free_losses(
    heads: ClusteringHeads, f: Tensor, clean: Tensor, settings: SpiceSettings
) -> tuple[float, ...]:
    n_confident, n_labelled = settings.counts(f.shape[0])
    losses = []
    for p in heads(clean):
        own = prototype_pseudo_labels(p, f, n_confident=n_confident, n_labelled=n_labelled)
        losses.append(float(double_softmax_loss(p[own.indices], own.labels)))
    return tuple(losses)


def _loss(probabilities: Tensor, labels: Tensor, settings: SpiceSettings) -> Tensor:
    if settings.double_softmax:
        return double_softmax_loss(probabilities, labels)
    return nn.functional.nll_loss(probabilities.clamp_min(1e-12).log().flatten(0, -2), labels.flatten())


def _draw_view(views: Tensor, batch: Tensor, rng: torch.Generator) -> Tensor:
    """One of the v cached views for every item of the batch."""
    if views.shape[0] == 1:
        return views[0, batch]
    which = torch.randint(views.shape[0], (len(batch),), generator=rng).to(batch.device)
    return views[which, batch]


def _checked_views(
    features: Tensor, weak: Tensor, strong: Tensor, clean: Tensor | None, settings: SpiceSettings
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    function = "train_clustering_heads"
    check_shape(features.shape, ("n", "d"), argument="features", function=function)
    n = features.shape[0]
    if n < settings.selection_size:
        raise ShapeError(
            f"The 'features' parameter of {function} must have at least selection_size={settings.selection_size} rows. "
            f"Got {n}; lower selection_size in the settings."
        )
    n_pairs = settings.n_clusters * settings.counts(settings.selection_size)[1]
    if n_pairs < settings.batch_size:
        raise ArgumentError(
            f"{function} draws batches of batch_size={settings.batch_size} from {n_pairs} pseudo-labels a round and "
            f"would never take a step; lower batch_size or raise selection_size in the settings."
        )
    views = {"weak": weak, "strong": strong} | ({} if clean is None else {"clean": clean})
    for name, view in views.items():
        several = name != "clean" and view.ndim == 3
        check_shape(
            view.shape, ("v", n, weak.shape[-1]) if several else (n, weak.shape[-1]), argument=name, function=function,
            way_out="Views are of the same items, and all of one width.",
        )  # fmt: skip
    for name, tensor in {"features": features, **views}.items():
        if not tensor.is_floating_point():
            raise DTypeError(
                f"The {name!r} parameter of {function} must hold floating point numbers. Got {tensor.dtype}."
            )
        if not torch.isfinite(tensor).all():
            raise NonFiniteError(f"The {name!r} parameter of {function} must be finite. Got NaN or Inf.")
    dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
    f = normalize(features.detach().to(dtype), dim=-1)
    cast = {name: view.detach().to(f) for name, view in views.items()}
    weak3 = cast["weak"] if cast["weak"].ndim == 3 else cast["weak"][None]
    strong3 = cast["strong"] if cast["strong"].ndim == 3 else cast["strong"][None]
    return f, weak3, strong3, cast.get("clean", weak3[0])
