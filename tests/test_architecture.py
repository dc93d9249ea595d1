"""Who may look at whom: the table of the house, read off the syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bpa

SOURCE = Path(bpa.__file__).resolve().parent
FOUNDATION = {"_errors", "_checks", "_typing", "records", "memory"}
CORE = FOUNDATION | {"cost", "solvers"}
TRANSFORM = CORE | {
    "_fused",
    "transform",
    "memory",
    "sparse",
    "large",
    "distributed",
    "auto",
    "diagnostics",
    "baselines",
    "metrics",
}

MAY_IMPORT: dict[str, set[str]] = {
    "_errors": set(),
    "_typing": FOUNDATION,
    "_checks": FOUNDATION,
    "records": FOUNDATION,
    "memory": FOUNDATION,
    "cost": FOUNDATION,
    "solvers": FOUNDATION | {"cost"},
    "metrics": FOUNDATION,
    "hosts": CORE,
    "data": FOUNDATION,
    "extract": FOUNDATION,
    "report": FOUNDATION,
    "estimator": TRANSFORM,
    "clusterer": TRANSFORM | {"estimator"},
    "experiments": TRANSFORM
    | {"hosts", "data", "extract", "estimator", "clusterer", "report", "experiments"},
    "cli": TRANSFORM | {"hosts", "data", "extract", "estimator", "clusterer", "report", "experiments", "cli"},
}
"""Room → rooms it may import from. What is not named here belongs to the transform."""

EXCEPTIONS = {"hosts/retrieval/frozen": {"large"}, "hosts/retrieval/ranking": {"large", "sparse"}}
"""These hosts are the lazy transform of a gallery: its rows, compared; they have no baseline without it."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def dotted(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(path: Path) -> set[tuple[str, ...]]:
    """Return the modules of this package that a file imports, wherever in the file."""
    here = dotted(path) if path.name == "__init__.py" else dotted(path)[:-1]
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {tuple(a.name.split(".")[1:]) for a in node.names if a.name.split(".")[0] == "bpa"}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = here[: len(here) - node.level + 1] + tuple((node.module or "").split("."))
            elif (node.module or "").split(".")[0] == "bpa":
                base = tuple((node.module or "").split(".")[1:])
            else:
                continue
            base = tuple(part for part in base if part)
            for alias in node.names:
                as_module = (*base, alias.name)
                is_module = (
                    SOURCE.joinpath(*as_module).is_dir()
                    or SOURCE.joinpath(*as_module).with_suffix(".py").is_file()
                )
                found.add(as_module if is_module else base)
    return found


def rooms_of(path: Path) -> set[str]:
    """Return the rooms a file looks at; what a host asks of a transform is a contract, and part of the
    foundation."""
    return {target[0] for target in imported(path) if target and target[:2] != ("hosts", "_contract")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: "/".join(dotted(path)) or "bpa")
def test_a_room_imports_only_from_rooms_before_it(path: Path) -> None:
    if path == SOURCE / "__init__.py":
        allowed = TRANSFORM
    else:
        room = dotted(path)[0]
        allowed = MAY_IMPORT.get(room, TRANSFORM) | {room} | EXCEPTIONS.get("/".join(dotted(path)), set())
    assert rooms_of(path) <= allowed, f"{path.relative_to(SOURCE)} may not import {rooms_of(path) - allowed}"


def test_every_room_of_the_house_is_in_the_table() -> None:
    rooms = {dotted(path)[0] for path in modules() if dotted(path)}
    assert rooms <= set(MAY_IMPORT) | TRANSFORM


def test_hosts_of_one_field_do_not_import_another_field_nor_the_transform() -> None:
    for path in (SOURCE / "hosts").rglob("*.py"):
        parts = dotted(path)
        for target in imported(path):
            assert target[:1] != ("transform",), path
            if target[:1] == ("hosts",) and len(target) > 1 and len(parts) > 1:
                assert target[1] in (parts[1], "_contract"), f"{path} imports {'.'.join(target)}"


def test_nothing_imports_the_command_line() -> None:
    for path in modules():
        if dotted(path)[:1] != ("cli",):
            assert "cli" not in rooms_of(path), path


def test_reports_read_records_and_import_no_tensors() -> None:
    for path in (SOURCE / "report").rglob("*.py"):
        names = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert "torch" not in names, path


def test_verbs_do_no_arithmetic_on_arrays() -> None:
    for path in (SOURCE / "cli").glob("[a-z]*.py"):
        tree = ast.parse(path.read_text())
        operators = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult | ast.Pow)
        ]
        assert not operators, f"{path.name} computes at line {operators[0].lineno}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: "/".join(dotted(path)) or "bpa")
def test_every_module_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), path
    if tree.body[1:]:
        assert "from __future__ import annotations" in path.read_text(), path
