"""Tables and figures from the CSV files of ``study.py``: ``python benchmarks/auto_reg/report.py``."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sets import REAL, SETS

from bpa.diagnostics import diagnose

RESULTS = Path(__file__).resolve().parents[1] / "results" / "auto_reg"
FREE = ("raw", "unit", "centred")
MARGIN = 0.5


@dataclass(frozen=True)
class Cell:
    """One (set, host, metric) with every method's mean, and the paired differences of the rule to each."""

    of: str
    host: str
    mean: dict[str, float]
    gap: dict[str, tuple[float, float]]
    n: int

    @property
    def family(self) -> str:
        """The host without shots and metric."""
        return self.host.split()[0]

    def best_fixed(self) -> str:
        """The fixed reg with the best mean, which only labels can tell."""
        return max((name for name in self.mean if name.startswith("bpa ")), key=lambda name: self.mean[name])


def read() -> list[Cell]:
    cells = []
    for path in sorted(RESULTS.glob("*.csv")):
        if path.stem.endswith((".quantities", "summary")):
            continue
        means, gaps, counts = defaultdict(dict), defaultdict(dict), {}
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                means[row["host"]][row["method"]] = float(row["mean"])
                gaps[row["host"]][row["method"]] = (
                    float(row["auto_minus"]),
                    float(row["auto_minus_half_width"]),
                )
                counts[row["host"]] = int(row["n"])
        cells += [Cell(path.stem, host, means[host], gaps[host], counts[host]) for host in means]
    return cells


def free_of(cells: list[Cell]) -> dict[str, str]:
    """The best transform-free features of each host, chosen once over all sets."""
    best = {}
    for family in {cell.family for cell in cells}:
        mine = [cell for cell in cells if cell.family == family]
        names = [name for name in FREE if all(name in cell.mean for cell in mine)]
        best[family] = max(names, key=lambda name: np.mean([cell.mean[name] for cell in mine]))
    return best


def lines(cells: list[Cell]) -> list[str]:
    free = free_of(cells)
    out = ['# reg="auto": what it gains and loses', ""]
    out += [
        "Percent. `auto − free` is paired over the same tasks, repeats (k-means) or queries (retrieval), ± half of the "
        "95 % interval; free is the best of raw, unit and centred unit-norm features of a host, chosen once over all "
        "sets: " + ", ".join(f"{family}: {name}" for family, name in sorted(free.items())) + ".",
        "",
        "| set | host | n | free | auto | auto − free | best fixed reg | its gain | auto − best fixed | auto − 0.1 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    worst, gains, best_gains, fixed = [], [], [], defaultdict(list)
    for cell in cells:
        base = free[cell.family]
        gain, half = cell.gap[base]
        best = cell.best_fixed()
        lost = gain < -MARGIN and gain + half < -MARGIN
        bold = "**" if lost else ""
        out.append(
            f"| {cell.of} | {cell.host} | {cell.n} | {cell.mean[base]:.2f} | {cell.mean['auto']:.2f} | "
            f"{bold}{gain:+.2f} ± {half:.2f}{bold} | {best[4:]} | {cell.mean[best] - cell.mean[base]:+.2f} | "
            f"{cell.gap[best][0]:+.2f} ± {cell.gap[best][1]:.2f} | "
            f"{cell.gap['bpa 0.1'][0]:+.2f} ± {cell.gap['bpa 0.1'][1]:.2f} |"
        )
        worst.append((gain + half, gain, half, cell))
        gains.append(gain)
        best_gains.append(cell.mean[best] - cell.mean[base])
        for name in cell.mean:
            if name.startswith("bpa "):
                fixed[name].append(cell.mean[name] - cell.mean[base])
    everywhere = {name: float(np.mean(values)) for name, values in fixed.items() if len(values) == len(cells)}
    single = max(everywhere, key=lambda name: everywhere[name])
    losses = [
        f"{cell.of} {cell.host} ({gain:+.2f} ± {half:.2f})"
        for upper, gain, half, cell in worst
        if upper < -MARGIN
    ]
    below = [
        f"{cell.of} {cell.host} ({gain:+.2f} ± {half:.2f})" for _, gain, half, cell in worst if gain < -MARGIN
    ]
    real = [i for i, cell in enumerate(cells) if cell.of in REAL]
    tenths = [cell.mean["bpa 0.1"] - cell.mean[free[cell.family]] for cell in cells]
    out += ["", "## The targets", ""]
    out += [
        f"- {len(cells)} cells over {len({cell.of for cell in cells})} sets. Mean gain over free: auto "
        f"**{np.mean(gains):+.2f}**; the best fixed reg of each cell, picked with labels, {np.mean(best_gains):+.2f} "
        f"({100 * np.mean(gains) / np.mean(best_gains):.0f} %); the best single fixed reg ({single[4:]}) "
        f"{everywhere[single]:+.2f}; reg 0.1 {everywhere['bpa 0.1']:+.2f}.",
        f"- Cells that lose more than {MARGIN} beyond their interval: {', '.join(losses) or 'none'}.",
        f"- Cells whose mean is below −{MARGIN}: {', '.join(below) or 'none'}.",
        f"- Real sets alone ({len(real)} cells): auto {mean_of(real, gains):+.2f}, the best fixed reg of each cell "
        f"{mean_of(real, best_gains):+.2f}, 0.1 {mean_of(real, tenths):+.2f}.",
        "", "Mean gain by host:", "",
        "| host | auto | best fixed of each cell | 0.1 | share |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for family in sorted(free):
        mine = [i for i, cell in enumerate(cells) if cell.family == family]
        a, b = np.mean([gains[i] for i in mine]), np.mean([best_gains[i] for i in mine])
        tenth = np.mean([cells[i].mean["bpa 0.1"] - cells[i].mean[free[family]] for i in mine])
        out.append(f"| {family} | {a:+.2f} | {b:+.2f} | {tenth:+.2f} | {100 * a / b:.0f} % |" if b > 0 else
                   f"| {family} | {a:+.2f} | {b:+.2f} | {tenth:+.2f} | – |")  # fmt: skip
    return out + left_out(cells) + singles(everywhere)


def mean_of(which: list[int], values: list[float]) -> float:
    """Mean of the chosen values."""
    return float(np.mean([values[i] for i in which]))


def left_out(cells: list[Cell]) -> list[str]:
    """The target share chosen on the other sets, its gain on the set left out."""
    names = ("auto share 0.25", "auto", "auto share 0.5")
    shown = {"auto share 0.25": "0.25", "auto": "0.35", "auto share 0.5": "0.5"}
    out = [
        "",
        "## One set left out",
        "",
        "The target share chosen by the mean gain over all other sets (and the baseline too).",
        "",
    ]
    out += [
        "| set left out | share chosen | mean gain there | with 0.35 | worst cell |",
        "|---|---|---|---|---|",
    ]
    total = []
    for held in sorted({cell.of for cell in cells}):
        others, mine = [c for c in cells if c.of != held], [c for c in cells if c.of == held]
        free = free_of(others)
        if not others or any(cell.family not in free for cell in mine):
            continue
        score = {
            name: np.mean([c.mean[name] - c.mean[free[c.family]] for c in others if names[0] in c.mean])
            for name in names
        }
        chosen = max(score, key=lambda name: score[name])
        if any(names[0] not in c.mean for c in mine):  # a light run: the rule alone
            chosen = "auto"
        there = [c.mean[chosen] - c.mean[free[c.family]] for c in mine]
        total.append(np.mean(there))
        standard = np.mean([c.mean["auto"] - c.mean[free[c.family]] for c in mine])
        low = int(np.argmin(there))
        out.append(
            f"| {held} | {shown[chosen]} | {total[-1]:+.2f} | {standard:+.2f} | {mine[low].host} {there[low]:+.2f} |"
        )
    note = "Sets run lightly have no other shares; the rule's own stands there."
    return [*out, "", f"Mean over sets: {np.mean(total):+.2f}. {note}"]


def singles(everywhere: dict[str, float]) -> list[str]:
    out = [
        "",
        "## One reg for all (mean gain over free)",
        "",
        "| reg | " + " | ".join(n[4:] for n in everywhere) + " |",
    ]
    out.append("|---|" + "---|" * len(everywhere))
    return [*out, "| gain | " + " | ".join(f"{v:+.2f}" for v in everywhere.values()) + " |"]


def forecasts(cells: list[Cell]) -> list[str]:
    """How often the verdict of ``diagnose`` was right."""
    import torch

    free = free_of(cells)
    out = [
        "",
        "## Was the forecast right?",
        "",
        "| set | auto | mean gain | right | reg 0.1 | mean gain | right |",
    ]
    out.append("|---|---|---|---|---|---|---|")
    hits = []
    for name in sorted({cell.of for cell in cells} & set(SETS)):
        x = torch.from_numpy(SETS[name]().features)
        mine = [cell for cell in cells if cell.of == name]
        row = [name]
        for reg, method in (("auto", "auto"), (0.1, "bpa 0.1")):
            verdict = diagnose(x, reg=reg).verdict
            gain = float(np.mean([c.mean[method] - c.mean[free[c.family]] for c in mine]))
            right = {"likely helps": gain > 0.5, "neutral": abs(gain) <= 1.5, "likely hurts": gain < -0.5}[
                verdict
            ]
            hits.append((reg, right))
            row += [verdict, f"{gain:+.2f}", "yes" if right else "no"]
        out.append("| " + " | ".join(row) + " |")
    for reg in ("auto", 0.1):
        mine = [right for which, right in hits if which == reg]
        out += ["", f"reg={reg}: {sum(mine)} of {len(mine)} right."]
    out += ["", "Right means: a mean gain over free above 0.5 points for *likely helps*,"]
    out += ["within 1.5 for *neutral*, below −0.5 for *likely hurts*."]
    return out


def figures(cells: list[Cell]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    free = free_of(cells)
    for name in sorted({cell.of for cell in cells}):
        mine = [cell for cell in cells if cell.of == name]
        figure, axes = plt.subplots(
            2, (len(mine) + 1) // 2, figsize=(2.6 * ((len(mine) + 1) // 2), 5), squeeze=False
        )
        for axis, cell in zip(axes.flat, mine, strict=False):
            regs = sorted(float(m[4:]) for m in cell.mean if m.startswith("bpa "))
            axis.semilogx(regs, [cell.mean[f"bpa {reg:g}"] for reg in regs], "o-", ms=3, label="BPA at reg")
            axis.axhline(cell.mean["auto"], color="tab:red", label="auto")
            axis.axhline(cell.mean[free[cell.family]], color="black", ls=":", label=free[cell.family])
            axis.set_title(cell.host, fontsize=8)
            axis.tick_params(labelsize=7)
        for axis in list(axes.flat)[len(mine) :]:
            axis.axis("off")
        axes.flat[0].legend(fontsize=6)
        figure.suptitle(f"{name}: accuracy (percent) against reg", fontsize=9)
        figure.tight_layout()
        figure.savefig(RESULTS / f"{name}.png", dpi=80)
        plt.close(figure)


if __name__ == "__main__":
    found = read()
    (RESULTS / "summary.md").write_text("\n".join([*lines(found), *forecasts(found)]) + "\n")
    figures(found)
