"""Who may look at whom: the table of the house, read off the syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bpa

SOURCE = Path(bpa.__file__).resolve().parent

FOUNDATION = ("errors", "_extras", "_blocks", "_checks", "_words", "records", "memory")
"""What every room may look at; each file of it sees the ones before."""

ROOMS: dict[str, tuple[str, ...]] = {
    "cost": (),
    "solvers": (),
    "metrics": (),
    "data": (),
    "kernels": ("cost", "solvers"),
    "transforms": ("cost", "solvers", "kernels"),
    "plans": ("cost", "solvers", "kernels", "transforms"),
    "diagnostics": ("cost", "solvers", "kernels", "metrics", "transforms"),
    "estimators": ("cost", "solvers", "kernels", "transforms", "plans"),
    "hosts": ("cost", "solvers", "plans", "transforms.contract"),
    "runs": (
        "cost", "solvers", "metrics", "data", "kernels", "transforms", "plans", "diagnostics", "estimators", "hosts",
    ),
    "paper": ("metrics.intervals", "runs.way"),
    "report": ("metrics.intervals", "runs.way", "paper"),
    "cli": ("solvers", "transforms", "data", "runs", "paper", "report"),
}  # fmt: skip
"""Room → what it may look at besides the foundation and itself; each sees only rooms above it."""


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


def may_look_at(room: str) -> set[str]:
    """What a file of this room may import, as dotted prefixes below ``bpa``."""
    if room in FOUNDATION:
        return {room, *FOUNDATION[: FOUNDATION.index(room)]}
    return {room, *FOUNDATION, *ROOMS[room]}


def is_within(target: tuple[str, ...], allowed: set[str]) -> bool:
    return any(".".join(target[: k + 1]) in allowed for k in range(len(target)))


@pytest.mark.parametrize("path", modules(), ids=lambda path: "/".join(dotted(path)) or "bpa")
def test_a_room_imports_only_what_the_table_lets_it_see(path: Path) -> None:
    here = dotted(path)
    allowed = may_look_at(here[0]) if here else {*FOUNDATION, "transforms", "diagnostics"}
    strangers = {".".join(target) for target in imported(path) if target and not is_within(target, allowed)}
    assert not strangers, f"{path.relative_to(SOURCE)} may not import {sorted(strangers)}"


def test_the_table_is_one_order_without_exceptions() -> None:
    above: list[str] = []
    for room, sees in ROOMS.items():
        assert {name.split(".")[0] for name in sees} <= set(above), f"{room} sees a room below it"
        above.append(room)


def test_every_room_of_the_house_is_in_the_table() -> None:
    rooms = {dotted(path)[0] for path in modules() if dotted(path)}
    assert rooms == set(ROOMS) | set(FOUNDATION)


def test_hosts_of_one_field_do_not_import_another_field() -> None:
    for path in (SOURCE / "hosts").rglob("*.py"):
        parts = dotted(path)
        for target in imported(path):
            if target[:1] == ("hosts",) and len(target) > 1 and len(parts) > 1:
                assert target[1] == parts[1], f"{path} imports {'.'.join(target)}"


def test_nothing_imports_the_command_line() -> None:
    for path in modules():
        if dotted(path)[:1] != ("cli",):
            assert all(target[:1] != ("cli",) for target in imported(path)), path


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
