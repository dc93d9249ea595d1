"""Records of runs as commit f219ccd wrote them, read without the library.

A *flat* record is (label, numbers): the label says which row of which table it is, the numbers are the values a task,
query or repeat, and every number of the summary. The adapter brings later records into this form.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Flat = dict[str, dict[str, NDArray[np.float64]]]


def read(path: Path) -> Flat:
    """The flat records of a ``results.jsonl``, by label."""
    return flat([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])


def flat(records: list[dict[str, Any]]) -> Flat:
    """Flat records by label; a label that two records share is a mistake."""
    out: Flat = {}
    for record in records:
        label = label_of(record["study"], record["config"])
        if label in out:
            raise AssertionError(f"two records are called {label!r}")
        numbers = {f"values/{key}": np.array(row, dtype=np.float64) for key, row in record["values"].items()}
        for key, number in _walk(record["summary"]):
            numbers[f"summary/{key}"] = np.array(number, dtype=np.float64)
        out[label] = numbers
    return out


def label_of(study: str, config: dict[str, Any]) -> str:
    """What tells the records of one folder apart, in words."""
    if study == "fewshot":
        names = ("host", "transform", "reg", "n_iter", "n_way", "n_shot", "protocol", "prior")
        return "fewshot: " + ", ".join(f"{name}={config.get(name)}" for name in names)
    if study == "retrieval":
        return f"retrieval: {config['way']}, {config['protocol']}"
    if study == "cluster":
        return f"cluster: {config['n_clusters']} clusters"
    if study == "sphere":
        return f"sphere: d={config['dim']}, noise={config['noise']}"
    return f"{study}: " + json.dumps(config, sort_keys=True)


def _walk(value: Any, prefix: str = "") -> list[tuple[str, float]]:
    """Every number of a nested summary with the path to it; text, truth values and gaps are left out."""
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _walk(inner, f"{prefix}/{key}".lstrip("/"))]
    if isinstance(value, list):
        return [pair for place, inner in enumerate(value) for pair in _walk(inner, f"{prefix}[{place}]")]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    return [(prefix, float(value))]


def stripped(line: str) -> str:
    """A line of ``results.jsonl`` without the machine, the folder and the library's version."""
    record = json.loads(line)
    record["environment"] = {}
    if "source" in record["data"]:
        record["data"]["source"] = Path(record["data"]["source"]).name
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))
