"""Every exception and warning this package raises on purpose.

::

    BPAError (Exception)
    ├── ArgumentError (BPAError, ValueError)      a value that cannot be used
    │   ├── ShapeError                            … because of its shape
    │   ├── NonFiniteError                        … because it holds NaN or Inf
    │   └── UnknownArgumentError (…, TypeError)   a parameter that does not exist; names the one that does
    ├── DTypeError (BPAError, TypeError)          the wrong kind of object or number
    ├── FileError (BPAError, ValueError)          a file that cannot be read, or must not be
    │   └── UnsafeFileError                       … because reading it would run what it says
    ├── MemoryBudgetError (BPAError, MemoryError) more bytes than the budget allows, known beforehand
    ├── MissingExtraError (BPAError, ImportError) an optional dependency is not installed
    └── NotDifferentiableError (BPAError, RuntimeError)  a derivative that is not offered
    ConvergenceWarning (UserWarning)              a tolerance was asked for and not reached
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "BPAError",
    "ConvergenceWarning",
    "DTypeError",
    "FileError",
    "MemoryBudgetError",
    "MissingExtraError",
    "NonFiniteError",
    "NotDifferentiableError",
    "ShapeError",
    "UnknownArgumentError",
    "UnsafeFileError",
]


class BPAError(Exception):
    """Base class of everything this package raises on purpose.

    Examples
    --------
    >>> from bpa import BPA
    >>> try:
    ...     BPA(reg=-1)
    ... except BPAError as error:
    ...     print(type(error).__name__, isinstance(error, ValueError))
    ArgumentError True
    """


class ArgumentError(BPAError, ValueError):
    """An argument has a value that cannot be used.

    Examples
    --------
    >>> from bpa import BPA
    >>> BPA(reg=-1)
    Traceback (most recent call last):
    ...
    bpa.errors.ArgumentError: The 'reg' parameter of BPA must be a finite number above 0. Got -1. ...
    """


class ShapeError(ArgumentError):
    """An argument has a shape that cannot be used.

    Examples
    --------
    >>> import torch
    >>> from bpa import balanced_affinities
    >>> balanced_affinities(torch.zeros(3))
    Traceback (most recent call last):
    ...
    bpa.errors.ShapeError: The 'x' parameter of balanced_affinities must have shape (..., n, d). Got (3,). A single item
    is a set of one: use x[None].
    """


class NonFiniteError(ArgumentError):
    """An argument holds NaN or Inf.

    Examples
    --------
    >>> import torch
    >>> from bpa import balanced_affinities
    >>> balanced_affinities(torch.tensor([[1.0], [float("nan")]]))
    Traceback (most recent call last):
    ...
    bpa.errors.NonFiniteError: The 'x' parameter of balanced_affinities must be finite. Rows [1] hold NaN or Inf. ...
    """


class UnknownArgumentError(ArgumentError, TypeError):
    """A function was given a keyword it does not have; the message says what the word is here.

    Examples
    --------
    >>> from bpa import BPA
    >>> BPA(lam=0.1)
    Traceback (most recent call last):
    ...
    bpa.errors.UnknownArgumentError: BPA has no parameter 'lam': it is called 'reg' here.
    """


class DTypeError(BPAError, TypeError):
    """An argument is the wrong kind of object, or holds the wrong kind of number.

    Examples
    --------
    >>> from bpa import balanced_affinities
    >>> balanced_affinities([[1.0, 0.0]])
    Traceback (most recent call last):
    ...
    bpa.errors.DTypeError: The 'x' parameter of balanced_affinities must be a torch.Tensor. Got list. ...
    """


class FileError(BPAError, ValueError):
    """A file is missing, unreadable, or not laid out as it should be.

    Examples
    --------
    >>> from bpa.data import read_features
    >>> read_features("absent.npz")
    Traceback (most recent call last):
    ...
    bpa.errors.FileError: The feature file absent.npz of read_features does not exist.
    """


class UnsafeFileError(FileError):
    """A file was refused because reading it would run what it says.

    Examples
    --------
    >>> import os, pickle
    >>> from pathlib import Path
    >>> from bpa.data import read_features
    >>> _ = Path("from-a-stranger.pkl").write_bytes(pickle.dumps({0: [os.getcwd]}))
    >>> read_features("from-a-stranger.pkl")
    Traceback (most recent call last):
    ...
    bpa.errors.UnsafeFileError: from-a-stranger.pkl was refused: its pickle asks to load '...getcwd', which is not among
    the names a feature file needs. Nothing was imported or executed. ...
    """


class MemoryBudgetError(BPAError, MemoryError):
    """A computation was refused before it allocated more than the budget allows.

    Examples
    --------
    >>> from bpa.memory import check, estimate_affinities
    >>> check(estimate_affinities(10**6, 64), "8GB", way_out="Use a graph plan.")
    Traceback (most recent call last):
    ...
    bpa.errors.MemoryBudgetError: balanced affinities of 1,000,000 items: 4 TB beyond the input (...), which exceeds the
    budget of 8 GB. Use a graph plan.
    """


class MissingExtraError(BPAError, ImportError):
    """An optional dependency is not installed; the message holds the pip line.

    Examples
    --------
    >>> str(MissingExtraError("Reading a parquet file", "app"))
    "Reading a parquet file needs the 'app' extra: pip install 'bpa-transform[app]'"
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the {extra!r} extra: pip install 'bpa-transform[{extra}]'")


class NotDifferentiableError(BPAError, RuntimeError):
    """A derivative was asked for that is not offered.

    Examples
    --------
    >>> import torch
    >>> from bpa import balanced_affinities
    >>> x = torch.eye(4, requires_grad=True)
    >>> (gradient,) = torch.autograd.grad(balanced_affinities(x).square().sum(), x, create_graph=True)
    >>> gradient.sum().backward()
    Traceback (most recent call last):
    ...
    bpa.errors.NotDifferentiableError: The balanced plan can be differentiated once, not twice: ...
    """


class ConvergenceWarning(UserWarning):
    """A tolerance was asked for and not reached; the result says how far it got.

    Examples
    --------
    >>> import warnings
    >>> import torch
    >>> from bpa import balance
    >>> from bpa.solvers import Converged
    >>> cost = 1 - torch.eye(5) + torch.diag(torch.ones(4), 1) + torch.diag(torch.ones(4), -1)
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     hasty = balance(cost, reg=0.1, solver=Converged(1e-6, max_iter=2))
    >>> said[0].category.__name__, bool(hasty.convergence.converged)
    ('ConvergenceWarning', False)
    """
