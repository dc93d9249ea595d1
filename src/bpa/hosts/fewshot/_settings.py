"""The numbers of PT-MAP as one record, and the published ones by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from bpa._checks import check_choice, check_count, check_interval, check_positive
from bpa._words import explains
from bpa.solvers import Sweeps
from bpa.solvers._choice import Solver

Prior = Literal["uniform", "estimate"]
Nonneg = Literal["relu", "error", "signed", "off"]
Centre = Literal["separate", "off"]


@explains(
    alpha="step", beta="power", lam="sharpness", lambda_="sharpness", n_epochs="epochs",
    reg="it belongs to the transform; the loop has its inverse, sharpness",
)  # fmt: skip
@dataclass(frozen=True)
class PTMapSettings:
    """Everything about `PTMap` but the transform; the defaults are the published host.

    Parameters
    ----------
    prior : {"uniform", "estimate"}
        The class masses c: equal, or re-estimated every epoch from the row softmax. The published host assumes equal
        masses, and loses much where queries are unbalanced. Known masses are an argument of the call.
    prior_step : float
        How far an estimated prior moves each epoch, in (0, 1].
    relaxation : float
        ρ, the weight of the Kullback-Leibler penalty on the class masses. Infinity holds them exactly;
        zero drops them (a plain soft assignment).
    epochs : int
        Number of centre updates.
    step : float
        α, how far a centre moves towards its weighted mean, in (0, 1].
    sharpness : float
        λ, what squared distances are multiplied by before the transport.
    power : float
        β.
    nonneg : {"relu", "error", "signed", "off"}
        What to do about negative inputs, which β cannot take: set them to zero; refuse; keep the sign and
        take the power of the magnitude; or leave out the power transform.
    centre : {"separate", "off"}
        Whether support and query rows are centred, each by its own mean (training in the reference code leaves it out).
    renormalize : bool
        Normalise and centre again after the transform. Never done for the identity.
    tol, max_iter : float, int
        Largest admitted error of a class mass in queries, and Newton steps after which a task is handed
        back unsolved (see ``PTMapPrediction.convergence``).

    Examples
    --------
    >>> PTMapSettings(prior="estimate").epochs
    20
    >>> PTMapSettings(alpha=0.4)
    Traceback (most recent call last):
    ...
    bpa.errors.UnknownArgumentError: PTMapSettings has no parameter 'alpha': it is called 'step' here.
    """

    prior: Prior = "uniform"
    prior_step: float = 0.2
    relaxation: float = float("inf")
    epochs: int = 20
    step: float = 0.2
    sharpness: float = 10.0
    power: float = 0.5
    nonneg: Nonneg = "relu"
    centre: Centre = "separate"
    renormalize: bool = True
    tol: float = 1e-6
    max_iter: int = 200

    def __post_init__(self) -> None:
        owner = "PTMapSettings"
        check_choice(self.prior, get_args(Prior), argument="prior", function=owner)
        check_choice(self.nonneg, get_args(Nonneg), argument="nonneg", function=owner)
        check_choice(self.centre, get_args(Centre), argument="centre", function=owner)
        check_interval(self.relaxation, "[0, inf]", argument="relaxation", function=owner)
        check_count(self.epochs, argument="epochs", function=owner, minimum=0)
        check_count(self.max_iter, argument="max_iter", function=owner)
        for name in ("prior_step", "step"):
            check_interval(getattr(self, name), "(0, 1]", argument=name, function=owner)
        for name in ("sharpness", "power", "tol"):
            check_positive(getattr(self, name), argument=name, function=owner)


@dataclass(frozen=True)
class PTMapVariant(PTMapSettings):
    """Published settings, and as data the transform that was published with them.

    Parameters
    ----------
    reg : float
        Entropy weight of the BPA that belongs to the variant.
    reg_grid : tuple of float
        Weights it was swept over, where it was.
    solver : Solver
        How far that BPA was balanced. (The reference's batched form stops early, after two or three sweeps.)
    knows_pairs : bool
        Whether it was told which support rows belong together (``support_labels`` of BPA).

    Examples
    --------
    >>> from bpa import BPA
    >>> from bpa.hosts.fewshot import PTMap
    >>> variant = VARIANTS["reference-eval"]
    >>> variant.reg, str(variant.solver), variant.renormalize
    (0.2, 'sweeps:10', True)
    >>> host = PTMap(BPA(reg=variant.reg), variant)
    """

    reg: float = 0.1
    reg_grid: tuple[float, ...] = ()
    solver: Solver = field(default_factory=Sweeps)
    knows_pairs: bool = False


VARIANTS: Mapping[str, PTMapVariant] = MappingProxyType(
    {
        "paper": PTMapVariant(),
        "reference-eval": PTMapVariant(reg=0.2, solver=Sweeps(10)),
        "reference-sweep": PTMapVariant(
            renormalize=False, reg_grid=(0.1, 0.2, 0.3, 0.4, 0.5), solver=Sweeps(10)
        ),
        "reference-train": PTMapVariant(epochs=10, centre="off", renormalize=False, reg=0.2),
        "reference-val": PTMapVariant(epochs=10, renormalize=False, reg=0.2, knows_pairs=True),
    }
)
"""The published variants by name: the paper's algorithm, and four the authors' code has run under its name."""
