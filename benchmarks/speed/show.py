"""One table and one figure from result files of the speed suite.

    python benchmarks/speed/show.py PART.json [PART.json ...] --out benchmarks/results/speed

The parts must come from one machine; rows of a later file replace the same rows of an earlier one. Writes ``cpu.json``,
``table.md`` and ``figure.svg``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from schema import validate

TITLES = {
    "1000x80x640": "1,000 sets of 80, d 640",
    "200x100x640": "200 sets of 100, d 640",
    "200x512": "n 200, d 512",
    "1000x512": "n 1,000, d 512",
    "4000x640": "n 4,000, d 640",
    "15000x2048": "n 15,000, d 2,048",
}
PASSES = ("forward", "forward+backward")
FLOOR = "Gram product (floor)"


def merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the rows of several runs into one result."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    result = parts[0] | {"missing": {}, "failed": {}}
    for part in parts:
        validate(part)
        for field in ("processor", "cores", "torch", "threads"):
            if part["machine"][field] != result["machine"][field]:
                raise SystemExit(f"parts differ in {field}: they are not one comparison")
        result["missing"] |= part["missing"]
        result["failed"] |= part["failed"]
        for row in part["rows"]:
            key = (row["case"], row["pass"], row["method"])
            if row["median"] is None and key in rows:
                rows[key]["peak_bytes"] = row["peak_bytes"]
            else:
                kept = rows.get(key, {}).get("peak_bytes")
                rows[key] = row | {"peak_bytes": kept if row["peak_bytes"] is None else row["peak_bytes"]}
    result["rows"] = list(rows.values())
    validate(result)
    return result


def spread(row: dict[str, Any]) -> tuple[float, float]:
    """Lower and upper quartile of the times, over their median."""
    times = sorted(row["seconds"])
    if len(times) < 3:
        return times[0] / row["median"], times[-1] / row["median"]
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return low / row["median"], high / row["median"]


def table(result: dict[str, Any]) -> str:
    """The ratios to the Gram product, and peak memory, as Markdown."""
    lines = []
    machine = result["machine"]
    by_key = {(row["case"], row["pass"], row["method"]): row for row in result["rows"]}
    methods = list(dict.fromkeys(row["method"] for row in result["rows"]))
    cases = [case for case in TITLES if any(key[0] == case for key in by_key)]
    for which in PASSES:
        shown = [
            case for case in cases if (case, which, FLOOR) in by_key and by_key[case, which, FLOOR]["seconds"]
        ]
        lines += [
            f"### {which.capitalize()}: time over the Gram product"
            + (" and its backward" if "+" in which else ""),
            "",
        ]
        lines += [
            "| method | " + " | ".join(TITLES[case] for case in shown) + " |",
            "|---" * (len(shown) + 1) + "|",
        ]
        for method in methods:
            cells = []
            for case in shown:
                row = by_key.get((case, which, method))
                if row is None or row["median"] is None:
                    cells.append("–")
                elif method == FLOOR:
                    cells.append(f"1 ({row['median'] * 1e3:,.3g} ms)")
                else:
                    low, high = spread(row)
                    cells.append(
                        f"{row['over_floor']:.2f} ({100 * (low - 1):+.0f}…{100 * (high - 1):+.0f} %)"
                    )
            if any(cell != "–" for cell in cells):
                name = f"**{method}**" if method == "bpa" else method
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    peaks = [row for row in result["rows"] if row["peak_bytes"] is not None]
    if peaks:
        columns = list(dict.fromkeys((row["case"], row["pass"]) for row in peaks))
        lines += ["### Peak memory beyond the input, in buffers of the size of W", ""]
        lines += ["| method | " + " | ".join(f"{TITLES[c]}, {p}" for c, p in columns) + " |"]
        lines += ["|---" * (len(columns) + 1) + "|"]
        for method in methods:
            cells = []
            for case, which in columns:
                row = by_key.get((case, which, method))
                size = buffer_bytes(case)
                cells.append(
                    "–" if row is None or row["peak_bytes"] is None else f"{row['peak_bytes'] / size:.2f}"
                )
            if any(cell != "–" for cell in cells):
                lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
    notes = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} thread(s), torch {machine['torch']}; "
        f"{result['allocator']}; float32; {result['clock']}; medians of ratios within a round, quartiles of times; "
        f"load average before the run {machine['load_before']:.1f}.",
        "Five sweeps, reg 0.1. A method that iterates differently (geomloss, TorchDR, ott-jax) is timed at a like "
        "number of iterations.",
    ]
    notes += [f"Not run: {name}, {why}." for name, why in result["missing"].items()]
    notes += [f"Failed: {name}: {why}" for name, why in result["failed"].items()]
    return "\n".join(lines + [f"- {note}" for note in notes]) + "\n"


def buffer_bytes(case: str) -> int:
    """Bytes of one W of a case."""
    numbers = [int(number) for number in case.split("x")]
    batch, n = (numbers[0], numbers[1]) if len(numbers) == 3 else (1, numbers[0])
    return 4 * batch * n * n


def figure(result: dict[str, Any], path: Path) -> None:
    """Bars of time over the floor, one panel a case, for both passes."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "bpa"
    rows = [row for row in result["rows"] if row["median"] is not None and row["method"] != FLOOR]
    cases = [case for case in TITLES if any(row["case"] == case for row in rows)]
    methods = list(dict.fromkeys(row["method"] for row in rows))[::-1]
    drawing, axes = plt.subplots(
        1, len(cases), figsize=(2.6 * len(cases) + 2, 4.6), sharey=True, squeeze=False
    )
    for axis, case in zip(axes[0], cases, strict=True):
        for which, offset, shade in ((PASSES[0], 0.2, 1.0), (PASSES[1], -0.2, 0.45)):
            for place, method in enumerate(methods):
                row = next(
                    (r for r in rows if (r["case"], r["pass"], r["method"]) == (case, which, method)), None
                )
                if row is not None:
                    colour = "#b2182b" if method == "bpa" else "#4d4d4d"
                    axis.barh(place + offset, row["over_floor"], 0.36, color=colour, alpha=shade)
        axis.axvline(1, color="#2166ac", linewidth=1)
        axis.set_xscale("log")
        axis.set_xlim(0.4, 14)
        axis.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
        axis.minorticks_off()
        axis.set_title(TITLES[case], fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_yticks(range(len(methods)), methods, fontsize=8)
    drawing.supxlabel(
        "time over the Gram product alone (dark: forward; light: with backward, over its backward too)",
        fontsize=9,
    )
    drawing.tight_layout()
    drawing.savefig(path, metadata={"Date": None})
    plt.close(drawing)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", type=Path)
    parser.add_argument("--name", default="cpu", help="stem of the merged result file")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/speed"))
    options = parser.parse_args()
    result = merge([json.loads(part.read_text()) for part in options.parts])
    options.out.mkdir(parents=True, exist_ok=True)
    stem = "" if options.name == "cpu" else f"-{options.name}"
    (options.out / f"{options.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / f"table{stem}.md").write_text(table(result))
    figure(result, options.out / f"figure{stem}.svg")
    print(table(result))


if __name__ == "__main__":
    main()
