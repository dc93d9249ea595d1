"""What a run ran on: versions and machine, and nothing that changes between two runs on it."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bpa

_OPTIONAL = ("scikit-learn", "scipy", "pyarrow", "safetensors", "faiss-cpu")


def describe_environment() -> dict[str, Any]:
    """Return versions, commit, processor and devices, as a run's record keeps them.

    Returns
    -------
    dict
        ``bpa``, ``commit`` (of a source checkout, else None), ``python``, ``platform``, ``processor``,
        ``cpus``, ``threads``, ``torch``, ``numpy``, ``devices``, and ``packages`` (the optional ones that
        are installed). No clock, no host name, no path: two calls on one machine give equal results.

    Examples
    --------
    >>> describe_environment() == describe_environment()
    True
    """
    packages = {}
    for name in _OPTIONAL:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return {
        "bpa": bpa.__version__,
        "commit": _commit(Path(__file__).resolve().parents[3]),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "devices": devices,
        "packages": packages,
    }


def _commit(root: Path) -> str | None:
    """Return the commit a source checkout stands at, read from its files; None outside one."""
    git = root / ".git"
    try:
        if not (root / "pyproject.toml").is_file():
            return None
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head[5:]
        if (git / name).is_file():
            return (git / name).read_text().strip()
        for line in (git / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split()[0]
    except OSError:
        return None
    return None


def _processor() -> str:
    """Return the processor's own name where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
