"""Build a real cross-camera retrieval set from the photographs inside the scikit-image wheel; nothing is downloaded.

The wheel holds a Middlebury stereo pair with its disparity map. Identity = scene point, camera = left or right, truth
from geometry: a point of the left picture lies ``disparity`` pixels further left in the right one. Three jittered
crops of every point and camera; the first is a query, the others are gallery; random crops of other photographs are
distractors (identity 0). Features: HOG joined with chromaticity, raw.

    python benchmarks/retrieval/stereo.py OUT.npz [--step 24] [--seed 0] [--centred]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

SIZE = 32
PICTURES = ("astronaut", "chelsea", "coffee", "rocket")


def build(step: int = 24, seed: int = 0, *, distractors: int = 100) -> dict[str, np.ndarray]:
    """Features, ids, cameras and is_query of the set."""
    import skimage
    from skimage import io

    folder = Path(skimage.__file__).parent / "data"
    left = io.imread(folder / "motorcycle_left.png")[..., :3] / 255.0
    right = io.imread(folder / "motorcycle_right.png")[..., :3] / 255.0
    disparity = np.load(folder / "motorcycle_disp.npz")["arr_0"]
    rng = np.random.default_rng(seed)
    height, width = disparity.shape
    margin = 24
    features, ids, cameras, is_query = [], [], [], []
    identity = 0
    for y in range(margin, height - margin, step):
        for x in range(margin, width - margin, step):
            window = disparity[y - 2 : y + 3, x - 2 : x + 3]
            if not np.isfinite(window).all() or np.ptp(window) > 2:
                continue
            x_right = x - float(disparity[y, x])
            if x_right < margin:
                continue
            identity += 1
            for camera, (picture, column) in enumerate(((left, float(x)), (right, x_right))):
                for crop in range(3):
                    features.append(describe(jitter(picture, float(y), column, rng)))
                    ids.append(identity)
                    cameras.append(camera)
                    is_query.append(crop == 0)
    for name in PICTURES:
        found = next(path for suffix in ("png", "jpg") if (path := folder / f"{name}.{suffix}").exists())
        picture = io.imread(found)[..., :3] / 255.0
        for _ in range(distractors):
            y = rng.uniform(margin, picture.shape[0] - margin)
            x = rng.uniform(margin, picture.shape[1] - margin)
            features.append(describe(jitter(picture, y, x, rng)))
            ids.append(0)
            cameras.append(int(rng.integers(2)))
            is_query.append(False)
    return {
        "features": np.asarray(features, dtype=np.float32),
        "ids": np.asarray(ids, dtype=np.int64),
        "cameras": np.asarray(cameras, dtype=np.int64),
        "is_query": np.asarray(is_query, dtype=bool),
    }


def jitter(picture: np.ndarray, y: float, x: float, rng: np.random.Generator) -> np.ndarray:
    """A crop around (y, x), turned, scaled, moved, blurred, lit differently and noisy."""
    from skimage.filters import gaussian
    from skimage.transform import AffineTransform, warp

    angle = np.deg2rad(rng.uniform(-12, 12))
    scale = np.exp(rng.uniform(-0.15, 0.15))
    dy, dx = rng.uniform(-3, 3, 2)
    half = (SIZE - 1) / 2
    to_picture = (
        AffineTransform(translation=(-half, -half))
        + AffineTransform(scale=(scale, scale), rotation=angle)
        + AffineTransform(translation=(x + dx, y + dy))
    )
    crop = warp(picture, to_picture, output_shape=(SIZE, SIZE), mode="edge")
    crop = gaussian(crop, sigma=rng.uniform(0, 1), channel_axis=-1)
    crop = np.clip(crop, 0, 1) ** np.exp(rng.uniform(-0.4, 0.4))
    return np.clip(crop + rng.normal(0, 0.02, crop.shape), 0, 1)


def describe(crop: np.ndarray) -> np.ndarray:
    """HOG of unit length joined with the mean chromaticity of four quarters."""
    from skimage.feature import hog

    grey = crop @ np.array([0.299, 0.587, 0.114])
    gradient = hog(grey, orientations=9, pixels_per_cell=(8, 8), cells_per_block=(2, 2))
    gradient = gradient / max(np.linalg.norm(gradient), 1e-12)
    chroma = crop / np.maximum(crop.sum(axis=-1, keepdims=True), 1e-6)
    half = SIZE // 2
    quarters = [chroma[a : a + half, b : b + half].mean((0, 1)) for a in (0, half) for b in (0, half)]
    return np.concatenate([gradient, *quarters])


def centred(features: np.ndarray) -> np.ndarray:
    """Features minus their mean over the set: what raises reg to a comfortable size."""
    return features - features.mean(axis=0, keepdims=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--step", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--centred", action="store_true")
    args = parser.parse_args()
    made = build(args.step, args.seed)
    if args.centred:
        made["features"] = centred(made["features"])
    np.savez(args.out, **made)
    queries = int(made["is_query"].sum())
    print(
        f"{args.out}: {len(np.unique(made['ids'])) - 1} identities, {queries} queries, "
        f"{len(made['ids']) - queries} gallery, {made['features'].shape[1]} features"
    )
