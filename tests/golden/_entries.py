"""Every golden number by name: which call on which input, and how close a later answer has to be.

An `Entry` is one call of `_calls`; its result is a few arrays. Of a large array its middle row is stored, and 32 sums
of all its numbers times fixed random weights, which no number can leave without moving one of them. Entries of one
group (the word before the slash) share a file.
"""

from __future__ import annotations

import json
import math
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _calls as calls
import _inputs as make
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Largest difference over the largest entry of the array, by the number type of the computation."""
FLOOR = {"float64": 1e-12, "float32": 2e-6, "float16": 1e-3, "bfloat16": 1e-3}
"""Added to it: errors that are nothing but rounding, as a marginal error at convergence, have no digits to compare."""
_WHOLE = 160
"""Numbers that are stored as they are; a larger array of floats becomes its middle row and sums."""
_SUMS = 32
"""Sums of a larger array: number i is added, weighted, to sum i mod 32."""
_RANKED = 10
"""Places of a ranking that are stored."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Entry:
    """One call and how it is compared; ``needs`` are packages without which it cannot run."""

    name: str
    call: Callable[[], Any]
    precision: str = "float64"
    needs: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The file it is stored in."""
        return self.name.partition("/")[0]

    @property
    def tolerance(self) -> float:
        """Largest difference over the largest entry."""
        return TOLERANCE[self.precision]

    def compute(self) -> Arrays:
        """The arrays of today's answer."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a plan that does not converge is a golden, too
            found = self.call()
        values = (
            {name: _numpy(value) for name, value in found.items()}
            if isinstance(found, dict)
            else {"value": _numpy(found)}
        )
        if "distances" in values and values["distances"].ndim == 2:
            values |= _ordered(values["distances"], values.get("order"))
        if self.precision != "float64":  # who is nearest may hang on the last digit of a short number
            values = {
                name: value for name, value in values.items() if not name.endswith(("_index", "shortlist"))
            }
        return dict(_arrays(values, self.precision))


def _numpy(value: Any) -> NDArray[Any]:
    if isinstance(value, Tensor):
        value = value.detach()
        value = (value.float() if value.dtype in (torch.float16, torch.bfloat16) else value).numpy()
    return np.asarray(value)


def _ordered(distances: NDArray[Any], order: NDArray[Any] | None) -> Arrays:
    """The start of every ranking: the library's own where it gave one, and the distances along it."""
    if order is None:
        order = np.argsort(distances, axis=1, kind="stable")
    order = order[:, :_RANKED]
    return {"order": order, "order_distances": np.take_along_axis(distances, order, axis=1)}


def _arrays(values: Arrays, precision: str) -> Iterator[tuple[str, NDArray[Any]]]:
    small = np.float64 if precision == "float64" else np.float32
    for name, array in values.items():
        if array.dtype.kind in "iub":
            array = array.astype(np.int32)
            if array.size <= _WHOLE or name == "order":
                yield name, array
            else:
                yield f"{name}:start", array.ravel()[:_SUMS]
                yield f"{name}:crc", np.array(zlib.crc32(array.astype("<i8").tobytes()) >> 1, dtype=np.int32)
        elif array.dtype.kind != "f":
            raise AssertionError(f"{name} holds {array.dtype}, which is no golden")
        elif array.size <= _WHOLE or name == "order_distances":
            yield name, array.astype(small)
        else:
            rows = array.reshape(-1, array.shape[-1]).astype(np.float64)
            if array.ndim > 1:
                yield f"{name}:row", rows[len(rows) // 2].astype(small)
            weighted = rows.ravel() * make.weights((rows.size,)).numpy()
            padded = np.concatenate([weighted, np.zeros(-len(weighted) % _SUMS)])
            yield f"{name}:sums", padded.reshape(-1, _SUMS).sum(axis=0).astype(small)


def differences(found: Arrays, stored: Arrays, precision: str) -> list[str]:
    """What is not as it was, one sentence an array; empty where all is.

    Floats differ by at most the tolerance of ``precision`` times the largest stored number, plus its floor; integers
    and truth values do not differ, but for counts of iterations below float64, which may by 2. An ``order`` may differ
    where the ``order_distances`` stored beside it are as good as equal.
    """
    if set(found) != set(stored):
        return [f"has the fields {sorted(found)}, and {sorted(stored)} were stored"]
    out = []
    for name, before in stored.items():
        now = found[name]
        if now.shape != before.shape or (now.dtype.kind == "f") != (before.dtype.kind == "f"):
            out.append(f"{name} is {now.dtype}{now.shape}, and was {before.dtype}{before.shape}")
        elif before.dtype.kind == "f":
            out += _apart(name, now.astype(np.float64), before.astype(np.float64), precision)
        else:
            wrong = np.abs(now.astype(np.int64) - before) > (
                2 if precision != "float64" and "n_iter" in name else 0
            )
            if name == "order":
                wrong &= ~_tied(stored["order_distances"].astype(np.float64), precision)
            if wrong.any():
                out.append(f"{name} differs at {int(wrong.sum())} of {before.size} places")
    return out


def _tied(distances: NDArray[np.float64], precision: str) -> NDArray[np.bool_]:
    """Places of a ranking whose distance is that of the place before or behind; the last place may be tied unseen."""
    finite = np.abs(distances[np.isfinite(distances)])
    close = TOLERANCE[precision] * finite.max() + FLOOR[precision]
    near = np.nan_to_num(np.diff(distances, axis=1), nan=0.0) <= close
    tied = np.zeros(distances.shape, dtype=bool)
    tied[:, 1:] |= near
    tied[:, :-1] |= near
    tied[:, -1] = True
    return tied


def _apart(name: str, now: NDArray[Any], before: NDArray[Any], precision: str) -> list[str]:
    if not np.array_equal(np.isnan(now), np.isnan(before)):
        return [f"{name} is not NaN where it was"]
    finite = np.isfinite(before)
    if not np.array_equal(now[~finite & ~np.isnan(before)], before[~finite & ~np.isnan(before)]):
        return [f"{name} is not infinite where it was"]
    if not finite.any():
        return []
    gap = float(np.abs(now[finite] - before[finite]).max())
    allowed = TOLERANCE[precision] * float(np.abs(before[finite]).max()) + FLOOR[precision]
    return [] if gap <= allowed else [f"{name} moved by {gap:.3g}, and {allowed:.3g} is allowed"]


def pack(group: dict[str, Arrays]) -> Arrays:
    """The arrays of a group of entries laid end to end, one for each number type, and where each begins."""
    layout: list[list[Any]] = []
    parts: dict[str, list[NDArray[Any]]] = {"float64": [], "float32": [], "int32": []}
    for name, arrays in group.items():
        for field, array in arrays.items():
            layout.append([name, field, array.dtype.name, list(array.shape)])
            parts[array.dtype.name].append(array.ravel())
    out = {kind: np.concatenate([np.zeros(0, kind), *flat]) for kind, flat in parts.items()}
    return {**out, "layout": np.frombuffer(json.dumps(layout).encode(), np.uint8)}


def unpack(packed: Arrays) -> dict[str, Arrays]:
    """The groups of arrays that `pack` laid end to end."""
    at = dict.fromkeys(("float64", "float32", "int32"), 0)
    out: dict[str, Arrays] = {}
    for name, field, kind, shape in json.loads(packed["layout"].tobytes()):
        size = math.prod(shape)
        out.setdefault(name, {})[field] = packed[kind][at[kind] : at[kind] + size].reshape(shape)
        at[kind] += size
    return out


def _differentiated(call: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Tensor]:
    """The value at ``x`` and the gradient of its sum with fixed random weights."""
    x = x.clone().requires_grad_()
    value = call(x)
    (value * make.weights(value.shape).to(value.dtype)).sum().backward()
    assert x.grad is not None
    return {"value": value.detach(), "gradient": x.grad}


# ---------------------------------------------------------------------------------------- W, its gradient, attention

_PLAIN: dict[str, dict[str, Any]] = {
    "default": {},
    "reg=0.05": {"reg": 0.05},
    "reg=0.3": {"reg": 0.3},
    "reg=0.01": {"reg": 0.01},
    "reg=0.002": {"reg": 0.002},
    "n_iter=1": {"n_iter": 1},
    "n_iter=20": {"n_iter": 20},
    "sqeuclidean": {"cost": "sqeuclidean", "reg": 2.0},
    "sqeuclidean reg=0.1": {"cost": "sqeuclidean"},
    "callable": {"cost": make.logarithmic_cost, "reg": 0.4},
    "symmetric": {"solver": "symmetric"},
    "symmetric tol=1e-12": {"solver": "symmetric", "tol": 1e-12},
    "symmetric sqeuclidean": {"solver": "symmetric", "cost": "sqeuclidean", "reg": 2.0, "tol": 1e-12},
    "symmetric max_iter=2": {"solver": "symmetric", "max_iter": 2},
    "symmetric unscaled": {"solver": "symmetric", "tol": 1e-12, "scale": None, "diagonal": 0.0},
    "unscaled": {"scale": None},
    "unscaled diagonal=0": {"scale": None, "diagonal": 0.0},
    "scale_grad": {"scale_grad": True},
    "diagonal=0": {"diagonal": 0.0},
    "diagonal=0.5": {"diagonal": 0.5},
    "symmetrize": {"symmetrize": True},
    "symmetrize scale_grad": {"symmetrize": True, "scale_grad": True},
    "symmetrize unscaled sqeuclidean": {"symmetrize": True, "scale": None, "cost": "sqeuclidean", "reg": 1.0},
    "auto": {"reg": "auto"},
    "auto diagonal=0": {"reg": "auto", "diagonal": 0.0},
    "auto n_iter=20": {"reg": "auto", "n_iter": 20},
    "auto sqeuclidean": {"reg": "auto", "cost": "sqeuclidean"},
    "auto symmetric": {"reg": "auto", "solver": "symmetric"},
}
_SETS = {"one": (25, 6, ()), "batch": (12, 5, (3, 2))}
_FEW = ("default", "sqeuclidean", "symmetric", "auto", "symmetrize")


def _affinity_entries() -> Iterator[Entry]:
    def entry(name: str, x: Tensor, precision: str = "float64", **options: Any) -> Entry:
        return Entry(name, lambda: _differentiated(lambda z: calls.affinities(z, **options), x), precision)

    for kind, (n, d, batch) in _SETS.items():
        x = make.features(n, d, batch=batch)
        mask, labels = make.mask(n, batch), make.known_labels(n, batch)
        for name, options in _PLAIN.items():
            yield entry(f"affinities/{kind} {name}", x, **options)
        for name in (
            "default",
            "symmetric",
            "sqeuclidean",
            "symmetrize",
            "scale_grad",
            "auto",
            "auto sqeuclidean",
        ):
            yield entry(f"affinities/{kind} masked {name}", x, mask=mask, **_PLAIN[name])
            yield entry(f"affinities/{kind} labelled {name}", x, support_labels=labels, **_PLAIN[name])
        yield entry(f"affinities/{kind} masked labelled", x, mask=mask, support_labels=labels)
        yield entry(f"affinities/{kind} masked callable", x, mask=mask, cost=make.logarithmic_cost, reg=0.4)
        for name, symmetric, options in (
            ("", True, {}),
            (" symmetric", True, {"solver": "symmetric", "tol": 1e-12}),
            (" asymmetric", False, {}),
            (" masked", True, {"mask": mask}),
            (" auto", True, {"reg": "auto"}),
        ):
            given = make.costs(n, batch=batch, symmetric=symmetric)
            yield entry(
                f"affinities/{kind} precomputed{name}", given, **{"reg": 0.2, **options}, cost="precomputed"
            )
        for name in _FEW:
            x32 = make.features(n, d, batch=batch, precision="float32")
            yield entry(f"affinities/{kind} float32 {name}", x32, "float32", **_PLAIN[name])
        yield entry(f"affinities/{kind} float32 reg=0.01", x32, "float32", reg=0.01)
        yield entry(f"affinities/{kind} float32 masked", x32, "float32", mask=mask)
    for n in (1, 2, 3):
        for name in _FEW:
            yield entry(f"affinities/n={n} {name}", make.features(n, 4), **_PLAIN[name])
    special = make.with_special_rows(make.features(25, 6))
    for name in ("default", "sqeuclidean", "symmetric", "auto"):
        yield entry(f"affinities/zero and repeated rows {name}", special, **_PLAIN[name])
    for precision in ("float16", "bfloat16"):
        for name in ("default", "auto", "symmetric"):
            x16 = make.features(25, 6, precision=precision)
            yield Entry(
                f"affinities/{precision} {name}",
                lambda x16=x16, name=name: calls.affinities(x16, **_PLAIN[name]),
                precision,
            )
    # (name, items, features, batch): the paper's size with many features, and panels
    for size, n, d, batch in (("80", 80, 64, ()), ("batch of 80", 80, 16, (4,)), ("700", 700, 24, ())):
        for precision in ("float64", "float32"):
            x = make.features(n, d, batch=batch, precision=precision)
            for name in (*_FEW, "unscaled", "n_iter=1"):
                if n < 700 or name != "symmetrize":
                    yield entry(f"affinities/{size} {precision} {name}", x, precision, **_PLAIN[name])
    yield entry("affinities/700 masked", make.features(700, 24), mask=make.mask(700))
    yield Entry(
        "affinities/1100 float32 auto",
        lambda: calls.affinities(make.features(1100, 16, precision="float32"), reg="auto"),
        "float32",
    )
    yield Entry(
        "affinities/700 float32 without gradient",
        lambda: calls.affinities(make.features(700, 24, precision="float32")),
        "float32",
    )
    yield Entry(
        "affinities/batch of 80 float32 without gradient",
        lambda: calls.affinities(make.features(80, 16, batch=(4,), precision="float32")),
        "float32",
    )
    for name in ("default", "auto", "symmetric"):
        yield Entry(
            f"affinities/layer {name}",
            lambda name=name: calls.affinity_layer(make.features(25, 6), mask=make.mask(25), **_PLAIN[name]),
        )


def _attention_entries() -> Iterator[Entry]:
    x, mask = make.features(20, 6, batch=(2,)), make.mask(20, (2,))
    values = make.weights((2, 20, 3))
    for name, options in {
        "default": {},
        "auto": {"reg": "auto"},
        "values": {"values": values},
        "normalized": {"normalize_rows": True},
        "masked": {"mask": mask, "values": values, "normalize_rows": True},
        "labelled": {"support_labels": make.known_labels(20, (2,))},
    }.items():
        yield Entry(
            f"attention/{name}",
            lambda options=options: _differentiated(lambda z: calls.attention(z, **options), x),
        )


# ---------------------------------------------------------------------------------------- balance and what is near it


def _balance_entries() -> Iterator[Entry]:
    kinds = {
        "default": {},
        "n_iter=20 reg=0.3": {"n_iter": 20, "reg": 0.3},
        "reg=0.01": {"reg": 0.01},
        "symmetric": {"solver": "symmetric"},
        "symmetric tol=1e-12": {"solver": "symmetric", "tol": 1e-12},
        "symmetric reg=0.02": {"solver": "symmetric", "reg": 0.02, "tol": 1e-11},
        "symmetric max_iter=3": {"solver": "symmetric", "max_iter": 3, "reg": 0.02},
    }
    for kind, (n, batch) in {"one": (20, ()), "batch": (9, (2, 2))}.items():
        cost, mask = make.costs(n, batch=batch), make.mask(n, batch)
        for name, options in kinds.items():
            yield Entry(
                f"balance/{kind} {name}", lambda cost=cost, options=options: calls.balanced(cost, **options)
            )
            yield Entry(
                f"balance/{kind} {name} gradient",
                lambda cost=cost, options=options: _differentiated(
                    lambda c: calls.balanced(c, **options)["plan"], cost
                ),
            )
        for name in ("default", "symmetric tol=1e-12"):
            yield Entry(
                f"balance/{kind} masked {name}",
                lambda cost=cost, mask=mask, name=name: calls.balanced(cost, mask=mask, **kinds[name]),
            )
            yield Entry(
                f"balance/{kind} float32 {name.partition(' ')[0]}",
                lambda cost=cost, name=name: calls.balanced(
                    cost.float(), **({} if name == "default" else {"solver": "symmetric"})
                ),
                "float32",
            )
        yield Entry(
            f"balance/{kind} asymmetric",
            lambda n=n, batch=batch: calls.balanced(make.costs(n, batch=batch, symmetric=False)),
        )
        for name, given in {"": None, " masked": mask}.items():
            yield Entry(
                f"balance/{kind} exact{name}",
                lambda cost=cost, given=given: calls.matching(cost, given),
                needs=("scipy",),
            )
    yield Entry("balance/exact of 5", lambda: calls.matching(make.costs(5)), needs=("scipy",))
    log_kernel = -make.tensor(make.stream("rectangle").uniform(0, 3, (2, 12, 4)))
    rows, columns = (
        torch.full((2, 12), 1 / 12).double().log(),
        torch.tensor([0.1, 0.2, 0.3, 0.4]).double().log(),
    )
    yield Entry("balance/rectangle ones", lambda: calls.rectangular_balance(log_kernel[:, :4], None, None, 6))
    yield Entry(
        "balance/rectangle marginals", lambda: calls.rectangular_balance(log_kernel, rows, columns, 6)
    )
    x, y = make.with_special_rows(make.features(14, 5)), make.features(9, 5, seed=1)
    for kind in ("cosine", "sqeuclidean"):
        yield Entry(
            f"balance/cost {kind}",
            lambda kind=kind: _differentiated(lambda z: calls.pairwise_costs(kind, z), x),
        )
        yield Entry(
            f"balance/cost {kind} of two",
            lambda kind=kind: _differentiated(lambda z: calls.pairwise_costs(kind, z, y), x),
        )


def _choice_entries() -> Iterator[Entry]:
    sets: dict[str, tuple[Callable[[], Tensor], Tensor | None, str]] = {
        "one": (lambda: make.features(25, 6), None, "float64"),
        "batch": (lambda: make.features(12, 5, batch=(3, 2)), None, "float64"),
        "masked": (lambda: make.features(25, 6), make.mask(25), "float64"),
        "noise": (lambda: make.weights((80, 64)), None, "float64"),
        "80 float32": (lambda: make.features(80, 64, precision="float32"), None, "float32"),
        "400": (lambda: make.features(400, 16), None, "float64"),
        "1100 float32": (lambda: make.features(1100, 16, precision="float32"), None, "float32"),
        "narrow": (lambda: make.features(30, 6, shift=200.0), None, "float64"),
        "three": (lambda: make.features(3, 4), None, "float64"),
    }
    for name, (x, mask, precision) in sets.items():
        yield Entry(f"choice/{name}", lambda x=x, mask=mask: calls.chosen_weight(x(), mask), precision)
    yield Entry("choice/diagnosis", lambda: calls.diagnosis(make.features(90, 12)))
    yield Entry("choice/diagnosis of a weight", lambda: calls.diagnosis(make.features(90, 12), 0.4))
    names = ("identity", "unit", "centred", "cosine", "softmax", "dual-softmax", "pca", "pca:3", "spectral", "bpa",
             "bpa-attn", "bpa-attn:pca:3", "bpa-attn:pca:3@x")  # fmt: skip
    for name in names:
        for kind, (n, d, batch) in _SETS.items():
            x = make.features(n, d, batch=batch)
            for hidden, mask in {"": None, " masked": make.mask(n, batch)}.items():

                def call(name: str = name, x: Tensor = x, mask: Tensor | None = mask) -> Tensor:
                    z = calls.named_transform(name, x, mask=mask)
                    # the signs of eigenvectors are nobody's promise
                    return z @ z.mT if "pca" in name or "spectral" in name else z

                yield Entry(f"alternatives/{kind} {name}{hidden}", call)
    yield Entry(
        "alternatives/one bpa auto", lambda: calls.named_transform("bpa", make.features(25, 6), reg="auto")
    )


# ---------------------------------------------------------------------------------------- plans asked later

_ASKED = {"i": [0, 7, 33, 59], "j": [7, 1, 2, 58, 33]}


def _plan_entries() -> Iterator[Entry]:
    def lazy(name: str, precision: str = "float64", n: int = 60, **options: Any) -> Entry:
        def call() -> dict[str, Any]:
            x = make.features(n, 8, precision=precision)
            return calls.lazy_plan(x, make.late(x), **_ASKED, **options)

        return Entry(f"plans/lazy {name}", call, precision)

    tight = {"tol": 1e-12}
    five = {"solver": "alternating", "n_iter": 5}
    wide = {"cost": "sqeuclidean", "reg": 3.0}
    yield lazy("kept", reg=0.1, keep=True)
    yield lazy("kept converged", reg=0.1, keep=True, **tight)
    yield lazy("streamed converged", reg=0.1, keep=False, block=17, **tight)
    yield lazy("kept five sweeps", reg=0.1, keep=True, **five)
    yield lazy("streamed five sweeps", reg=0.1, keep=False, block=17, **five)
    yield lazy("by the budget", reg=0.1, budget="1GB", **tight)
    yield lazy("reg=0.01", reg=0.01, keep=False, block=25, tol=1e-11)
    yield lazy("reg=0.002 five sweeps", reg=0.002, keep=False, **five)
    yield lazy("sqeuclidean", block=17, **wide)
    yield lazy("sqeuclidean converged", **wide, **tight)
    yield lazy("sqeuclidean five sweeps", block=17, **wide, **five)
    yield lazy("unscaled", reg=0.2, scale=None, diagonal=0.0, **tight)
    yield lazy("max_iter=2", reg=0.05, max_iter=2)
    yield lazy("started", reg=0.1, start=make.tensor(make.stream("start").standard_normal(60)), **tight)
    yield lazy("float32 kept", "float32", reg=0.1, keep=True)
    yield lazy("float32 streamed", "float32", reg=0.1, keep=False, block=17)
    yield lazy("float32 five sweeps", "float32", reg=0.1, **five)
    yield lazy("float32 sqeuclidean", "float32", **wide)
    yield lazy("1200 float32", "float32", 1200, reg=0.15, keep=False)

    def sparse(name: str, precision: str = "float64", n: int = 90, lists: int = 0, **options: Any) -> Entry:
        def call() -> dict[str, Any]:
            x = make.features(n, 8, precision=precision)
            new = make.late(x)
            if lists:
                options["neighbours"] = make.nearest_lists(x, lists)[0]
            late_lists = torch.from_numpy(make.stream("late lists").randint(0, n, (len(new), 6)))
            return calls.sparse_plan(x, new, **_ASKED, late_lists=late_lists, **options)

        return Entry(f"plans/sparse {name}", call, precision)

    yield sparse("default", reg=0.1, k=12)
    yield sparse("converged", reg=0.1, k=12, **tight)
    yield sparse("few neighbours", reg=0.1, k=3, **tight)
    yield sparse("one neighbour, odd", reg=0.2, n=61, k=1, **tight)
    yield sparse("all neighbours", reg=0.1, k=89, **tight)
    yield sparse("from lists", reg=0.1, lists=7, **tight)
    yield sparse("sqeuclidean", k=12, **wide)
    yield sparse("sqeuclidean converged", k=12, **wide, **tight)
    yield sparse("unscaled", reg=0.1, k=12, scale=None, diagonal=0.0, **tight)
    yield sparse("float32", "float32", reg=0.1, k=12)
    yield sparse("float32 sqeuclidean", "float32", k=12, **wide)
    for cost in ("cosine", "sqeuclidean"):
        x, y = make.features(70, 6), make.features(9, 6, seed=1)
        for asking, new in {"itself": None, "others": y}.items():
            yield Entry(
                f"plans/neighbours {cost} {asking}",
                lambda x=x, new=new, cost=cost: calls.neighbour_search(x, 8, y=new, cost=cost),
            )
    for name, options in {
        "default": {},
        "reg=0.01": {"reg": 0.01, "n_iter": 3, "diagonal": 0.0},
        "unscaled": {"reg": 0.3, "n_iter": 2, "scale": None},
        "symmetric": {"solver": "symmetric", "tol": 1e-12},
    }.items():
        for precision in ("float64", "float32"):
            given = {**options, "tol": None} if precision == "float32" and "tol" in options else options
            yield Entry(
                f"plans/sharded {name} {precision}",
                lambda given=given, precision=precision: calls.sharded_plan(
                    make.features(24, 6, precision=precision), **given
                ),
                precision,
            )
    yield Entry(
        "plans/sharded gradient",
        lambda: calls.sharded_gradient(make.features(24, 6), make.weights((24, 24))),
    )


def _estimator_entries() -> Iterator[Entry]:
    def fitted(name: str, **options: Any) -> Entry:
        def call() -> dict[str, Any]:
            x = make.points(40, 6)
            x[21] = x[20]
            new = make.late(torch.from_numpy(x)).numpy()
            if options.get("metric") == "precomputed":
                new = ((new[:, None] - x[None]) ** 2).sum(axis=2)
                x = ((x[:, None] - x[None]) ** 2).sum(axis=2)
            return calls.transformer(x, new, **options)

        return Entry(f"estimators/transformer {name}", call, needs=("sklearn",))

    yield fitted("default")
    yield fitted("reg=0.3 converged", reg=0.3, tol=1e-12)
    yield fitted("auto", reg="auto", tol=1e-12)
    yield fitted("unscaled", scale=None, tol=1e-12)
    yield fitted("sqeuclidean", metric="sqeuclidean", reg=3.0, tol=1e-12)
    yield fitted("sqeuclidean auto", metric="sqeuclidean", reg="auto", tol=1e-12)
    yield fitted("precomputed", metric="precomputed", reg=3.0, tol=1e-12)
    yield fitted("max_iter=2", reg=0.05, max_iter=2)

    def clustered(name: str, n: int = 120, **options: Any) -> Entry:
        def call() -> dict[str, Any]:
            x, new = make.points(n, 6, n_classes=4, noise=0.9), make.points(20, 6, n_classes=4, seed=2)
            if options.get("metric") == "precomputed":
                new = ((new[:, None] - x[None]) ** 2).sum(axis=2)
                x = ((x[:, None] - x[None]) ** 2).sum(axis=2)
            return calls.clusterer(x, new, 4, **options)

        return Entry(f"estimators/clusterer {name}", call, needs=("sklearn",))

    for method in ("smooth", "spectral", "rows"):
        yield clustered(f"{method} cosine", method=method)
        yield clustered(f"{method} sqeuclidean", method=method, metric="sqeuclidean", reg=3.0)
    yield clustered("spectral of 450", 450, method="spectral", n_neighbors=15)
    yield clustered("smooth of 450", 450, method="smooth", reg=0.2)
    for method in ("spectral", "rows"):
        yield clustered(f"{method} precomputed", method=method, metric="precomputed", reg=3.0)


# ---------------------------------------------------------------------------------------- retrieval

_DENSE, _COSINE, _SPARSE, _SPARSE_COSINE = (
    ("euclidean", None, None), ("cosine", None, None), ("euclidean", 10, None), ("cosine", 10, None),
)  # fmt: skip
_RETRIEVAL = ("cosine", 50, None)
_ROWS = {
    "dense": _DENSE,
    "cosine": _COSINE,
    "top-10": _SPARSE,
    "cosine top-10": _SPARSE_COSINE,
    "retrieval": _RETRIEVAL,
}


def _gallery_entries() -> Iterator[Entry]:
    def asked(
        name: str, precision: str = "float64", bank: bool = False, compared: str = "", **options: Any
    ) -> Entry:
        def call() -> dict[str, Any]:
            query, items = make.query_and_gallery(precision=precision)
            new = make.late(items, seed=3, again=1)
            candidates = torch.from_numpy(make.stream("candidates").randint(0, len(items), (len(query), 9)))
            behind = make.features(15, 8, seed=5, precision=precision) if bank else None
            return calls.gallery(items, query, new, candidates, bank=behind, **options)

        return Entry(f"gallery/{name}", call, compared or precision)

    tight = {"tol": 1e-12}
    for name, rows in _ROWS.items():
        yield asked(f"{name}", rows=rows, reg=0.15, **tight)
        yield asked(f"{name} five sweeps", rows=rows, reg=0.15, n_iter=5)
        yield asked(f"{name} sqeuclidean", rows=rows, reg=3.0, cost="sqeuclidean", **tight)
        yield asked(f"{name} auto", rows=rows, reg="auto", **tight)
    yield asked("default tolerance", rows=_RETRIEVAL, reg=0.15)
    yield asked("centred", rows=_COSINE, reg=0.2, centre=True, **tight)
    yield asked("with a bank", rows=_COSINE, reg=0.15, bank=True, **tight)
    yield asked("sparse with a bank", rows=_SPARSE_COSINE, reg=0.15, bank=True, **tight)
    yield asked("reg=0.02", rows=_DENSE, reg=0.02, tol=1e-11)
    yield asked("float32", "float32", rows=_RETRIEVAL, reg=0.15)
    yield asked("float32 dense", "float32", rows=_DENSE, reg=0.15)
    yield asked("bfloat16 rows", "float32", compared="bfloat16", rows=_COSINE, reg=0.15, storage="bfloat16")
    for name, rows in {"dense": _DENSE, "sparse": _SPARSE_COSINE}.items():
        for cost, reg in (("cosine", 0.15), ("sqeuclidean", 3.0)):

            def call(rows: Any = rows, cost: str = cost, reg: float = reg) -> dict[str, Any]:
                query, items = make.query_and_gallery()
                return calls.gallery_from_file(items, query, rows=rows, reg=reg, cost=cost, **tight)

            yield Entry(f"gallery/from file {name} {cost}", call)


def _ranking_entries() -> Iterator[Entry]:
    def ranked(
        name: str, precision: str = "float64", alone: bool = False, compared: str = "", **options: Any
    ) -> Entry:
        def call() -> dict[str, Any]:
            query, items = make.query_and_gallery(precision=precision)
            return calls.ranking(items if alone else query, None if alone else items, **options)

        return Entry(f"rankings/{name}", call, compared or precision)

    for name, rows in _ROWS.items():
        for protocol in ("joint", "frozen", "per-query"):
            yield ranked(f"{protocol} {name}", rows=rows, protocol=protocol, reg=0.15)
        yield ranked(f"all {name}", alone=True, rows=rows, reg=0.15)
        yield ranked(f"joint {name} sqeuclidean", rows=rows, reg=3.0, cost="sqeuclidean")
        yield ranked(f"joint {name} euclidean", rows=rows, reg=0.1, cost="euclidean")
    for protocol in ("joint", "frozen", "per-query"):
        yield ranked(f"{protocol} auto", rows=_RETRIEVAL, protocol=protocol, reg="auto")
        yield ranked(f"{protocol} centred", rows=_COSINE, protocol=protocol, reg=0.2, centre=True)
    yield ranked("frozen all dense", alone=True, rows=_DENSE, protocol="frozen", reg=0.15)
    yield ranked("frozen all top-10", alone=True, rows=_SPARSE, protocol="frozen", reg=0.15)
    yield ranked("frozen sqeuclidean", rows=_DENSE, protocol="frozen", reg=3.0, cost="sqeuclidean")
    yield ranked("frozen short list", rows=_COSINE, protocol="frozen", reg=0.15, shortlist=12)
    yield ranked("per-query euclidean", rows=_DENSE, protocol="per-query", reg=0.1, cost="euclidean")
    yield ranked("joint n_iter=1", rows=_DENSE, reg=0.15, n_iter=1)
    yield ranked("joint reg=0.01", rows=_DENSE, reg=0.01)
    yield ranked("joint graph", rows=("cosine", None, 12), reg=0.15)
    yield ranked("joint graph top-5", rows=("euclidean", 5, 12), reg=0.15)
    yield ranked("all graph sqeuclidean", alone=True, rows=("cosine", None, 12), reg=3.0, cost="sqeuclidean")
    yield ranked("joint float32", "float32", rows=_RETRIEVAL, reg=0.15)
    yield ranked("joint float32 dense", "float32", rows=_DENSE, reg=0.15)
    yield ranked("joint bfloat16", "float32", compared="bfloat16", rows=_COSINE, reg=0.15, storage="bfloat16")

    def source(name: str, **options: Any) -> Entry:
        def call() -> dict[str, Any]:
            return calls.balanced_source(torch.cat(make.query_and_gallery()), 18, **options)

        return Entry(f"rankings/source {name}", call)

    for name, rows in _ROWS.items():
        yield source(name, rows=rows, reg=0.15)
    yield source("auto", rows=_RETRIEVAL, reg="auto")

    w = make.tensor(np.abs(make.stream("rows").standard_normal((30, 30))) + np.eye(30))
    for measure in ("euclidean", "cosine"):
        for top in (None, 6):
            yield Entry(
                f"rankings/comparison {measure} top={top}",
                lambda measure=measure, top=top: calls.compared_rows(w[:8], w, measure, top),
            )
    for self_first in (True, False):
        yield Entry(
            f"rankings/neighbours self_first={self_first}",
            lambda self_first=self_first: calls.item_neighbours(
                make.with_special_rows(make.features(40, 5)), 6, self_first=self_first
            ),
        )
    ties = make.tensor(make.stream("ties").randint(0, 6, (12, 40)).astype(float))
    yield Entry("rankings/smallest of ties", lambda: calls.smallest_entries(ties, 7))

    def again(name: str, kind: str = "features", **options: Any) -> Entry:
        def call() -> dict[str, Any]:
            x = torch.cat(make.query_and_gallery())
            n_query = len(x) if options.get("all_against_all") else 18
            if kind == "distances":
                return calls.k_reciprocal_distances(None, n_query, distances=torch.cdist(x, x), **options)
            if kind == "lists":
                return calls.k_reciprocal_distances(None, n_query, lists=make.nearest_lists(x, 30), **options)
            return calls.k_reciprocal_distances(x, n_query, **options)

        return Entry(f"rankings/k-reciprocal {name}", call)

    yield again("default")
    yield again("k1=10 k2=1 lam=0", k1=10, k2=1, lam=0.0)
    yield again("power=4", power=4, k1=12, k2=4)
    yield again("self where it falls", self_first=False, k1=12, k2=4)
    yield again("all", all_against_all=True, k1=12, k2=4)
    yield again("distances", "distances", k1=12, k2=4)
    yield again("lists", "lists", k1=12, k2=4)


RANKERS = (
    "alpha-qe", "average-qe", "cosine", "csls", "dba", "diffusion", "dual-is", "gnn", "inverted-softmax",
    "k-reciprocal", "local-scaling", "mutual-proximity", "nicdm", "nnn", "qb-norm", "sinkhorn",
)  # fmt: skip


def _ranker_entries() -> Iterator[Entry]:
    for name in (*RANKERS, "mutual-proximity-empirical"):

        def call(name: str = name, kind: str = "") -> dict[str, Any]:
            query, items = make.query_and_gallery()
            bank = make.features(40, 8, n_classes=10, seed=7)
            if kind == "all":
                return calls.ranker(name, items)
            return calls.ranker(name, query, items, bank if kind == "bank" else None)

        yield Entry(f"rankers/{name}", call)
        yield Entry(f"rankers/{name} all", lambda call=call: call(kind="all"))
        yield Entry(f"rankers/{name} bank", lambda call=call: call(kind="bank"))
        yield Entry(
            f"rankers/{name} float32",
            lambda name=name: calls.ranker(name, *make.query_and_gallery(precision="float32")),
            "float32",
        )
    for name, options in {
        "alpha-qe": {"n": 4, "alpha": 1.0},
        "dba": {"n": 4, "expand_query": True},
        "gnn": {"k1": 12, "k2": 4},
        "diffusion": {"k": 12, "a": 0.9},
        "csls": {"k": 3},
        "sinkhorn": {"beta": 8.0, "n_iter": 12},
    }.items():
        yield Entry(
            f"rankers/{name} options",
            lambda name=name, options=options: calls.ranker(name, *make.query_and_gallery(), **options),
        )


def _metric_entries() -> Iterator[Entry]:
    query, items = make.query_and_gallery()
    distances = torch.cdist(query, items).numpy()
    rounded = np.round(distances, 0)  # with ties
    ids, cams = make.identities(88), make.cameras(88)
    sides = (ids[:18], ids[18:])
    for name, matrix in {"plain": distances, "ties": rounded}.items():
        for definition in ("finite-sum", "trapezoid", "scikit-learn"):
            for ties in ("index", "pessimistic"):
                yield Entry(
                    f"metrics/{name} {definition} {ties}",
                    lambda matrix=matrix, definition=definition, ties=ties: calls.retrieval_metrics(
                        matrix, *sides, cams[:18], cams[18:], average_precision=definition, ties=ties
                    ),
                )
    among = torch.cdist(items, items).numpy()
    own = np.arange(len(items))
    yield Entry(
        "metrics/all", lambda: calls.retrieval_metrics(among, sides[1], sides[1], self_index=own, max_rank=10)
    )
    few = np.where(np.arange(18) < 3, 99, ids[:18])
    for empty in ("skip", "zero"):
        yield Entry(
            f"metrics/queries without an answer: {empty}",
            lambda empty=empty: calls.retrieval_metrics(distances, few, sides[1], empty=empty),
        )
    ranked = np.argsort(distances, axis=1, kind="stable")[:, :25]
    yield Entry("metrics/lists", lambda: calls.list_metrics(ranked, *sides))
    yield Entry("metrics/hubness", lambda: calls.hubness_numbers(distances, 5))
    yield Entry("metrics/hubness ties", lambda: calls.hubness_numbers(rounded, 5))
    yield Entry("metrics/hubness all", lambda: calls.hubness_numbers(among, 10, own))
    true, found = make.classes(90, 5), make.stream("clusters").randint(0, 6, 90)
    found[:60] = true[:60]
    for average in ("geometric", "arithmetic"):
        yield Entry(
            f"metrics/clustering {average}",
            lambda average=average: calls.clustering_metrics(true, found, average),
            needs=("sklearn",),
        )
    values, other = make.stream("values").standard_normal(31), make.stream("other").standard_normal(31)
    yield Entry("metrics/interval", lambda: calls.interval(values))
    yield Entry("metrics/paired difference", lambda: calls.interval(values, other))
    yield Entry("metrics/interval of three", lambda: calls.interval(values[:3]))


# ---------------------------------------------------------------------------------------- hosts

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"epochs": 20},
    "reference-eval": {"epochs": 20},
    "reference-sweep": {"epochs": 20, "renormalize": False},
    "reference-train": {"epochs": 10, "centre": "off", "renormalize": False},
    "reference-val": {"epochs": 10, "renormalize": False},
}
"""The published settings of PT-MAP as they were."""


def _few_shot_entries() -> Iterator[Entry]:
    def host(
        name: str,
        which: str,
        *,
        d: int = 16,
        gradient: bool = False,
        precision: str = "float64",
        **options: Any,
    ) -> Entry:
        support, labels, query = make.episode(d, precision=precision)

        def call() -> dict[str, Any]:
            if gradient:
                rows = torch.cat([support, query], dim=1)
                n = support.shape[1]
                return _differentiated(
                    lambda z: calls.few_shot(which, z[:, :n], labels, z[:, n:], **options)["scores"], rows
                )
            return calls.few_shot(which, support, labels, query, **options)

        return Entry(f"few-shot/{which} {name}", call, precision)

    ways = {
        "identity": {},
        "bpa": {"transform": "bpa"},
        "bpa module": {"transform": "bpa-module"},
        "bpa auto": {"transform": "bpa", "reg": "auto"},
    }
    support_mask, query_mask = make.mask(10, (3,)), make.mask(20, (3,))
    support_mask[:, 5:] |= ~support_mask[:, :5]  # a row of every class is there
    masks = {"support_mask": support_mask, "query_mask": query_mask}
    for name, way in ways.items():
        for which in ("protonet", "pmf"):
            yield host(name, which, **way)
            yield host(f"{name} masked", which, **way, **masks)
            yield host(f"{name} gradient", which, gradient=True, **way)
            yield host(f"{name} float32", which, precision="float32", **way)
        for variant in VARIANTS:
            yield host(f"{variant} {name}", "ptmap", variant=variant, **way)
            yield host(f"{variant} {name} of 200 features", "ptmap", d=200, variant=variant, **way)
        yield host(f"masked {name}", "ptmap", **way, **masks)
        yield host(f"masked {name} of 200 features", "ptmap", d=200, **way, **masks)
        yield host(f"estimated prior {name}", "ptmap", prior="estimate", **way)
        yield host(
            f"given prior {name}", "ptmap", prior=torch.tensor([0.3, 0.1, 0.2, 0.2, 0.2]).double(), **way
        )
        yield host(f"relaxed {name}", "ptmap", relaxation=2.0, **way)
        yield host(f"gradient {name}", "ptmap", gradient=True, epochs=3, **way)
        yield host(f"float32 {name}", "ptmap", precision="float32", **way)
    yield host("temperature", "protonet", temperature=0.25)
    yield host("scale and bias", "pmf", scale=4.0, bias=-0.5)
    for nonneg in ("relu", "signed", "off"):
        yield host(f"nonneg={nonneg}", "ptmap", nonneg=nonneg)
        yield Entry(
            f"few-shot/powered {nonneg}",
            lambda nonneg=nonneg: calls.powered_features(make.features(12, 6), nonneg=nonneg, power=0.5),
        )
    logits, mass = (
        -6 * make.tensor(make.stream("logits").uniform(0, 1, (3, 14, 4))),
        make.tensor(np.array([5.0, 4, 3, 2])),
    )
    for name, options in {
        "exact": {},
        "relaxed": {"relaxation": 0.3},
        "free": {"relaxation": math.inf},
        "masked": {"mask": make.mask(14, (3,))},
    }.items():
        yield Entry(
            f"few-shot/assign {name}", lambda options=options: calls.soft_assignment(logits, mass, **options)
        )
    x, labels = make.points(80, 4, n_classes=8), make.classes(80, 8)
    for protocol in ("ptmap", "balanced", "dirichlet"):
        yield Entry(
            f"few-shot/tasks {protocol}",
            lambda protocol=protocol: calls.drawn_tasks(
                x, labels, n_way=4, n_shot=2, n_query=3, n_tasks=6, protocol=protocol, seed=3
            ),
        )


def _clustering_entries() -> Iterator[Entry]:
    features, soft = make.features(60, 8), make.probabilities(60, 5)
    w = lambda: calls.affinities(features)  # noqa: E731 - asked late
    yield Entry("clustering/pseudo-labels", lambda: calls.pseudo_labels(soft, features, 4, 12))
    yield Entry("clustering/pseudo-labels on W", lambda: calls.pseudo_labels(soft, w(), 3, 9))
    yield Entry(
        "clustering/double softmax", lambda: calls.double_softmax(soft, torch.from_numpy(make.classes(60, 5)))
    )
    for name, balance in {"balanced": True, "whole": False}.items():
        yield Entry(
            f"clustering/reliable labels {name}",
            lambda balance=balance: calls.reliable(
                soft, features, consistency=0.3, confidence=0.5, n_neighbours=8, balance=balance, seed=1
            ),
        )
    yield Entry("clustering/signs", lambda: calls.embedding_signs(features, 6))

    def heads(name: str, views: int, **options: Any) -> Entry:
        def call() -> dict[str, Any]:
            x = make.features(80, 8, n_classes=4)
            noise = make.weights((2 * views, 80, 8))
            weak, strong = x + 0.1 * noise[:views], x + 0.3 * noise[views:]
            settings = {"n_clusters": 4, "selection_size": 40, "epochs": 3, "n_heads": 3, "hidden": 6, "batch_size": 10,
                        "repeats": 2}  # fmt: skip
            return calls.spice_heads(x, weak, strong, seed=2, **{**settings, **options})

        return Entry(f"clustering/heads {name}", call)

    yield heads("identity", 1, transform="identity", reg=0.1)
    yield heads("bpa", 1, transform="bpa", reg=0.1)
    yield heads("two views", 2, transform="bpa", reg=0.1)
    yield heads("plain softmax", 1, transform="identity", reg=0.1, double_softmax=False, n_confident=3)
    rows = make.points(100, 6, n_classes=6, noise=0.9)
    yield Entry(
        "clustering/k-means", lambda: calls.k_means_clusters(rows, 6, n_init=3, seed=4), needs=("sklearn",)
    )
    affinity = np.exp(-calls_free_costs(rows) / 8)
    yield Entry(
        "clustering/spectral products",
        lambda: calls.spectral_products(affinity, 4, seed=0),
        needs=("sklearn",),
    )
    yield Entry(
        "clustering/sphere points", lambda: calls.sphere_points(6, 0.3, n_clusters=4, seed=(1, 2)), "float32"
    )


def calls_free_costs(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distances, by nobody's code but numpy's."""
    out: NDArray[np.float64] = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    return out


# ---------------------------------------------------------------------------------------- runs


def _command(
    *words: str, sides: bool = False, verb: tuple[str, ...]
) -> Callable[[Path], list[dict[str, Any]]]:
    """A run of one command line on a feature file written into the folder."""

    def run(folder: Path) -> list[dict[str, Any]]:
        features = make.write_feature_file(folder, sides=sides)
        return calls.run_command([*verb, str(features), *words], folder / "out")

    return run


def _sphere(_folder: Path) -> list[dict[str, Any]]:
    columns = (
        "raw",
        "cosine",
        "bpa 0.1",
        "bpa auto",
        "spectral 0.1",
        "bpa 0.1 symmetric",
        "plan spectral 0.1",
    )
    return calls.sphere_study(columns, dims=(10, 60), noises=(0.2, 0.4), runs=2, n_per_cluster=8, n_init=2)


RUNS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "fewshot": _command(
        "--host", "protonet", "ptmap", "pmf", "sillnet", "ptmap-sf", "--transform", "bpa,bpa-attn", "--reg", "0.1,auto",
        "--shot", "1", "2", "--query", "5", "--tasks", "12", verb=("fewshot",),
    ),
    "fewshot-unbalanced": _command(
        "--host", "protonet", "ptmap", "--protocol", "dirichlet", "--prior", "oracle", "--relaxation", "1.5",
        "--query", "2", "--tasks", "12", "--way", "4", "--dtype", "float64", verb=("fewshot",),
    ),
    "cluster": _command("--k", "8", "--reg", "0.1,auto", "--repeats", "3", "--n-init", "2", verb=("cluster",)),
    "retrieval": _command(
        "--transform", "bpa", "--reg", "0.1,auto", "--protocol", "joint,frozen,per-query", "--rows", "retrieval,paper",
        "--rerank", "k-reciprocal", "--baselines", "all", verb=("retrieve",), sides=True,
    ),
    "retrieval-all": _command("--preset", "paper", "--rerank", "k-reciprocal", "--ap", "trapezoid", verb=("retrieve",)),
    "study-fewshot-sweeps": _command("--quick", "--repeats", "12", verb=("study", "fewshot-sweeps")),
    "study-fewshot-baselines": _command("--quick", "--repeats", "12", verb=("study", "fewshot-baselines")),
    "study-sphere": _sphere,
}  # fmt: skip
"""Runs that leave records: name → records of a run in a folder, as commit f219ccd wrote them."""


def all_entries() -> list[Entry]:
    """Every entry, names once."""
    makers = (
        _affinity_entries, _attention_entries, _balance_entries, _choice_entries, _plan_entries, _estimator_entries,
        _gallery_entries, _ranking_entries, _ranker_entries, _metric_entries, _few_shot_entries, _clustering_entries,
    )  # fmt: skip
    found = [entry for maker in makers for entry in maker()]
    names = [entry.name for entry in found]
    assert len(set(names)) == len(names), sorted({name for name in names if names.count(name) > 1})
    return found
