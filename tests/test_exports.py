"""The front door: the export list, and what an import brings along."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import bpa

PACKAGES = [
    "bpa",
    *(
        f"bpa.{name}"
        for name in (
            "cost",
            "solvers",
            "transforms",
            "data",
            "plans",
            "diagnostics",
            "estimators",
        )
        if importlib.util.find_spec(f"bpa.{name}") is not None
    ),
]
EXTRAS = (
    "sklearn", "scipy", "matplotlib", "jinja2", "cyclopts", "rich", "pyarrow", "safetensors", "PIL", "h5py", "faiss",
    "pandas", "ot",
)  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_every_exported_name_exists_once_and_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert len(exported) == len(set(exported))
    for item in exported:
        assert hasattr(module, item), f"{name}.__all__ names {item}, which does not exist"
        value = getattr(module, item)
        if callable(value):
            assert (value.__doc__ or "").strip(), f"{name}.{item} has no docstring"


def test_the_front_door_exports_what_the_readme_uses() -> None:
    assert {"BPA", "BPAAttention", "balance", "balanced_affinities"} <= set(bpa.__all__)
    public = {name for name in vars(bpa) if not name.startswith("_")}
    modules = {name for name, value in vars(bpa).items() if isinstance(value, type(sys))}
    assert public - modules - {"annotations"} == set(bpa.__all__)


def in_fresh_python(script: str, *flags: str) -> str:
    done = subprocess.run([sys.executable, *flags, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_import_pulls_in_no_extra_and_warns_of_nothing() -> None:
    loaded = json.loads(
        in_fresh_python(
            "import bpa, sys, json; print(json.dumps(list(sys.modules)))", "-W", "error::UserWarning"
        )
    )
    assert "torch" in loaded
    before = set(
        json.loads(in_fresh_python("import torch, numpy, sys, json; print(json.dumps(list(sys.modules)))"))
    )
    assert {name for name in set(loaded) - before if name.split(".")[0] in EXTRAS} == set()


def test_every_core_module_imports_without_the_extras() -> None:
    block = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.split(".")[0])
sys.meta_path.insert(0, Refuse())
import importlib
for name in {core_modules()!r}:
    importlib.import_module(name)
print("all")
"""
    assert in_fresh_python(block) == "all\n"


def core_modules() -> list[str]:
    """Every module but the estimators, the command line and what draws."""
    found = [m.name for m in pkgutil.walk_packages(bpa.__path__, "bpa.")]
    return [name for name in found if name.split(".")[1] not in {"estimators", "cli"}]
