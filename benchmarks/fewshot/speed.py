"""Time of 10,000 few-shot tasks: ours, and the published procedure transcribed, in one run.

    python benchmarks/fewshot/speed.py --features cifar10_efflite0.npz     # two threads, 5-way 1-shot 15-query, 640-d
    python benchmarks/fewshot/speed.py --difficulty 0.25                   # drawn features

The published procedure is written here from its description, as its scripts run it: all tasks in one tensor, a QR
decomposition a task, distances by broadcasting, the transport scaled in place until the slowest task of the batch is
within the tolerance or 1000 sweeps are done, 22 transports. It runs on fewer tasks and is scaled linearly, in its
favour: the slowest of 10,000 tasks is slower than the slowest of a few hundred. Measurements alternate, ours and
theirs, and the ratio is of the medians. Wall time and processor time are both kept: on a shared machine the second is
the one to compare.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bpa.data.episodes import draw_tasks
from bpa.data.features import read_features
from bpa.records import FeatureSet
from bpa.runs import run
from bpa.runs.environment import describe_environment
from bpa.runs.fields.fewshot import FewShot, FewShotTask, fewshot_ways
from bpa.runs.store import write_atomically
from bpa.transforms.names import NamedTransform

RESULTS = Path(__file__).resolve().parents[1] / "results" / "fewshot"


def features(difficulty: float) -> FeatureSet:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 600)
    x = rng.normal(size=(20, 640))[labels] * difficulty + rng.normal(size=(12_000, 640))
    return FeatureSet(np.maximum(x, 0).astype(np.float32), labels=labels, source="drawn")


# ---------------------------------------------------------------------- the published procedure


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=2, keepdim=True)


def centred(x: Tensor, n_support: int) -> Tensor:
    x = x.clone()
    x[:, :n_support] = x[:, :n_support] - x[:, :n_support].mean(1, keepdim=True)
    x[:, :n_support] = x[:, :n_support] / x[:, :n_support].norm(dim=2, keepdim=True)
    x[:, n_support:] = x[:, n_support:] - x[:, n_support:].mean(1, keepdim=True)
    x[:, n_support:] = x[:, n_support:] / x[:, n_support:].norm(dim=2, keepdim=True)
    return x


def published_bpa(x: Tensor, reg: float, sweeps: int = 10) -> Tensor:
    """Log-domain sweeps for the batch, stopped on a batch mean, as the batched path does."""
    b, n, _ = x.shape
    z = torch.nn.functional.normalize(x, dim=-1)
    cost = 1.0 - z @ z.transpose(1, 2)
    eye = torch.eye(n).repeat(b, 1, 1).bool()
    cost[eye] = 1e5
    mu = torch.full((b, n), 1.0 / n)
    u, v = torch.zeros(b, n), torch.zeros(b, n)

    def modified() -> Tensor:
        return (-cost + u.unsqueeze(-1) + v.unsqueeze(-2)) / reg

    for _ in range(sweeps):
        before = u
        u = reg * (torch.log(mu + 1e-8) - torch.logsumexp(modified(), dim=-1)) + u
        v = reg * (torch.log(mu + 1e-8) - torch.logsumexp(modified().transpose(-2, -1), dim=-1)) + v
        if (u - before).abs().sum(-1).mean().item() < 0.1:
            break
    w = torch.exp(modified())
    w = w / w.amax(dim=(1, 2), keepdim=True)
    w[eye] = 1.0
    return w


def published_transport(cost: Tensor, per_class: int, tol: float) -> tuple[Tensor, int]:
    b, n, k = cost.shape
    plan = torch.exp(-10.0 * cost)
    plan /= plan.view(b, -1).sum(1)[:, None, None]
    rows, columns = torch.ones(b, n), torch.full((b, k), float(per_class))
    sums = torch.zeros(b, n)
    done = 0
    while torch.max(torch.abs(sums - plan.sum(2))) > tol:
        sums = plan.sum(2)
        plan *= (rows / sums).view(b, -1, 1)
        plan *= (columns / plan.sum(1)).view(b, 1, -1)
        done += 1
        if done == 1000:
            break
    return plan, done


def published_ptmap(
    x: Tensor, *, n_way: int, n_shot: int, n_query: int, bpa: bool, again: bool, tol: float
) -> tuple[Tensor, int]:
    """Rows shot-major, support first; accuracy-relevant output: the query plan."""
    n_support = n_way * n_shot
    x = torch.pow(x + 1e-6, 0.5)
    x = torch.linalg.qr(x.permute(0, 2, 1), "reduced").R.permute(0, 2, 1)
    x = centred(unit(x), n_support)
    if bpa:
        x = published_bpa(x, 0.2)
        if again:
            x = centred(unit(x), n_support)
    labels = torch.arange(n_way).repeat(n_shot)
    mu = x[:, :n_support].reshape(len(x), n_shot, n_way, -1).mean(1)
    onehot = torch.zeros(len(x), n_support, n_way).scatter_(
        2, labels.view(1, -1, 1).expand(len(x), -1, -1), 1.0
    )
    sweeps = 0

    def assigned() -> Tensor:
        nonlocal sweeps
        cost = (x.unsqueeze(2) - mu.unsqueeze(1)).norm(dim=3).pow(2)
        plan = torch.zeros_like(cost)
        plan[:, n_support:], count = published_transport(cost[:, n_support:].clone(), n_query, tol)
        plan[:, :n_support] = onehot
        sweeps += count
        return plan

    plan = assigned()
    for _ in range(20):
        plan = assigned()
        mean = plan.permute(0, 2, 1).matmul(x) / plan.sum(1).unsqueeze(2)
        mu = mu + 0.2 * (mean - mu)
    plan = assigned()
    return plan[:, n_support:], sweeps


# ---------------------------------------------------------------------- the measurement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--published-tasks", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--features", type=Path, help="the first 640 columns of this file; drawn features without it"
    )
    parser.add_argument("--difficulty", type=float, default=0.25)
    parser.add_argument("--name", default="speed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.features is None:
        data, what = features(given.difficulty), f"drawn, 20 classes of 600, difficulty {given.difficulty}"
    else:
        whole = read_features(given.features)
        data = replace(whole, features=np.ascontiguousarray(whole.features[:, :640]))
        what = f"first 640 columns of {given.features.name}"
    x = torch.from_numpy(data.features)
    tasks = draw_tasks(data, n_tasks=given.published_tasks)
    batch = x[torch.from_numpy(tasks.rows)]
    truth = torch.from_numpy(tasks.query_labels)
    published: dict[str, Callable[[], tuple[Tensor, int]]] = {
        "published PT-MAP": lambda: published_ptmap(
            batch, n_way=5, n_shot=1, n_query=15, bpa=False, again=False, tol=1e-6
        ),
        "published PT-MAP + BPA (evaluation script)": lambda: published_ptmap(
            batch, n_way=5, n_shot=1, n_query=15, bpa=True, again=True, tol=1e-6
        ),
        "published PT-MAP + BPA (paper's algorithm)": lambda: published_ptmap(
            batch, n_way=5, n_shot=1, n_query=15, bpa=True, again=False, tol=1e-6
        ),
    }

    def one_by_one() -> tuple[Tensor, int]:
        """The trainable form of the reference loops over tasks; here over the first 40."""
        plans, sweeps = zip(
            *(
                published_ptmap(
                    batch[i : i + 1], n_way=5, n_shot=1, n_query=15, bpa=True, again=False, tol=1e-6
                )
                for i in range(40)
            ),
            strict=True,
        )
        return torch.cat(plans), sum(sweeps)

    published["published PT-MAP + BPA (one task at a time)"] = one_by_one
    field, task = FewShot(data), FewShotTask(n_tasks=given.tasks)
    raw, bpa = NamedTransform("identity"), NamedTransform("bpa", reg=0.2)
    ours = {
        "PT-MAP": fewshot_ways(("ptmap",), [raw]),
        "PT-MAP + BPA": fewshot_ways(("ptmap",), [bpa]),
        "ProtoNet + BPA": fewshot_ways(("protonet",), [NamedTransform("bpa")]),
    }
    wall: dict[str, list[float]] = {name: [] for name in (*published, *ours)}
    processor: dict[str, list[float]] = {name: [] for name in (*published, *ours)}
    notes: dict[str, object] = {}

    def timed(name: str, work: Callable[[], object], scale: float) -> object:
        began, spent = time.perf_counter(), time.process_time()
        result = work()
        wall[name].append((time.perf_counter() - began) * scale)
        processor[name].append((time.process_time() - spent) * scale)
        return result

    for _ in range(given.repeats):
        for name, work in published.items():
            n_tasks = 40 if name.endswith("at a time)") else given.published_tasks
            plan, sweeps = timed(name, work, given.tasks / n_tasks)
            accuracy = float((plan.argmax(2) == truth[: len(plan)]).double().mean())
            notes[name] = {
                "tasks run": len(plan),
                "sweeps over all transports": sweeps,
                "accuracy": round(100 * accuracy, 2),
            }
        for name, ways in ours.items():
            (record,) = timed(name, lambda ways=ways: run("speed", field, [(task, ways)]), 1.0)
            notes[name] = {"tasks run": given.tasks, "accuracy": round(record.summary["accuracy"], 2)}

    def ratios(measured: dict[str, list[float]]) -> dict[str, float]:
        median = {name: statistics.median(values) for name, values in measured.items()}
        against = {name: "PT-MAP" if name == "published PT-MAP" else "PT-MAP + BPA" for name in published}
        return {name: round(median[name] / median[against[name]], 1) for name in published}

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    out = {
        "features": what,
        "tasks": given.tasks,
        "way": 5,
        "shot": 1,
        "query": 15,
        "threads": given.threads,
        "wall seconds for all tasks": {name: [round(v, 2) for v in values] for name, values in wall.items()},
        "processor seconds for all tasks": {
            k: [round(v, 2) for v in values] for k, values in processor.items()
        },
        "published / ours, wall": ratios(wall),
        "published / ours, processor": ratios(processor),
        "notes": notes,
        "peak bytes of the process, published procedure included": peak,
        "environment": describe_environment(),
    }
    write_atomically(given.out / f"{given.name}.json", json.dumps(out, indent=1) + "\n")
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
