"""Records to a page: tables with intervals and paired gains, figures, and one sentence a finding."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bpa.metrics.intervals import Interval, mean_interval, paired_difference
from bpa.records import RunRecord
from bpa.report.figures import (
    Point,
    bar_chart,
    heatmaps,
    line_chart,
    png_data_uri,
    row_difference,
    scatters,
    stacked_bars,
)
from bpa.report.page import Figure, Page, Section, Strip
from bpa.report.table import Table
from bpa.runs.clustering import cluster_table
from bpa.runs.retrieval import retrieval_table
from bpa.transforms.names import FREE

_DEFAULT_REG = 0.1
_TOLD = (_DEFAULT_REG, "auto")
"""The weights a finding speaks of: what a user gets without trying several."""


def build_page(records: Sequence[RunRecord], *, title: str = "Run report", lead: str = "") -> Page:
    """Arrange records on one page; a study this does not know gets its summary as a table.

    Parameters
    ----------
    records : sequence of RunRecord
        What a run store holds.
    title, lead : str
        Heading, and the sentence below it.

    Returns
    -------
    Page
    """
    by_study: dict[str, list[RunRecord]] = defaultdict(list)
    for record in _newest(records):
        by_study[record.study].append(record)
    sections, findings = [], []
    for study, group in by_study.items():
        made, said = _SECTIONS.get(study, _other)(group)
        sections.append(made)
        findings += said
    order = {key: k for k, key in enumerate(("few-shot", "clustering", "retrieval", "affinities"))}
    sections.sort(key=lambda section: order.get(section.key, len(order)))
    sections.append(_runtime(records))
    return Page(title, lead, findings, sections, _facts(records))


def demo_tables(records: Sequence[RunRecord]) -> list[Table]:
    """Return the three short tables of the demonstration."""
    few = [r for r in records if r.study == "fewshot"]
    cluster = next(r for r in records if r.study == "cluster")
    retrieval = next(r for r in records if r.study == "retrieval-demo")
    return [_short_fewshot(few), _short_cluster(cluster), _short_retrieval(retrieval)]


def findings_of(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return what the records show, one sentence each, with its kind: better, worse or same."""
    return list(build_page(records).findings)


def _newest(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return one record a configuration: the last."""
    kept = {(r.study, repr(sorted(r.task.items(), key=str)), str(r.data.get("sha256"))): r for r in records}
    return list(kept.values())


# ------------------------------------------------------------------------------------------------ few-shot


def _name(config: Mapping[str, Any]) -> str:
    reg = config.get("reg")
    return str(config["transform"]) if reg is None else f"{config['transform']} {reg}"


def _percent(record: RunRecord) -> np.ndarray[Any, np.dtype[np.float64]]:
    return 100 * np.asarray(record.values["accuracy"], dtype=np.float64)


def _best_free(group: Sequence[RunRecord]) -> RunRecord | None:
    """Return the best of what every user already has, in hindsight."""
    free = [r for r in group if r.task["transform"] in FREE]
    return max(free, key=lambda r: float(_percent(r).mean()), default=None)


def _fewshot_groups(records: Sequence[RunRecord]) -> dict[tuple[Any, ...], list[RunRecord]]:
    """Return records that ran on the same tasks, by what names them."""
    groups: dict[tuple[Any, ...], list[RunRecord]] = defaultdict(list)
    keys = ("protocol", "n_way", "n_shot", "n_query", "n_tasks", "seed", "host")
    for record in records:
        groups[(record.data.get("source"), *(record.task.get(key) for key in keys))].append(record)
    return groups


def _gain(record: RunRecord, base: RunRecord | None) -> Interval | None:
    if base is None or base is record or len(base.values["accuracy"]) != len(record.values["accuracy"]):
        return None
    return paired_difference(_percent(record), _percent(base))


def _fewshot(records: Sequence[RunRecord]) -> tuple[Section, list[tuple[str, str]]]:
    tables, figures, findings = [], [], []
    for key, group in _fewshot_groups(records).items():
        source, protocol, way, shot, query, tasks, seed, host = key
        raw = next((r for r in group if r.task["transform"] == "identity"), None)
        best = _best_free(group)
        rows = []
        for record in group:
            is_free = record.task["transform"] in FREE
            over = None if is_free else _gain(record, best)
            rows.append((_name(record.task), mean_interval(_percent(record)), _gain(record, raw), over))
        name = f"{host}, {way}-way {shot}-shot"
        notes = [
            f"Accuracy in percent ± 95 % interval over {tasks:,} tasks ({protocol}, {query} queries a class, seed "
            f"{seed}), {source}; gains are paired over the same tasks.",
        ]
        if best is not None:
            notes.append(f"Best without the transform, in hindsight: {best.task['transform']}.")
        tables.append(
            Table(name, ("features", "accuracy", "gain over raw", "gain over best without"), rows, notes)
        )
        curve = [
            (float(r.task["reg"]), mean_interval(_percent(r)))
            for r in group
            if r.task["transform"] == "bpa" and isinstance(r.task.get("reg"), int | float)
        ]
        if len(curve) > 1:
            flat = [
                (r.task["transform"], float(_percent(r).mean())) for r in group if r.task["transform"] in FREE
            ]
            points = [Point(reg, i.mean, i.half_width) for reg, i in curve]
            chart = line_chart(
                f"Accuracy against reg, {name}",
                "; ".join(f"reg {p.x:g}: {p.y:.1f}" for p in points),
                [("bpa", points)],
                x_label="reg",
                y_label="accuracy, %",
                reference=flat,
            )
            figures.append(
                Figure(
                    f"Accuracy against reg: {name}",
                    chart,
                    "Bars: 95 % intervals over tasks. Dashed: without the transform.",
                )
            )
        findings += _verdicts(name, group, best)
    lead = "A few labelled items a class, the rest to be named. Every row saw the same tasks."
    return Section("few-shot", "Few-shot", lead, tables, figures), findings


def _verdicts(name: str, group: Sequence[RunRecord], best: RunRecord | None) -> list[tuple[str, str]]:
    """Say what the default and the automatic reg do, against raw features and against the best without."""
    raw = next((r for r in group if r.task["transform"] == "identity"), None)
    out = []
    for record in group:
        if record.task["transform"] == "bpa" and record.task.get("reg") in _TOLD:
            over_raw, over_best = _gain(record, raw), _gain(record, best)
            if over_raw is not None and over_best is not None and best is not None:
                said = str(best.task["transform"])
                out.append(
                    _sentence(f"{name}, reg {record.task['reg']}", over_raw, over_best, said, "points")
                )
    return out


def _sentence(what: str, over_raw: Interval, over_best: Interval, best: str, unit: str) -> tuple[str, str]:
    """Return one finding; its kind is that of the comparison with the best there is without the transform."""
    kind = "same" if not over_best.excludes_zero else "better" if over_best.mean > 0 else "worse"
    return kind, (
        f"{what}: {over_raw.mean:+.1f} ± {over_raw.half_width:.1f} {unit} over raw features; "
        f"{over_best.mean:+.1f} ± {over_best.half_width:.1f} over {best}, the best without it."
    )


def _short_fewshot(records: Sequence[RunRecord]) -> Table:
    groups = _fewshot_groups(records)
    shots = [key[3] for key in groups]
    names = list(dict.fromkeys(_name(r.task) for r in records))
    rows = []
    for name in names:
        cells: list[Any] = [name]
        for group in groups.values():
            record = next(r for r in group if _name(r.task) == name)
            cells += [
                mean_interval(_percent(record)),
                None if name in FREE else _gain(record, _best_free(group)),
            ]
        rows.append(cells)
    columns = ["features", *(c for s in shots for c in (f"{s}-shot, %", "gain"))]
    tasks = len(records[0].values["accuracy"])
    note = f"ProtoNet, 5-way, {tasks} tasks; gain: over the best of identity, unit and centred, paired, 95 % intervals."
    return Table("Few-shot", columns, rows, (note,))


# ---------------------------------------------------------------------------------------------- clustering


def _cluster(records: Sequence[RunRecord]) -> tuple[Section, list[tuple[str, str]]]:
    tables, figures, findings = [], [], []
    for record in records:
        tables.append(cluster_table(record))
        ways = record.summary["ways"]
        if not record.summary["scored"]:
            continue
        bars = [(name, entry["nmi"]["mean"], _half(entry["nmi"])) for name, entry in ways.items()]
        said = "; ".join(f"{name} {value:.1f}" for name, value, _ in bars)
        caption = "Bars: 95 % intervals over repeats."
        figures.append(
            Figure("Agreement with the classes (NMI)", bar_chart("NMI by way", said, bars), caption)
        )
        free = [name for name in FREE if name in ways]
        if free:
            best = max(free, key=lambda name: float(ways[name]["nmi"]["mean"]))
            for name in (f"bpa reg={reg}" for reg in _TOLD):
                if name in ways and "identity" in ways:
                    mine, raw, other = (
                        100 * np.asarray(record.values[f"{key}/nmi"]) for key in (name, "identity", best)
                    )
                    gains = paired_difference(mine, raw), paired_difference(mine, other)
                    findings.append(_sentence(f"Clustering, {name}", *gains, best, "NMI"))
    lead = "k-means on the rows, without labels; the labels only score the result."
    return Section("clustering", "Clustering", lead, tables, figures), findings


def _half(cell: Mapping[str, Any]) -> float:
    half = float(cell["half_width"])
    return half if np.isfinite(half) else 0.0


def _short_cluster(record: RunRecord) -> Table:
    ways = record.summary["ways"]
    told = ("bpa", *FREE)
    rows = [(name, e["acc"], e["nmi"], e["gain"]) for name, e in ways.items() if name.split(" ")[0] in told]
    note = (
        f"k-means, {record.task['n_clusters']} clusters, {record.data['n']} items, {record.task['repeats']} "
        f"repeats on {record.task['share']:.0%} of them; gain in NMI over raw features, paired; "
        "more ways in the report."
    )
    return Table("Clustering", ("rows", "ACC, %", "NMI, %", "gain"), rows, (note,))


# ----------------------------------------------------------------------------------------------- retrieval


def _retrieval(records: Sequence[RunRecord]) -> tuple[Section, list[tuple[str, str]]]:
    record = records[-1]
    ways, names = record.summary["ways"], record.summary["class_names"]
    table = _short_retrieval(record)
    base = max(("cosine", "centred cosine"), key=lambda name: float(ways[name]["ap"]["mean"]))
    after = f"bpa {_DEFAULT_REG}, row cosine"
    findings = []
    for name in (f"bpa {reg}, row cosine" for reg in _TOLD):
        if name in ways:
            mine, raw, other = (
                100 * np.asarray(record.values[f"{key}/ap"]) for key in (name, "cosine", base)
            )
            gains = paired_difference(mine, raw), paired_difference(mine, other)
            findings.append(_sentence(f"Retrieval, {name}", *gains, base, "mAP"))
    curves = []
    for kind in ("row cosine", "row distance"):
        points = [
            Point(float(name.split(",")[0].split()[1]), e["ap"]["mean"], e["ap"]["half_width"])
            for name, e in ways.items()
            if name.endswith(kind) and "auto" not in name
        ]
        curves.append((f"bpa, {kind}", points))
    flat = [(name, float(ways[name]["ap"]["mean"])) for name in ("cosine", "centred cosine")]
    said = "; ".join(f"{name} {e['ap']['mean']:.1f}" for name, e in ways.items())
    figures = [
        Figure(
            "mAP against reg",
            line_chart("mAP against reg", said, curves, x_label="reg", y_label="mAP, %", reference=flat),
            "Bars: 95 % intervals over queries. Dashed: without the transform.",
        )
    ]
    change = 100 * (
        np.asarray(record.summary["by_class"][after]) - np.asarray(record.summary["by_class"][base])
    )
    chosen = np.argsort(-change, kind="stable")
    chosen = np.concatenate([chosen[:8], chosen[-8:]]) if len(chosen) > 16 else chosen
    bars = [(str(names[int(c)]), float(change[int(c)]), 0.0) for c in chosen]
    text = f"{int((change > 0).sum())} of {len(change)} classes gain, {int((change < 0).sum())} lose."
    chart = bar_chart("mAP gained by class", text, bars, diverging=True)
    figures.append(
        Figure(
            f"Who gains and who loses: {after} against {base}",
            chart,
            f"Points of mAP; the eight largest gains and losses. {text}",
        )
    )
    strips = [
        Strip(
            (strip["query"]["name"], _picture(strip["query"])),
            [
                (
                    name,
                    [
                        (a["name"], _picture(a), a["label"] == strip["query"]["label"])
                        for a in strip["ways"][name]
                    ],
                )
                for name in (base, after)
            ],
        )
        for strip in record.summary["strips"]
    ]
    lead = (
        "Every item queries all the others; the queries below are evenly spaced through the set, not chosen."
    )
    return Section("retrieval", "Retrieval", lead, (table,), figures, strips), findings


def _picture(item: Mapping[str, Any]) -> str:
    """Return the thumbnail of an item, ink dark on white."""
    if "picture" not in item:
        return ""
    pixels = np.frombuffer(base64.b64decode(item["picture"]), dtype=np.uint8).reshape(item["shape"])
    return png_data_uri(np.asarray(255 - pixels, dtype=np.uint8))


def _short_retrieval(record: RunRecord) -> Table:
    rows = [
        (name, e["ap"], e["ap gain"], e["rank1"], e["rank1 gain"])
        for name, e in record.summary["ways"].items()
    ]
    note = f"{record.data['n']:,} items, each queries all others; gains over cosine, paired, 95 % intervals."
    return Table("Retrieval", ("ranking by", "mAP, %", "gain", "Rank-1, %", "gain"), rows, (note,))


def _rankings(records: Sequence[RunRecord]) -> tuple[Section, list[tuple[str, str]]]:
    """Show the rankings of ``bpa retrieve``: one table and one chart a data set, gains over plain cosine."""
    tables, figures, findings = [], [], []
    groups: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        groups[str((record.data.get("source"), record.data.get("sha256")))].append(record)
    for group in groups.values():
        table = retrieval_table(group)
        tables.append(table)
        bars = []
        for record in group:
            found = mean_interval(_counted(record))
            bars.append((f"{record.task['way']}, {record.task['protocol']}", found.mean, found.half_width))
        said = "; ".join(f"{name} {value:.1f}" for name, value, _ in bars)
        figures.append(Figure(table.title, bar_chart("mAP by ranking", said, bars, unit=" %")))
        plain = next((r for r in group if r.task["way"] == "unit"), None)
        for record in group:
            if plain is not None and str(record.task["way"]).startswith("bpa"):
                gain = paired_difference(_counted(record), _counted(plain))
                kind = "same" if not gain.excludes_zero else "better" if gain.mean > 0 else "worse"
                name = f"Retrieval, {record.task['way']}, {record.task['protocol']}"
                findings.append((kind, f"{name}: {gain.mean:+.1f} ± {gain.half_width:.1f} mAP over cosine."))
    lead = "Every query against the gallery; gains are paired over the queries."
    return Section("retrieval", "Retrieval", lead, tables, figures), findings


def _counted(record: RunRecord) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the average precision of the queries that have a relevant item, in percent."""
    values = 100 * np.asarray(record.values["average_precision"], dtype=np.float64)
    return values[~np.isnan(values)]


# --------------------------------------------------------------------------------------------- affinities


def _affinity(records: Sequence[RunRecord]) -> tuple[Section, list[tuple[str, str]]]:
    s = records[-1].summary
    labels, names = s["labels"], s["class_names"]
    bounds = [k for k in range(1, len(labels)) if labels[k] != labels[k - 1]]
    before, after = np.asarray(s["before"], dtype=np.float64), np.asarray(s["after"], dtype=np.float64)
    hidden = before.copy()
    np.fill_diagonal(hidden, np.nan)
    np.fill_diagonal(before, np.nanmax(hidden))
    halves = s["halves"]
    bars = [(name, (h["direct"], h["third"])) for name, h in halves.items()]
    share = {name: h["third"] / (h["third"] + h["direct"]) for name, h in halves.items()}
    same = np.asarray(labels)[:, None] == np.asarray(labels)[None, :]
    off = ~np.eye(len(labels), dtype=bool)
    contrast = [float(m[same & off].mean()) for m in (hidden, after)] + [
        float(m[~same].mean()) for m in (hidden, after)
    ]
    text = (
        f"Mean of same-class pairs: cosine {contrast[0]:.2f}, W {contrast[1]:.2f}; of different classes: cosine "
        f"{contrast[2]:.2f}, W {contrast[3]:.2f}."
    )
    figures = [
        Figure(
            f"The set before and after (reg {s['reg']:g})",
            heatmaps(
                "Cosine similarity and W, ordered by class",
                text,
                [("cosine similarity", before), ("W, square root", _visible(after))],
                bounds,
            ),
            text
            + " Bright is alike, cut at the 99th percentile in W; lines separate the classes: "
            + ", ".join(names)
            + ".",
        ),
        Figure(
            "The same items in the plane",
            scatters(
                "First two principal components before and after",
                f"{len(labels)} items of {len(names)} classes",
                [
                    ("unit-norm features", np.asarray(s["plane_before"], dtype=np.float64)),
                    ("rows of W", np.asarray(s["plane_after"], dtype=np.float64)),
                ],
                labels,
                names,
            ),
            "Principal components, not fitted to the labels.",
        ),
        Figure(
            "What makes two rows differ",
            stacked_bars(
                "Mean absolute difference of two rows",
                "; ".join(f"{name}: {value:.0%} from third parties" for name, value in share.items()),
                ("direct: the pair itself", "third party: all others"),
                bars,
            ),
            "A row difference has a direct part, the two entries of the pair itself, and a third-party part: "
            "whether the others see the two alike. "
            + "; ".join(f"{k}: {v:.0%} third-party" for k, v in share.items())
            + ".",
        ),
        *(
            Figure(
                f"Row difference of {pair['title']}",
                row_difference(
                    f"Absolute difference of the rows of items {pair['pair'][0]} and {pair['pair'][1]}",
                    f"sum {sum(pair['values']):.2f}",
                    np.asarray(pair["values"], dtype=np.float64),
                    pair["pair"],
                    bounds,
                ),
                f"Items {pair['pair'][0]} and {pair['pair'][1]}; sum {sum(pair['values']):.2f}.",
            )
            for pair in s["pairs"]
        ),
    ]
    lead = "What the transform does to a small set: each row of W says how one item shares itself among the others."
    return Section("affinities", "Inside W", lead, (), figures), []


def _visible(w: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return W so that most of it can be seen: square root, cut at the 99th percentile off the diagonal."""
    off = w[~np.eye(len(w), dtype=bool)]
    return np.asarray(np.sqrt(np.minimum(w, np.percentile(off, 99))))


# ------------------------------------------------------------------------------------------------- the rest


def _other(records: Sequence[RunRecord]) -> tuple[Section, list[tuple[str, str]]]:
    """Return a table of the scalars of each summary, with the settings that differ."""
    study = records[0].study
    varied = [k for k in records[0].task if len({repr(r.task.get(k)) for r in records}) > 1]
    scalar = list(dict.fromkeys(k for r in records for k, v in r.summary.items() if _is_cell(v)))
    rows = [[*(_cell(r.task.get(k)) for k in varied), *(r.summary.get(k) for k in scalar)] for r in records]
    tables = [Table(study, [*varied, *scalar], rows)] if varied or scalar else []
    if study == "sphere":
        from bpa.runs.clustering_studies import sphere_table

        tables = [sphere_table(records)]
    key = "".join(c if c.isalnum() else "-" for c in study.lower())
    return Section(f"study-{key}", study, "", tables), []


def _is_cell(value: Any) -> bool:
    return isinstance(value, int | float | str) or (
        isinstance(value, Mapping) and {"mean", "half_width"} <= set(value)
    )


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _runtime(records: Sequence[RunRecord]) -> Section:
    """Return what took how long; wall times are no part of the results."""
    seconds: dict[str, float] = defaultdict(float)
    for record in records:
        what = f"{record.study}: {_name(record.task)}" if "transform" in record.task else record.study
        seconds[what] += record.seconds
    bars = [(name, value, 0.0) for name, value in seconds.items()]
    chart = bar_chart("Seconds by part", "; ".join(f"{n} {v:.1f} s" for n, v, _ in bars), bars, unit=" s")
    rows = [
        (record.study, _name(record.task) if "transform" in record.task else "", record.seconds)
        for record in records
    ]
    table = Table("Wall time of every record", ("study", "features", "seconds"), rows)
    return Section(
        "runtime",
        "Runtime",
        "Wall time on the machine named under 'What was run'.",
        (table,),
        (Figure("Seconds", chart),),
    )


def _facts(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return versions, data and settings, each once."""
    if not records:
        return {}
    facts: dict[str, Any] = {"Environment": records[-1].environment}
    for record in records:
        facts.setdefault("Data", {})[str(record.data.get("source", record.study))] = record.data
    for study in dict.fromkeys(r.study for r in records):
        group = [r for r in records if r.study == study]
        keys = dict.fromkeys(k for r in group for k in r.task)
        settings = {}
        for key in keys:
            seen = list(dict.fromkeys(str(r.task.get(key)) for r in group))
            settings[key] = seen[0] if len(seen) == 1 else ", ".join(seen)
        facts[f"Settings: {study}"] = settings
    return facts


_SECTIONS = {
    "fewshot": _fewshot,
    "cluster": _cluster,
    "retrieval": _rankings,
    "retrieval-demo": _retrieval,
    "affinities": _affinity,
}
