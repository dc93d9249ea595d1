"""On a real cross-camera set with truth from geometry, the directions the transform promises hold."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from bpa.hosts.retrieval import KReciprocal, k_reciprocal, rank, row_source
from bpa.metrics.hubs import hubness
from bpa.metrics.retrieval import evaluate_ranking
from bpa.plans import DensePlan, RowComparison
from bpa.plans._comparison import compare_dense
from bpa.solvers._choice import PAPER_SWEEPS

PAPER, RETRIEVAL = RowComparison.paper(), RowComparison.retrieval()

pytest.importorskip("skimage", reason="the pictures are scikit-image's")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stereo(request):
    """Centred features of queries and gallery, and a function that scores distances."""
    path = request.config.rootpath / "benchmarks" / "retrieval" / "stereo.py"
    spec = importlib.util.spec_from_file_location("stereo", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.build(24, 0)
    x, query = torch.from_numpy(module.centred(made["features"])), made["is_query"]
    ids, cameras = made["ids"], made["cameras"]

    def score(distances):
        s = evaluate_ranking(
            np.asarray(distances), ids[query], ids[~query], cameras[query], cameras[~query], empty="error"
        )
        return 100 * s.mean_ap, 100 * s.rank(1)

    return x[query], x[~query], score


def test_directions_on_the_stereo_pair(stereo):
    q, g, score = stereo
    nq, ng = (x / x.norm(dim=1, keepdim=True) for x in (q, g))
    joint = torch.cat([q, g])
    cosine = 1 - nq @ ng.T
    plain = score(cosine)
    paper = rank(q, g, reg=0.15, rows=PAPER, diagnostics=False).distances
    assert score(paper)[0] >= plain[0] + 3
    assert score(paper)[1] >= plain[1] + 2
    assert hubness(paper.numpy()).skewness < hubness(cosine.numpy()).skewness
    # the ones on the diagonal carry most of it
    w = DensePlan.fit(joint, reg=0.15, solver=PAPER_SWEEPS, diagonal=0.0).affinities()
    assert score(compare_dense(w[: len(q)], w[len(q) :], "euclidean"))[0] < score(paper)[0] - 5
    # frozen potentials rank like the joint transform
    for rows in (PAPER, RETRIEVAL):
        whole = rank(q, g, reg=0.15, rows=rows, diagnostics=False).distances
        frozen = rank(q, g, reg=0.15, rows=rows, protocol="frozen", diagnostics=False).distances
        short = rank(q, g, reg=0.15, rows=rows, protocol="frozen", shortlist=200, diagnostics=False).distances
        assert abs(score(whole)[0] - score(frozen)[0]) < 1.0
        assert abs(score(frozen)[0] - score(short)[0]) < 1.0
    # the library's comparison of rows is better than the paper's here, and re-ranking adds to it
    assert score(whole)[0] > score(paper)[0]
    alone = k_reciprocal(torch.cat([nq, ng]), len(q), k1=6, k2=3).distances()
    both = KReciprocal.fit(row_source(joint, reg=0.15, rows=RETRIEVAL), len(q), k1=6, k2=3).distances()
    assert score(both)[0] >= score(alone)[0]
