"""``bpa transform``: a feature file in, its transform out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from bpa.cli._common import (
    Budget,
    Device,
    Dtype,
    Features,
    Json,
    Key,
    Labels,
    NIter,
    Reg,
    emit,
    progress,
    told_choice,
)
from bpa.data.features import read_features
from bpa.errors import ArgumentError
from bpa.memory import format_bytes
from bpa.runs.transforming import TransformConfig, transform_to_file

_DEFAULT = TransformConfig()


def transform(
    features: Features,
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
    k: Annotated[int, Parameter(name="--k", help="Entries a row of the graph.")] = _DEFAULT.k,
    items: Annotated[
        tuple[int, ...], Parameter(consume_multiple=True, negative=(), help="Items, from 0.")
    ] = (),
    transform: Annotated[str, Parameter(help="Which transform, as in bpa fewshot.")] = _DEFAULT.transform,
    reg: Reg = (_DEFAULT.reg,),
    n_iter: NIter = None,
    labels: Labels = None,
    key: Key = None,
    device: Device = _DEFAULT.device,
    dtype: Dtype = _DEFAULT.dtype,
    budget: Budget = None,
    json: Json = False,
) -> None:
    """Transform a feature file. Memory is estimated first; a set too large for W is told what else there is.

    Example: bpa transform emb.npy -o w.npy --reg 0.1
    """
    if len(reg) != 1:
        raise ArgumentError(f"--reg of bpa transform takes one value. Got {len(reg)}.")
    config = TransformConfig(want, transform, reg[0], n_iter, k, items, device, dtype)
    given = read_features(features, labels=labels, key=key)
    with progress("rows of W", len(given)) as tick:
        done = transform_to_file(given, output, config, budget=budget, on_progress=tick)
    memory = done.pop("estimate")
    chosen = told_choice(reg, given.features) if transform.startswith("bpa") else {}
    emit(
        json=json,
        files={"written": output},
        memory=memory if json else format_bytes(memory),
        **done,
        **chosen,
    )
