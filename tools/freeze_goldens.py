"""Write tests/golden/today: the numbers the library computes now, which later versions are held to.

    OMP_NUM_THREADS=1 python tools/freeze_goldens.py [GROUP or ENTRY ...]

Without a group everything is written: one .npz for each group of entries, and one results.jsonl for each run. Named
entries ("gallery/dense auto") are written anew, the others of their group stay as they lie. A changed golden is a
decision, not a fix: CONTRIBUTING.md, "Change a number". Calls and inputs are those of the test beside them.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"
TODAY = GOLDEN / "today"
sys.path.insert(0, str(GOLDEN))

import _entries as entries  # noqa: E402
import _inputs as make  # noqa: E402
import _records as records  # noqa: E402


def main(wanted: list[str]) -> None:
    """Write the groups of these names, or all of them."""
    torch.set_num_threads(1)
    groups: dict[str, dict[str, entries.Arrays]] = {"inputs": {"inputs": make.checksums()}}
    single = {word for word in wanted if "/" in word}
    for entry in entries.all_entries():
        if not wanted or entry.group in wanted or entry.name in single:
            groups.setdefault(entry.group, {})[entry.name] = entry.compute()
        elif any(word.split("/")[0] == entry.group for word in single):
            groups.setdefault(entry.group, {})[entry.name] = _stored(entry.group)[entry.name]
    TODAY.mkdir(parents=True, exist_ok=True)
    for name, group in groups.items():
        path = TODAY / f"{name}.npz"
        np.savez_compressed(path, **entries.pack(group))
        print(f"{path.name}: {len(group)} entries, {path.stat().st_size:,} bytes")
    for name, run in entries.RUNS.items():
        if wanted and "runs" not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            lines = [records.stripped(json.dumps(record, ensure_ascii=False)) for record in run(Path(folder))]
        path = TODAY / "runs" / name / "results.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"runs/{name}: {len(lines)} records, {path.stat().st_size:,} bytes")


@functools.cache
def _stored(group: str) -> dict[str, entries.Arrays]:
    with np.load(TODAY / f"{group}.npz", allow_pickle=False) as file:
        return entries.unpack({key: file[key] for key in file.files})


if __name__ == "__main__":
    main(sys.argv[1:])
