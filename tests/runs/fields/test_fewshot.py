"""Few-shot tasks: shared tasks, resuming, published variants, and independence of chunks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bpa import BPA
from bpa.data.episodes import draw_tasks
from bpa.errors import ArgumentError, MemoryBudgetError
from bpa.hosts.fewshot import PMF, VARIANTS, ProtoNet, PTMap
from bpa.metrics.intervals import paired_difference
from bpa.records import Episode, FeatureSet, RunRecord
from bpa.runs import RunStore, Way, run, transforms_asked
from bpa.runs.fields import fewshot as module
from bpa.runs.fields.fewshot import FewShot, FewShotTask, fewshot_ways, task_bytes, variant_ways
from bpa.transforms.names import NamedTransform

FREE = [NamedTransform(name) for name in ("identity", "unit", "centred")]
SMALL = FewShotTask(n_tasks=23, n_query=6)
WAYS = fewshot_ways(("protonet", "pmf", "ptmap"), transforms_asked(["bpa"], reg=(0.1, 0.3)))


@pytest.fixture
def features(rng: np.random.Generator) -> FeatureSet:
    """Eight overlapping classes of 30 rows, non-negative, 24-d."""
    labels = np.repeat(np.arange(8), 30)
    x = np.maximum(rng.normal(size=(8, 24))[labels] + 1.6 * rng.normal(size=(240, 24)), 0.0)
    return FeatureSet(x.astype(np.float32), labels=labels, source="toy", sha256="0" * 64)


def found(features: FeatureSet, task: FewShotTask, ways: Sequence[Way], **more: Any) -> list[RunRecord]:
    store = more.pop("store", None)
    tick = more.pop("on_progress", None)
    return run("fewshot", FewShot(features, **more), [(task, ways)], store=store, on_progress=tick)


def accuracy(features: FeatureSet, task: FewShotTask, way: Way) -> np.ndarray:
    return 100 * np.asarray(found(features, task, [way])[0].values["accuracy"])


def test_every_row_is_its_host_on_each_task_alone(features: FeatureSet) -> None:
    tasks = draw_tasks(features, n_query=6, n_tasks=23)
    x = torch.from_numpy(features.features)
    hosts = {"protonet": ProtoNet, "pmf": PMF, "ptmap": PTMap}
    for way, record in zip(WAYS, found(features, SMALL, WAYS), strict=True):
        for t in range(0, 23, 5):
            rows = torch.from_numpy(tasks.rows[t])
            episode = Episode(x[rows[:5]], torch.from_numpy(tasks.support_labels), x[rows[5:]], n_way=5)
            label = hosts[way.host](way.transform.build())(episode)
            hits = int((label.labels.numpy() == tasks.query_labels[t]).sum())
            assert record.values["accuracy"][t] == pytest.approx(hits / 30), (way, t)


@pytest.mark.parametrize("protocol", ["ptmap", "dirichlet"])
@pytest.mark.parametrize("chunk", [2, 7, 1000])
def test_no_number_depends_on_the_chunk(features: FeatureSet, chunk: int, protocol: Any) -> None:
    task = replace(SMALL, protocol=protocol, n_query=4, n_tasks=17)
    ways = fewshot_ways(
        ("protonet", "pmf", "ptmap"), transforms_asked(["bpa", "bpa-attn", "pca:width=4"], reg=(0.1,))
    )
    plain, other = found(features, task, ways), found(features, task, ways, chunk=chunk)
    for a, b in zip(plain, other, strict=True):
        assert a.values == b.values, a.way


def test_a_killed_run_goes_on_and_leaves_the_same_bytes(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 20)
    ways = fewshot_ways(("protonet", "ptmap"), transforms_asked(["bpa"], reg=(0.2,)))
    grid = [(replace(SMALL, n_tasks=35, n_shot=shot), ways) for shot in (1, 2)]
    with RunStore(tmp_path / "whole") as store:
        whole = run("fewshot", FewShot(features), grid, store=store)
    calls = 0
    count = module._count

    def dies(*args: Any) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 13:
            raise KeyboardInterrupt
        return count(*args)

    monkeypatch.setattr(module, "_count", dies)
    with RunStore(tmp_path / "killed") as store, pytest.raises(KeyboardInterrupt):
        run("fewshot", FewShot(features), grid, store=store)
    again = 0

    def counted(*args: Any) -> list[int]:
        nonlocal again
        again += 1
        return count(*args)

    monkeypatch.setattr(module, "_count", counted)
    with RunStore(tmp_path / "killed") as store:
        resumed = run("fewshot", FewShot(features), grid, store=store)
    assert (tmp_path / "killed/results.jsonl").read_bytes() == (tmp_path / "whole/results.jsonl").read_bytes()
    assert [r.values for r in resumed] == [r.values for r in whole]
    assert again == 2 * 2 * 4 * 2 - 8  # shots × hosts × transforms × blocks, but for the finished first block
    assert not list((tmp_path / "killed/journal").glob("*"))


def test_a_smaller_budget_gives_the_same_numbers_or_says_what_to_do(features: FeatureSet) -> None:
    ways = [way for way in WAYS if way.host == "ptmap"]
    need = task_bytes(5, 1, 6, 24, 4)
    tight = found(features, SMALL, ways, budget=2 * need)
    assert [r.values for r in tight] == [r.values for r in found(features, SMALL, ways)]
    with pytest.raises(MemoryBudgetError, match=r"needs about .* Raise the budget"):
        found(features, SMALL, ways, budget=need - 1)


def test_the_oracle_prior_beats_the_uniform_one_on_unbalanced_queries(features: FeatureSet) -> None:
    task = replace(SMALL, protocol="dirichlet", n_tasks=150, n_query=4)
    mean = {
        prior: accuracy(features, task, fewshot_ways(("ptmap",), FREE[:1], prior=prior)[0]).mean()
        for prior in ("uniform", "oracle")
    }
    assert mean["oracle"] > mean["uniform"] + 3


def test_sillnet_and_ptmap_sf_are_ptmap_on_their_features(features: FeatureSet) -> None:
    for transform in (FREE[0], NamedTransform("bpa")):
        ways = fewshot_ways(("ptmap", "sillnet", "ptmap-sf"), [transform])
        values = [record.values for record in found(features, SMALL, ways)]
        assert values[0] == values[1] == values[2]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_published_variant_is_ptmap_with_its_settings_and_weights(
    features: FeatureSet, variant: str
) -> None:
    ways = variant_ways(variant)
    records = found(features, SMALL, ways)
    tasks = draw_tasks(features, n_query=6, n_tasks=23)
    x = torch.from_numpy(features.features)
    rows, labels = torch.from_numpy(tasks.rows[4]), torch.from_numpy(tasks.support_labels)
    known = torch.cat([labels, torch.full((30,), -1)])
    for way, record in zip(ways, records, strict=True):
        transform: Any = way.transform.build()
        if variant == "reference-val" and way.transform.name == "bpa":
            layer = BPA(reg=0.2)

            def transform(z: torch.Tensor, *, mask: Any = None, layer: BPA = layer) -> torch.Tensor:
                return layer(z, mask=mask, support_labels=known)

        label = PTMap(transform, VARIANTS[variant])(Episode(x[rows[:5]], labels, x[rows[5:]], n_way=5))
        hits = int((label.labels.numpy() == tasks.query_labels[4]).sum())
        assert record.values["accuracy"][4] == pytest.approx(hits / 30), way


def test_variants_bring_the_weights_and_sweeps_that_belong_to_them() -> None:
    bpa = {name: [w.transform for w in variant_ways(name, baselines=False)] for name in VARIANTS}
    assert [(t.reg, str(t.solver)) for t in bpa["paper"]] == [(0.1, "sweeps:5")]
    assert [(t.reg, str(t.solver)) for t in bpa["reference-eval"]] == [(0.2, "sweeps:10")]
    assert [t.reg for t in bpa["reference-sweep"]] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert len(set(variant_ways("reference-val"))) == 4
    with pytest.raises(ArgumentError, match="'variant'"):
        variant_ways("newest")


def test_a_way_holds_the_settings_that_move_it_and_no_others() -> None:
    made = fewshot_ways(("pmf", "ptmap"), FREE, epochs=3)
    assert [way.host for way in made] == ["pmf"] * 3 + ["ptmap"] * 3
    assert dict(made[0].settings) == {}
    assert made[3].settings["epochs"] == 3
    with pytest.raises(ArgumentError, match="no setting 'lam' in a run; it has prior"):
        fewshot_ways(("ptmap",), FREE, lam=10)
    with pytest.raises(ArgumentError, match="'prior' belongs to PT-MAP"):
        fewshot_ways(("pmf", "protonet"), FREE, prior="oracle")


def test_wrong_tasks_and_hosts_are_explained(features: FeatureSet) -> None:
    for changes, match in (
        ({"protocol": "even"}, "'protocol'"),
        ({"dtype": "float16"}, "'dtype'"),
        ({"n_shot": 0}, "'n_shot'"),
        ({"concentration": 3.0}, "belongs to protocol='dirichlet'"),
        ({"concentration": -1.0, "protocol": "dirichlet"}, "'concentration'"),
    ):
        with pytest.raises(ArgumentError, match=match):
            FewShotTask(**changes)
    with pytest.raises(ArgumentError, match="simpleshot"):
        fewshot_ways(("simpleshot",), FREE)
    with pytest.raises(ArgumentError, match="'prior'"):
        fewshot_ways(("ptmap",), FREE, prior="even")
    with pytest.raises(ArgumentError, match="need labels"):
        FewShot(replace(features, labels=None))
    assert FewShotTask(protocol="dirichlet").concentration == 2.0


_WATCHED = """
import sys, threading, time
import numpy as np, torch
from bpa.records import FeatureSet
from bpa.runs import run
from bpa.runs.fields.fewshot import FewShot, FewShotTask, fewshot_ways
from bpa.transforms.names import NamedTransform
torch.set_num_threads(1)
rng = np.random.default_rng(0)
features = FeatureSet(rng.random((600, 1280), dtype=np.float32), labels=np.repeat(np.arange(10), 60))
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
ways = fewshot_ways(("ptmap",), [NamedTransform("bpa-attn")])
def work(n_tasks):
    run("fewshot", FewShot(features, budget=150_000_000), [(FewShotTask(n_tasks=n_tasks), ways)])
work(2)
start, peak, stop = rss(), [0], threading.Event()
def watch():
    while not stop.is_set():
        peak[0] = max(peak[0], rss())
        time.sleep(0.001)
thread = threading.Thread(target=watch)
thread.start()
work(200)
stop.set()
thread.join()
print(peak[0] - start)
"""


@pytest.mark.slow
def test_the_peak_stays_within_the_budget() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("the resident size is read from /proc")
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED], capture_output=True, text=True, check=True, timeout=120
    )
    # 200 tasks at once would hold about 500 MB
    assert int(done.stdout) < 165_000_000


def drawn(rng: np.random.Generator, spread: float) -> FeatureSet:
    """ReLU features of Gaussian classes, as a network's last layer gives them."""
    labels = np.repeat(np.arange(10), 60)
    x = np.maximum(spread * rng.normal(size=(10, 128))[labels] + rng.normal(size=(600, 128)), 0.0)
    return FeatureSet(x.astype(np.float32), labels=labels, source="drawn", sha256="0" * 64)


def test_the_transform_helps_where_neighbours_share_a_class(rng: np.random.Generator) -> None:
    features, task = drawn(rng, 0.33), FewShotTask(n_tasks=150)
    for host in ("protonet", "ptmap"):
        raw, bpa = (
            accuracy(features, task, way) for way in fewshot_ways((host,), [FREE[0], NamedTransform("bpa")])
        )
        gain = paired_difference(bpa, raw)
        assert gain.low > 1.0, (host, gain)


def test_the_transform_does_not_help_near_chance(rng: np.random.Generator) -> None:
    features, task = drawn(rng, 0.05), FewShotTask(n_tasks=150)
    raw, bpa = (
        accuracy(features, task, way) for way in fewshot_ways(("protonet",), [FREE[0], NamedTransform("bpa")])
    )
    assert 20 - 2 < bpa.mean() < 26
    assert paired_difference(bpa, raw).high < 1.0
