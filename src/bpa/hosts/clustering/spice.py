r"""SPICE, phase two: clustering heads trained on prototype pseudo-labels, from cached features.

Niu, Shan, Wang: SPICE: Semantic Pseudo-labeling for Image Clustering (IEEE TIP 2022). A frozen encoder has
turned every image into features; small heads learn K clusters from labels they give themselves. In each
round the images a head is most sure of are averaged into one prototype per cluster, the images nearest to a
prototype receive its label, and the head is trained to predict these labels from strongly changed views of
the same images.

The transform enters at one place: the features E in which prototypes are averaged and neighbours are ranked
are ``transform(f)`` of the round's selection batch. Confidence still comes from the heads, training still
sees the views, and no gradient passes through the transform.

Per round, for each head with probabilities P (M, K) on the weak views:

.. math::

    S_c = \text{the } k \text{ largest of } P_{\cdot c}, \qquad
    \mu_c = \tfrac1k \textstyle\sum_{i \in S_c} E_i, \qquad
    \text{label } c \to \text{the } n \text{ largest of } E \mu_c,

with n = M // K and k = int(centre_ratio · n). The loss is the cross-entropy of the probabilities taken as
logits (a double softmax); its smallest value is log((e + K − 1) / e).

Everything about images lives with the caller: views are arrays of head inputs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor, nn

from bpa.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError
from bpa.transforms.contract import Identity, SetTransform

__all__ = [
    "SETTINGS",
    "ClusteringHeads",
    "EmbeddingDiagnostics",
    "PseudoLabels",
    "ReliableLabels",
    "SpiceResult",
    "SpiceSettings",
    "double_softmax_floor",
    "double_softmax_loss",
    "embedding_diagnostics",
    "prototype_pseudo_labels",
    "reliable_labels",
    "train_clustering_heads",
]

_NO_LABEL = -100
_COLLAPSED_COSINE = 0.5


@dataclass(frozen=True)
class SpiceSettings:
    """The numbers of one data set.

    Parameters
    ----------
    n_clusters : int
        K.
    selection_size : int
        M, the items drawn without replacement for one round of pseudo-labels.
    epochs : int
        Passes; one pass is ``n // selection_size`` rounds, and the heads are judged at its end.
    n_heads : int
        H heads trained side by side, one of which is selected.
    hidden : int or None
        Width of the hidden layer of a head; ``None`` for the width of its input.
    batch_size : int
        Pseudo-labelled items per head and gradient step.
    repeats : int
        Passes over the pseudo-labels of one round.
    centre_ratio : float
        k = int(centre_ratio · M // K) confident items make a prototype.
    n_confident : int or None
        Sets k itself, e.g. the 3 of the paper's pseudo-code; ``None`` for the centre ratio, which is what
        "all original hyper-parameters" means.
    learning_rate, weight_decay : float
        Of Adam, on the heads only.
    double_softmax : bool
        Train on probabilities taken as logits, whose bounded gradient damps wrong labels. ``False`` is an
        ablation.
    """

    n_clusters: int
    selection_size: int
    epochs: int
    n_heads: int = 10
    hidden: int | None = 512
    batch_size: int = 128
    repeats: int = 8
    centre_ratio: float = 0.5
    n_confident: int | None = None
    learning_rate: float = 0.005
    weight_decay: float = 0.0
    double_softmax: bool = True

    def __post_init__(self) -> None:
        for name in ("n_clusters", "selection_size", "epochs", "n_heads", "batch_size", "repeats"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ArgumentError(
                    f"The {name!r} parameter of SpiceSettings must be an integer ≥ 1. Got {value!r}."
                )
        if self.n_clusters < 2:
            raise ArgumentError("The 'n_clusters' parameter of SpiceSettings must be at least 2. Got 1.")
        if self.selection_size < self.n_clusters:
            raise ArgumentError(
                f"The 'selection_size' parameter of SpiceSettings must be at least "
                f"n_clusters={self.n_clusters}, so "
                f"that every cluster is given an item. Got {self.selection_size}."
            )
        if not 0 < self.centre_ratio <= 1:
            raise ArgumentError(
                f"The 'centre_ratio' parameter of SpiceSettings must lie in (0, 1]. Got "
                f"{self.centre_ratio!r}."
            )
        if self.n_confident is not None and not 1 <= self.n_confident <= self.selection_size:
            raise ArgumentError(
                "The 'n_confident' parameter of SpiceSettings must lie between 1 and "
                f"selection_size={self.selection_size}. Got {self.n_confident!r}."
            )

    def counts(self, n: int) -> tuple[int, int]:
        """How many of ``n`` items make a prototype (k), and how many receive its label (n)."""
        n_labelled = n // self.n_clusters
        n_confident = self.n_confident or max(1, int(self.centre_ratio * n_labelled))
        return n_confident, n_labelled


SETTINGS: Mapping[str, SpiceSettings] = MappingProxyType(
    {
        "stl10": SpiceSettings(n_clusters=10, selection_size=5000, epochs=100),
        "cifar10": SpiceSettings(n_clusters=10, selection_size=5000, epochs=30),
        "cifar100-20": SpiceSettings(n_clusters=20, selection_size=10000, epochs=100),
        "mnist5k": SpiceSettings(
            n_clusters=10, selection_size=2500, epochs=15, n_heads=5, hidden=None, repeats=4
        ),
    }
)
"""Settings by data set. The first three are the published ones; ``mnist5k`` is ours, for a small machine."""


@dataclass(frozen=True)
class PseudoLabels:
    """What one head teaches itself in one round.

    Attributes
    ----------
    indices : Tensor of int64, shape (K · n_labelled,)
        Items, cluster after cluster. An item may appear under several clusters, or under none.
    labels : Tensor of int64, shape (K · n_labelled,)
        Their clusters; every cluster occurs ``n_labelled`` times.
    prototypes : Tensor, shape (K, w)
        Means of the confident items, not normalised.
    """

    indices: Tensor
    labels: Tensor
    prototypes: Tensor


@dataclass(frozen=True)
class EmbeddingDiagnostics:
    """Signs, without labels, of whether neighbours in the features can mean anything.

    Attributes
    ----------
    mean_cosine : float
        Mean cosine between different items. Above 0.5 the features have collapsed towards one direction.
    mean_neighbour_cosine : float
        Mean cosine between an item and its nearest ``n_neighbours`` others.
    hubness : float
        Skewness of how often an item is among the neighbours of others.
    n_neighbours : int
        Neighbours looked at.
    """

    mean_cosine: float
    mean_neighbour_cosine: float
    hubness: float
    n_neighbours: int


@dataclass(frozen=True)
class ReliableLabels:
    """Labels worth training another network on.

    Attributes
    ----------
    labels : Tensor of int64, shape (n,)
        The cluster of a reliable item, −100 elsewhere.
    n_agreeing : Tensor of int64, shape (K,)
        Items per cluster that passed the tests, before balancing.
    consistency, confidence : float
        The two thresholds.
    balanced : bool
        Whether every cluster was cut to the size of the smallest.
    """

    labels: Tensor
    n_agreeing: Tensor
    consistency: float
    confidence: float
    balanced: bool


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
    seed : int
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
    seed: int = field(default=0)


def train_clustering_heads(
    features: Tensor,
    weak: Tensor,
    strong: Tensor,
    settings: SpiceSettings,
    *,
    transform: SetTransform | None = None,
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
        See :data:`SETTINGS`.
    transform : SetTransform, optional
        Applied to the features of each selection batch, before prototypes and neighbours. ``None`` is the
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

    Notes
    -----
    Heads are judged every epoch on all items with plain f, with and without a transform, so that the rule
    that selects is the same for the host and its variant. True labels are no argument of this function, on
    purpose: the released training script also keeps the head with the best accuracy, which is not a result.

    Cached views imply a frozen encoder in evaluation mode. The released code leaves its batch norms in
    training mode during the gradient steps, so that their statistics drift; that cannot be had from cached
    features.

    Time O(rounds · (M²·w_E + H·M·w·hidden)); memory one M × M matrix where the transform returns one.
    """
    f, weak, strong, clean = _checked_views(features, weak, strong, clean, settings)
    n = f.shape[0]
    transform = Identity() if transform is None else transform
    diagnostics = embedding_diagnostics(f, n_neighbours=min(20, n - 1))
    if diagnostics.mean_cosine > _COLLAPSED_COSINE:
        warnings.warn(
            f"train_clustering_heads was given features whose mean cosine between items is "
            f"{diagnostics.mean_cosine:.2f}, above {_COLLAPSED_COSINE}: they have collapsed towards one "
            f"direction "
            "and neighbours will say little. Projection-head features, or features minus their mean, often "
            "do better.",
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


def prototype_pseudo_labels(
    probabilities: Tensor, embedding: Tensor, *, n_confident: int, n_labelled: int
) -> PseudoLabels:
    """Label the items nearest to each cluster's prototype.

    Parameters
    ----------
    probabilities : Tensor, shape (M, K)
        Of one head.
    embedding : Tensor, shape (M, w)
        E: the features prototypes are averaged and compared in.
    n_confident : int
        k, the items with the highest probability that make a prototype.
    n_labelled : int
        The items with the largest dot product with a prototype that receive its label.

    Returns
    -------
    PseudoLabels
        Balanced by construction. Ties are decided in favour of the smaller index.
    """
    m, k = probabilities.shape
    if embedding.shape[:-1] != (m,):
        raise ShapeError(
            f"The 'embedding' parameter of prototype_pseudo_labels must have one row for each of the {m} "
            f"rows of "
            f"'probabilities'. Got {tuple(embedding.shape)}."
        )
    for name, count in (("n_confident", n_confident), ("n_labelled", n_labelled)):
        if not 1 <= count <= m:
            raise ArgumentError(
                f"The {name!r} parameter of prototype_pseudo_labels must lie between 1 and the {m} items. "
                f"Got {count}."
            )
    confident = _largest(probabilities.T, n_confident)  # (K, k)
    prototypes = embedding[confident].mean(dim=1)  # (K, w), not normalised again
    nearest = _largest(prototypes @ embedding.T, n_labelled)  # (K, n), clusters independent of one another
    labels = torch.arange(k, device=nearest.device).repeat_interleave(n_labelled)
    return PseudoLabels(indices=nearest.flatten(), labels=labels, prototypes=prototypes)


def double_softmax_loss(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of probabilities taken as logits.

    Parameters
    ----------
    probabilities : Tensor, shape (..., b, K)
        Already softmaxed.
    labels : Tensor of int64, shape (..., b)

    Returns
    -------
    Tensor, shape ()
        Mean over all items; never below :func:`double_softmax_floor`. Differentiable, with gradients
        bounded in the probabilities.
    """
    return nn.functional.cross_entropy(probabilities.flatten(0, -2), labels.flatten())


def double_softmax_floor(n_clusters: int) -> float:
    """Smallest value of the double softmax loss: log((e + K − 1) / e).

    Examples
    --------
    >>> round(double_softmax_floor(10), 4), round(double_softmax_floor(20), 4)
    (1.4612, 2.0782)
    """
    return math.log((math.e + n_clusters - 1) / math.e)


def reliable_labels(
    probabilities: Tensor,
    features: Tensor,
    *,
    consistency: float = 0.95,
    confidence: float = 0.99,
    n_neighbours: int = 100,
    balance: bool = True,
    seed: int = 0,
    block: int = 4096,
) -> ReliableLabels:
    """Keep the labels on which an item's neighbourhood and its own probability agree.

    Parameters
    ----------
    probabilities : Tensor, shape (n, K)
        Of the selected head, on clean views.
    features : Tensor, shape (n, d)
        f; rows are L2-normalised here. The published method uses plain features here, also where a
        transform made the pseudo-labels.
    consistency : float
        Share of the ``n_neighbours`` nearest items, the item itself included, that must carry its label.
        Released configurations use 0.90 (STL-10) and 0.99 (CIFAR).
    confidence : float
        The largest probability must exceed this.
    n_neighbours : int
        Neighbours looked at; all items if there are fewer.
    balance : bool
        Cut every cluster to the size of the smallest by a random choice.
    seed : int
        Of that choice.
    block : int
        Rows of similarities held at a time: memory is block · n numbers, never n².

    Returns
    -------
    ReliableLabels

    Raises
    ------
    ArgumentError
        A cluster has no reliable item, so that a balanced set would be empty.
    """
    if probabilities.ndim != 2 or features.ndim != 2 or features.shape[0] != probabilities.shape[0]:
        raise ShapeError(
            "reliable_labels needs 'probabilities' of shape (n, K) and 'features' of shape (n, d). Got "
            f"{tuple(probabilities.shape)} and {tuple(features.shape)}."
        )
    for name, share in (("consistency", consistency), ("confidence", confidence)):
        if not 0 <= share <= 1:
            raise ArgumentError(
                f"The {name!r} parameter of reliable_labels must lie in [0, 1]. Got {share!r}."
            )
    if n_neighbours < 1 or block < 1:
        raise ArgumentError(
            "The 'n_neighbours' and 'block' parameters of reliable_labels must be at least 1. "
            f"Got {n_neighbours} and {block}."
        )
    n, k = probabilities.shape
    f = nn.functional.normalize(features, dim=-1)
    labels = probabilities.argmax(dim=-1)
    n_near = min(n_neighbours, n)
    agree = torch.empty(n, dtype=torch.int64, device=labels.device)
    for start in range(0, n, block):
        rows = torch.arange(start, min(start + block, n), device=labels.device)
        similarity = f[rows] @ f.T
        similarity[torch.arange(len(rows)), rows] = (
            torch.inf
        )  # rank 0 is the item itself, also among its copies
        near = similarity.topk(n_near, dim=-1).indices
        agree[rows] = (labels[near] == labels[rows, None]).sum(dim=-1)
    kept = (agree >= consistency * n_near) & (probabilities.max(dim=-1).values > confidence)

    n_agreeing = torch.bincount(labels[kept], minlength=k)
    result = torch.full_like(labels, _NO_LABEL)
    if not balance:
        result[kept] = labels[kept]
        return ReliableLabels(result, n_agreeing, consistency, confidence, balanced=False)
    smallest = int(n_agreeing.min())
    if smallest == 0:
        empty = [int(c) for c in (n_agreeing == 0).nonzero().flatten()]
        raise ArgumentError(
            f"reliable_labels found no reliable item in cluster {', '.join(map(str, empty))} of {k}, so "
            f"that a "
            f"balanced set would be empty. Got consistency={consistency} and confidence={confidence}; "
            f"lower them, or "
            "pass balance=False to keep what there is."
        )
    rng = torch.Generator().manual_seed(seed)
    for cluster in range(k):
        members = (kept & (labels == cluster)).nonzero().flatten()
        chosen = members[torch.randperm(len(members), generator=rng)[:smallest].to(members.device)]
        result[chosen] = cluster
    return ReliableLabels(result, n_agreeing, consistency, confidence, balanced=True)


def embedding_diagnostics(
    features: Tensor, *, n_neighbours: int = 20, block: int = 4096
) -> EmbeddingDiagnostics:
    """Measure, without labels, how collapsed and how hubby features are.

    Parameters
    ----------
    features : Tensor, shape (n, d)
        Rows are L2-normalised here; n ≥ 2.
    n_neighbours : int
        Nearest other items looked at, at most n − 1.
    block : int
        Rows of similarities held at a time.

    Returns
    -------
    EmbeddingDiagnostics
    """
    f = nn.functional.normalize(features, dim=-1)
    n = f.shape[0]
    if not 1 <= n_neighbours <= n - 1:
        raise ArgumentError(
            f"The 'n_neighbours' parameter of embedding_diagnostics must lie between 1 and n − 1 = {n - 1}. "
            f"Got {n_neighbours}."
        )
    squares = f.double().square().sum()
    mean_cosine = (f.double().sum(dim=0).square().sum() - squares) / (n * (n - 1))
    total = 0.0
    occurrences = torch.zeros(n, dtype=torch.float64, device=f.device)
    for start in range(0, n, block):
        rows = torch.arange(start, min(start + block, n), device=f.device)
        similarity = f[rows] @ f.T
        similarity[torch.arange(len(rows)), rows] = -torch.inf
        near = similarity.topk(n_neighbours, dim=-1)
        total += float(near.values.double().sum())
        occurrences += torch.bincount(near.indices.flatten(), minlength=n)
    centred = occurrences - occurrences.mean()
    spread = centred.square().mean().sqrt()
    hubness = float((centred**3).mean() / spread**3) if spread > 0 else 0.0
    return EmbeddingDiagnostics(
        mean_cosine=float(mean_cosine),
        mean_neighbour_cosine=total / (n * n_neighbours),
        hubness=hubness,
        n_neighbours=n_neighbours,
    )


class ClusteringHeads(nn.Module):
    """H independent two-layer heads that run as one batched product.

    Each head is Linear(w, hidden), ReLU, Linear(hidden, K), softmax, initialised like ``torch.nn.Linear``.
    """

    def __init__(self, n_inputs: int, settings: SpiceSettings, generator: torch.Generator) -> None:
        super().__init__()
        hidden = n_inputs if settings.hidden is None else settings.hidden
        h, k = settings.n_heads, settings.n_clusters

        def uniform(*shape: int, fan_in: int) -> nn.Parameter:
            bound = 1 / math.sqrt(fan_in)
            return nn.Parameter((2 * torch.rand(*shape, generator=generator) - 1) * bound)

        self.weight1 = uniform(h, n_inputs, hidden, fan_in=n_inputs)
        self.bias1 = uniform(h, 1, hidden, fan_in=n_inputs)
        self.weight2 = uniform(h, hidden, k, fan_in=hidden)
        self.bias2 = uniform(h, 1, k, fan_in=hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities of every head: x of shape (n, w), or (H, n, w) with inputs of its own for each head.

        Returns
        -------
        Tensor, shape (H, n, K)
            Rows sum to one.
        """
        hidden = torch.relu(x @ self.weight1 + self.bias1)
        return (hidden @ self.weight2 + self.bias2).softmax(dim=-1)

    def state_of(self, head: int) -> dict[str, Tensor]:
        """Copy of the weights of one head, as the state of a module with that head alone."""
        return {name: value[head : head + 1].detach().clone() for name, value in self.state_dict().items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> ClusteringHeads:
        """Rebuild heads from the weights of :meth:`state_of` or ``state_dict``."""
        h, n_inputs, hidden = state["weight1"].shape
        settings = SpiceSettings(
            n_clusters=state["weight2"].shape[-1],
            selection_size=state["weight2"].shape[-1],
            epochs=1,
            n_heads=h,
            hidden=hidden,
        )
        heads = cls(n_inputs, settings, torch.Generator().manual_seed(0)).to(state["weight1"])
        heads.load_state_dict(dict(state))
        return heads.requires_grad_(False).eval()


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


def _largest(values: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` largest along the last axis; equal values keep their order, on any device."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def _checked_views(
    features: Tensor, weak: Tensor, strong: Tensor, clean: Tensor | None, settings: SpiceSettings
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if features.ndim != 2:
        raise ShapeError(
            "The 'features' parameter of train_clustering_heads must have shape (n, d). "
            f"Got {tuple(features.shape)}."
        )
    n = features.shape[0]
    if n < settings.selection_size:
        raise ShapeError(
            f"The 'features' parameter of train_clustering_heads must have at least "
            f"selection_size={settings.selection_size} rows. Got {n}; lower selection_size in the settings."
        )
    n_pairs = settings.n_clusters * settings.counts(settings.selection_size)[1]
    if n_pairs < settings.batch_size:
        raise ArgumentError(
            f"train_clustering_heads draws batches of batch_size={settings.batch_size} from {n_pairs} "
            f"pseudo-labels "
            "a round and would never take a step; lower batch_size or raise selection_size in the settings."
        )
    views = {"weak": weak, "strong": strong} | ({} if clean is None else {"clean": clean})
    for name, view in views.items():
        allowed = (2,) if name == "clean" else (2, 3)
        if view.ndim not in allowed or view.shape[-2] != n or view.shape[-1] != weak.shape[-1]:
            raise ShapeError(
                f"The {name!r} parameter of train_clustering_heads must have shape (n, w)"
                f"{'' if name == 'clean' else ' or (v, n, w)'} with n = {n}, and all views the same w. "
                f"Got {tuple(view.shape)}."
            )
    for name, tensor in {"features": features, **views}.items():
        if not tensor.is_floating_point():
            raise DTypeError(
                f"The {name!r} parameter of train_clustering_heads must hold floating-point numbers. "
                f"Got {tensor.dtype}."
            )
        if not torch.isfinite(tensor).all():
            raise NonFiniteError(f"The {name!r} parameter of train_clustering_heads holds NaN or Inf.")
    dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
    f = nn.functional.normalize(features.detach().to(dtype), dim=-1)
    cast = {name: view.detach().to(f) for name, view in views.items()}
    weak3 = cast["weak"] if cast["weak"].ndim == 3 else cast["weak"][None]
    strong3 = cast["strong"] if cast["strong"].ndim == 3 else cast["strong"][None]
    return f, weak3, strong3, cast.get("clean", weak3[0])
