"""An unknown argument's error names the right one, and asking costs next to nothing."""

from __future__ import annotations

import inspect
import math
import timeit
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bpa._words import REG_WORDS, SOLVER_WORDS, explains
from bpa.errors import ArgumentError, UnknownArgumentError


@explains(**REG_WORDS, **SOLVER_WORDS, mask_diag="items are never matched with themselves")
def affinities(x: Tensor, reg: float = 0.1, *, solver: object = None) -> Tensor:
    """Divide."""
    return torch.tanh(x / reg)


class Layer(torch.nn.Module):
    @explains(**REG_WORDS)
    def __init__(self, reg: float = 0.1) -> None:
        super().__init__()
        self.reg = reg

    @explains(features="x")
    def fit(self, x: Tensor) -> Tensor:
        return x * self.reg


@explains(max_scale="scale")
@dataclass(frozen=True)
class Settings:
    """A record."""

    scale: float = 1.0


def takes_any_word(**words: object) -> dict[str, object]:
    return words


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: affinities(torch.ones(2), lam=1.0), "affinities has no parameter 'lam': it is called 'reg' here."),
        (lambda: affinities(torch.ones(2), n_iter=5), "affinities has no parameter 'n_iter': write solver=Sweeps(n)."),
        (
            lambda: affinities(torch.ones(2), mask_diag=True),
            "affinities has no parameter 'mask_diag': items are never matched with themselves.",
        ),
        (
            lambda: affinities(torch.ones(2), colour="red"),
            "affinities has no parameter 'colour'. It takes x, reg, solver.",
        ),
        (lambda: Layer(temperature=0.1), "Layer has no parameter 'temperature': it is called 'reg' here."),
        (lambda: Layer(0.1).fit(features=1), "Layer.fit has no parameter 'features': it is called 'x' here."),
        (lambda: Settings(max_scale=2.0), "Settings has no parameter 'max_scale': it is called 'scale' here."),
    ],
)  # fmt: skip
def test_an_unknown_word_is_answered_with_the_right_one(call, said) -> None:
    with pytest.raises(UnknownArgumentError) as caught:
        call()
    assert str(caught.value) == said
    assert isinstance(caught.value, TypeError)  # what Python itself would have raised
    assert isinstance(caught.value, ArgumentError)


def test_right_calls_go_through_and_wrong_ones_of_other_kinds_are_pythons_own() -> None:
    x = torch.ones(3)
    torch.testing.assert_close(affinities(x, reg=2.0, solver=None), affinities(x, 2.0))
    assert (Layer(reg=2.0).reg, Settings(scale=3.0), Settings(3.0)) == (
        2.0,
        Settings(3.0),
        Settings(scale=3.0),
    )
    with pytest.raises(TypeError, match="multiple values"):
        affinities(x, 2.0, reg=1.0)


def test_name_docstring_and_signature_are_those_of_what_is_decorated() -> None:
    assert (affinities.__name__, affinities.__doc__) == ("affinities", "Divide.")
    assert list(inspect.signature(affinities).parameters) == ["x", "reg", "solver"]
    assert list(inspect.signature(Layer).parameters) == ["reg"]
    assert list(inspect.signature(Settings).parameters) == ["scale"]


def test_a_table_that_explains_a_word_the_function_has_is_refused_when_it_is_defined() -> None:
    with pytest.raises(AssertionError, match="explains a word that it has"):
        explains(x="x")(lambda x: x)
    with pytest.raises(AssertionError, match="takes any word"):
        explains(y="x")(takes_any_word)


def test_a_decorated_call_is_one_graph() -> None:
    compiled = torch.compile(
        lambda x: affinities(x, reg=0.5) + affinities(x), fullgraph=True, backend="eager"
    )
    x = torch.linspace(-1, 1, 5)
    torch.testing.assert_close(compiled(x), affinities(x, reg=0.5) + affinities(x))


def test_asking_costs_less_than_a_microsecond_a_call() -> None:
    def plain(x, reg=0.1, *, solver=None, cost=None):
        return x

    guarded = explains(lam="reg")(plain)
    best = {"plain": math.inf, "guarded": math.inf}
    for _ in range(20):  # the least of many: whatever else the machine does only adds
        for name, call in (("plain", plain), ("guarded", guarded)):
            took = (
                timeit.timeit(lambda call=call: call(1, reg=0.2, solver=None, cost=None), number=2000) / 2000
            )
            best[name] = min(best[name], took)
    assert best["guarded"] - best["plain"] < 1e-6
