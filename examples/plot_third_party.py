"""
Third-party agreement on six points
===================================

Two rows of W are close when the two items say the same about the *others*, not only when they are close themselves.
Six points on a circle show it: B is equally far from A and from C, but shares its neighbours with A.
"""

# %%
# Two friends stand between A and B; C, on the other side of B, has a friend of its own beyond.
import matplotlib.pyplot as plt
import torch

from bpa import balanced_affinities
from bpa.cost import cosine_cost

names = ["A", "B", "a1", "a2", "C", "c1"]
degrees = torch.tensor([0.0, 40.0, 13.0, 27.0, 80.0, 100.0], dtype=torch.float64)
x = torch.stack([torch.deg2rad(degrees).cos(), torch.deg2rad(degrees).sin()], dim=1)
cost = cosine_cost(x)
print(f"cost of (A, B): {cost[0, 1]:.3f}, of (B, C): {cost[1, 4]:.3f}")
assert torch.isclose(cost[0, 1], cost[1, 4])

# %%
# In W the two pairs are no longer alike.
w = balanced_affinities(x, reg=0.1)
near, far = (w[0] - w[1]).norm(), (w[1] - w[4]).norm()
print(f"distance of the rows of A and B: {near:.2f}, of B and C: {far:.2f}")
assert near < far

# %%
# The difference of two rows has a direct part, the entries of the pair itself, and a third-party part, all others.
figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
for axis, (i, j) in zip(axes, [(0, 1), (1, 4)], strict=True):
    difference = (w[i] - w[j]).abs()
    colours = ["tab:blue" if k in (i, j) else "tab:orange" for k in range(6)]
    axis.bar(names, difference.numpy(), color=colours)
    third = sum(difference[k] for k in range(6) if k not in (i, j))
    axis.set_title(f"|W[{names[i]}] − W[{names[j]}]|, third parties: {third:.2f}")
axes[0].set_ylabel("absolute difference")
plt.show()
