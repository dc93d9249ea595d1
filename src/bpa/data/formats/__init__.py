"""File formats of features: one file each, and here the tables that choose by suffix.

A reader takes the file, the name asked for as features and the one asked for as labels (None where nothing was asked)
and hands over fields by name, of which only ``features`` is needed; `bpa.data.features` checks them. A new format is a
file beside these and a line below.
"""

from __future__ import annotations

from bpa.data.formats._layout import Fields, Reader, Writer
from bpa.data.formats.numpy_arrays import read_npy, read_npz, write_npz
from bpa.data.formats.parquet import read_parquet, write_parquet
from bpa.data.formats.pickles import read_pickle_file
from bpa.data.formats.safetensors import read_safetensors, write_safetensors

__all__ = ["READERS", "WRITERS", "Fields", "Reader", "Writer"]

READERS: dict[str, Reader] = {
    ".npz": read_npz,
    ".npy": read_npy,
    ".parquet": read_parquet,
    ".pq": read_parquet,
    ".safetensors": read_safetensors,
    ".plk": read_pickle_file,
    ".pkl": read_pickle_file,
    ".pickle": read_pickle_file,
}
"""Suffix → reader."""

WRITERS: dict[str, Writer] = {
    ".npz": write_npz,
    ".parquet": write_parquet,
    ".pq": write_parquet,
    ".safetensors": write_safetensors,
}
"""Suffix → writer; every one of them is read back without pickle."""
