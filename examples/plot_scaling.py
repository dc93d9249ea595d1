"""
More classes: the gain of the transform shrinks, and so does everything else
============================================================================

Tasks of five to fifty classes, one labelled sketch a class and fifteen to name. Accuracy falls with the number of
classes, with and without the transform; what the transform adds falls with it, and its own time stays at milliseconds
for a task of 800 items.
"""

# %%
# The same classifier (nearest class mean) on centred features and on rows of W, twenty tasks a size.
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import torch

from bpa import BPA
from bpa.data import embedded_sketches
from bpa.transforms import CentredUnitNorm

sketches = embedded_sketches()
labels = sketches.labels
classes, per_class, tasks = np.unique(labels), 16, 20
ways = (5, 10, 20, 50)
accuracy = {"centred": np.zeros((len(ways), tasks)), "BPA, reg auto": np.zeros((len(ways), tasks))}
seconds = np.zeros(len(ways))
transforms = {"centred": CentredUnitNorm(), "BPA, reg auto": BPA(reg="auto")}
for column, way in enumerate(ways):
    for task in range(tasks):
        generator = np.random.default_rng((0, way, task))
        chosen = generator.permutation(classes)[:way]
        rows = np.array([generator.permutation(np.flatnonzero(labels == c))[:per_class] for c in chosen])
        x = torch.from_numpy(sketches.features[rows.reshape(-1)])
        for name, transform in transforms.items():
            start = perf_counter()
            features = transform(x).reshape(way, per_class, -1)
            if name != "centred":
                seconds[column] += (perf_counter() - start) / tasks
            named = torch.cdist(features[:, 1:].flatten(0, 1), features[:, 0]).argmin(dim=1)
            truth = torch.arange(way).repeat_interleave(per_class - 1)
            accuracy[name][column, task] = (named == truth).double().mean()

# %%
# Accuracy against the number of classes, on a logarithmic axis.
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, values in accuracy.items():
    error = 1.96 * values.std(axis=1, ddof=1) / np.sqrt(tasks)
    axis.errorbar(ways, 100 * values.mean(axis=1), 100 * error, fmt="o-", label=name)
axis.set_xscale("log")
axis.set_xticks(ways, [f"{way}\n({1000 * s:.0f} ms)" for way, s in zip(ways, seconds, strict=True)])
axis.minorticks_off()
axis.set_xlabel("classes in a task (time of the transform)")
axis.set_ylabel("accuracy, %")
axis.legend()
plt.show()
means = accuracy["BPA, reg auto"].mean(axis=1)
gain = means - accuracy["centred"].mean(axis=1)
assert (np.diff(means) < 0).all()
assert gain[0] > gain[-1]
