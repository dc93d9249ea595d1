"""Clustering heads: small networks that run side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bpa.hosts.clustering.spice._settings import SpiceSettings


class ClusteringHeads(nn.Module):
    """H independent two-layer heads that run as one batched product.

    Each head is Linear(w, hidden), ReLU, Linear(hidden, K), softmax, initialised like ``torch.nn.Linear``.

    Parameters
    ----------
    n_inputs : int
        Width w of the head inputs.
    settings : SpiceSettings
        How many heads and clusters, and how wide a hidden layer.
    generator : torch.Generator
        Of the first weights.

    Examples
    --------
    >>> settings = SpiceSettings(n_clusters=3, selection_size=30, epochs=1, n_heads=2)
    >>> heads = ClusteringHeads(8, settings, torch.Generator().manual_seed(0))
    >>> heads(torch.zeros(5, 8)).shape
    torch.Size([2, 5, 3])
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
