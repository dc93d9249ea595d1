"""Optional packages: imported where they are used, and their absence explained with the pip line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bpa.errors import MissingExtraError

__all__ = ["needs"]


@contextmanager
def needs(extra: str, *packages: str, feature: str) -> Iterator[None]:
    """Turn the absence of one of ``packages`` into a sentence; every other failed import stays what it is.

    Examples
    --------
    >>> with needs("app", "no_such_package", feature="drawing"):
    ...     import no_such_package
    Traceback (most recent call last):
    ...
    bpa.errors.MissingExtraError: drawing needs the 'app' extra: pip install 'bpa-transform[app]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] in packages:
            raise MissingExtraError(feature, extra) from error
        raise
