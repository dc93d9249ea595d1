"""
The plan is a softened matching
===============================

Seven pictures of three classes, each asked to send one unit to the others and to receive one unit, at least cost. As
``reg`` goes to zero the plan becomes an exact assignment; at ``reg = 0.1`` it spreads over everything alike.
"""

# %%
# Seven sketches: three, two and two of a class.
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import ConnectionPatch

from bpa import balance, exact_matching
from bpa.cost import cosine_cost
from bpa.data import embedded_sketches

sketches = embedded_sketches()
chosen = np.array([480, 481, 482, 1080, 1081, 1400, 1401])
x = torch.from_numpy(sketches.features[chosen]).double()
x = x / x.norm(dim=1, keepdim=True)
cost = cosine_cost(x - x.mean(dim=0))
names = [sketches.name_of(int(c)) for c in sketches.labels[chosen]]

# %%
# The exact flow and the entropic one, as arrows from every picture (left) to those it sends to (right).
plans = {"exact": exact_matching(cost), "reg = 0.1": balance(cost, reg=0.1, solver="symmetric").plan}
figure, axes = plt.subplots(7, 5, figsize=(9, 7), width_ratios=[1, 2, 1, 2, 1], layout="constrained")
for axis in axes.flat:
    axis.axis("off")
for row, item in enumerate(chosen):
    for column in (0, 2, 4):
        axes[row, column].imshow(255 - sketches.images[item], cmap="gray", vmin=0, vmax=255)
    axes[row, 0].set_title(names[row], fontsize=8)
for (title, plan), column in zip(plans.items(), (0, 2), strict=True):
    axes[0, column + 1].set_title(title)
    for i in range(7):
        for j in range(7):
            if plan[i, j] > 0.03:
                line = ConnectionPatch(
                    (28, 14), (0, 14), "data", "data", axesA=axes[i, column], axesB=axes[j, column + 2],
                    linewidth=4 * float(plan[i, j]), color="tab:blue", alpha=0.7,
                )  # fmt: skip
                figure.add_artist(line)
plt.show()

# %%
# Both send and receive one unit everywhere; the exact one costs least.
for title, plan in plans.items():
    assert torch.allclose(plan.sum(dim=0), torch.ones(7, dtype=plan.dtype), atol=1e-4)
    assert torch.allclose(plan.sum(dim=1), torch.ones(7, dtype=plan.dtype), atol=1e-4)
    print(f"{title}: cost {float((plan * cost).sum()):.3f}")
assert (plans["exact"] * cost).sum() <= (plans["reg = 0.1"] * cost).sum()
