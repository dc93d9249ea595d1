"""Time and memory of the transform and its peers, interleaved in one run.

    python benchmarks/speed/run.py --out benchmarks/results/speed/cpu.json
    python benchmarks/speed/run.py --cases 4000x640 --methods "Gram product (floor)" bpa --memory
    python benchmarks/speed/run.py --reference ~/src/BPA      # add the published code from your own checkout

Times are processor seconds of the whole process on ``--threads`` threads (wall seconds are kept beside them); in every
round each method runs once, in a shuffled order, so that a machine that slows down slows all of them down. ``--memory``
measures the peak resident memory beyond the input of one call, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from methods import CASES, Case, Method, all_methods
from schema import validate

warnings.filterwarnings("ignore")
FLOOR = "Gram product (floor)"


def make_call(method: Method, x: Any, backward: bool) -> Any:
    """A function of no arguments that does the work once and returns its result."""
    import torch

    data = method.prepare(x)
    if not backward:

        def forward() -> Any:
            with torch.no_grad():
                return method.forward(data)

        return forward
    shape = (*x.shape[:-1], x.shape[-2])
    grad = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    if hasattr(method.forward, "backward"):
        other = method.prepare(grad)
        return lambda: method.forward.backward(data, other)
    leaf = data.clone().requires_grad_(True)

    def both() -> Any:
        leaf.grad = None
        method.forward(leaf).backward(grad)
        return leaf.grad

    return both


def applies(method: Method, case: Case, backward: bool) -> bool:
    if case.n > method.largest_n or (backward and not (method.differentiable and case.backward)):
        return False
    return not (method.single_set_only and case.batch) and not (method.batch_only and not case.batch)


def time_case(
    case: Case, methods: list[Method], backward: bool, rounds: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    import numpy as np
    import torch

    x = case.features()
    calls, failed, gap = {}, {}, {}
    expected = None
    for method in methods:
        if not applies(method, case, backward):
            continue
        try:
            call = make_call(method, x, backward)
            begin = time.perf_counter()
            result = call()
            if time.perf_counter() - begin < 2:
                call()
        except Exception as error:  # a peer that cannot do this size is a result too
            failed[method.name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        calls[method.name] = call
        if method.name == "bpa":
            expected = result
        if method.exact and expected is not None:
            difference = np.abs(np.asarray(result) - np.asarray(expected)).max()
            gap[method.name] = float(difference / np.abs(np.asarray(expected)).max())
        del result
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    wall: dict[str, list[float]] = {name: [] for name in calls}
    shuffle = random.Random(0)  # noqa: S311 - the order of a benchmark is no secret
    for _ in range(rounds):
        order = list(calls)
        shuffle.shuffle(order)
        for name in order:
            cpu, begin = time.process_time(), time.perf_counter()
            result = calls[name]()
            wall[name].append(time.perf_counter() - begin)
            seconds[name].append(time.process_time() - cpu)
            del result
    del expected, torch
    rows = []
    for name in calls:
        floor = statistics.median(a / b for a, b in zip(seconds[name], seconds[FLOOR], strict=True))
        rows.append(
            {
                "case": case.name,
                "pass": "forward+backward" if backward else "forward",
                "method": name,
                "seconds": seconds[name],
                "wall_seconds": wall[name],
                "median": statistics.median(seconds[name]),
                "over_floor": floor,
                "relative_difference": gap.get(name),
                "peak_bytes": None,
            }
        )
    return rows, {f"{case.name} {name}": why for name, why in failed.items()}


def current_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


def peak_child(case: Case, name: str, backward: bool) -> None:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    method = next(m for m in all_methods()[0] if m.name == name)
    small = Case("warm", case.batch and 2, min(case.n, 64), case.d, 1)
    make_call(method, small.features(), backward)()
    call = make_call(method, case.features(), backward)
    before = current_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    call()
    peak = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    print(int(peak.split()[1]) * 1024 - before)


def machine() -> dict[str, Any]:
    import torch

    model = "unknown"
    flags = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
        if line.startswith("flags"):
            flags = line
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "avx512": "avx512f" in flags,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "huge_pages": Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip(),
        "load_before": os.getloadavg()[0],
    }


TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**28)}
"""glibc never gives memory back nor maps fresh pages: the page faults of new buffers are paid once."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--passes", nargs="+", default=["forward", "forward+backward"])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--tuned-malloc", action="store_true", help="restart under an allocator that keeps its pages"
    )
    parser.add_argument("--memory", action="store_true", help="measure peak memory too")
    parser.add_argument("--no-time", action="store_true")
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peak-child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tuned_malloc and "MALLOC_MMAP_MAX_" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | TUNED)  # noqa: S606 - itself
    if options.peak_child:
        case, name, which = options.peak_child
        peak_child(CASES[case], name, which == "forward+backward")
        return
    import torch

    torch.set_num_threads(options.threads)
    methods, missing = all_methods(options.reference)
    if options.methods:
        methods = [m for m in methods if m.name in {*options.methods, FLOOR}]
    result: dict[str, Any] = {
        "format": "bpa-speed/1",
        "machine": machine(),
        "allocator": "glibc, tuned to keep pages" if options.tuned_malloc else "glibc, default",
        "clock": "processor seconds of the process",
        "missing": missing,
        "failed": {},
        "rows": [],
    }
    for name in options.cases:
        case = CASES[name]
        for which in options.passes:
            backward = which == "forward+backward"
            if backward and not case.backward:
                continue
            if options.no_time:
                rows = [
                    {"case": name, "pass": which, "method": m.name, "seconds": [], "wall_seconds": [], "median": None,
                     "over_floor": None, "relative_difference": None, "peak_bytes": None}
                    for m in methods if applies(m, case, backward)
                ]  # fmt: skip
            else:
                rows, failed = time_case(case, methods, backward, options.rounds or case.rounds)
                result["failed"] |= failed
            for row in rows:
                if options.memory:
                    command = [sys.executable, __file__, "--peak-child", name, row["method"], which]
                    done = subprocess.run(
                        command,
                        capture_output=True,
                        text=True,
                        env=os.environ | {"OMP_NUM_THREADS": str(options.threads)},
                    )
                    row["peak_bytes"] = int(done.stdout) if done.returncode == 0 else None
                shown = (
                    ""
                    if row["median"] is None
                    else f"{row['median'] * 1e3:10.1f} ms {row['over_floor']:6.2f} x"
                )
                peak = "" if row["peak_bytes"] is None else f" {row['peak_bytes'] / 2**20:9.1f} MiB"
                gap = "" if row["relative_difference"] is None else f"  diff {row['relative_difference']:.1e}"
                print(f"{name:12} {which:17} {row['method']:34} {shown}{peak}{gap}", flush=True)
            result["rows"] += rows
            if options.out is not None:
                validate(result)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
