"""
ProtoNet with and without
=========================

The transform helps a nearest-class-mean classifier most over raw features, less over unit-norm ones, and with a
fixed ``reg`` it can lose to centred features, which cost nothing. ``reg="auto"`` is the only one of these that needs
no choice.
"""

# %%
# Four hundred tasks of five classes, one labelled sketch each; every column sees the same tasks.
import matplotlib.pyplot as plt
import numpy as np

from bpa.data import embedded_sketches
from bpa.metrics import mean_interval, paired_difference
from bpa.runs import labels, run, transforms_asked
from bpa.runs.fields import FewShot, FewShotTask, fewshot_ways

ways = fewshot_ways(("protonet",), transforms_asked(["bpa"], reg=(0.05, 0.1, 0.2, 0.5, "auto")))
task = FewShotTask(n_tasks=400, protocol="balanced")
records = run("protonet", FewShot(embedded_sketches()), [(task, ways)])
accuracy = {name: 100 * np.array(r.values["accuracy"]) for name, r in zip(labels(ways), records, strict=True)}
for name, values in accuracy.items():
    mean = mean_interval(values)
    print(f"{name:14s} {mean.mean:.1f} ± {mean.half_width:.1f}")

# %%
# Gains over raw features and over the best of raw, unit-norm and centred features, paired over the tasks.
free = ("identity", "unit", "centred")
best = max(free, key=lambda name: accuracy[name].mean())
over_raw = {
    name: paired_difference(values, accuracy["identity"])
    for name, values in accuracy.items()
    if name != "identity"
}
over_best = {
    name: paired_difference(values, accuracy[best]) for name, values in accuracy.items() if name not in free
}
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
axis.bar(
    list(over_raw),
    [g.mean for g in over_raw.values()],
    yerr=[g.half_width for g in over_raw.values()],
    label="over raw",
)
axis.errorbar(
    list(over_best), [g.mean for g in over_best.values()], [g.half_width for g in over_best.values()],
    fmt="D", color="tab:orange", label="over the best without",
)  # fmt: skip
axis.axhline(0, color="black", linewidth=0.8)
axis.set_ylabel("points of accuracy")
axis.legend()
plt.show()
assert all(gain.mean > 0 for gain in over_raw.values())
assert min(gain.mean for gain in over_best.values()) < 0
