"""Draw ``docs/images/before-after.svg``: a small real set before and after the transform.

Usage: python tools/draw_readme_picture.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bpa import balanced_affinities
from bpa.cost import cosine_cost
from bpa.data import embedded_sketches
from bpa.report.figures import heatmaps, png_data_uri

TARGET = Path(__file__).resolve().parents[1] / "docs/images/before-after.svg"
CLASSES, ITEMS = 5, 12
STYLE = """<style>text{font:600 13px system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#1d2433}
.cut{stroke:#fff;stroke-opacity:.5;stroke-width:.7}.bg{fill:#fff}</style>"""


def main() -> None:
    """Take the first classes and items of the embedded sketches, whatever they look like."""
    sketches = embedded_sketches()
    rows = np.flatnonzero((sketches.labels < CLASSES) & (np.arange(len(sketches)) % 40 < ITEMS))
    some = sketches.select(rows)
    x = torch.from_numpy(some.features).double()
    cosine, w = (1 - cosine_cost(x)).numpy(), balanced_affinities(x, reg="auto").numpy()
    off = ~np.eye(len(w), dtype=bool)
    panels = [
        (name, np.clip(m, np.percentile(m[off], 1), np.percentile(m[off], 99)))
        for name, m in (("cosine similarity", cosine), ('W, reg="auto"', w))
    ]
    names = [some.name_of(c) for c in range(CLASSES)]
    told = f"{len(rows)} sketches of {CLASSES} classes ({', '.join(names)}): cosine similarities, and the rows of W"
    inner = heatmaps("Before and after the transform", told, panels, range(ITEMS, len(rows), ITEMS))
    body = inner[inner.index("</desc>") + 7 : inner.rindex("</svg>")]
    width, height = 644, 396
    pictures = ""
    for c in range(CLASSES):
        picture = png_data_uri(np.asarray(255 - some.images[ITEMS * c], dtype=np.uint8))
        at = 300 * c / CLASSES + 10
        pictures += f'<image href="{picture}" x="{at:.0f}" y="346" width="40" height="40"/>'
    TARGET.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f'<title>{told}</title>{STYLE}<rect class="bg" width="{width}" height="{height}"/>'
        f'<g transform="translate(10 8)">{body}{pictures}<g transform="translate(324 0)">{pictures}</g></g></svg>\n'
    )
    same = some.labels[:, None] == some.labels[None, :]
    for name, m in (("cosine", cosine), ("W", w)):
        order = np.argsort(np.where(off, -m, np.inf), axis=1)[:, : ITEMS - 1]
        print(
            f"{name}: {np.take_along_axis(same, order, axis=1).mean():.1%} of the 11 nearest share the class"
        )
    print(f"{TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
