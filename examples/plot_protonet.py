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

from bpa.data import embedded_sketches
from bpa.runs.fewshot import FewShotConfig, run_fewshot

config = FewShotConfig(
    hosts=("protonet",),
    transforms=("bpa",),
    regs=(0.05, 0.1, 0.2, 0.5, "auto"),
    n_tasks=400,
    protocol="balanced",
)
result = run_fewshot(embedded_sketches(), config)
for cell in result.cells:
    print(f"{cell.cell.name:10s} {cell.mean.mean:.1f} ± {cell.mean.half_width:.1f}")

# %%
# Gains over raw features and over the best of raw, unit-norm and centred features, paired over the tasks.
bars = [c for c in result.cells if c.gain is not None]
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
axis.bar(
    [c.cell.name for c in bars],
    [c.gain.mean for c in bars],
    yerr=[c.gain.half_width for c in bars],
    label="over raw",
)
told = [c for c in bars if c.gain_over_best is not None]
axis.errorbar(
    [c.cell.name for c in told], [c.gain_over_best.mean for c in told], [c.gain_over_best.half_width for c in told],
    fmt="D", color="tab:orange", label="over the best without",
)  # fmt: skip
axis.axhline(0, color="black", linewidth=0.8)
axis.set_ylabel("points of accuracy")
axis.legend()
plt.show()
assert all(c.gain.mean > 0 for c in bars)
assert min(c.gain_over_best.mean for c in told) < 0
