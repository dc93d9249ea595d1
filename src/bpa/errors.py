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


class BPAError(Exception):
    """Base class of everything this package raises on purpose."""


class ArgumentError(BPAError, ValueError):
    """An argument has a value that cannot be used."""


class ShapeError(ArgumentError):
    """An argument has a shape that cannot be used."""


class NonFiniteError(ArgumentError):
    """An argument holds NaN or Inf."""


class UnknownArgumentError(ArgumentError, TypeError):
    """A function was given a keyword it does not have; the message says what the word is here."""


class DTypeError(BPAError, TypeError):
    """An argument is the wrong kind of object, or holds the wrong kind of number."""


class FileError(BPAError, ValueError):
    """A file is missing, unreadable, or not laid out as it should be."""


class UnsafeFileError(FileError):
    """A file was refused because reading it would run what it says."""


class MemoryBudgetError(BPAError, MemoryError):
    """A computation was refused before it allocated more than the budget allows."""


class MissingExtraError(BPAError, ImportError):
    """An optional dependency is not installed; the message holds the pip line."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the {extra!r} extra: pip install 'bpa-transform[{extra}]'")


class NotDifferentiableError(BPAError, RuntimeError):
    """A derivative was asked for that is not offered."""


class ConvergenceWarning(UserWarning):
    """A tolerance was asked for and not reached; the result says how far it got."""
