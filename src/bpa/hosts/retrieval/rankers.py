"""What else a user could do: every ranker by the name that commands use, one line each.

A ranker takes ``(query, gallery=None)`` and returns scores of shape (n_query, n_gallery), higher is better; some also
take a bank of probes. Features are brought to unit length. Without a gallery every item queries the others, and an item
is never its own neighbour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bpa.errors import ArgumentError
from bpa.hosts.retrieval._sides import sides_of
from bpa.hosts.retrieval.expansion import (
    alpha_query_expansion,
    average_query_expansion,
    database_augmentation,
)
from bpa.hosts.retrieval.graphs import diffusion, gnn_reranking, k_reciprocal_scores
from bpa.hosts.retrieval.hubs import (
    csls,
    dual_inverted_softmax,
    inverted_softmax,
    local_scaling,
    mutual_proximity,
    nearest_neighbour_normalisation,
    nicdm,
    query_bank_norm,
    rectangular_sinkhorn,
)

__all__ = ["RANKERS", "Ranker", "cosine"]


def cosine(query: Tensor, gallery: Tensor | None = None) -> Tensor:
    """Cosine similarity: what there is without any correction.

    Parameters
    ----------
    query : Tensor, shape (n_query, d)
    gallery : Tensor, shape (n_gallery, d), optional

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
    """
    return sides_of("cosine", query, gallery).scores()


@dataclass(frozen=True)
class Ranker:
    """A function that scores a gallery for queries, and whether it asks a bank how popular items are."""

    score: Callable[..., Tensor]
    uses_bank: bool = False

    def __call__(
        self, query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None, **options: Any
    ) -> Tensor:
        """Score the gallery; a bank is refused where it would not be asked."""
        if self.uses_bank:
            return self.score(query, gallery, bank, **options)
        if bank is not None:
            raise ArgumentError(
                f"The 'bank' parameter has no effect on {self.score.__name__}, which asks no probes."
            )
        return self.score(query, gallery, **options)


RANKERS: dict[str, Ranker] = {
    "cosine": Ranker(cosine),
    "average-qe": Ranker(average_query_expansion),
    "alpha-qe": Ranker(alpha_query_expansion),
    "dba": Ranker(database_augmentation),
    "k-reciprocal": Ranker(k_reciprocal_scores),
    "gnn": Ranker(gnn_reranking),
    "diffusion": Ranker(diffusion),
    "csls": Ranker(csls, uses_bank=True),
    "nnn": Ranker(nearest_neighbour_normalisation, uses_bank=True),
    "inverted-softmax": Ranker(inverted_softmax, uses_bank=True),
    "qb-norm": Ranker(query_bank_norm, uses_bank=True),
    "dual-is": Ranker(dual_inverted_softmax, uses_bank=True),
    "sinkhorn": Ranker(rectangular_sinkhorn, uses_bank=True),
    "mutual-proximity": Ranker(mutual_proximity, uses_bank=True),
    "local-scaling": Ranker(local_scaling, uses_bank=True),
    "nicdm": Ranker(nicdm, uses_bank=True),
}
"""Every ranker that scales beyond toy size."""
