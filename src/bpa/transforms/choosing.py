"""Which entropy weight a set would get, and why: x (..., n, d) gives :class:`AutoReg`."""

from __future__ import annotations

import torch
from torch import Tensor

from bpa._checks import check_features, check_mask
from bpa.kernels._standardise import AutoReg, standardise
from bpa.kernels._weight import FACTS, centred_cosines, weigh
from bpa.solvers import Sweeps
from bpa.solvers._plan import solve

__all__ = ["AutoReg", "choose_reg"]


def choose_reg(x: Tensor, *, mask: Tensor | None = None) -> AutoReg:
    """Choose the entropy weight of each set from its features alone.

    Parameters
    ----------
    x : Tensor, shape (..., n, d)
        Sets of features.
    mask : Tensor of bool, shape (..., n), optional
        True at the items that exist.

    Returns
    -------
    AutoReg
        Fields of shape (...). Deterministic, constant in the gradient, the same whatever the order of the items and
        whatever other sets are in the batch.

    Notes
    -----
    O(n²) beyond the cosines; no labels, no random numbers.

    Examples
    --------
    >>> import torch
    >>> x = torch.nn.functional.normalize(torch.randn(5, 1, 64, generator=torch.Generator().manual_seed(0)), dim=-1)
    >>> x = (x + 0.1 * torch.randn(5, 16, 64, generator=torch.Generator().manual_seed(1))).reshape(80, 64)
    >>> choice = choose_reg(x)
    >>> 0.08 <= float(choice.reg) <= 0.4, float(choice.evidence)
    (True, 1.0)
    """
    check_features(x, argument="x", function="choose_reg")
    mask = None if mask is None else check_mask(mask, x.shape[:-1], function="choose_reg")
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        values = x if x.dtype is torch.float64 else x.float()
        cosines, mean = centred_cosines(values, mask, function="choose_reg")
        weight = weigh(cosines, mean, mask)
        plan = solve(weight.log_kernel(cosines, mask), None, None, Sweeps(5), FACTS).plan
        return standardise(plan, cosines, weight, diagonal=1.0, mask=mask)[1]
