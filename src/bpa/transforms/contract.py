"""What a host asks of a transform, and the transform that changes nothing."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class SetTransform(Protocol):
    """Anything that turns a set of features into a set of features of any width, equivariantly.

    Examples
    --------
    A function is one, too; hosts ask for nothing else.

    >>> import torch
    >>> def doubled(x, *, mask=None):
    ...     return 2 * x
    >>> transform: SetTransform = doubled
    >>> transform(torch.ones(3, 2)).sum()
    tensor(12.)
    """

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x`` of shape (..., n, d) to shape (..., n, w).

        ``mask``, where given, has shape (..., n) and is true at the items that exist.
        """
        ...


class Identity:
    """The transform of the published baseline: features stay as they are.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(5, 3)
    >>> Identity()(x) is x
    True
    """

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return ``x``."""
        return x
