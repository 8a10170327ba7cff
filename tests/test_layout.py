"""The laws of the layout: who may import whom, and how long functions, files and lines may be."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGES = ("models", "natural", "learning", "data", "experiment", "analysis")
BASE = ("nws.errors", "nws.files", "nws.schedules")
# What the modules of a package may import: packages of nws, and others beside the standard library.
CORE: dict[str, tuple[set[str], set[str]]] = {
    "models": (set(), {"torch"}),
    "natural": (set(), {"torch"}),
    "learning": ({"models", "natural"}, {"torch"}),
}
# What a package never imports, at any distance.
NEVER = {
    "models": {"natural", "learning", "data", "experiment", "analysis"},
    "natural": {"models", "learning", "data", "experiment", "analysis"},
    "learning": {"data", "experiment", "analysis"},
    "data": {"models", "natural", "learning", "experiment", "analysis"},
    "experiment": {"analysis"},
}
MEASURED = ("models", "natural", "learning")  # packages whose sizes are looked at

MAX_FUNCTION = 40  # lines, docstring aside
MAX_BRANCHES = 10
MAX_FILE = 350
MAX_COLUMNS = 100
MAX_CG = 45  # lines of the pure function cg, with its docstring


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted((ROOT / "nws").rglob("*.py"))}


def package(module: str) -> str:
    """models of nws.models.units; "" of the modules beside the packages."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in PACKAGES else ""


def modules_of(name: str) -> list[str]:
    return [module for module in FILES if package(module) == name]


def imported(source: str, module: str, is_package: bool = False) -> set[str]:
    """Every module that a source imports, wherever the import stands; of nws the module itself, not names in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = node.module or ""
            if node.level:
                up = module.split(".")
                kept = up[: len(up) - node.level + is_package]
                parent = ".".join([*kept, parent] if parent else kept)
            parts = {f"{parent}.{alias.name}" for alias in node.names}
            names |= {part if part in FILES else parent for part in parts}
    return names


def imports(module: str) -> set[str]:
    path = FILES[module]
    return imported(path.read_text(), module, path.name == "__init__.py")


def everything_behind(module: str) -> set[str]:
    """Modules of nws that a module imports at any distance, and the packages that hold them (the root aside)."""
    seen: set[str] = set()
    waiting = {module}
    while waiting:
        current = waiting.pop()
        seen.add(current)
        found = {name for name in imports(current) if name in FILES}
        parents = {name.rsplit(".", 1)[0] for name in found if name.count(".") > 1}
        waiting |= (found | parents) - seen - {"nws"}
    return seen


# --- who imports whom -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASE)
def test_the_base_stands_on_the_standard_library(name: str) -> None:
    outside = {each for each in imports(name) if each.split(".")[0] not in sys.stdlib_module_names}
    assert outside <= set(BASE)


@pytest.mark.parametrize("name", CORE)
def test_the_core_imports_torch_and_the_base_alone(name: str) -> None:
    packages, libraries = CORE[name]
    modules = modules_of(name)
    assert len(modules) > 3
    for module in modules:
        for each in imports(module):
            top = each.split(".")[0]
            if top == "nws":
                allowed = each in BASE or package(each) in packages | {name}
            else:
                allowed = top in sys.stdlib_module_names or top in libraries
            assert allowed, f"{module} imports {each}"


@pytest.mark.parametrize("name", NEVER)
def test_no_package_imports_what_stands_above_it_at_any_distance(name: str) -> None:
    for module in modules_of(name):
        for each in everything_behind(module):
            assert package(each) not in NEVER[name], f"{module} comes to {each}"


def test_learning_is_where_models_and_natural_meet() -> None:
    """The control: the search over distances finds what is there."""
    behind = {package(each) for each in everything_behind("nws.learning.step")}
    assert {"models", "natural", "learning"} <= behind


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import nws.models.units", {"nws.models.units"}),
        ("from nws.models import units", {"nws.models.units"}),
        ("from nws.models import Units", {"nws.models"}),
        ("from nws.models.units import Units as U", {"nws.models.units"}),
        ("def f():\n    from nws.learning import rules", {"nws.learning.rules"}),
        ("if TYPE_CHECKING:\n    import nws.learning as l", {"nws.learning"}),
        ("from . import units", {"nws.models.units"}),
        ("from .units import Units", {"nws.models.units"}),
        ("from ..natural import operators", {"nws.natural.operators"}),
        ("from ..natural.damping import Damping", {"nws.natural.damping"}),
        ("import torch.nn as nn, math", {"torch.nn", "math"}),
    ],
)
def test_every_way_to_import_is_seen(source: str, expected: set[str]) -> None:
    assert imported(source, "nws.models.sampling") == expected


# --- how long things are --------------------------------------------------------------------------------------------


Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.comprehension,
    ast.match_case,
)


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def count_lines(function: Function) -> int:
    """From `def` to the end, without the docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def count_branches(function: Function) -> int:
    """Ways to part: if, for, while, except, case, each `and` and `or`; functions inside count for themselves."""
    count, waiting = 0, list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function):
            continue
        count += isinstance(node, BRANCHES)
        count += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        waiting += ast.iter_child_nodes(node)
    return count


def test_the_counts_count() -> None:
    source = '''
def f(a, b):
    """One.

    Two.
    """
    if a and b or a:
        return [c for c in a if c]
    for d in b:
        a = d if a else b

    def g():
        while True:
            pass
    return g
'''
    f, g = functions(ast.parse(source))
    assert (count_lines(f), count_branches(f)) == (10, 6)  # if and or, for twice, if-else
    assert (count_lines(g), count_branches(g)) == (3, 1)


@pytest.mark.parametrize("name", MEASURED)
def test_functions_fit_a_screen(name: str) -> None:
    for module in modules_of(name):
        for function in functions(ast.parse(FILES[module].read_text())):
            where = f"{module}.{function.name}"
            assert count_lines(function) <= MAX_FUNCTION, where
            assert count_branches(function) <= MAX_BRANCHES, where


@pytest.mark.parametrize("name", MEASURED)
def test_files_and_lines_are_short(name: str) -> None:
    for module in modules_of(name):
        lines = FILES[module].read_text().splitlines()
        assert len(lines) <= MAX_FILE, module
        for number, line in enumerate(lines, 1):
            assert len(line) <= MAX_COLUMNS, f"{module}:{number}"


def test_cg_stays_short_with_its_docstring() -> None:
    tree = ast.parse(FILES["nws.natural.solvers.cg"].read_text())
    (cg,) = (each for each in functions(tree) if each.name == "cg")
    assert cg.end_lineno is not None and cg.end_lineno - cg.lineno + 1 <= MAX_CG
