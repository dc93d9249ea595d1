"""
What reg and n_iter do
======================

``reg`` decides over how many others a row spreads; ``n_iter`` how nearly its row sums are one. Five sweeps are enough
for a moderate ``reg`` and not for a small one; the symmetric solver runs until the sums hold and says how long it took.
"""

# %%
# Sixty sketches of five classes, as features of an ImageNet network.
import matplotlib.pyplot as plt
import numpy as np
import torch

from bpa import balance, balanced_affinities
from bpa.cost import cosine_cost
from bpa.data import embedded_sketches
from bpa.solvers import Converged, Sweeps

sketches = embedded_sketches()
rows = np.flatnonzero((sketches.labels < 5) & (np.arange(len(sketches)) % 40 < 12))
x = torch.from_numpy(sketches.features[rows]).double()

# %%
# From a matching to a uniform matrix.
figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), layout="constrained")
spread = []
for axis, reg in zip(axes, (0.01, 0.05, 0.2, 1.0), strict=True):
    plan = balance(cosine_cost(x), reg=reg, solver=Converged(1e-4, max_iter=2000)).plan
    spread.append(float((-(plan * plan.clamp_min(1e-300).log()).sum(dim=1)).exp().median()))
    axis.imshow(balanced_affinities(x, reg=reg).sqrt(), cmap="inferno")
    axis.set(title=f"reg = {reg:g}", xlabel=f"a row spreads over {spread[-1]:.0f}", xticks=[], yticks=[])
plt.show()
assert spread == sorted(spread)

# %%
# Row sums after n sweeps: the smaller ``reg``, the slower.
sweeps = [1, 2, 5, 10, 20, 50, 100]
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for reg in (0.05, 0.1, 0.2):
    errors = [
        float(balance(cosine_cost(x), reg=reg, solver=Sweeps(n)).convergence.marginal_error) for n in sweeps
    ]
    found = balance(cosine_cost(x), reg=reg, solver=Converged()).convergence
    line = axis.loglog(sweeps, np.maximum(errors, 1e-16), marker="o", label=f"reg = {reg:g}, sweeps")[0]
    label = f"reg = {reg:g}, symmetric: {int(found.n_iter)} products"
    axis.scatter(
        [int(found.n_iter) / 2],
        [float(found.marginal_error)],
        marker="*",
        s=140,
        color=line.get_color(),
        label=label,
    )
    assert errors[-1] <= errors[0]
axis.set(
    xlabel="full sweeps (a sweep is two products)", ylabel="largest error of a row sum", ylim=(1e-16, 10)
)
axis.legend(fontsize=8)
plt.show()
