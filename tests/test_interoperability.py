"""Other people's tools, used as their users use them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering, KMeans, SpectralClustering
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline

from bpa import BPA, balance
from bpa.cost import cosine_cost
from bpa.estimators import BPAClusterer, BPATransformer
from bpa.plans import DensePlan, GraphPlan
from bpa.solvers import Converged

Clusters = tuple[np.ndarray, np.ndarray]


def test_a_pipeline_is_searched_and_cross_validated(clusters: Clusters) -> None:
    x, y = clusters
    pipeline = Pipeline([("bpa", BPATransformer()), ("knn", KNeighborsClassifier(3))])
    search = GridSearchCV(pipeline, {"bpa__reg": [0.05, 0.2], "knn__n_neighbors": [1, 3]}, cv=3).fit(x, y)
    assert search.best_score_ > 0.9
    assert cross_val_score(search.best_estimator_, x, y, cv=3).mean() > 0.9


def test_data_frames_go_in_and_come_out(clusters: Clusters) -> None:
    pandas = pytest.importorskip("pandas")
    x, _ = clusters
    frame = pandas.DataFrame(x.astype(np.float64), index=[f"row{k}" for k in range(len(x))]).add_prefix("f")
    out = BPATransformer(reg=0.2).set_output(transform="pandas").fit_transform(frame)
    assert list(out.index) == list(frame.index)
    assert out.columns[0] == "bpatransformer0"
    np.testing.assert_allclose(out.to_numpy(), BPATransformer(reg=0.2).fit_transform(frame.to_numpy()))


def test_spectral_clustering_takes_the_plan_without_complaint(clusters: Clusters) -> None:
    x, y = clusters
    plan = balance(cosine_cost(torch.from_numpy(x).double()), reg=0.2, solver=Converged()).plan.numpy()
    found = SpectralClustering(5, affinity="precomputed", random_state=0).fit_predict(plan)
    assert adjusted_rand_score(y, found) > 0.9


def test_distances_between_rows_are_a_precomputed_metric(clusters: Clusters) -> None:
    x, y = clusters
    lazy = DensePlan.fit(torch.from_numpy(x), reg=0.2)
    distances = lazy.distances(range(len(x))).numpy()
    found = AgglomerativeClustering(5, metric="precomputed", linkage="average").fit_predict(distances)
    assert adjusted_rand_score(y, found) > 0.9


class TopicModel:
    """What BERTopic asks: ``fit`` and ``transform`` of one model, ``fit``, ``predict`` and ``labels_`` of the other."""

    def __init__(self, umap_model: Any, hdbscan_model: Any) -> None:
        self.reduce, self.cluster = umap_model, hdbscan_model

    def fit(self, embeddings: np.ndarray) -> TopicModel:
        self.reduce.fit(embeddings, y=None)
        self.cluster.fit(np.nan_to_num(self.reduce.transform(embeddings)))
        self.topics_ = self.cluster.labels_
        return self

    def transform(self, embeddings: np.ndarray) -> np.ndarray:
        return self.cluster.predict(self.reduce.transform(embeddings))


def test_a_topic_model_takes_the_transformer_and_the_clusterer(clusters: Clusters) -> None:
    x, y = clusters
    for reduce, cluster in (
        (BPATransformer(reg=0.2), KMeans(5, n_init=5, random_state=0)),
        (make_pipeline(BPATransformer(reg=0.2)), BPAClusterer(5, random_state=0)),
    ):
        model = TopicModel(reduce, cluster).fit(x[::2])
        assert adjusted_rand_score(y[::2], model.topics_) > 0.9
        assert adjusted_rand_score(y[1::2], model.transform(x[1::2])) > 0.9


def test_an_index_finds_the_neighbours_that_the_rows_have(clusters: Clusters) -> None:
    faiss = pytest.importorskip("faiss")
    x, y = clusters
    rows = DensePlan.fit(torch.from_numpy(x), reg=0.2).affinities().numpy()
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(np.ascontiguousarray(rows))
    _, near = index.search(rows, 4)
    assert (near[:, 0] == np.arange(len(x))).mean() > 0.95
    assert (y[near[:, 1:]] == y[:, None]).mean() > 0.9


def test_neighbour_lists_of_an_index_make_a_sparse_plan(clusters: Clusters) -> None:
    faiss = pytest.importorskip("faiss")
    x, _ = clusters
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(16)
    index.add(unit)
    lists = index.search(unit, 11)[1].astype(np.int64)
    ours = GraphPlan.fit(torch.from_numpy(x), reg=0.2, k=10)
    theirs = GraphPlan.fit(torch.from_numpy(x), reg=0.2, neighbours=lists)
    torch.testing.assert_close(
        theirs.affinities().to_dense(), ours.affinities().to_dense(), atol=1e-3, rtol=0
    )


@dataclass
class AnnDataShaped:
    """The parts of an AnnData object that a neighbour graph is read from and written to."""

    obsm: dict[str, np.ndarray]
    obsp: dict[str, Any] = field(default_factory=dict)
    uns: dict[str, Any] = field(default_factory=dict)


def test_a_single_cell_table_gets_a_graph(clusters: Clusters) -> None:
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    x, y = clusters
    cells = AnnDataShaped({"X_pca": x})
    fitted = GraphPlan.fit(torch.from_numpy(cells.obsm["X_pca"]), reg=0.2, k=8)
    graph = sparse.csr_matrix(
        (fitted.entries.value.numpy(), fitted.entries.column.numpy(), fitted.entries.start.numpy()),
        shape=(60, 60),
    )
    cells.obsp["connectivities"] = graph
    cells.uns["neighbors"] = {
        "connectivities_key": "connectivities",
        "params": {"method": "bpa", "reg": fitted.reg},
    }
    assert abs(graph - graph.T).max() < 1e-6
    assert graph.diagonal().max() == 0
    strong = graph.copy()
    strong.data[strong.data < 0.02] = 0
    strong.eliminate_zeros()
    parts, label = connected_components(strong, directed=False)
    assert adjusted_rand_score(y, label) > 0.5, parts


def test_a_plain_training_loop_trains_through_it_and_runs_without_it(clusters: Clusters) -> None:
    x, y = (torch.from_numpy(a) for a in clusters)
    torch.manual_seed(0)
    network = torch.nn.Linear(16, 8)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    layer, same = BPA(reg=0.2), (y[:, None] == y[None, :]).float()
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.mse_loss(layer(network(x)), same)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert set(network.state_dict()) == set(before)
    with torch.no_grad():  # removed at inference
        apart = torch.cdist(network(x), network(x))
    own = same.bool() & ~torch.eye(60, dtype=torch.bool)
    assert apart[own].mean() < 0.6 * apart[~same.bool()].mean()
