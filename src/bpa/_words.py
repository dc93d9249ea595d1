"""Other people's words: an unknown argument's error names the right one where the paper or other code has another.

Keyword arguments are where a reader of the paper, or of the published code, first meets this package: ``lam=0.1``,
``n_iter=5``. Python's own sentence says that the word is unknown; these say which word, or which object, it is here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

from bpa.errors import UnknownArgumentError

__all__ = ["REG_WORDS", "SOLVER_WORDS", "explains"]

REG_WORDS = {
    "lam": "reg", "lambda_": "reg", "temperature": "reg", "tau": "reg", "epsilon": "reg", "eps": "reg", "blur": "reg",
    "ot_reg": "reg", "entropy_reg": "reg", "entropy_lambda": "reg", "regularization": "reg",
}  # fmt: skip
"""What others call the entropy weight."""
SOLVER_WORDS = {
    "n_iter": "solver=Sweeps(n)",
    "n_iters": "solver=Sweeps(n)",
    "num_iters": "solver=Sweeps(n)",
    "sinkhorn_iterations": "solver=Sweeps(n)",
    "tol": "solver=Converged(tol)",
    "max_iter": "solver=Converged(tol, max_iter)",
}
"""How far to balance, as one number or two; here it is one choice, an object of `bpa.solvers`."""

Target = TypeVar("Target", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


def explains(**known: str) -> Callable[[Target], Target]:
    """Let an unknown keyword argument of a function, method or class say what to write instead.

    Parameters
    ----------
    **known : str
        Foreign word → the parameter it is here (``lam="reg"``), what to write (``n_iter="solver=Sweeps(n)"``), or
        the end of a sentence (``mask_diag="items are never matched with themselves"``).

    Returns
    -------
    callable
        A decorator. What it decorates keeps its name, docstring and signature, and runs under ``torch.compile``;
        a call costs some tenths of a microsecond more. A class is decorated by its ``__init__``, so that dataclasses
        can have it, too.

    Raises
    ------
    UnknownArgumentError
        By the decorated function: for a word of ``known`` with what it is here, for any other with the parameters
        there are.

    Examples
    --------
    >>> @explains(lam="reg", n_iter="solver=Sweeps(n)")
    ... def affinities(x, reg=0.1, *, solver=None):
    ...     return reg
    >>> affinities([], lam=0.2)
    Traceback (most recent call last):
    ...
    bpa.errors.UnknownArgumentError: affinities has no parameter 'lam': it is called 'reg' here.
    >>> affinities([], n_iter=5)
    Traceback (most recent call last):
    ...
    bpa.errors.UnknownArgumentError: affinities has no parameter 'n_iter': write solver=Sweeps(n).
    >>> affinities([], colour=5)
    Traceback (most recent call last):
    ...
    bpa.errors.UnknownArgumentError: affinities has no parameter 'colour'. It takes x, reg, solver.
    """

    def decorate(target: Target) -> Target:
        if isinstance(target, type):
            target.__init__ = _guarded(target.__init__, target.__name__, known)  # type: ignore[misc]
            return target
        return _guarded(target, _owner(target), known)  # type: ignore[return-value]

    return decorate


def _guarded(function: Callable[P, R], owner: str, known: dict[str, str]) -> Callable[P, R]:
    names = _names_of(function)
    assert not set(names) & set(known), f"{owner} explains a word that it has"  # noqa: S101
    allowed = frozenset(names)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in allowed:
                raise UnknownArgumentError(_sentence(owner, name, known.get(name), names))
        return function(*args, **kwargs)

    return call


def _names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """What it can be called with by name; ``**options`` say it themselves, as ``Unpack`` of a typed dictionary."""
    names: list[str] = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            options = get_args(get_type_hints(function).get(p.name))
            assert options, f"{_owner(function)} takes any word"  # noqa: S101
            names += options[0].__annotations__
        elif p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self":
            names.append(p.name)
    return tuple(names)


def _owner(function: Callable[..., Any]) -> str:
    """The name a caller wrote: of the class for its ``__init__``, ``Class.method`` for a method."""
    name = function.__qualname__.rpartition("<locals>.")[2]
    return name.removesuffix(".__init__")


def _sentence(owner: str, name: str, instead: str | None, names: tuple[str, ...]) -> str:
    if instead is None:
        return f"{owner} has no parameter {name!r}. It takes {', '.join(names)}."
    if instead in names:
        return f"{owner} has no parameter {name!r}: it is called {instead!r} here."
    return f"{owner} has no parameter {name!r}: {'write ' if '=' in instead else ''}{instead}."
