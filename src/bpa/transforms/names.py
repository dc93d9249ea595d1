"""Transforms as data: a name and the settings that change its result, for configurations, records and command lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from bpa._checks import check_choice, check_count, check_reg
from bpa.errors import ArgumentError
from bpa.solvers import Converged, Sweeps
from bpa.solvers._choice import PAPER_SWEEPS, Solver, check_solver, solver_named
from bpa.transforms.alternatives import (
    PCA,
    Attention,
    CentredUnitNorm,
    CosineRows,
    DualSoftmax,
    RowSoftmax,
    SpectralRows,
    UnitNorm,
)
from bpa.transforms.contract import Identity, SetTransform
from bpa.transforms.functional import balanced_affinities
from bpa.transforms.layers import BPA, BPAAttention

__all__ = [
    "FREE",
    "PUBLISHED_REG",
    "TRANSFORMS",
    "CosineBPA",
    "NamedTransform",
    "Reg",
    "has_rule",
    "uses_reg",
]

Reg = float | Literal["auto"]
FREE = ("identity", "unit", "centred")
"""What every user already has; gains are quoted over the best of these."""
PUBLISHED_REG = 0.1
"""The entropy weight of the paper, and the temperature of the alternatives beside it."""


@dataclass(frozen=True)
class NamedTransform:
    """A set transform by its name, with every setting that changes its result; `build` makes it.

    Parameters
    ----------
    name : str
        One of `TRANSFORMS`.
    reg : float or "auto", optional
        Entropy weight or temperature, 0.1 where it is left out; ``"auto"`` is a rule of bpa and bpa-attn.
    solver : Sweeps or Converged, optional
        How far bpa and bpa-attn balance; the paper's five sweeps where it is left out.
    width : int, optional
        Columns of pca and spectral; 5 where it is left out, where the paper's table has both at their best.
    values : NamedTransform, optional
        What bpa-attn mixes: a pca or spectral of the set; the features themselves where it is left out.
    weights_of : {"values", "features"}, optional
        Whose affinities bpa-attn mixes ``values`` with; those of the values where it is left out.
    self_included : bool, optional
        For softmax: over the whole row, without stretch and unit diagonal.
    cost : {"relative-euclidean"}, optional
        For bpa: the distance over the largest of the set, instead of one minus the cosine.
    unscaled : bool, optional
        For bpa: leave out the stretch by the largest affinity.
    diagonal : float, optional
        For bpa: the affinity of an item to itself, 1 where it is left out.

    Examples
    --------
    >>> NamedTransform("bpa", reg=0.2).to_dict()
    {'name': 'bpa', 'reg': 0.2, 'solver': 'sweeps:5'}
    >>> NamedTransform.from_dict({"name": "pca", "width": 40}).build()(torch.randn(90, 64)).shape
    torch.Size([90, 40])
    """

    name: str
    reg: Reg | None = None
    solver: Solver | None = None
    width: int | None = None
    values: NamedTransform | None = None
    weights_of: Literal["values", "features"] | None = None
    self_included: bool | None = None
    cost: Literal["relative-euclidean"] | None = None
    unscaled: bool | None = None
    diagonal: float | None = None

    def __post_init__(self) -> None:
        kind = TRANSFORMS.get(self.name)
        if kind is None:
            raise ArgumentError(
                f"The transform {self.name!r} is not known; choose among {', '.join(TRANSFORMS)}."
            )
        for item in fields(self):
            if item.name != "name" and getattr(self, item.name) is not None and item.name not in kind.takes:
                takes = f"takes {', '.join(kind.takes)}" if kind.takes else "has no settings"
                raise ArgumentError(f"The transform {self.name!r} has no {item.name!r}; it {takes}.")
        for name in kind.takes:
            if getattr(self, name) is None and name in _DEFAULTS:
                object.__setattr__(self, name, _DEFAULTS[name])
        self._check(kind)

    def _check(self, kind: _Kind) -> None:
        function = f"the transform {self.name!r}"
        if self.reg is not None:
            object.__setattr__(self, "reg", check_reg(self.reg, function=function, auto=kind.has_rule))
        if self.solver is not None:
            check_solver(self.solver, function=function)
            if solver_named(str(self.solver)) != self.solver:
                raise ArgumentError(
                    f"The 'solver' parameter of {function} must have a name. Got {self.solver!r}."
                )
        if self.width is not None:
            check_count(self.width, argument="width", function=function)
        if self.values is not None:
            check_choice(self.values.name, ("pca", "spectral"), argument="values", function=function)
        elif self.weights_of is not None:
            raise ArgumentError(
                "The 'weights_of' parameter of bpa-attn says whose affinities mix 'values'; give both."
            )
        check_choice(self.weights_of, (None, "values", "features"), argument="weights_of", function=function)
        check_choice(self.cost, (None, "relative-euclidean"), argument="cost", function=function)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that the name has, as JSON holds them."""
        out: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None:
                plain = value.to_dict() if isinstance(value, NamedTransform) else value
                out[item.name] = str(plain) if isinstance(plain, Sweeps | Converged) else plain
        return out

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> NamedTransform:
        """Return the transform that `to_dict` described."""
        given = dict(raw)
        if isinstance(given.get("solver"), str):
            given["solver"] = solver_named(given["solver"])
        if isinstance(given.get("values"), Mapping):
            given["values"] = cls.from_dict(given["values"])
        unknown = sorted(set(given) - {item.name for item in fields(cls)})
        if unknown or "name" not in given:
            raise ArgumentError(
                f"A transform has the fields {', '.join(i.name for i in fields(cls))}. Got {raw!r}."
            )
        return cls(**given)

    @classmethod
    def parse(cls, text: str, *, reg: Reg | None = None, solver: Solver | None = None) -> NamedTransform:
        """Read the one text form, ``NAME:setting=value:…``; ``reg`` and ``solver`` go to a name that has them.

        Examples
        --------
        >>> NamedTransform.parse("pca:width=40").width
        40
        >>> NamedTransform.parse("bpa-attn:values=pca:width=40", reg=0.2).values
        NamedTransform(name='pca', width=40)
        """
        name, *settings = text.split(":")
        given: dict[str, Any] = {"name": name.strip()}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals or key not in _TEXT:
                raise ArgumentError(
                    f"A setting of a transform is written NAME:setting=value, with one of {', '.join(_TEXT)}. "
                    f"Got {text!r}."
                )
            try:
                given[key] = _TEXT[key](value)
            except ValueError:
                raise ArgumentError(
                    f"The setting {key!r} of a transform cannot be {value!r}. Got {text!r}."
                ) from None
        if "values" in given:
            width = {"width": given.pop("width")} if "width" in given else {}
            given["values"] = cls(given["values"], **width)
        takes = TRANSFORMS[given["name"]].takes if given["name"] in TRANSFORMS else ()
        for key, default in (("reg", reg), ("solver", solver)):
            if default is not None and key in takes:
                given.setdefault(key, default)
        return cls(**given)

    def build(self) -> SetTransform:
        """Return the transform."""
        return TRANSFORMS[self.name].build(self)

    def __repr__(self) -> str:
        shown = (
            f"{item.name}={getattr(self, item.name)!r}"
            for item in fields(self)
            if getattr(self, item.name) is not None
        )
        return f"NamedTransform({', '.join(shown)})"


class CosineBPA(BPA):
    """`BPA` that hosts working on inner products can hand cosines to; built without a cost of one's own."""

    def __init__(
        self,
        reg: Reg = PUBLISHED_REG,
        solver: Solver = PAPER_SWEEPS,
        *,
        scale: Literal["max"] | None = "max",
        diagonal: float = 1.0,
    ) -> None:
        super().__init__(reg, solver, scale=scale, diagonal=diagonal)
        self.reg, self.solver, self.scale, self.diagonal = reg, solver, scale, diagonal

    def from_cosines(self, cosines: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Affinities (..., n, n) of rows with these cosines."""
        return balanced_affinities(
            1.0 - cosines, reg=self.reg, solver=self.solver, cost="precomputed", scale=self.scale,
            diagonal=self.diagonal, mask=mask,
        )  # fmt: skip


@dataclass(frozen=True)
class _Kind:
    """What a name stands for: how it is built, the settings it has, and whether it has a rule for ``reg="auto"``."""

    build: Callable[[NamedTransform], SetTransform]
    takes: tuple[str, ...] = ()
    has_rule: bool = field(default=False, kw_only=True)


def _bpa(asked: NamedTransform) -> SetTransform:
    reg, solver = _weight(asked)
    scale: Literal["max"] | None = None if asked.unscaled else "max"
    diagonal = 1.0 if asked.diagonal is None else asked.diagonal
    if asked.cost is not None:
        return BPA(reg, solver, cost=_relative_distances, scale=scale, diagonal=diagonal)
    return CosineBPA(reg, solver, scale=scale, diagonal=diagonal)


def _attention(asked: NamedTransform) -> SetTransform:
    reg, solver = _weight(asked)
    if asked.values is None:
        return BPAAttention(reg, solver)
    of = Identity() if asked.weights_of == "features" else None
    return Attention(CosineBPA(reg, solver), asked.values.build(), of=of)


def _weight(asked: NamedTransform) -> tuple[Reg, Solver]:
    """The weight and the solver, which bpa and bpa-attn always have."""
    assert asked.reg is not None  # noqa: S101 - filled in when it was named
    return asked.reg, PAPER_SWEEPS if asked.solver is None else asked.solver


def _relative_distances(x: Tensor) -> Tensor:
    """Euclidean distances (..., n, n) over the largest of each set."""
    distance = torch.cdist(x, x)
    return distance / distance.amax(dim=(-2, -1), keepdim=True)


def _softmax(asked: NamedTransform) -> SetTransform:
    return RowSoftmax(_number(asked.reg), plain=bool(asked.self_included))


def _number(reg: Reg | None) -> float:
    """A weight that cannot be "auto": the name has no rule."""
    assert isinstance(reg, float)  # noqa: S101 - checked when it was named
    return reg


TRANSFORMS: Mapping[str, _Kind] = {
    "identity": _Kind(lambda _: Identity()),
    "unit": _Kind(lambda _: UnitNorm()),
    "centred": _Kind(lambda _: CentredUnitNorm()),
    "cosine": _Kind(lambda _: CosineRows()),
    "softmax": _Kind(_softmax, ("reg", "self_included")),
    "dual-softmax": _Kind(lambda asked: DualSoftmax(_number(asked.reg)), ("reg",)),
    "pca": _Kind(lambda asked: PCA(asked.width or 0), ("width",)),
    "spectral": _Kind(lambda asked: SpectralRows(asked.width or 0, _number(asked.reg)), ("reg", "width")),
    "bpa": _Kind(_bpa, ("reg", "solver", "cost", "unscaled", "diagonal"), has_rule=True),
    "bpa-attn": _Kind(_attention, ("reg", "solver", "values", "weights_of"), has_rule=True),
}
"""Every name there is."""

_DEFAULTS: Mapping[str, Any] = {"reg": PUBLISHED_REG, "solver": PAPER_SWEEPS, "width": 5}
_TEXT: Mapping[str, Callable[[str], Any]] = {
    "width": int, "values": str, "weights_of": str, "reg": lambda text: text if text.lower() == "auto" else float(text),
    "diagonal": float,
}  # fmt: skip
"""The settings that the text form can hold; the others are for studies."""


def uses_reg(name: str) -> bool:
    """Whether the transform of this name has an entropy weight or a temperature."""
    return name in TRANSFORMS and "reg" in TRANSFORMS[name].takes


def has_rule(name: str) -> bool:
    """Whether the transform of this name understands ``reg="auto"``."""
    return name in TRANSFORMS and TRANSFORMS[name].has_rule
