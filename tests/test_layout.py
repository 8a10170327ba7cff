"""The laws of the layout: who may import whom, and how long functions, files and lines may be."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGES = (
    "models", "natural", "learning", "data", "experiment", "analysis", "geometry", "programs",
)  # fmt: skip
BASE = ("nws.allocator", "nws.errors", "nws.files", "nws.schedules", "nws.style")
TOGETHER = "nws.distributed"  # what all packages may import beside the base; it imports torch
# What the modules of a package may import: packages of nws, and libraries outside the standard one.
CORE: dict[str, tuple[set[str], set[str]]] = {
    "models": (set(), {"torch"}),
    "natural": (set(), {"torch"}),
    "learning": ({"models", "natural"}, {"torch"}),
    "geometry": ({"models"}, {"torch", "numpy", "scipy"}),
}
# What a package never imports, at any distance.
NEVER = {
    "models": {"natural", "learning", "data", "experiment", "analysis", "geometry", "programs"},
    "natural": {"models", "learning", "data", "experiment", "analysis", "geometry", "programs"},
    "learning": {"data", "experiment", "analysis", "geometry", "programs"},
    "data": {"models", "natural", "learning", "experiment", "analysis", "geometry", "programs"},
    "experiment": {"analysis", "geometry", "programs"},
    "analysis": {"geometry", "programs"},
    "geometry": {"natural", "learning", "data", "experiment", "analysis", "programs"},
}
# The packages of nws.experiment: each imports itself and those before it alone.
EXPERIMENT = ("process", "options", "storage", "training", "trained", "launch")
NAMED = {"averaging", "wandb_logger", "tensorboard_logger"}  # of training, named by saved runs

MAX_FUNCTION = 40  # lines, without the docstring
MAX_BRANCHES = 10
MAX_FILE = 350
MAX_TRAIN = 120  # lines of nws/programs/train.py
MAX_COLUMNS = 100
MAX_CG = 45  # lines of the pure function cg, with its docstring


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted((ROOT / "nws").rglob("*.py"))}


def package(module: str) -> str:
    """The package of a module: models for nws.models.units, "" for a module outside of them."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in PACKAGES else ""


def modules_of(name: str) -> list[str]:
    return [module for module in FILES if package(module) == name]


def imported(source: str, module: str, is_package: bool = False) -> set[str]:
    """Every module that a source imports, at any place in it.

    Of nws these are the modules themselves, without the names in them.
    """
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
    """Modules of nws that a module imports at any distance, and their packages without the root."""
    seen: set[str] = set()
    waiting = {module}
    while waiting:
        current = waiting.pop()
        seen.add(current)
        found = {name for name in imports(current) if name in FILES}
        parents = {name.rsplit(".", 1)[0] for name in found if name.count(".") > 1}
        waiting |= (found | parents) - seen - {"nws"}
    return seen


# --- who imports whom -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASE)
def test_the_base_stands_on_the_standard_library(name: str) -> None:
    outside = {each for each in imports(name) if each.split(".")[0] not in sys.stdlib_module_names}
    assert outside <= set(BASE)


def test_processes_stand_on_torch_and_the_base() -> None:
    outside = {each for each in imports(TOGETHER) if each not in BASE}
    tops = {each.split(".")[0] for each in outside} - set(sys.stdlib_module_names)
    assert tops == {"torch"}


@pytest.mark.parametrize("name", CORE)
def test_the_core_and_the_geometry_import_little(name: str) -> None:
    packages, libraries = CORE[name]
    modules = modules_of(name)
    assert len(modules) > 3
    for module in modules:
        for each in imports(module):
            top = each.split(".")[0]
            if top == "nws":
                allowed = each in (*BASE, TOGETHER) or package(each) in packages | {name}
            else:
                allowed = top in sys.stdlib_module_names or top in libraries
            assert allowed, f"{module} imports {each}"


@pytest.mark.parametrize("name", NEVER)
def test_no_package_imports_what_stands_above_it_at_any_distance(name: str) -> None:
    for module in modules_of(name):
        for each in everything_behind(module):
            assert package(each) not in NEVER[name], f"{module} comes to {each}"


def part_of_experiment(module: str) -> str | None:
    """The package of nws.experiment that a module belongs to."""
    parts = module.split(".")
    if parts[:2] != ["nws", "experiment"] or len(parts) < 3:
        return None
    return "training" if parts[2] in NAMED else parts[2]


def test_packages_of_experiment_import_those_before_them_alone() -> None:
    for module in modules_of("experiment"):
        place = part_of_experiment(module)
        if place is None:
            continue
        before = EXPERIMENT[: EXPERIMENT.index(place) + 1]
        for each in imports(module):
            assert part_of_experiment(each) in (None, *before), f"{module} imports {each}"


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


# --- how long things are --------------------------------------------------------------------------


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


def count_file(path: Path) -> int:
    return len(path.read_text().splitlines())


def count_branches(function: Function) -> int:
    """The number of branches: if, for, while, except, case, and each `and` and `or`.

    Functions inside the function count on their own.
    """
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


def measured() -> dict[str, list[Path]]:
    """The files whose sizes count, by the part of the project that they belong to."""
    parts = {name: [FILES[module] for module in modules_of(name)] for name in PACKAGES}
    return parts | {
        "base": [FILES[module] for module in modules_of("")],
        "train.py": [ROOT / "train.py"],
        "scripts": sorted((ROOT / "scripts").rglob("*.py")),
        "examples": sorted((ROOT / "examples").rglob("*.py")),
    }


MEASURED = measured()


def test_every_file_is_measured() -> None:
    """The control: each part has files, and each file of nws is in one part."""
    assert all(MEASURED.values())
    listed = [path for paths in MEASURED.values() for path in paths]
    assert len(listed) == len(set(listed)) and set(FILES.values()) < set(listed)
    base = {"__init__", "__main__", *(name[4:] for name in (*BASE, TOGETHER))}
    assert {path.stem for path in MEASURED["base"]} == base


@pytest.mark.parametrize("part", MEASURED)
def test_functions_fit_a_screen(part: str) -> None:
    too_big = {}
    for path in MEASURED[part]:
        for function in functions(ast.parse(path.read_text())):
            sizes = count_lines(function), count_branches(function)
            if sizes[0] > MAX_FUNCTION or sizes[1] > MAX_BRANCHES:
                too_big[f"{path.relative_to(ROOT)}:{function.name}"] = sizes
    assert too_big == {}, "lines and branches"


@pytest.mark.parametrize("part", MEASURED)
def test_files_are_short(part: str) -> None:
    sizes = {str(path.relative_to(ROOT)): count_file(path) for path in MEASURED[part]}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE} == {}


@pytest.mark.parametrize("part", MEASURED)
def test_lines_are_short(part: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in MEASURED[part]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ]
    assert long == []


def test_train_stays_short() -> None:
    assert count_file(FILES["nws.programs.train"]) <= MAX_TRAIN


def test_cg_stays_short_with_its_docstring() -> None:
    tree = ast.parse(FILES["nws.natural.solvers.cg"].read_text())
    (cg,) = (each for each in functions(tree) if each.name == "cg")
    assert cg.end_lineno is not None and cg.end_lineno - cg.lineno + 1 <= MAX_CG
