"""Accuracy of every few-shot host with every transform on the real sets, losses included.

    python benchmarks/fewshot/accuracy.py --tasks 2000 --work /tmp/fewshot-accuracy

The sets are looked for in $BPA_DATA (default: ../shared/data beside the repository). A stopped run goes on
where it was. Writes accuracy.json and accuracy.md into benchmarks/results/fewshot.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import replace
from pathlib import Path

import torch

import bpa
from bpa.data.features import read_features
from bpa.experiments.fewshot import FewShotConfig, FewShotResult, run_fewshot
from bpa.experiments.store import RunStore, write_atomically
from bpa.metrics.intervals import Interval

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("BPA_DATA", ROOT.parent / "shared" / "data"))
RESULTS = ROOT / "benchmarks" / "results" / "fewshot"
SETS = {
    "sketches_mnv2": ("sketches, MobileNetV2", {1: 15, 5: 15}),
    "mnist_mnv2": ("MNIST, MobileNetV2", {1: 15, 5: 15}),
    "cifar10_efflite0": ("CIFAR-10, EfficientNet-Lite0", {1: 15, 5: 15}),
    "news20_minilm": ("20 newsgroups, MiniLM", {1: 15, 5: 15}),
    "emoji_vendors_mnv2": ("emoji, MobileNetV2 (6 queries a class; 5-shot: 2)", {1: 6, 5: 2}),
}
REGS = (0.05, 0.1, 0.2, 0.5, 1.5)
HOSTS = ("protonet", "pmf", "ptmap")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--work", type=Path, default=Path("fewshot-accuracy"))
    given = parser.parse_args()
    out = {"n_tasks": given.tasks, "protocol": "ptmap", "seed": 0, "n_way": 5, "torch": torch.__version__,
           "bpa": bpa.__version__, "machine": platform.machine(), "sets": {}}  # fmt: skip
    for name in given.sets:
        path = DATA / f"{name}.npz"
        if not path.exists():
            print(f"{path} is absent; skipped")
            continue
        out["sets"][name] = measure(name, path, given.tasks, given.work / name)
    write_atomically(RESULTS / "accuracy.json", json.dumps(out, indent=1, ensure_ascii=False) + "\n")
    write_atomically(RESULTS / "accuracy.md", markdown(out))


def measure(name: str, path: Path, n_tasks: int, work: Path) -> dict[str, object]:
    title, shots = SETS[name]
    features = read_features(path)
    rows: list[dict[str, object]] = []
    with RunStore(work) as store:
        for shot, query in shots.items():
            base = FewShotConfig(hosts=HOSTS, shots=(shot,), n_query=query, n_tasks=n_tasks)
            runs = [
                replace(base, transforms=("bpa",), regs=(*REGS, "auto")),
                replace(base, transforms=("bpa-attn",), regs=REGS),
                replace(base, transforms=("cosine", "softmax", "dual-softmax"), regs=(0.1,)),
            ]
            if (features.features < 0).any():
                runs.append(
                    replace(
                        base, hosts=("ptmap",), transforms=("bpa",), regs=(*REGS, "auto"), nonneg="signed"
                    )
                )
            for config in runs:
                result = run_fewshot(features, config, store=store)
                rows += rows_of(result, config)
                print(name, shot, config.transforms, flush=True)
    return {
        "title": title,
        "n": len(features),
        "dim": features.dim,
        "sha256": features.sha256,
        "rows": unique(rows),
    }


def rows_of(result: FewShotResult, config: FewShotConfig) -> list[dict[str, object]]:
    def plain(value: Interval | None) -> list[float] | None:
        return None if value is None else [round(value.mean, 3), round(value.half_width, 3)]

    host = {"signed": "ptmap (signed power)"}.get(config.nonneg)
    return [
        {
            "host": host or item.cell.host,
            "shot": item.cell.n_shot,
            "query": config.n_query,
            "transform": item.cell.name,
            "accuracy": plain(item.mean),
            "gain": plain(item.gain),
            "gain_over_best_free": plain(item.gain_over_best),
            "best_free": item.best,
            "seconds": round(item.seconds, 2),
        }
        for item in result.cells
    ]


def unique(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return list({(row["host"], row["shot"], row["transform"]): row for row in rows}.values())


def markdown(out: dict) -> str:
    parts = [
        "# Few-shot accuracy on real features\n",
        f"Same protocol as the paper's tables, our features. 5-way, 15 queries a class unless "
        f"said, {out['n_tasks']:,} tasks of "
        f"the published task list (seed {out['seed']}), shared by all cells. Percent; ± is the half-width of the 95 % "
        "interval. Gains are paired over the same tasks: first over the identity (raw features, "
        "the published host), then "
        "over the best of identity, unit norm and centred unit norm for that host. **Bold**: the gain's interval lies "
        "above zero; *italic*: below zero (a loss).\n",
    ]
    for entry in out["sets"].values():
        parts.append(f"## {entry['title']} ({entry['n']:,} × {entry['dim']})\n")
        shots = sorted({row["shot"] for row in entry["rows"]})
        for host in dict.fromkeys(row["host"] for row in entry["rows"]):
            rows = {(row["shot"], row["transform"]): row for row in entry["rows"] if row["host"] == host}
            names = list(dict.fromkeys(name for _, name in rows))
            parts.append(f"**{host}**\n")
            head = ["transform"]
            for shot in shots:
                head += [f"{shot}-shot", "gain over raw", "gain over best free"]
            parts.append("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
            for name in names:
                cells = [name]
                for shot in shots:
                    row = rows.get((shot, name))
                    if row is None:
                        cells += ["–"] * 3
                        continue
                    star = " (best free)" if name == row["best_free"] else ""
                    cells += [f"{row['accuracy'][0]:.2f} ± {row['accuracy'][1]:.2f}{star}", marked(row["gain"]),
                              marked(row["gain_over_best_free"])]  # fmt: skip
                parts.append("| " + " | ".join(cells) + " |")
            parts.append("")
    return "\n".join(parts) + "\n"


def marked(value: list[float] | None) -> str:
    if value is None:
        return "–"
    text = f"{value[0]:+.2f} ± {value[1]:.2f}"
    if value[0] - value[1] > 0:
        return f"**{text}**"
    return f"*{text}*" if value[0] + value[1] < 0 else text


if __name__ == "__main__":
    main()
