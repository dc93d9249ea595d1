"""Hosts that compare each query with the mean row of every class: the set is transformed, then halved."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, get_args

import torch
from torch import Tensor

from bpa._checks import check_choice
from bpa.hosts.fewshot._sets import Prediction, join, transformed
from bpa.records import Episode
from bpa.transforms.contract import Identity, SetTransform

Apply = Literal["always", "training"]


class PrototypeHost(torch.nn.Module):
    """Support and query pass one transform together; a query's scores come from its row and the class means."""

    def __init__(self, transform: SetTransform, apply: Apply) -> None:
        super().__init__()
        check_choice(apply, get_args(Apply), argument="apply", function=type(self).__name__)
        self.transform = transform
        self.apply_transform = apply

    def forward(self, episode: Episode) -> Prediction:
        """Label the queries of ``episode``."""
        task = join(episode)
        active = self.apply_transform == "always" or self.training
        z = transformed(self.transform if active else Identity(), task.x, task.mask)
        shots, queries = task.halves(z)
        return Prediction(task.hidden(self.scores(queries, class_means(shots, task.support_onehot))))

    @abstractmethod
    def scores(self, queries: Tensor, means: Tensor) -> Tensor:
        """How well each query (..., Q, w) goes with each class mean (..., k, w), shape (..., Q, k)."""


def class_means(rows: Tensor, onehot: Tensor) -> Tensor:
    """Mean row of each class, shape (..., k, w), by one-hot product: any order, any balance."""
    counts = onehot.sum(dim=-2)[..., None]
    return onehot.transpose(-1, -2) @ rows / counts
