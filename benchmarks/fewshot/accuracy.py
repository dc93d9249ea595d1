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
from pathlib import Path

import torch

import bpa
from bpa.data.features import read_features
from bpa.metrics.intervals import Interval
from bpa.records import RunRecord
from bpa.report.comparison import compared, gain
from bpa.report.sections.fewshot import KIND
from bpa.runs import RunStore, run
from bpa.runs.fields.fewshot import FewShot, FewShotTask, fewshot_ways
from bpa.runs.store import write_atomically
from bpa.transforms.names import FREE, NamedTransform

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
NAIVE = (NamedTransform("cosine"), NamedTransform("softmax"), NamedTransform("dual-softmax"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--only", choices=("all", "bpa", "bpa-attn", "naive", "signed"), default="all")
    parser.add_argument("--regs", nargs="+", default=[*map(str, REGS), "auto"])
    parser.add_argument("--work", type=Path, default=Path("fewshot-accuracy"))
    given = parser.parse_args()
    out = {"n_tasks": given.tasks, "protocol": "ptmap", "seed": 0, "n_way": 5, "torch": torch.__version__,
           "bpa": bpa.__version__, "machine": platform.machine(), "sets": {}}  # fmt: skip
    for name in given.sets:
        if (DATA / f"{name}.npz").exists():
            measure(name, given)
        else:
            print(f"{name} is absent from {DATA}; skipped")
    for name in SETS:  # whatever has been measured so far, in this call or before
        if (given.work / name).exists():
            out["sets"][name] = report(name, RunStore(given.work / name).records(), given.tasks)
    write_atomically(RESULTS / "accuracy.json", json.dumps(out, indent=1, ensure_ascii=False) + "\n")
    write_atomically(RESULTS / "accuracy.md", markdown(out))


def measure(name: str, given: argparse.Namespace) -> None:
    """Run what is missing of one set."""
    features = read_features(DATA / f"{name}.npz")
    regs = tuple(reg if reg == "auto" else float(reg) for reg in given.regs)
    free = [NamedTransform(one) for one in FREE]
    bpa = [NamedTransform("bpa", reg=reg) for reg in regs]
    attention = [NamedTransform("bpa-attn", reg=reg) for reg in regs if reg != "auto"]
    parts = {
        "bpa": fewshot_ways(HOSTS, [*free, *bpa]),
        "bpa-attn": fewshot_ways(HOSTS, [*free, *attention]),
        "naive": fewshot_ways(HOSTS, [*free, *NAIVE]),
    }
    if (features.features < 0).any():
        parts["signed"] = fewshot_ways(("ptmap",), [*free, *bpa], nonneg="signed")
    with RunStore(given.work / name) as store:
        for shot in given.shots:
            task = FewShotTask(n_shot=shot, n_query=SETS[name][1][shot], n_tasks=given.tasks)
            for part, ways in parts.items():
                if given.only in ("all", part):
                    run("fewshot", FewShot(features), [(task, ways)], store=store)
                    print(name, shot, part, flush=True)


def report(name: str, records: list[RunRecord], n_tasks: int) -> dict[str, object]:
    """Rows of every measured way, gains paired over the same tasks."""
    rows = []
    for group in compared([record for record in records if record.task["n_tasks"] == n_tasks], KIND):
        for row in group.rows:
            if len(group.baselines(row)) < len(FREE):
                continue  # interrupted before the baselines were done
            own, score, best = row.way.transform, KIND.scores[0], group.best_free(row)
            signed = " (signed power)" if row.way.settings.get("nonneg") == "signed" else ""
            rows.append(
                {
                    "host": row.way.host + signed,
                    "shot": row.record.task["n_shot"],
                    "query": row.record.task["n_query"],
                    "transform": own.name + ("" if own.reg is None else f" {own.reg}"),
                    "accuracy": plain(row.mean(score)),
                    "gain": plain(gain(row, group.raw(row), score)),
                    "gain_over_best_free": None if row.is_free else plain(gain(row, best, score)),
                    "best_free": best.way.transform.name,
                    "seconds": round(row.record.seconds, 2),
                }
            )
    data = records[0].data if records else {}
    return {
        "title": SETS[name][0],
        "n": data.get("n"),
        "dim": data.get("dim"),
        "sha256": data.get("sha256"),
        "rows": sorted(rows, key=lambda row: (row["host"], row["shot"])),
    }


def plain(value: Interval | None) -> list[float] | None:
    return None if value is None else [round(value.mean, 3), round(value.half_width, 3)]


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
