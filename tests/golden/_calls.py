"""The one place where the goldens touch the library: edit this file, and only this file, when a name moves.

Every function takes plain inputs and the *golden spelling* of options (the spelling of commit f219ccd) and returns
plain tensors, arrays and numbers under fixed names. What an option or a field is called in the library of the day is
decided here; the stored files, `_entries` and `test_today` stay as they are. Imports are inside the functions, so that
one name that has moved breaks one family of entries.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Values = dict[str, Any]
"""What a golden call returns: tensors, arrays and numbers by name."""


def _numbers(record: Any, prefix: str = "", *, leave_out: tuple[str, ...] = ()) -> Values:
    """The fields of a record that are numbers or arrays; absent values (None) and text are left out."""
    fields = asdict(record) if is_dataclass(record) and not isinstance(record, type) else vars(record)
    wanted = (bool, int, float, Tensor, np.ndarray, np.generic)
    return {
        f"{prefix}{key}": value
        for key, value in fields.items()
        if key not in leave_out and isinstance(value, wanted)
    }


def _with_solver(options: Values) -> Values:
    """Options in the golden spelling, ``solver``, ``n_iter``, ``tol``, ``max_iter``, with one choice of a solver."""
    from bpa.solvers import Converged, Sweeps

    rest = {
        key: value for key, value in options.items() if key not in ("solver", "n_iter", "tol", "max_iter")
    }
    if options.get("solver") == "symmetric":
        return {**rest, "solver": Converged(options.get("tol"), options.get("max_iter") or 300)}
    return {**rest, "solver": Sweeps(options.get("n_iter") or 5)}


# ---------------------------------------------------------------------------------------- W, costs, balance


def affinities(x: Tensor, **options: Any) -> Tensor:
    """W of a set or a batch of sets, by the function."""
    from bpa import balanced_affinities

    return balanced_affinities(x, **_with_solver(options))


def affinity_layer(x: Tensor, *, mask: Tensor | None = None, **options: Any) -> Tensor:
    """W of a set or a batch of sets, by the module."""
    from bpa import BPA

    return BPA(**_with_solver(options))(x, mask=mask)


def attention(
    x: Tensor,
    *,
    values: Tensor | None = None,
    mask: Tensor | None = None,
    support_labels: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """W V, by the module."""
    from bpa import BPAAttention

    return BPAAttention(**_with_solver(options))(x, values=values, mask=mask, support_labels=support_labels)


def balanced(cost: Tensor, **options: Any) -> Values:
    """The plan of given costs, its potentials and its report; ``converged`` is absent where no tolerance was asked."""
    from bpa import balance

    found = balance(cost, **_with_solver(options))
    out = {
        "plan": found.plan,
        "log_u": found.log_u,
        "log_v": found.log_v,
        "n_iter": found.convergence.n_iter,
        "marginal_error": found.convergence.marginal_error,
    }
    return {**out, "converged": found.convergence.converged} if options.get("solver") == "symmetric" else out


def matching(cost: Tensor, mask: Tensor | None = None) -> Tensor:
    """The plan without entropy."""
    from bpa import exact_matching

    return exact_matching(cost, mask=mask)


def pairwise_costs(kind: str, x: Tensor, y: Tensor | None = None) -> Tensor:
    """Costs between two sets: "cosine" or "sqeuclidean"."""
    from bpa.cost import cosine_cost, sqeuclidean_cost

    return {"cosine": cosine_cost, "sqeuclidean": sqeuclidean_cost}[kind](x, y)


def rectangular_balance(
    log_kernel: Tensor, log_row: Tensor | None, log_col: Tensor | None, n_iter: int
) -> Values:
    """The plan of any kernel with any marginals."""
    from bpa.solvers import Sweeps, sinkhorn

    found = sinkhorn(log_kernel, log_row, log_col, solver=Sweeps(n_iter))
    return {
        "plan": found.plan,
        "log_u": found.log_u,
        "log_v": found.log_v,
        "marginal_error": found.convergence.marginal_error,
    }


def chosen_weight(x: Tensor, mask: Tensor | None = None) -> Values:
    """Every field of what reg="auto" chooses for a set."""
    from bpa import choose_reg

    found = choose_reg(x, mask=mask)
    names = ("reg", "evidence", "self_weight", "agreement", "share", "mean_cosine", "n_items", "plain_reg")
    return {name: getattr(found, name) for name in names}


def diagnosis(x: Tensor, reg: float | None = None) -> Values:
    """What the library says about a set before it is transformed."""
    from bpa import diagnose

    found = diagnose(x) if reg is None else diagnose(x, reg=reg)
    verdicts = ("likely helps", "neutral", "likely hurts")
    names = (
        "perplexity", "second_eigenvalue", "hubness_before", "hubness_after", "marginal_error", "products", "nearness",
        "cloud_nearness", "tightness",
    )  # fmt: skip
    return {name: getattr(found, name) for name in names} | {"verdict": verdicts.index(found.verdict)}


def named_transform(
    name: str, x: Tensor, *, mask: Tensor | None = None, reg: float | str = 0.1, n_iter: int | None = None
) -> Tensor:
    """A transform by the name that commands and configurations use."""
    return _transform(name, reg=reg, n_iter=n_iter)(x, mask=mask)


def _transform(name: str, *, reg: float | str = 0.1, n_iter: int | None = None) -> Any:
    from bpa.solvers import Sweeps
    from bpa.transforms.names import NamedTransform, Reg

    def named(text: str, weight: Reg) -> NamedTransform:
        base, _, width = text.partition(":")
        solver = None if n_iter is None else Sweeps(n_iter)
        return NamedTransform.parse(f"{base}:width={width}" if width else base, reg=weight, solver=solver)

    base, _, rest = name.partition(":")
    if base != "bpa-attn" or not rest:
        return named(name, reg).build()
    inner, _, of = rest.partition("@")  # a reduced set, mixed by its affinities or by those of the features
    return replace(named(base, reg), values=named(inner, reg), weights_of="features" if of else None).build()


# ---------------------------------------------------------------------------------------- converged plans


def lazy_plan(x: Tensor, new: Tensor, *, i: list[int], j: list[int], k: int = 6, **options: Any) -> Values:
    """A set balanced once and asked later: everything the dense plan answers.

    Kernels of squared distances were never kept then; they are where their numbers can be held.
    """
    with _tiles_of_side(options.pop("block", None)):
        plan = _dense_plan(x, **_with_plan_solver(options))
        best = plan.top_k(k)
        out = {
            "rows": plan.rows(i),
            "dense": plan.affinities(),
            "top": best.values,
            "top_index": best.indices,
            "log_u": plan.log_u,
            "log_v": plan.log_v,
            "scale": plan.scale,
            "late": plan.transform(new),
            "late_as_strangers": plan.transform(new, recognise=False),
            "late_columns": plan.late(new).columns(),
        }
        out |= _distances(plan, i, j)
    return out | _report(plan, options) | {"report_kept": plan.kept and options.get("cost") != "sqeuclidean"}


def _dense_plan(x: Tensor, *, start: Tensor | None = None, **options: Any) -> Any:
    """The plan; ``start`` is what `DensePlan.add` begins with."""
    from bpa.plans import DensePlan
    from bpa.plans._plan import Options, prepared_set

    if start is None:
        return DensePlan.fit(x, **options)
    chosen = Options("test", options["reg"], "cosine", options["solver"], "max", 1.0)
    return DensePlan._balanced(prepared_set(x, chosen), chosen, None, None, start)


@contextlib.contextmanager
def _tiles_of_side(side: int | None) -> Iterator[None]:
    from bpa.kernels import _tiles

    usual = _tiles._SIDE
    _tiles._SIDE = usual if side is None else side
    try:
        yield
    finally:
        _tiles._SIDE = usual


def _with_plan_solver(options: Values, tol: float | None = None, max_iter: int = 300) -> Values:
    """As `_with_solver`, where the symmetric plan is the default: plans had ``solver="symmetric"`` unless told."""
    from bpa.solvers import Converged, Sweeps

    rest = {
        key: value for key, value in options.items() if key not in ("solver", "n_iter", "tol", "max_iter")
    }
    if options.get("solver") == "alternating" or options.get("n_iter") is not None:
        return {**rest, "solver": Sweeps(options.get("n_iter") or 5)}
    return {**rest, "solver": Converged(options.get("tol") or tol, options.get("max_iter") or max_iter)}


def _report(plan: Any, options: Values) -> Values:
    """How balanced the plan is; the plans of then said "converged" after any count of sweeps."""
    found = plan.convergence
    return {
        "report_n_iter": int(found.n_iter),
        "report_marginal_error": float(found.marginal_error),
        "report_converged": options.get("solver") == "alternating" or bool(found.converged),
    }


def _distances(plan: Any, i: list[int], j: list[int]) -> Values:
    out = {}
    for metric in ("euclidean", "sqeuclidean", "cosine"):
        out[f"distances_{metric}"] = plan.distances(i, metric=metric)
        out[f"distances_{metric}_to"] = plan.distances(i, j, metric=metric)
    return out


def sparse_plan(
    x: Tensor, new: Tensor, *, i: list[int], j: list[int], late_lists: Tensor | None = None, **options: Any
) -> Values:
    """A set balanced on its neighbour graph and asked later."""
    from bpa.plans import GraphPlan

    plan = GraphPlan.fit(x, **_with_plan_solver(options, 1e-3, 1000))
    out = {
        "rows": plan.rows(i).to_dense(),
        "matrix": plan.affinities().to_dense(),
        "row_start": plan.entries.start,
        "column": plan.entries.column,
        "values": plan.entries.value,
        "log_u": plan.log_u,
        "scale": plan.scale,
        "late": plan.transform(new).to_dense(),
        "late_as_strangers": plan.transform(new, recognise=False).to_dense(),
        "report_n_entries": len(plan.entries.column),
        "report_n_repaired": plan.n_repaired,
        "report_repaired_mass": plan.repaired_mass,
    }
    if late_lists is not None:
        out["late_from_lists"] = plan.transform(new, neighbours=late_lists).to_dense()
    return out | _distances(plan, i, j) | _report(plan, options)


def neighbour_search(x: Tensor, k: int, *, y: Tensor | None = None, cost: str = "cosine") -> Values:
    """Exact nearest neighbours and their costs."""
    from bpa.plans import nearest_neighbours

    found = nearest_neighbours(x, k, y=y, cost=cost)
    return {"index": found.indices, "cost": found.costs}


def sharded_plan(x: Tensor, **options: Any) -> Values:
    """The affinities of a set that is spread over processes; here over one."""
    from bpa.plans import sharded_affinities

    with _one_rank():
        found = sharded_affinities(x, **_with_solver(options))
    return {
        "w": found.affinity,
        "log_u": found.log_u,
        "log_v": found.log_v,
        "scale": found.scale,
        "n_iter": int(found.convergence.n_iter),
        "marginal_error": float(found.convergence.marginal_error),
    }


def sharded_gradient(x: Tensor, weights: Tensor, **options: Any) -> Values:
    """The same, differentiated: gradient of the sum of W times ``weights``."""
    from bpa.plans import sharded_affinities

    x = x.clone().requires_grad_()
    with _one_rank():
        (sharded_affinities(x, **_with_solver(options)).affinity * weights).sum().backward()
    return {"gradient": x.grad}


@contextlib.contextmanager
def _one_rank() -> Iterator[None]:
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


# ---------------------------------------------------------------------------------------- estimators


def transformer(x: np.ndarray, new: np.ndarray, **options: Any) -> Values:
    """Rows of fitted and of new items, by the scikit-learn transformer; its default was reg=0.1, to 1e-6."""
    from bpa.estimators import BPATransformer
    from bpa.solvers import Converged

    solver = Converged(options.pop("tol", 1e-6), options.pop("max_iter", 300))
    fitted = BPATransformer(**{"reg": 0.1, **options}, solver=solver).fit(x)
    plan = fitted.plan_
    largest = float(plan.affinities().max()) if options.get("reg") == "auto" else plan.scale
    return {
        "fitted_rows": fitted.transform(x),
        "late": fitted.transform(new),
        "potential": plan.log_u,
        "scale": largest,
        "reg": fitted.reg_,
        "item_of_sample": fitted.item_of_sample_,
        "n_iter": int(plan.convergence.n_iter),
        "marginal_error": float(plan.convergence.marginal_error),
        "converged": bool(plan.convergence.converged),
    }


def clusterer(x: np.ndarray, new: np.ndarray, n_clusters: int, **options: Any) -> Values:
    """Clusters of fitted and of new items, by the scikit-learn clusterer; its default was reg=0.1."""
    from bpa.estimators import BPAClusterer

    fitted = BPAClusterer(n_clusters, random_state=0, n_init=3, **{"reg": 0.1, **options}).fit(x)
    out = {"labels": fitted.labels_, "predictions": fitted.predict(new), "inertia": fitted.inertia_}
    return out | ({"eigenvalues": fitted.eigenvalues_} if options["method"] == "spectral" else {})


# ---------------------------------------------------------------------------------------- retrieval


def _comparison(rows: Any) -> Any:
    """("cosine", 50, None) → the library's way to compare rows: measure, largest entries kept, graph neighbours.

    What was called "euclidean" then was its square.
    """
    from bpa.plans import RowComparison

    measure, top, neighbours = rows
    return RowComparison(measure=_measure(measure), top=top, neighbours=neighbours)


def _measure(name: str) -> Any:
    return "sqeuclidean" if name == "euclidean" else name


def _with_retrieval_words(options: Values) -> Values:
    """Options of rankings and galleries in the golden spelling: ``centre``, ``storage``, ``cost="euclidean"``."""
    given = dict(options)
    if given.pop("centre", False):
        given["cost"] = "centred-cosine"
    if given.get("cost") == "euclidean":
        given["cost"] = "relative-euclidean"
    if isinstance(given.get("storage"), str):
        given["storage"] = getattr(torch, given["storage"])
    return given


def gallery(
    items: Tensor,
    query: Tensor,
    new: Tensor,
    candidates: Tensor,
    *,
    rows: tuple[str, int | None, int | None],
    bank: Tensor | None = None,
    **options: Any,
) -> Values:
    """Everything a gallery that was balanced once answers to queries, to late items and to a vector search."""
    from bpa.hosts.retrieval import Gallery, rerank
    from bpa.solvers import Converged

    options = _with_plan_solver(_with_retrieval_words(options), 1e-4)
    fitted = Gallery.fit(items, bank, rows=_comparison(rows), **options)
    index, near = fitted.search(query, shortlist=20, top=8)
    mixed = candidates.clone()
    mixed[:, 0] = -1
    vectors = items[candidates].clone()
    vectors[:, 0] = new[0]
    out = {
        "distances": fitted.distances(query),
        "distances_of_one": fitted.distances(query[:1]),
        "distances_of_candidates": fitted.distances(query, candidates),
        "search_index": index,
        "search_distances": near,
        "shortlist": fitted.shortlist(query, 7),
        "distances_to_new": fitted.distances_to_new(query[:4], new),
        "fitted_distances": fitted.fitted_distances(torch.tensor([0, 5, 9])),
        "fitted_distances_to": fitted.fitted_distances(torch.tensor([0, 5, 9]), torch.tensor([5, 1, 2, 30])),
        "row": fitted.row(query[:4]),
        "potentials": fitted.potentials,
        "reg": fitted.reg,
        "rerank_scores": rerank(query[:3], candidates[:3], None, fitted),
        "rerank_scores_with_new": rerank(query[:3], mixed[:3], vectors[:3], fitted),
    }
    if bank is None:
        grown = fitted.add(new, solver=Converged(1e-4))
        out["grown_distances"] = grown.distances(query)
        out["grown_potentials"] = grown.potentials
    return out


def gallery_from_file(
    items: Tensor, query: Tensor, *, rows: tuple[str, int | None, int | None], **options: Any
) -> Values:
    """What a gallery answers after it was written to a file and read again."""
    from bpa.hosts.retrieval import Gallery

    with tempfile.TemporaryDirectory() as folder:
        options = _with_plan_solver(_with_retrieval_words(options), 1e-4)
        Gallery.fit(items, rows=_comparison(rows), **options).save(Path(folder) / "gallery.npz")
        fitted = Gallery.load(Path(folder) / "gallery.npz")
    return {"distances": fitted.distances(query), "potentials": fitted.potentials}


def ranking(
    query: Tensor, items: Tensor | None, *, rows: tuple[str, int | None, int | None], **options: Any
) -> Values:
    """Distances of queries to a gallery, their order, and the diagnostics of the ranking."""
    from bpa.hosts.retrieval import rank

    given = _with_retrieval_words(options)
    if "n_iter" in given:
        given = _with_solver(given)
    found = rank(query, items, rows=_comparison(rows), **given)
    order, _ = found.top(found.distances.shape[1])
    noted = _numbers(found.diagnostics, "diagnostics_", leave_out=("reg",))
    return {"distances": found.distances, "order": order} | noted


def balanced_source(
    x: Tensor, n_query: int, *, rows: tuple[str, int | None, int | None], **options: Any
) -> Values:
    """Re-ranking in the space of balanced rows: the neighbours of that space, and the re-ranked distances."""
    from bpa.hosts.retrieval import KReciprocal, row_source

    source = row_source(x, rows=_comparison(rows), **options)
    near = source.neighbours(6, self_first=True)
    again = KReciprocal.fit(source, n_query, k1=8, k2=3)
    return {
        "neighbour_distances": near.squared,
        "largest": near.largest,
        "rows": source.rows(slice(2, 5)),
        "reranked": again.distances(),
    }


def k_reciprocal_distances(
    x: Tensor | None, n_query: int, *, lists: Any = None, distances: Tensor | None = None, **options: Any
) -> Values:
    """Distances after k-reciprocal re-ranking, from features, from all distances, or from neighbour lists."""
    from bpa.hosts.retrieval import k_reciprocal

    found = k_reciprocal(x, n_query, lists=lists, distances=distances, **options)
    index, near = found.top(5)
    return {"distances": found.distances(), "order": index, "order_distances": near}


def ranker(
    name: str, query: Tensor, items: Tensor | None = None, bank: Tensor | None = None, **options: Any
) -> Values:
    """Scores of a ranker by name, higher is better, as distances."""
    from bpa.hosts.retrieval import RANKERS
    from bpa.hosts.retrieval.hubs import mutual_proximity_empirical

    if name == "mutual-proximity-empirical":
        return {"distances": -mutual_proximity_empirical(query, items, bank, **options)}
    if "n_iter" in options:
        options = _with_solver(options)
    chosen = RANKERS[name]
    return {"distances": -chosen(query, items, bank if chosen.uses_bank else None, **options)}


def ranker_names() -> list[str]:
    """The names of the rankers that commands know."""
    from bpa.hosts.retrieval import RANKERS

    return sorted(RANKERS)


def compared_rows(left: Tensor, right: Tensor, measure: str, top: int | None = None) -> Tensor:
    """Distances between rows; with ``top``, of rows cut to their largest entries (right rows are the whole set)."""
    from bpa.plans._comparison import compare_dense, compare_sparse, truncate

    if top is None:
        return compare_dense(left, right, _measure(measure))
    n = right.shape[1]
    hidden = right.clone().fill_diagonal_(-1)
    best = torch.topk(hidden, top, dim=1)
    rows = truncate(best.values, best.indices, torch.arange(n), n)
    return compare_sparse(rows.slice(0, len(left)), rows, _measure(measure))


def item_neighbours(x: Tensor, k: int, *, self_first: bool) -> Values:
    """Neighbours of every item by the squared distance, exactly and with ties by position."""
    from bpa.hosts.retrieval.sources import FeatureSource

    source = FeatureSource(x)
    found = source.neighbours(k, self_first=self_first)
    pairs = source.pairs(torch.tensor([0, 1, 2]), torch.tensor([3, 1, 7]))
    return {"index": found.index, "squared": found.squared, "largest": found.largest, "pairs": pairs}


def smallest_entries(values: Tensor, k: int) -> Values:
    """The k smallest of every row, ties by position."""
    from bpa.plans._search import smallest

    found, index = smallest(values, k)
    return {"values": found, "index": index}


# ---------------------------------------------------------------------------------------- metrics


def retrieval_metrics(
    distances: np.ndarray,
    query_ids: np.ndarray,
    gallery_ids: np.ndarray,
    query_cameras: np.ndarray | None = None,
    gallery_cameras: np.ndarray | None = None,
    **options: Any,
) -> Values:
    """Scores of a ranking."""
    from bpa.metrics.retrieval import evaluate_ranking

    found = evaluate_ranking(distances, query_ids, gallery_ids, query_cameras, gallery_cameras, **options)
    return _numbers(found)


def list_metrics(
    ranked: np.ndarray, query_ids: np.ndarray, gallery_ids: np.ndarray, **options: Any
) -> Values:
    """Scores of lists of gallery positions."""
    from bpa.metrics.retrieval import evaluate_lists

    return _numbers(evaluate_lists(ranked, query_ids, gallery_ids, **options))


def hubness_numbers(distances: np.ndarray, k: int = 10, self_index: np.ndarray | None = None) -> Values:
    """How unevenly gallery items appear in top lists."""
    from bpa.metrics.hubs import hubness

    return _numbers(hubness(distances, k=k, self_index=self_index))


def clustering_metrics(true: np.ndarray, found: np.ndarray, nmi_average: str) -> Values:
    """Scores of a clustering."""
    from bpa.metrics.clustering import clustering_scores

    return _numbers(clustering_scores(true, found, nmi_average=nmi_average))


def interval(values: np.ndarray, other: np.ndarray | None = None) -> Values:
    """Mean and half width of the 95 % interval, of values or of paired differences."""
    from bpa.metrics.intervals import mean_interval, paired_difference

    return _numbers(mean_interval(values) if other is None else paired_difference(values, other))


# ---------------------------------------------------------------------------------------- few-shot hosts


def few_shot(
    host: str,
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    transform: str = "identity",
    reg: float | str = 0.1,
    variant: str | None = None,
    **options: Any,
) -> Values:
    """Scores and labels of a host by name; ``transform`` by name; ``variant`` is a published setting of PT-MAP.

    "bpa-module" is the plain module; "bpa" is the one by name, which PT-MAP may hand inner products to.
    """
    from bpa import BPA
    from bpa.hosts import fewshot
    from bpa.records import Episode

    chosen = BPA(reg=reg) if transform == "bpa-module" else _transform(transform, reg=reg)  # type: ignore[arg-type]
    masks = {name: options.pop(name) for name in ("support_mask", "query_mask") if name in options}
    episode = Episode(support, support_labels, query, n_way=int(support_labels.max()) + 1, **masks)
    if host == "protonet":
        found = fewshot.ProtoNet(chosen, **options)(episode)
    elif host == "pmf":
        classifier = fewshot.PMF(chosen)
        with torch.no_grad():
            classifier.scale_cls.fill_(options.get("scale", 10.0))
            classifier.bias.fill_(options.get("bias", 0.0))
        found = classifier(episode)
    else:
        prior = options.pop("prior", "uniform")
        given = prior if isinstance(prior, Tensor) else None
        settings = fewshot.PTMapSettings() if variant is None else fewshot.VARIANTS[variant]
        settings = replace(settings, prior="uniform" if given is not None else prior, **options)
        found = fewshot.PTMap(chosen, settings)(episode, class_mass=given)
    out = {"scores": found.scores, "labels": found.labels}
    if host != "ptmap":
        return out
    reached = found.convergence
    return out | {"class_mass": found.class_mass, "n_iter": reached.n_iter, "converged": reached.converged}


def ptmap_variants() -> dict[str, dict[str, Any]]:
    """The published settings of PT-MAP, by name: the epochs, and what is not the default."""
    from bpa.hosts.fewshot import VARIANTS, PTMapSettings

    plain = PTMapSettings()
    return {
        name: {"epochs": variant.epochs}
        | {key: getattr(variant, key) for key in vars(plain) if getattr(variant, key) != getattr(plain, key)}
        for name, variant in VARIANTS.items()
    }


def soft_assignment(logits: Tensor, mass: Tensor, **options: Any) -> Values:
    """Queries assigned to classes of prescribed mass."""
    from bpa.solvers import soft_assignment as assign

    found = assign(logits, mass, **options)
    names = ("n_iter", "marginal_error", "converged")
    return {"log_plan": found.log_plan, "shift": found.shift} | {
        name: getattr(found.convergence, name) for name in names
    }


def powered_features(x: Tensor, **options: Any) -> Tensor:
    """Features with a less skewed distribution: PT-MAP's first step."""
    from bpa.hosts.fewshot import powered

    return powered(x, **options)


# ---------------------------------------------------------------------------------------- clustering hosts


def pseudo_labels(probabilities: Tensor, embedding: Tensor, n_confident: int, n_labelled: int) -> Values:
    """What one head of SPICE teaches itself in one round."""
    from bpa.hosts.clustering import prototype_pseudo_labels

    found = prototype_pseudo_labels(probabilities, embedding, n_confident=n_confident, n_labelled=n_labelled)
    return {"indices": found.indices, "labels": found.labels, "prototypes": found.prototypes}


def double_softmax(probabilities: Tensor, labels: Tensor) -> Values:
    """The loss of SPICE and its smallest value."""
    from bpa.hosts.clustering import double_softmax_floor, double_softmax_loss

    return {
        "loss": double_softmax_loss(probabilities, labels),
        "floor": double_softmax_floor(probabilities.shape[1]),
    }


def reliable(probabilities: Tensor, features: Tensor, **options: Any) -> Values:
    """Labels worth training another network on."""
    from bpa.hosts.clustering import reliable_labels

    found = reliable_labels(probabilities, features, **options)
    return {"labels": found.labels, "n_agreeing": found.n_agreeing}


def embedding_signs(features: Tensor, n_neighbours: int) -> Values:
    """How collapsed and how hubby features are."""
    from bpa.hosts.clustering import embedding_diagnostics

    return _numbers(embedding_diagnostics(features, n_neighbours=n_neighbours))


def spice_heads(
    features: Tensor, weak: Tensor, strong: Tensor, *, transform: str, reg: float, seed: int, **settings: Any
) -> Values:
    """Clustering heads trained on their own pseudo-labels."""
    from bpa.hosts.clustering import SpiceSettings, train_clustering_heads

    found = train_clustering_heads(
        features, weak, strong, SpiceSettings(**settings), transform=_transform(transform, reg=reg), seed=seed
    )
    return {
        "labels": found.labels,
        "probabilities": found.probabilities,
        "selected_head": found.selected_head,
        "selected_epoch": found.selected_epoch,
        "loss": found.loss,
        "losses": np.array(found.losses),
    }


def k_means_clusters(rows: np.ndarray, n_clusters: int, *, n_init: int, seed: int) -> Values:
    """k-means as every clustering study runs it."""
    from bpa.runs.fields.clustering import k_means

    labels, inertia = k_means(rows, n_clusters, n_init=n_init, seed=seed)
    return {"labels": labels, "inertia": inertia}


def spectral_products(affinity: np.ndarray, n_components: int, *, seed: int) -> np.ndarray:
    """Inner products of the rows of spectral clustering, which do not depend on the signs of eigenvectors."""
    from bpa.runs.fields.clustering import spectral_rows

    rows = spectral_rows(affinity, n_components, seed=seed)
    return rows @ rows.T


def sphere_study(columns: tuple[str, ...], **settings: Any) -> list[dict[str, Any]]:
    """A small grid of the study of clusters on the sphere, one record a cell."""
    from bpa.runs import run
    from bpa.runs.fields.sphere import Sphere, SphereTask
    from bpa.runs.way import Way
    from bpa.solvers import Converged
    from bpa.transforms.names import NamedTransform as Named

    ways = {
        "raw": Way("k-means", Named("identity")),
        "cosine": Way("k-means", Named("cosine")),
        "bpa 0.1": Way("k-means", Named("bpa")),
        "bpa auto": Way("k-means", Named("bpa", reg="auto")),
        "spectral 0.1": Way("spectral", Named("identity"), {"reg": 0.1}),
        "bpa 0.1 symmetric": Way("k-means", Named("bpa", solver=Converged())),
        "plan spectral 0.1": Way("spectral-plan", Named("bpa", unscaled=True, diagonal=0.0)),
    }
    dims, noises = settings.pop("dims"), settings.pop("noises")
    cells = [(dim, noise) for dim in dims for noise in noises]
    grid = [(SphereTask(dim, noise, **settings), [ways[name] for name in columns]) for dim, noise in cells]
    records = [json.loads(record.to_json(seconds=False)) for record in run("sphere", Sphere(), grid)]
    out = []
    for start, (dim, noise) in zip(range(0, len(records), len(columns)), cells, strict=True):
        values = {
            f"{name}/{score}": records[start + place]["values"][score]
            for place, name in enumerate(columns)
            for score in ("nmi", "ari", "acc")
        }
        summary = {key: _interval(row) for key, row in values.items()}
        out.append(
            {"study": "sphere", "config": {"dim": dim, "noise": noise}, "values": values, "summary": summary}
        )
    return out


# ---------------------------------------------------------------------------------------- runs


def run_command(words: list[str], out: Path) -> list[dict[str, Any]]:
    """Run one command line with ``--out`` and return the records it left, as commit f219ccd wrote them.

    ``words`` are the golden spelling of the command line: verb, feature file, flags.
    """
    from bpa.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = main([*_spelled(words), "--out", str(out)])
    if code != 0:
        raise AssertionError(f"the command ended with {code}: {said.getvalue()}")
    return read_records(out)


def _spelled(words: list[str]) -> list[str]:
    """The command line of today for one of then: reg was 0.1 where nothing was said; re-rankers are hosts."""
    out, hosts = list(words), ["nearest"]
    for flag, value, means in (
        ("--rerank", "k-reciprocal", ["k-reciprocal"]),
        ("--baselines", "all", ["all"]),
    ):
        if flag in out:
            at = out.index(flag)
            assert out[at + 1] == value
            del out[at : at + 2]
            hosts = means if means == ["all"] else [*hosts, *means]
    if "--preset" in out:
        at = out.index("--preset")
        out[at : at + 2] = ["--paper"]
    if words[0] == "fewshot" and "--reg" not in words:
        out.append("--paper")
    return [*out, "--host", *hosts] if words[0] == "retrieve" else out


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records of a folder, as commit f219ccd wrote them."""
    from bpa.runs.store import RunStore

    records = [json.loads(record.to_json(seconds=False)) for record in RunStore(folder).records()]
    clustered = [record for record in records if record["task"]["field"] == "clustering"]
    return (
        [_clustering_then(clustered)] if clustered else [then for each in records for then in _row_then(each)]
    )


def _row_then(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One row as commit f219ccd wrote it, by the keys that `_records` makes its label of; none where it had none."""
    task, way, transform = record["task"], record["way"], record["way"]["transform"]
    reg = transform.get("reg")
    if task["field"] == "fewshot":
        name = transform["name"] + (f":{transform['width']}" if "width" in transform else "")
        sweeps = transform.get("solver", "") if record["study"] == "fewshot-sweeps" else ""
        config = {
            "host": way["host"], "transform": name, "reg": reg, "prior": way["settings"].get("prior"),
            "n_iter": int(sweeps.removeprefix("sweeps:")) if sweeps else None,
            **{key: task[key] for key in ("n_way", "n_shot", "protocol")},
        }  # fmt: skip
        return [{**record, "study": "fewshot", "config": config}]
    if transform["name"] == "centred":  # no table of that commit had it
        return []
    again = way["host"] == "k-reciprocal"
    parts = [transform["name"] if again or way["host"] == "nearest" else way["host"]]
    parts += [] if reg is None else [f"reg={reg}" if reg == "auto" else f"reg={reg:g}"]
    rows = way["settings"].get("rows")
    if rows is not None:
        top = "" if rows["top"] is None else f" top-{rows['top']}"
        parts.append(f"({rows['measure']}{top} rows)")
    config = {"way": " ".join([*parts, *(["+ k-reciprocal"] if again else [])])}
    return [
        {
            **record,
            "study": "retrieval",
            "config": config | {"protocol": way["settings"].get("protocol", "joint")},
        }
    ]


def _clustering_then(records: list[dict[str, Any]]) -> dict[str, Any]:
    """All rows of a clustering in the one record that commit f219ccd wrote."""
    values: dict[str, list[float]] = {}
    ways: dict[str, Any] = {}
    for record in records:
        host, transform = record["way"]["host"], record["way"]["transform"]
        name = transform["name"] if host == "k-means" else host
        reg = record["way"]["settings"].get("reg", transform.get("reg"))
        if host.startswith("bpa") and reg == "auto":  # the clusterers of that commit had no rule
            continue
        name += "" if reg is None else f" reg={reg}"
        values |= {f"{name}/{key}": row for key, row in record["values"].items()}
        ways[name] = {key: _interval(record["values"][key], 100) for key in ("acc", "nmi", "ari")}
        ways[name]["agreement"] = record["summary"]["agreement"]
    for name, entry in ways.items():
        differences = np.subtract(values[f"{name}/nmi"], values["identity/nmi"])
        entry["gain"] = None if name == "identity" else _interval(differences, 100)
    config = {"n_clusters": records[0]["task"]["n_clusters"]}
    return {"study": "cluster", "config": config, "values": values, "summary": {"scored": True, "ways": ways}}


def _interval(values: Any, factor: float = 1.0) -> dict[str, float]:
    from bpa.metrics.intervals import mean_interval

    return _numbers(mean_interval(factor * np.asarray(values)))


# ---------------------------------------------------------------------------------------- data drawn by the library


def drawn_tasks(features: np.ndarray, labels: np.ndarray, **options: Any) -> Values:
    """The rows of few-shot tasks that a protocol draws."""
    from bpa.data.episodes import draw_tasks
    from bpa.records import FeatureSet

    found = draw_tasks(FeatureSet(features.astype(np.float32), labels), **options)
    return _numbers(found)


def sphere_points(dim: int, noise: float, **options: Any) -> np.ndarray:
    """The points of the study of clusters on the sphere."""
    from bpa.data.synthetic import sphere_clusters

    return sphere_clusters(dim, noise, **options).features
