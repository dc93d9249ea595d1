"""
Re-ranking a gallery, and items that arrive later
=================================================

Rows of W rank a gallery of sketches better than cosine when rows are compared by their cosine, at a small ``reg``, and
worse when compared by distance, or at a large one. An item that arrives later gets its row from the fitted potentials.
"""

# %%
# Every sketch queries all the others.
import matplotlib.pyplot as plt
import numpy as np
import torch

from bpa import balanced_affinities
from bpa.cost import cosine_cost
from bpa.data import embedded_sketches
from bpa.metrics import evaluate_ranking
from bpa.plans import DensePlan

sketches = embedded_sketches()
x, labels, own = torch.from_numpy(sketches.features), sketches.labels, np.arange(len(sketches))


def mean_ap(distances: torch.Tensor) -> float:
    """Return mAP in percent, the query itself left out."""
    return 100 * evaluate_ranking(distances.numpy(), labels, labels, self_index=own).mean_ap


base = mean_ap(cosine_cost(x))
regs = [0.05, 0.1, 0.2, 0.5]
by_cosine, by_distance = [], []
for reg in regs:
    w = balanced_affinities(x, reg=reg)
    by_cosine.append(mean_ap(cosine_cost(w)))
    by_distance.append(mean_ap(torch.cdist(w, w)))
assert by_cosine[0] > base > by_cosine[-1]

# %%
# Where it helps and where it does not.
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
axis.semilogx(regs, by_cosine, marker="o", label="rows of W by cosine")
axis.semilogx(regs, by_distance, marker="s", label="rows of W by distance")
axis.axhline(base, linestyle="--", color="black", label="cosine of the features")
axis.set(xlabel="reg", ylabel="mAP, %", xticks=regs, xticklabels=regs)
axis.legend()
plt.show()

# %%
# A gallery is fitted once; a late query costs one row, and a nearest-neighbour index can hold the rows.
gallery = DensePlan.fit(x[::2], reg=0.05)
row = gallery.transform(x[1:2])
assert row.shape == (1, 1000)
try:
    import faiss
except ModuleNotFoundError:
    order = (row @ gallery.affinities().T).argsort(descending=True)[0, :5].numpy()
else:
    rows = np.ascontiguousarray(torch.nn.functional.normalize(gallery.affinities(), dim=1).numpy())
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    order = index.search(torch.nn.functional.normalize(row, dim=1).numpy(), 5)[1][0]
print(
    "query:",
    sketches.name_of(int(labels[1])),
    "- found:",
    [sketches.name_of(int(labels[2 * i])) for i in order],
)
