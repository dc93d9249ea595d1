"""A way: one row of any table. A host, a transform, and the host's settings, as data; its label is for people only."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from bpa.errors import ArgumentError
from bpa.records.runs import plain
from bpa.solvers import Sweeps
from bpa.solvers._choice import Solver
from bpa.transforms.names import FREE, PUBLISHED_REG, TRANSFORMS, NamedTransform, Reg, has_rule, uses_reg

__all__ = [
    "FREE", "Way", "labels", "refuse_moot_auto", "refuse_unheard", "said", "shared", "told_apart", "transforms_asked",
    "weights_for",
]  # fmt: skip


@dataclass(frozen=True)
class Way:
    """What was done with the features: an algorithm, the transform that was handed to it, and its settings.

    Parameters
    ----------
    host : str
        The algorithm, such as ``"ptmap"``, ``"k-means"`` or ``"nearest"``.
    transform : NamedTransform
        What the algorithm sees the features through.
    settings : mapping
        The host's own settings that change a number, as JSON holds them.

    Examples
    --------
    >>> way = Way("ptmap", NamedTransform("bpa", reg=0.2), {"epochs": 20})
    >>> Way.from_dict(way.to_dict()) == way
    True
    """

    host: str
    transform: NamedTransform
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = plain(dict(sorted(self.settings.items())))
        object.__setattr__(self, "settings", MappingProxyType(settings))

    def __hash__(self) -> int:
        return hash((self.host, self.transform, json.dumps(dict(self.settings), sort_keys=True)))

    def to_dict(self) -> dict[str, Any]:
        """Return the way as JSON holds it."""
        return {"host": self.host, "transform": self.transform.to_dict(), "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Way:
        """Return the way that `to_dict` described."""
        if set(raw) != {"host", "transform", "settings"}:
            raise ArgumentError(
                f"A way has the fields host, transform and settings. Got {', '.join(raw) or 'none'}."
            )
        return cls(raw["host"], NamedTransform.from_dict(raw["transform"]), raw["settings"])

    def fields(self) -> dict[str, Any]:
        """Return everything that tells ways apart, flat, in the order of labels; sweeps are a number.

        Examples
        --------
        >>> Way("protonet", NamedTransform("bpa")).fields()
        {'host': 'protonet', 'transform': 'bpa', 'reg': 0.1, 'sweeps': 5}
        """
        out: dict[str, Any] = {"host": self.host, "transform": self.transform.name}
        settings = self.transform.to_dict()
        values = settings.pop("values", None)
        if values is not None:  # what is mixed has a width, and the mixture has none of its own
            settings |= {"values": values.pop("name")} | {
                f"values_{key}": item for key, item in values.items()
            }
            settings["width"] = settings.pop("values_width")
        if isinstance(self.transform.solver, Sweeps):
            settings |= {"sweeps": self.transform.solver.n}
            del settings["solver"]
        out |= {key: settings[key] for key in _ORDER if key in settings}
        return out | dict(self.settings)


_ORDER = (
    "source", "sha256", "n", "dim", "noise", "n_clusters", "n_way", "n_shot", "n_query", "n_tasks", "protocol", "host",
    "transform", "values", "width", "weights_of", "reg", "values_reg", "sweeps", "solver", "cost", "unscaled",
    "diagonal", "self_included",
)  # fmt: skip
"""In which order fields are said; those that are not here follow by name."""


def labels(ways: Sequence[Way]) -> list[str]:
    """Return the shortest labels that tell these ways apart; for people, never to be parsed.

    A label names the host where hosts differ, the transform, and of the rest what not all ways have alike. A host
    that only ever takes the features as they are is its own name. Two different ways never share a label.

    Parameters
    ----------
    ways : sequence of Way

    Returns
    -------
    list of str
        One label a way, in the order of ``ways``.

    Examples
    --------
    >>> sweeps = [Way("protonet", NamedTransform("bpa", solver=Sweeps(n))) for n in (1, 5)]
    >>> labels([Way("protonet", NamedTransform("unit")), *sweeps])
    ['unit', 'bpa, 1 sweep', 'bpa, 5 sweeps']
    """
    rows = [way.fields() for way in ways]
    hosts = {row["host"] for row in rows}
    bare = {host for host in hosts if {r["transform"] for r in rows if r["host"] == host} == {"identity"}}
    if len(hosts) > 1:
        rows = [{k: v for k, v in row.items() if k != "transform" or row["host"] not in bare} for row in rows]
    order, differing = _order(rows), _differing(rows)
    return _tell(rows, order, [{"transform", *differing} for _ in rows])


def told_apart(rows: Sequence[Mapping[str, Any]], *, always: Sequence[str] = ()) -> list[str]:
    """Say of each row what tells it from the others: as few fields as do, in words, in the order of the fields.

    Parameters
    ----------
    rows : sequence of mapping
        Flat fields.
    always : sequence of str
        Fields that are said even where all agree.

    Returns
    -------
    list of str
        Different for rows that differ.

    Examples
    --------
    >>> told_apart([{"n_way": 5, "n_shot": 1}, {"n_way": 5, "n_shot": 5}])
    ['1-shot', '5-shot']
    """
    return _tell(rows, _order(rows), [set(always) for _ in rows])


def _tell(rows: Sequence[Mapping[str, Any]], order: Sequence[str], shown: list[set[str]]) -> list[str]:
    """Say the fields that are shown, and where that leaves rows alike, the next field that tells them apart."""
    while True:
        texts = [
            ", ".join(said(key, row[key]) for key in order if key in keys and key in row)
            for row, keys in zip(rows, shown, strict=True)
        ]
        alike: dict[str, list[int]] = defaultdict(list)
        for index, text in enumerate(texts):
            alike[text].append(index)
        for members in alike.values():
            mine = [rows[index] for index in members]
            hidden = (key for key in order if key not in shown[members[0]])
            tells = next(
                (key for key in hidden if len({_canonical(row.get(key, _ABSENT)) for row in mine}) > 1), None
            )
            if tells is not None:
                for index in members:
                    shown[index].add(tells)
                break
        else:
            return texts


def shared(ways: Sequence[Way]) -> list[str]:
    """Say what all ways that have a setting have alike, and no label of `labels` says.

    Examples
    --------
    >>> shared([Way("protonet", NamedTransform("unit")), Way("protonet", NamedTransform("bpa"))])
    ['reg 0.1', '5 sweeps']
    """
    rows = [way.fields() for way in ways]
    alike = (key for key in _order(rows) if key not in {"host", "transform", *_differing(rows)})
    return [said(key, next(row[key] for row in rows if key in row)) for key in alike]


def said(key: str, value: Any) -> str:
    """Say one field in words.

    Examples
    --------
    >>> said("sweeps", 5), said("n_shot", 1), said("rows", {"measure": "cosine", "top": 50, "neighbours": None})
    ('5 sweeps', '1-shot', 'rows cosine top 50')
    """
    if key in _WORDS:
        return _WORDS[key](value)
    name = key.replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, Mapping):
        parts = [
            _spoken(v) if isinstance(v, str) else f"{k} {_spoken(v)}"
            for k, v in value.items()
            if v is not None
        ]
        return " ".join([name, *parts])
    return f"{name} {_spoken(value)}"


def transforms_asked(
    texts: Sequence[str],
    *,
    reg: Sequence[Reg] = (),
    solver: Sequence[Solver] = (),
    baselines: bool = True,
    beside_rule: bool = False,
) -> list[NamedTransform]:
    """Return the transforms a person asked for by name, each with each weight and solver it can have.

    Parameters
    ----------
    texts : sequence of str
        As `NamedTransform.parse` reads them.
    reg : sequence of float or "auto"
        Entropy weights; empty for ``"auto"``. A transform without that rule takes the numbers among them; where there
        are none, its published 0.1, unless nothing that was asked for has the rule.
    solver : sequence of Sweeps or Converged
        Empty for the paper's sweeps.
    baselines : bool
        Begin with what everybody has: identity, unit, centred.
    beside_rule : bool
        Something else that was asked for has the rule.

    Returns
    -------
    list of NamedTransform
        Each once.

    Examples
    --------
    >>> [t.reg for t in transforms_asked(["bpa", "softmax"], reg=("auto",), baselines=False)]
    ['auto', 0.1]
    """
    names = [text.partition(":")[0].strip() for text in texts]
    if not (beside_rule or any(map(has_rule, names))):
        refuse_moot_auto(reg, [name for name in names if uses_reg(name)])
    out = [NamedTransform(name) for name in FREE] if baselines else []
    for text, name in zip(texts, names, strict=True):
        mine = weights_for(reg, rule=has_rule(name)) if uses_reg(name) else (None,)
        out += [NamedTransform.parse(text, reg=r, solver=s) for r in mine for s in solver or (None,)]
    return list(dict.fromkeys(out))


def weights_for(reg: Sequence[Reg], *, rule: bool) -> tuple[Reg, ...]:
    """Return what of the weights that were asked for something takes that has the rule for "auto", or has not.

    Examples
    --------
    >>> weights_for(("auto",), rule=True), weights_for((), rule=True), weights_for(("auto",), rule=False)
    (('auto',), ('auto',), (0.1,))
    """
    if rule:
        return tuple(reg) or ("auto",)
    return tuple(weight for weight in reg if weight != "auto") or (PUBLISHED_REG,)


def refuse_unheard(texts: Sequence[str], *, reg: Sequence[Reg] = (), solver: Sequence[Solver] = ()) -> None:
    """Refuse a weight or a solver that was said, and that no transform in ``texts`` has."""
    kinds = [TRANSFORMS[name] for text in texts if (name := text.partition(":")[0].strip()) in TRANSFORMS]
    for setting, said in (("reg", reg), ("solver", solver)):
        if said and not any(setting in kind.takes for kind in kinds):
            names = ", ".join(texts) or "what was asked for"
            raise ArgumentError(f"{setting!r} would change nothing: {names} has none. Leave it out.")


def refuse_moot_auto(reg: Sequence[Reg], names: Sequence[str]) -> None:
    """Refuse "auto" where it is all that was said, and all that was asked for are ``names`` without the rule."""
    if reg and names and all(weight == "auto" for weight in reg):
        known = " and ".join(name for name in TRANSFORMS if has_rule(name))
        raise ArgumentError(
            f"reg='auto' is a rule for {known}, not for {', '.join(names)}. Give a number, or leave reg out for the "
            f"published {PUBLISHED_REG}."
        )


# ---------------------------------------------------------------------- words


_ABSENT = object()


def _order(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every field of any row, in the order in which fields are said."""
    known = {key: place for place, key in enumerate(_ORDER)}
    return sorted({key for row in rows for key in row}, key=lambda key: (known.get(key, len(known)), key))


def _aspect(key: str) -> str:
    """What a field is about: a count of sweeps is a solver."""
    return "solver" if key == "sweeps" else key


def _differing(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Fields with two values, or that some have and others with the same host and transform have not."""
    seen: dict[str, set[str]] = defaultdict(set)
    holders: dict[tuple[Any, Any], list[set[str]]] = defaultdict(list)
    for row in rows:
        for key, value in row.items():
            seen[_aspect(key)].add(f"{key} {_canonical(value)}")
        holders[row.get("host"), row.get("transform")].append(set(map(_aspect, row)))
    several = {aspect for aspect, values in seen.items() if len(values) > 1}
    families = holders.values()
    mixed = {aspect for each in families for aspect in each[0].union(*each) - each[0].intersection(*each)}
    return {key for row in rows for key in row if _aspect(key) in several | mixed}


def _canonical(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(plain(value), sort_keys=True)


def _spoken(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _counted(word: str) -> Callable[[Any], str]:
    return lambda value: f"{value} {word}" if value == 1 else f"{value} {word}s"


_WORDS: Mapping[str, Callable[[Any], str]] = {
    "host": str,
    "transform": str,
    "source": str,
    "values": lambda value: f"of {value}",
    "values_reg": lambda value: f"of reg {_spoken(value)}",
    "weights_of": lambda value: f"affinities of the {value}",
    "sweeps": _counted("sweep"),
    "solver": lambda value: str(value).replace(":", " to "),
    "cost": lambda value: f"{value} cost",
    "n_way": lambda value: f"{value}-way",
    "n_shot": lambda value: f"{value}-shot",
    "n_query": lambda value: f"{value} queries a class",
    "n_tasks": lambda value: f"{value:,} tasks",
    "n_clusters": lambda value: f"{value} clusters",
    "n_init": _counted("start"),
    "repeats": _counted("repeat"),
    "device": lambda value: f"on {value}",
    "dtype": str,
    "runs": _counted("run"),
    "share": lambda value: f"{value:.0%} of the items",
    "protocol": lambda value: f"{value} protocol",
    "dim": lambda value: f"d = {value}",
    "noise": lambda value: f"σ = {_spoken(value)}",
    "sha256": lambda value: f"file {str(value)[:8]}",
    "n": lambda value: f"{value:,} items",
}
"""Fields that people have words for; the others are said by their names."""
