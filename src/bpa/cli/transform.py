"""``bpa transform``: a feature file in, its transform out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from bpa.cli import _flags as flags
from bpa.cli._output import emit, note, progress, told_choice
from bpa.errors import ArgumentError
from bpa.memory import format_bytes
from bpa.runs.transforming import TransformConfig, transform_to_file
from bpa.runs.way import transforms_asked
from bpa.transforms.names import PUBLISHED_REG

_DEFAULT = TransformConfig()


def transform(
    features: flags.Features,
    *,
    output: Annotated[
        Path, Parameter(name=("--output", "-o"), help="File to write: .npy, .npz, .parquet or .safetensors.")
    ],
    want: Annotated[
        Literal["rows", "top-k", "blocks", "distances"],
        Parameter(
            help="All rows of W; a graph of each item's --k largest entries (CSR .npz); W on disk, never in memory "
            "(.npy); distances of --items to all (.npy)."
        ),
    ] = _DEFAULT.want,
    k: Annotated[
        int | None, flags.whole("--k", f"Entries a row of the graph; {_DEFAULT.k} where not given.")
    ] = None,
    items: Annotated[
        tuple[int, ...], Parameter(consume_multiple=True, negative=(), help="Items, from 0.")
    ] = (),
    transform: flags.Transforms = ("bpa",),
    weights: flags.Weights = flags.WEIGHTS,
    reading: flags.Reading = flags.READING,
    computing: flags.Computing = flags.COMPUTING,
    json: flags.Json = False,
) -> None:
    """Transform a feature file. Memory is estimated first; a set too large for W is told what else there is.

    Example: bpa transform emb.npy -o w.npy
    """
    for flag, values in (("--transform", transform), ("--reg", weights.reg), ("--solver", weights.solver)):
        if len(values) > 1:
            raise ArgumentError(f"{flag} of bpa transform takes one value. Got {len(values)}.")
    for flag, value, wanted in (("--k", k, "top-k"), ("--items", items, "distances")):
        if value and want != wanted:
            raise ArgumentError(f"{flag} is for --want {wanted}. Got --want {want}; leave it out.")
    weights.check(transform)
    asked = transforms_asked(
        transform, reg=weights.regs(PUBLISHED_REG), solver=weights.solver, baselines=False
    )[0]
    config = TransformConfig(want, asked, _DEFAULT.k if k is None else k, items, **computing.place)
    given = reading.read(features)
    with progress("rows of W", len(given)) as tick:
        done = transform_to_file(given, output, config, budget=computing.budget, on_progress=tick)
    memory = done.pop("estimate")
    warning = done.pop("note", None)
    if warning is not None:
        note(f"bpa: note: {warning}")
    emit(
        json=json,
        files={"written": output},
        memory=memory if json else format_bytes(memory),
        **done,
        **told_choice([asked.reg], given.features),
    )
