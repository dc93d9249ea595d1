"""The numbers of SPICE's second phase, and the published ones by data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bpa._checks import check_count, check_interval
from bpa.errors import ArgumentError


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

    Examples
    --------
    >>> settings = SpiceSettings(n_clusters=10, selection_size=5000, epochs=30)
    >>> settings.counts(5000)  # k confident items make a prototype, n receive its label
    (250, 500)
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
        check_count(self.n_clusters, argument="n_clusters", function="SpiceSettings", minimum=2)
        for name in ("selection_size", "epochs", "n_heads", "batch_size", "repeats"):
            check_count(getattr(self, name), argument=name, function="SpiceSettings")
        if self.selection_size < self.n_clusters:
            raise ArgumentError(
                f"The 'selection_size' parameter of SpiceSettings must be at least n_clusters={self.n_clusters}, so "
                f"that every cluster is given an item. Got {self.selection_size}."
            )
        check_interval(self.centre_ratio, "(0, 1]", argument="centre_ratio", function="SpiceSettings")
        if self.n_confident is not None:
            check_count(
                self.n_confident,
                argument="n_confident",
                function="SpiceSettings",
                maximum=self.selection_size,
            )

    def counts(self, n: int) -> tuple[int, int]:
        """How many of ``n`` items make a prototype (k), and how many receive its label (n)."""
        n_labelled = n // self.n_clusters
        n_confident = self.n_confident or max(1, int(self.centre_ratio * n_labelled))
        return n_confident, n_labelled


SPICE_SETTINGS: Mapping[str, SpiceSettings] = MappingProxyType(
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
