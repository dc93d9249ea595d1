"""Figures as inline SVG: numbers in, markup out, colours by class so that the page's light or dark theme holds.

Every figure carries a title and a description for readers who cannot see it, and asks nothing of the network.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from bpa.errors import ArgumentError

__all__ = [
    "Point",
    "bar_chart",
    "heatmaps",
    "line_chart",
    "png_data_uri",
    "row_difference",
    "scatters",
    "stacked_bars",
]

_SERIES = 8
"""Colours the page's style sheet knows (classes ``c0`` … ``c7``)."""
_NAME, _LETTER = 64, 6.6
"""Most letters of a name beside a line or a bar, and the width of one."""


@dataclass(frozen=True)
class Point:
    """One point of a line: where, how high, and the half width of its interval (0 for none).

    Examples
    --------
    >>> Point(0.1, 50.0, half=1.5)
    Point(x=0.1, y=50.0, half=1.5)
    """

    x: float
    y: float
    half: float = 0.0


def png_data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return an image (h, w) or (h, w, 3) of uint8 as a PNG inside a ``data:`` address.

    Examples
    --------
    >>> png_data_uri(np.zeros((1, 1), dtype=np.uint8))[:22]
    'data:image/png;base64,'
    """
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ArgumentError(
            f"The 'pixels' parameter of png_data_uri must be uint8 of shape (h, w) or (h, w, 3). Got {pixels.dtype} of "
            f"shape {pixels.shape}."
        )
    height, width = pixels.shape[:2]
    colour = 2 if pixels.ndim == 3 else 0
    rows = pixels.reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(raw, 9))
        + chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(png).decode()


def line_chart(
    title: str,
    description: str,
    series: Sequence[tuple[str, Sequence[Point]]],
    *,
    x_label: str,
    y_label: str,
    reference: Sequence[tuple[str, float]] = (),
    log_x: bool = True,
) -> str:
    """Draw lines with 95 % bars over ``x``, and horizontal references (name, height).

    Examples
    --------
    >>> line = [Point(0.1, 50.0, half=1.0), Point(0.5, 55.0, half=1.0)]
    >>> drawn = line_chart("Gain", "Gain against reg.", [("bpa", line)], x_label="reg", y_label="points")
    >>> drawn.count("<circle"), "bpa, reg 0.1: 50.00 ± 1.00" in drawn
    (2, True)
    """
    names = [name[:_NAME] for name, _ in (*series, *reference)]
    right = max([150.0, *(16 + _LETTER * len(name) for name in names)])
    width, height, left, top, bottom = 490 + right, 350, 56, 30, 48
    points = [p for _, line in series for p in line]
    xs = sorted({p.x for p in points}) or [0.0]
    lows = [p.y - p.half for p in points] + [y for _, y in reference]
    highs = [p.y + p.half for p in points] + [y for _, y in reference]
    low, high, ticks = _axis(min(lows, default=0.0), max(highs, default=1.0))
    scale = math.log if log_x and xs[0] > 0 else float
    span = (scale(xs[-1]) - scale(xs[0])) or 1.0

    def px(x: float) -> float:
        share = (scale(x) - scale(xs[0])) / span if len(xs) > 1 else 0.5
        return left + 12 + (width - left - right - 24) * share

    def py(y: float) -> float:
        return top + (height - top - bottom) * (1 - (y - low) / (high - low))

    out = [_grid(left, width - right, [(py(t), _tick(t)) for t in ticks])]
    labels: list[tuple[float, str, str]] = []
    for k, (name, y) in enumerate(reference):
        colour = f"c{(len(series) + k) % _SERIES}"
        out.append(
            f'<line class="{colour} s dash" x1="{left}" x2="{width - right}" y1="{py(y):.1f}" y2="{py(y):.1f}"/>'
        )
        labels.append((py(y), name, colour))
    for k, (name, line) in enumerate(series):
        colour = f"c{k % _SERIES}"
        ordered = sorted(line, key=lambda p: p.x)
        path = " ".join(f"{px(p.x):.1f},{py(p.y):.1f}" for p in ordered)
        out.append(f'<polyline class="{colour} s" points="{path}"/>')
        for p in ordered:
            bar = f'<line class="{colour} s thin" x1="{px(p.x):.1f}" x2="{px(p.x):.1f}" '
            bar += f'y1="{py(p.y - p.half):.1f}" y2="{py(p.y + p.half):.1f}"/>'
            said = escape(f"{name}, {x_label} {p.x:g}: {p.y:.2f} ± {p.half:.2f}")
            dot = f'<circle class="{colour} f" cx="{px(p.x):.1f}" cy="{py(p.y):.1f}" r="4">'
            dot += f"<title>{said}</title></circle>"
            out += [bar if p.half else "", dot]
        if ordered:
            labels.append((py(ordered[-1].y), name, colour))
    out += _side_labels(labels, width - right + 8, top + 8, height - bottom)
    out += [_text(px(x), height - bottom + 18, f"{x:g}", "middle") for x in xs]
    out.append(_text((left + width - right) / 2, height - 8, x_label, "middle", "axis"))
    out.append(_text(left - 44, top - 16, y_label, "start", "axis"))
    return _svg(width, height, title, description, out)


def bar_chart(
    title: str,
    description: str,
    bars: Sequence[tuple[str, float, float]],
    *,
    unit: str = "",
    diverging: bool = False,
) -> str:
    """Draw horizontal bars (name, value, half width of the interval); a diverging chart has zero inside.

    Examples
    --------
    >>> bar_chart("Gain", "Points.", [("sketches", 4.0, 0.5), ("digits", -1.0, 0.5)], diverging=True).count("<rect")
    2
    """
    row, right, top = 24, 84, 8
    left = max([170.0, *(16 + _LETTER * len(name[:_NAME]) for name, _, _ in bars)])
    width, height = 470 + left, top + row * len(bars) + 26
    low, high, ticks = _axis(
        min([0.0, *(v - h for _, v, h in bars)]), max([0.0, *(v + h for _, v, h in bars)]), around_zero=True
    )

    def px(v: float) -> float:
        return left + (width - left - right) * (v - low) / (high - low)

    out = [
        f'<line class="grid" x1="{px(t):.1f}" x2="{px(t):.1f}" y1="{top}" y2="{height - 22}"/>'
        + _text(px(t), height - 6, _tick(t), "middle")
        for t in ticks
    ]
    out.append(f'<line class="zero" x1="{px(0):.1f}" x2="{px(0):.1f}" y1="{top}" y2="{height - 22}"/>')
    for k, (name, value, half) in enumerate(bars):
        y = top + row * k
        colour = ("c0" if value >= 0 else "c1") if diverging else "c0"
        x0, x1 = sorted((px(0), px(value)))
        said = escape(f"{name}: {value:.2f}{unit}" + (f" ± {half:.2f}" if half else ""))
        out.append(
            f'<rect class="{colour} f" x="{x0:.1f}" y="{y + 4}" width="{max(x1 - x0, 0.5):.1f}" height="{row - 8}">'
            f"<title>{said}</title></rect>"
        )
        if half:
            a, b, m = px(value - half), px(value + half), y + row / 2
            out.append(f'<line class="ink s thin" x1="{a:.1f}" x2="{b:.1f}" y1="{m}" y2="{m}"/>')
        out.append(_text(left - 8, y + row / 2 + 4, name[:_NAME], "end"))
        out.append(
            _text(
                width - right + 8,
                y + row / 2 + 4,
                f"{value:+.1f}{unit}" if diverging else f"{value:.2f}{unit}",
            )
        )
    return _svg(width, height, title, description, out)


def heatmaps(
    title: str, description: str, panels: Sequence[tuple[str, NDArray[np.float64]]], bounds: Sequence[int]
) -> str:
    """Draw square matrices side by side, each from its least to its largest value, classes divided by lines.

    Examples
    --------
    >>> heatmaps("W", "Before and after.", [("cosines", np.eye(4)), ("W", np.eye(4))], bounds=[2]).count("<image")
    2
    """
    size, gap, top = 300, 24, 26
    width, height = len(panels) * (size + gap) - gap, top + size + 4
    out = []
    for k, (name, matrix) in enumerate(panels):
        x, n = k * (size + gap), len(matrix)
        out.append(_text(x, 16, name, "start", "axis"))
        uri = png_data_uri(_colours(matrix))
        out.append(
            f'<image href="{uri}" x="{x}" y="{top}" width="{size}" height="{size}" preserveAspectRatio="none" '
            'style="image-rendering:pixelated"/>'
        )
        for b in bounds:
            at = size * b / n
            out.append(
                f'<line class="cut" x1="{x + at:.1f}" x2="{x + at:.1f}" y1="{top}" y2="{top + size}"/>'
            )
            out.append(
                f'<line class="cut" x1="{x}" x2="{x + size}" y1="{top + at:.1f}" y2="{top + at:.1f}"/>'
            )
    return _svg(width, height, title, description, out)


def scatters(
    title: str,
    description: str,
    panels: Sequence[tuple[str, NDArray[np.float64]]],
    labels: Sequence[int],
    names: Sequence[str],
) -> str:
    """Draw point clouds (n, 2) side by side, a colour and a shape a class, with a legend below.

    Examples
    --------
    >>> cloud = np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 0.0]])
    >>> drawn = scatters("Rows", "Two components.", [("raw", cloud)], labels=[0, 0, 1], names=["cat", "dog"])
    >>> drawn.count("<title>cat</title>")  # two points and the legend
    3
    """
    size, gap, top = 300, 24, 26
    width, per_row = len(panels) * (size + gap) - gap, 3
    legend = 20 * math.ceil(len(names) / per_row)
    height = top + size + 10 + legend
    out = []
    for k, (name, cloud) in enumerate(panels):
        x0 = k * (size + gap)
        out.append(_text(x0, 16, name, "start", "axis"))
        out.append(f'<rect class="frame" x="{x0}" y="{top}" width="{size}" height="{size}"/>')
        low, high = cloud.min(axis=0), cloud.max(axis=0)
        unit = (cloud - low) / np.where(high > low, high - low, 1.0)
        for (a, b), label in zip(unit, labels, strict=True):
            out.append(
                _mark(
                    x0 + 10 + (size - 20) * a, top + 10 + (size - 20) * (1 - b), int(label), names[int(label)]
                )
            )
    for k, name in enumerate(names):
        x, y = (k % per_row) * (width / per_row), top + size + 22 + 20 * (k // per_row)
        out += [_mark(x + 6, y - 4, k, name), _text(x + 16, y, name[:28])]
    return _svg(width, height, title, description, out)


def stacked_bars(
    title: str,
    description: str,
    parts: Sequence[str],
    bars: Sequence[tuple[str, Sequence[float]]],
) -> str:
    """Draw horizontal bars made of named parts, with a legend above.

    Examples
    --------
    >>> drawn = stacked_bars("Distance", "Parts.", ("direct", "third party"), [("same class", (0.2, 0.6))])
    >>> "same class, third party: 0.6" in drawn
    True
    """
    row, left, right, top = 34, 190, 70, 34
    width, height = 640, top + row * len(bars) + 8
    largest = max((sum(values) for _, values in bars), default=1.0) or 1.0
    out = []
    for k, part in enumerate(parts):
        at = left + 230 * k
        out += [f'<rect class="c{k} f" x="{at}" y="8" width="12" height="12"/>', _text(at + 18, 18, part)]
    for k, (name, values) in enumerate(bars):
        x, y = float(left), top + row * k
        out.append(_text(left - 8, y + row / 2 + 4, name, "end"))
        for j, value in enumerate(values):
            wide = (width - left - right) * value / largest
            said = escape(f"{name}, {parts[j]}: {value:.3g}")
            out.append(
                f'<rect class="c{j} f" x="{x:.1f}" y="{y + 6}" width="{max(wide, 0):.1f}" height="{row - 12}">'
                f"<title>{said}</title></rect>"
            )
            x += wide
        out.append(_text(x + 6, y + row / 2 + 4, f"{sum(values):.2f}"))
    return _svg(width, height, title, description, out)


def row_difference(
    title: str, description: str, values: NDArray[np.float64], direct: Sequence[int], bounds: Sequence[int]
) -> str:
    """Draw the entries of |W_i − W_j| in class order; the entries at ``direct`` stand out.

    Examples
    --------
    >>> drawn = row_difference("Rows", "Entry by entry.", np.array([0.9, 0.1, 0.0]), direct=[0], bounds=[1])
    >>> "item 0, direct: 0.900" in drawn, "item 1, third party: 0.100" in drawn
    (True, True)
    """
    width, height, left, top, bottom = 640, 130, 40, 10, 18
    n, largest = len(values), float(values.max()) or 1.0
    step = (width - left - 8) / n
    out = [_grid(left, width - 8, [(top, f"{largest:.2f}"), (height - bottom, "0")])]
    for k, value in enumerate(values):
        tall = (height - top - bottom) * float(value) / largest
        colour = "c0" if k in direct else "c1"
        kind = "direct" if k in direct else "third party"
        out.append(
            f'<rect class="{colour} f" x="{left + step * k:.1f}" y="{height - bottom - tall:.1f}" '
            f'width="{max(step - 0.6, 0.5):.1f}" height="{tall:.1f}">'
            f"<title>item {k}, {kind}: {value:.3f}</title></rect>"
        )
    for b in bounds:
        x = left + step * b
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}"/>')
    out.append(_text(left, height - 4, "items, ordered by class"))
    return _svg(width, height, title, description, out)


def _axis(low: float, high: float, *, around_zero: bool = False) -> tuple[float, float, list[float]]:
    """Return a range with round ends that holds (low, high), and its ticks."""
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = 0.0, 1.0
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    if around_zero:
        first, last = min(first, 0), max(last, 0)
    return first * step, last * step, [k * step for k in range(first, last + 1)]


def _tick(value: float) -> str:
    return f"{value:.6g}" if abs(value) > 1e-12 else "0"


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _grid(left: float, right: float, ticks: Sequence[tuple[float, str]]) -> str:
    lines = (
        f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        + _text(left - 6, y + 4, name, "end")
        for y, name in ticks
    )
    return "".join(lines)


def _side_labels(labels: list[tuple[float, str, str]], x: float, top: float, bottom: float) -> list[str]:
    """Put names beside the ends of their lines, pushed apart so that none covers another."""
    out, last = [], top - 16.0
    ordered = sorted(labels)
    room = bottom - 16.0 * (len(ordered) - 1)
    for k, (y, name, colour) in enumerate(ordered):
        last = max(last + 16, min(y + 4, room + 16.0 * k))
        out.append(f'<text class="name {colour} t" x="{x}" y="{last:.1f}">{escape(name[:_NAME])}</text>')
    return out


def _mark(x: float, y: float, k: int, name: str) -> str:
    """Draw one point; the shape changes after every round of colours, so colour is never the only cue."""
    said, colour = f"<title>{escape(name)}</title>", f"c{k % _SERIES} f"
    if (k // _SERIES + k) % 2:
        return f'<rect class="{colour}" x="{x - 3.2:.1f}" y="{y - 3.2:.1f}" width="6.4" height="6.4">{said}</rect>'
    return f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.6">{said}</circle>'


def _colours(matrix: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Map numbers to a dark-to-bright scale whose lightness rises steadily."""
    low, high = float(matrix.min()), float(matrix.max())
    unit = (matrix - low) / ((high - low) or 1.0)
    stops = np.array(
        [[13, 8, 60], [84, 15, 109], [187, 55, 84], [249, 142, 9], [252, 255, 164]], dtype=np.float64
    )
    at = unit * (len(stops) - 1)
    k = np.minimum(at.astype(np.int64), len(stops) - 2)
    mixed = stops[k] + (stops[k + 1] - stops[k]) * (at - k)[..., None]
    return np.asarray(np.rint(mixed), dtype=np.uint8)


def _svg(width: float, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}. {escape(description)}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )
