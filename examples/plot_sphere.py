"""
Clusters on the sphere: which reg helps k-means
===============================================

Ten clusters around random points of a sphere, twenty points each, reduced to 50 dimensions. Rows of W with a wide
kernel (``reg`` 0.5) cluster better than the coordinates where the noise is moderate; with the narrow kernel of the
published setting (``reg`` 0.1) they cluster worse. The full grid is in ``benchmarks/results/sphere``.
"""

# %%
# What the data looks like in three dimensions.
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import normalized_mutual_info_score

from bpa import balanced_affinities
from bpa.data import sphere_clusters

points = sphere_clusters(3, 0.15, seed=3)
figure = plt.figure(figsize=(4.5, 4.5), layout="constrained")
axis = figure.add_subplot(projection="3d")
axis.scatter(*points.features.T, c=points.labels, cmap="tab10", s=12)
axis.set_box_aspect((1, 1, 1))
plt.show()

# %%
# Six runs at every dimension; the same points and the same starts for all three.
dims, runs = (69, 180, 471), 6
scores = {name: np.zeros((len(dims), runs)) for name in ("coordinates", "reg 0.1", "reg 0.5")}
for column, dim in enumerate(dims):
    for run in range(runs):
        data = sphere_clusters(dim, 0.22, seed=(0, run))
        reduced = PCA(50, svd_solver="full").fit_transform(data.features.astype(float))
        rows = {"coordinates": reduced}
        for reg in (0.1, 0.5):
            rows[f"reg {reg}"] = balanced_affinities(torch.from_numpy(reduced), reg=reg).numpy()
        for name, features in rows.items():
            found = KMeans(10, n_init=10, random_state=run).fit_predict(features)
            scores[name][column, run] = normalized_mutual_info_score(data.labels, found)

# %%
# The claim, per dimension: mean and standard error over the runs.
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, values in scores.items():
    style = "-" if name == "coordinates" else "--"
    error = values.std(axis=1, ddof=1) / np.sqrt(runs)
    axis.errorbar(range(len(dims)), values.mean(axis=1), error, fmt=f"o{style}", label=name)
axis.set_xticks(range(len(dims)), [str(dim) for dim in dims])
axis.set_xlabel("dimension")
axis.set_ylabel("NMI of k-means")
axis.legend()
plt.show()
assert scores["reg 0.5"].mean() > scores["coordinates"].mean() + 0.05
assert scores["reg 0.1"].mean() < scores["coordinates"].mean()
