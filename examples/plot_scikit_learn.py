"""
In scikit-learn
===============

The estimator fits pipelines and grid searches, gives late items rows of the same width, and its plan is an affinity
that spectral clustering takes as it is.
"""

# %%
# A pipeline whose ``reg`` is searched like any other parameter.
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.cluster import SpectralClustering
from sklearn.metrics import normalized_mutual_info_score
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

from bpa import balance
from bpa.cost import cosine_cost
from bpa.data import digits
from bpa.estimators import BPATransformer
from bpa.solvers import Converged

some = digits().select(np.arange(600))
pipeline = make_pipeline(BPATransformer(), KNeighborsClassifier(5))
search = GridSearchCV(pipeline, {"bpatransformer__reg": [0.02, 0.05, 0.1, 0.5]}, cv=3)
search.fit(some.features, some.labels)
print(search.best_params_, round(search.best_score_, 3))
assert search.best_score_ > 0.8

# %%
# New items are transformed by the fitted potentials; fitted items get their own rows back.
fitted = BPATransformer(reg=0.1).set_output(transform="default").fit(some.features[:500])
late = fitted.transform(some.features[500:])
assert late.shape == (100, 500)
assert np.allclose(
    fitted.transform(some.features[:500]), BPATransformer(reg=0.1).fit_transform(some.features[:500])
)

# %%
# The plan is symmetric, so spectral clustering takes it without complaint. Here it does not help: cosine affinities
# are as good.
x = torch.from_numpy(some.features).double()
affinities = {"cosine": (1 - cosine_cost(x)).clamp_min(0).numpy()}
for reg in (0.05, 0.1, 0.5):
    affinities[f"plan, reg = {reg:g}"] = balance(cosine_cost(x), reg=reg, solver=Converged()).plan.numpy()
scores = {}
for name, affinity in affinities.items():
    affinity = (affinity + affinity.T) / 2
    clusters = SpectralClustering(10, affinity="precomputed", random_state=0).fit_predict(affinity)
    scores[name] = normalized_mutual_info_score(some.labels, clusters)
    print(f"{name}: NMI {scores[name]:.3f}")
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.barh(list(scores), list(scores.values()))
axis.set(xlabel="NMI of spectral clustering, 600 digits", xlim=(0, 1))
plt.show()
