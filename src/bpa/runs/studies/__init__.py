"""Studies, one small declaration a file; a new one is a file here and its name in the table."""

from __future__ import annotations

from importlib import import_module

from bpa.runs.study import Study

__all__ = ["all_studies"]

_FILES = (
    "fewshot_baselines",
    "fewshot_dimension",
    "fewshot_priors",
    "fewshot_reg_shots",
    "fewshot_reg_ways",
    "fewshot_scaling",
    "fewshot_sweeps",
    "fewshot_variants",
    "retrieval_reg",
    "retrieval_rows",
    "sphere",
)
"""Each holds one ``STUDY``."""


def all_studies() -> dict[str, Study]:
    """Return every study by name."""
    found = (import_module(f"{__name__}.{file}").STUDY for file in _FILES)
    return {study.name: study for study in found}
