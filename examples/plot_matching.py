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

from bpa import balance, exact_matching
from bpa.cost import cosine_cost
from bpa.data import embedded_sketches
from bpa.solvers import Converged

sketches = embedded_sketches()
chosen = np.array([480, 481, 482, 1080, 1081, 1400, 1401])
x = torch.from_numpy(sketches.features[chosen]).double()
x = x / x.norm(dim=1, keepdim=True)
cost = cosine_cost(x - x.mean(dim=0))
names = [sketches.name_of(int(c)) for c in sketches.labels[chosen]]

# %%
# The exact flow and the entropic one, as arrows from every picture (left) to those it sends to (right).
plans = {"exact": exact_matching(cost), "reg = 0.1": balance(cost, reg=0.1, solver=Converged()).plan}
figure, axis = plt.subplots(figsize=(8, 7), layout="constrained")
for row, item in enumerate(chosen):
    for left in (0, 3, 6):
        axis.imshow(255 - sketches.images[item], cmap="gray", extent=(left, left + 0.9, -row - 0.9, -row))
    axis.text(-0.1, -row - 0.45, names[row], ha="right", va="center")
for (title, plan), left in zip(plans.items(), (0, 3), strict=True):
    axis.text(left + 2, 0.25, title, ha="center")
    for i in range(7):
        for j in range(7):
            width = 5 * float(plan[i, j])
            axis.plot(
                [left + 0.95, left + 2.95],
                [-i - 0.45, -j - 0.45],
                linewidth=width,
                color="tab:blue",
                alpha=0.7,
            )
axis.set(xlim=(-1.6, 7), ylim=(-7, 0.6), aspect="equal")
axis.axis("off")
plt.show()

# %%
# Both send and receive one unit everywhere; the exact one costs least.
for title, plan in plans.items():
    assert torch.allclose(plan.sum(dim=0), torch.ones(7, dtype=plan.dtype), atol=1e-4)
    assert torch.allclose(plan.sum(dim=1), torch.ones(7, dtype=plan.dtype), atol=1e-4)
    print(f"{title}: cost {float((plan * cost).sum()):.3f}")
assert (plans["exact"] * cost).sum() <= (plans["reg = 0.1"] * cost).sum()
