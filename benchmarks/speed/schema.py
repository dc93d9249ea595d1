"""What a result file of the speed suite must look like; checked when one is written and in the tests."""

from __future__ import annotations

from typing import Any

MACHINE = {
    "processor": str,
    "cores": int,
    "avx512": bool,
    "system": str,
    "python": str,
    "torch": str,
    "threads": int,
    "memory_bytes": int,
    "huge_pages": str,
    "load_before": float,
}
ROW = {
    "case": str,
    "pass": str,
    "method": str,
    "seconds": list,
    "wall_seconds": list,
    "median": (float, type(None)),
    "over_floor": (float, type(None)),
    "relative_difference": (float, type(None)),
    "peak_bytes": (int, type(None)),
}
FILE = {
    "format": str,
    "machine": dict,
    "allocator": str,
    "clock": str,
    "missing": dict,
    "failed": dict,
    "rows": list,
}


def validate(result: dict[str, Any]) -> None:
    """Raise ValueError naming the first thing that is wrong."""
    _check(result, FILE, "file")
    if result["format"] != "bpa-speed/1":
        raise ValueError(f"file.format is {result['format']!r}, not 'bpa-speed/1'")
    _check(result["machine"], MACHINE, "machine")
    seen = set()
    for number, row in enumerate(result["rows"]):
        where = f"rows[{number}]"
        _check(row, ROW, where)
        if row["pass"] not in ("forward", "forward+backward"):
            raise ValueError(f"{where}.pass is {row['pass']!r}")
        if len(row["seconds"]) != len(row["wall_seconds"]):
            raise ValueError(
                f"{where} has {len(row['seconds'])} processor and {len(row['wall_seconds'])} wall times"
            )
        if any(not isinstance(s, float) or s < 0 for s in row["seconds"] + row["wall_seconds"]):
            raise ValueError(f"{where} holds a time that is not a number of seconds")
        if (row["median"] is None) != (not row["seconds"]):
            raise ValueError(f"{where}.median does not belong to its times")
        key = (row["case"], row["pass"], row["method"])
        if key in seen:
            raise ValueError(f"{where} repeats {key}")
        seen.add(key)


def _check(value: Any, fields: dict[str, Any], where: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not an object")
    if set(value) != set(fields):
        odd = sorted(set(value) ^ set(fields))
        raise ValueError(f"{where} has missing or unknown fields {odd}")
    for name, kind in fields.items():
        if not isinstance(value[name], kind) or (kind is int and isinstance(value[name], bool)):
            raise ValueError(f"{where}.{name} is {type(value[name]).__name__}")
