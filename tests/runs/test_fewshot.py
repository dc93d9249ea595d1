"""The few-shot comparison: shared tasks, paired gains, resuming, and independence of chunks."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bpa.data.episodes import draw_tasks
from bpa.data.features import write_features
from bpa.errors import ArgumentError, MemoryBudgetError
from bpa.hosts.fewshot import PMF, ProtoNet, PTMap
from bpa.metrics.intervals import mean_interval, paired_difference
from bpa.records import Episode, FeatureSet
from bpa.runs import fewshot as module
from bpa.runs.fewshot import Cell, FewShotConfig, cells_of, fewshot_table, run_fewshot
from bpa.runs.store import RunStore
from bpa.transforms.names import make_transform


@pytest.fixture
def features(rng: np.random.Generator) -> FeatureSet:
    """Eight overlapping classes of 30 rows, non-negative, 24-d."""
    labels = np.repeat(np.arange(8), 30)
    x = np.maximum(rng.normal(size=(8, 24))[labels] + 1.6 * rng.normal(size=(240, 24)), 0.0)
    return FeatureSet(x.astype(np.float32), labels=labels, source="toy", sha256="0" * 64)


SMALL = FewShotConfig(
    hosts=("protonet", "pmf", "ptmap"), transforms=("bpa",), regs=(0.1, 0.3), n_tasks=23, n_query=6
)


def test_every_cell_is_its_host_on_each_task_alone(features: FeatureSet) -> None:
    result = run_fewshot(features, SMALL)
    tasks = draw_tasks(features, n_query=6, n_tasks=23)
    x = torch.from_numpy(features.features)
    hosts = {"protonet": ProtoNet, "pmf": PMF, "ptmap": PTMap}
    for item in result.cells:
        transform = make_transform(item.cell.transform, reg=item.cell.reg or 0.1)
        for t in range(0, 23, 5):
            rows = torch.from_numpy(tasks.rows[t])
            episode = Episode(x[rows[:5]], torch.from_numpy(tasks.support_labels), x[rows[5:]], n_way=5)
            found = hosts[item.cell.host](transform)(episode)
            hits = int((found.labels.numpy() == tasks.query_labels[t]).sum())
            assert item.accuracy[t] == pytest.approx(100 * hits / 30), (item.cell, t)


def test_gains_are_paired_over_identity_and_the_best_baseline(features: FeatureSet) -> None:
    result = run_fewshot(features, SMALL)
    for host in SMALL.hosts:
        free = {name: result.find(host, name, 1).accuracy for name in ("identity", "unit", "centred")}
        best = max(free, key=lambda name: free[name].mean())
        own = result.find(host, "bpa", 1, 0.3)
        assert own.best == best
        assert own.mean == mean_interval(own.accuracy)
        assert own.gain == paired_difference(own.accuracy, free["identity"])
        assert own.gain_over_best == paired_difference(own.accuracy, free[best])


@pytest.mark.parametrize("protocol", ["ptmap", "dirichlet"])
@pytest.mark.parametrize("chunk", [2, 7, 1000])
def test_no_number_depends_on_the_chunk(features: FeatureSet, chunk: int, protocol: Any) -> None:
    config = replace(
        SMALL, transforms=("bpa", "bpa-attn", "pca:4"), regs=(0.1,), protocol=protocol, n_query=4, n_tasks=17
    )
    plain = run_fewshot(features, config)
    other = run_fewshot(features, config, chunk=chunk)
    for a, b in zip(plain.records, other.records, strict=True):
        assert a.values == b.values, a.config


def test_a_killed_run_goes_on_and_leaves_the_same_bytes(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 20)
    config = replace(SMALL, n_tasks=35, hosts=("protonet", "ptmap"), shots=(1, 2), regs=(0.2,))
    with RunStore(tmp_path / "whole") as store:
        whole = run_fewshot(features, config, store=store)
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
        run_fewshot(features, config, store=store)
    monkeypatch.setattr(module, "_count", count)
    again = 0

    def counted(*args: Any) -> list[int]:
        nonlocal again
        again += 1
        return count(*args)

    monkeypatch.setattr(module, "_count", counted)
    ticks: list[tuple[int, int]] = []
    with RunStore(tmp_path / "killed") as store:
        resumed = run_fewshot(features, config, store=store, on_progress=lambda d, t: ticks.append((d, t)))
    assert (tmp_path / "killed/results.jsonl").read_bytes() == (tmp_path / "whole/results.jsonl").read_bytes()
    assert [r.values for r in resumed.records] == [r.values for r in whole.records]
    assert again == 2 * 2 * 4 * 2 - 8  # shots × hosts × transforms × blocks, but for the finished first block
    assert ticks[-1] == (16 * config.n_tasks, 16 * config.n_tasks)
    assert not list((tmp_path / "killed/journal").glob("*"))


def test_finished_cells_are_reused_when_more_are_asked(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunStore(tmp_path) as store:
        run_fewshot(features, SMALL, store=store)
        seen: list[str] = []
        make = module._host
        monkeypatch.setattr(
            module, "_host", lambda cell, *rest: (seen.append(cell.name), make(cell, *rest))[1]
        )
        run_fewshot(features, replace(SMALL, regs=(0.1, 0.3, 0.7)), store=store)
    assert seen == ["bpa 0.7"] * 3


def test_a_smaller_budget_gives_the_same_numbers_or_says_what_to_do(features: FeatureSet) -> None:
    config = replace(SMALL, hosts=("ptmap",))
    need = module.task_bytes(5, 1, 6, 24, 4)
    tight = run_fewshot(features, config, budget=2 * need)
    assert [r.values for r in tight.records] == [r.values for r in run_fewshot(features, config).records]
    with pytest.raises(MemoryBudgetError, match=r"needs about .* Raise the budget"):
        run_fewshot(features, config, budget=need - 1)


def test_the_oracle_prior_beats_the_uniform_one_on_unbalanced_queries(features: FeatureSet) -> None:
    base = replace(SMALL, hosts=("ptmap",), transforms=(), protocol="dirichlet", n_tasks=150, n_query=4)
    mean = {p: run_fewshot(features, replace(base, prior=p)).find("ptmap", "identity", 1).mean.mean
            for p in ("uniform", "oracle")}  # fmt: skip
    assert mean["oracle"] > mean["uniform"] + 3


def test_sillnet_and_ptmap_sf_are_ptmap_on_their_features(features: FeatureSet) -> None:
    config = replace(SMALL, hosts=("ptmap", "sillnet", "ptmap-sf"), regs=(0.1,))
    result = run_fewshot(features, config)
    for name, reg in (("identity", None), ("bpa", 0.1)):
        values = [result.find(host, name, 1, reg).accuracy for host in config.hosts]
        np.testing.assert_array_equal(values[0], values[1])
        np.testing.assert_array_equal(values[0], values[2])


def test_cells_are_listed_once_with_the_settings_that_move_them() -> None:
    config = replace(SMALL, transforms=("identity", "unit", "bpa", "cosine"), shots=(1, 5), hosts=("pmf",))
    names = [(c.n_shot, c.name) for c in cells_of(config)]
    assert names[:6] == [
        (1, "identity"),
        (1, "unit"),
        (1, "centred"),
        (1, "bpa 0.1"),
        (1, "bpa 0.3"),
        (1, "cosine"),
    ]
    assert len(names) == len(set(names)) == 12
    host = module._cell_config(replace(config, epochs=3), Cell("pmf", "unit", None, 1))
    assert host == module._cell_config(config, Cell("pmf", "unit", None, 1))


def test_the_table_shows_every_cell_with_its_interval(features: FeatureSet) -> None:
    result = run_fewshot(features, SMALL)
    text = fewshot_table(result).text()
    for item in result.cells:
        assert f"{item.mean.mean:.2f} ± {item.mean.half_width:.2f}" in text
    assert "23 tasks, ptmap protocol, seed 0" in text


def test_wrong_configurations_are_explained() -> None:
    for changes, match in (
        ({"hosts": ("simpleshot",)}, "'hosts'"),
        ({"transforms": ("bqa",)}, "'transforms'"),
        ({"protocol": "even"}, "'protocol'"),
        ({"shots": ()}, "at least one shot"),
        ({"regs": ()}, "'regs'"),
        ({"dtype": "float16"}, "'dtype'"),
    ):
        with pytest.raises(ArgumentError, match=match):
            FewShotConfig(**changes)


# ---------------------------------------------------------------------- the commands


def run_cli(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    from bpa.cli.main import main

    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def test_bpa_fewshot_prints_what_the_library_finds(
    features: FeatureSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_features(tmp_path / "toy.npz", features)
    words = ["--host", "protonet", "ptmap", "--transform", "bpa", "--reg", "0.1", "0.3", "--shot", "1", "2",
             "--query", "6", "--tasks", "12", "--out", str(tmp_path / "runs")]  # fmt: skip
    code, out, err = run_cli(capsys, "fewshot", str(tmp_path / "toy.npz"), *words)
    assert (code, err) == (0, "")
    config = FewShotConfig(hosts=("protonet", "ptmap"), regs=(0.1, 0.3), shots=(1, 2), n_query=6, n_tasks=12)
    for item in run_fewshot(features, config).cells:
        assert f"{item.mean.mean:.2f} ± {item.mean.half_width:.2f}" in out
    before = (tmp_path / "runs/results.jsonl").read_bytes()
    code, again, _ = run_cli(capsys, "fewshot", str(tmp_path / "toy.npz"), *words, "--json")
    assert code == 0
    assert len(json.loads(again)["records"]) == 20
    assert (tmp_path / "runs/results.jsonl").read_bytes() == before


def test_bpa_fewshot_explains_in_one_sentence(
    features: FeatureSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_features(tmp_path / "bare.npz", replace(features, labels=None))
    write_features(tmp_path / "toy.npz", features)
    for name, words, match in (
        ("bare.npz", (), "--labels"),
        ("toy.npz", ("--way", "9"), "has 8"),
        ("toy.npz", ("--shot", "40"), "Class '0'"),
        ("toy.npz", ("--host", "simpleshot"), "protonet"),
        ("none.npz", (), "does not exist"),
    ):
        code, out, err = run_cli(capsys, "fewshot", str(tmp_path / name), *words)
        assert (code, out) == (2, "")
        assert match in err
        assert err.count("\n") == 1


def test_bpa_convert_makes_a_safe_file_with_the_same_tasks(
    features: FeatureSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], rng: np.random.Generator
) -> None:
    import collections
    import os
    import pickle

    groups: Any = collections.defaultdict(list)
    for row in rng.permutation(240):
        groups[int(features.labels[row])].append(features.features[row])
    (tmp_path / "output.plk").write_bytes(pickle.dumps(groups))
    code, out, err = run_cli(capsys, "convert", str(tmp_path / "output.plk"), str(tmp_path / "x.npz"))
    assert (code, err) == (0, "")
    assert "rows: 240" in out
    from bpa.data.features import read_features

    old, new = read_features(tmp_path / "output.plk"), read_features(tmp_path / "x.npz")
    np.testing.assert_array_equal(draw_tasks(old, n_tasks=9).rows, draw_tasks(new, n_tasks=9).rows)
    np.testing.assert_array_equal(old.features, new.features)
    assert run_cli(capsys, "convert", str(tmp_path / "output.plk"), str(tmp_path / "x.npz"))[0] == 2
    evil = tmp_path / "evil.plk"
    evil.write_bytes(
        b"c" + os.mkdir.__module__.encode() + b"\nmkdir\n(S'" + str(tmp_path / "made").encode() + b"'\ntR."
    )
    code, _, err = run_cli(capsys, "convert", str(evil), str(tmp_path / "y.npz"))
    assert code == 2
    assert "mkdir" in err
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "y.npz").exists()


_WATCHED = """
import sys, threading, time
import numpy as np, torch
from bpa.runs.fewshot import FewShotConfig, run_fewshot
from bpa.records import Episode, FeatureSet
torch.set_num_threads(1)
rng = np.random.default_rng(0)
features = FeatureSet(rng.random((600, 1280), dtype=np.float32), labels=np.repeat(np.arange(10), 60))
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def run(n_tasks):
    config = FewShotConfig(hosts=("ptmap",), transforms=("bpa-attn",), n_tasks=n_tasks, baselines=False)
    run_fewshot(features, config, budget=150_000_000)
run(2)
start, peak, stop = rss(), [0], threading.Event()
def watch():
    while not stop.is_set():
        peak[0] = max(peak[0], rss())
        time.sleep(0.001)
thread = threading.Thread(target=watch)
thread.start()
run(200)
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
    config = FewShotConfig(hosts=("protonet", "ptmap"), transforms=("bpa",), n_tasks=150)
    result = run_fewshot(drawn(rng, 0.33), config)
    for host in config.hosts:
        gain = result.find(host, "bpa", 1, 0.1).gain
        assert gain is not None
        assert gain.low > 1.0, (host, gain)


def test_the_transform_does_not_help_near_chance(rng: np.random.Generator) -> None:
    result = run_fewshot(drawn(rng, 0.05), FewShotConfig(hosts=("protonet",), n_tasks=150))
    item = result.find("protonet", "bpa", 1, 0.1)
    assert item.gain is not None
    assert 20 - 2 < item.mean.mean < 26
    assert item.gain.high < 1.0
