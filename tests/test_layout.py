"""The laws of the layout: who may import whom, how long things may be, and what conf/ says."""

import ast
import graphlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from conftest import CONF, ROOT

from nws.experiment.build import MORE, Settings
from nws.experiment.config import HYDRAS, locate
from nws.learning import RowOptions

OF_DATA = {"torch", "numpy", "PIL", "scipy", "sklearn", "torchvision", "filelock"}
#: What each package may import: packages of nws, and libraries outside the standard one, where
#: these are few. All may import the base; `distributed` stands beside it for those named here.
IMPORTS: dict[str, tuple[set[str], set[str] | None]] = {
    "models": (set(), {"torch"}),
    "natural": (set(), {"torch"}),
    "learning": ({"models", "natural", "distributed"}, {"torch"}),
    "geometry": ({"models", "natural"}, {"torch", "numpy", "scipy"}),
    "data": ({"distributed"}, OF_DATA),
    "distributed": (set(), {"torch"}),
    "experiment": ({"models", "natural", "learning", "data", "distributed"}, None),
    "analysis": ({"models", "learning", "data", "experiment", "distributed"}, None),
    "__main__": ({"programs"}, set()),
    "programs": ({"models", "learning", "data", "experiment", "analysis", "distributed"}, None),
}
BASE = ("allocator", "errors", "files", "schedules", "style")  # on the standard library alone

#: Lines, at most.
PACKAGES = {
    "models": 2_050, "natural": 3_000, "learning": 1_200, "geometry": 800, "data": 950,
    "experiment": 3_800, "analysis": 1_600, "programs": 650, "distributed": 220,
}  # fmt: skip
MAX_NWS, MAX_TESTS = 13_000, 14_000
MAX_FILE, MAX_FUNCTION = 350, 40
MAX_TRAIN = 120  # of nws/programs/train.py


FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "nws").rglob("*.py"))
}
CODE = [*FILES.values(), ROOT / "train.py"]
CODE += [path for name in ("scripts", "examples") for path in sorted((ROOT / name).rglob("*.py"))]


def package(module: str) -> str:
    """The package of a module, or the module's own name: models for nws.models.units."""
    return module.split(".")[1] if "." in module else ""


def imported(source: str, types: bool = True) -> set[str]:
    """Every module that a source imports, at any place in it; for types alone only with `types`."""
    names: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports of nws are absolute"
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {part if part in FILES else str(node.module) for part in parts}
        if types or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            waiting += ast.iter_child_nodes(node)
    return names


# --- who imports whom -----------------------------------------------------------------------------


def test_a_module_imports_what_its_package_may() -> None:
    for module in FILES.keys() - {"nws"}:
        own = package(module)
        within, libraries = IMPORTS.get(own, (set(), set()))
        for each in imported(FILES[module].read_text()):
            top = each.split(".")[0]
            if top == "nws":
                assert package(each) in {"", own, *within, *BASE}, f"{module} imports {each}"
            elif libraries is not None:
                allowed = top in sys.stdlib_module_names or top in libraries
                assert allowed, f"{module} imports {each}"


def test_nothing_imports_in_a_circle() -> None:
    modules = FILES.keys() - {"nws"}
    seen = {each: imported(FILES[each].read_text(), types=False) for each in modules}
    graph = {each: seen[each] & modules - {each} for each in modules}
    graphlib.TopologicalSorter(graph).prepare()  # raises at a circle


def test_every_way_to_import_is_seen() -> None:
    """The control."""
    for source, expected in {
        "from nws.models import units": {"nws.models.units"},
        "from nws.models import Units": {"nws.models"},
        "def f():\n    from nws.learning import rules": {"nws.learning.rules"},
        "import torch.nn as nn, math": {"torch.nn", "math"},
    }.items():
        assert imported(source) == expected
    assert imported("if TYPE_CHECKING:\n    import nws\nimport math", types=False) == {"math"}


# --- how long things are --------------------------------------------------------------------------

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def count_lines(function: Function) -> int:
    """From `def` to the end, without the docstring."""
    assert function.end_lineno is not None
    lines, first = function.end_lineno - function.lineno + 1, function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def test_files_and_functions_are_short() -> None:
    """Ruff counts columns, and the branches of a function."""
    for path in CODE:
        text = path.read_text()
        assert len(text.splitlines()) <= MAX_FILE, path
        for each in functions(ast.parse(text)):
            assert count_lines(each) <= MAX_FUNCTION, (path, each.name)
        assert not re.search(r"[\"'(= ]/(home|work|tmp|Users)/", text), f"{path}: an absolute path"
    (control,) = functions(ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1'))
    assert count_lines(control) == 2


def count(paths: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_packages_are_small() -> None:
    sizes = {name: count([FILES[m] for m in FILES if package(m) == name]) for name in PACKAGES}
    assert {name: size for name, size in sizes.items() if size > PACKAGES[name]} == {}
    assert count([*FILES.values()]) <= MAX_NWS
    assert count([*(ROOT / "tests").rglob("*.py")]) <= MAX_TESTS
    assert count([FILES["nws.programs.train"]]) <= MAX_TRAIN


# --- conf/ ----------------------------------------------------------------------------------------

#: Where a file has other values than its class's defaults, on purpose: another rule, machine or
#: schedule than the plainest one.
OTHER = {
    "algorithm/bihm": "recognition_wake recognition_dream bidirectional weighting.exponent",
    "algorithm/vimco": "recognition_wake recognition_dream baseline",
    "algorithm/ws": "samples recognition_wake recognition_dream baseline weighting.exponent",
    "average/exponential": "memory", "average/tail": "start", "damping/exponential":
    "schedule.final", "damping/linear": "schedule.final", "logger/wandb": "mode",
    "metric/adaptive": "max_rows", "metric/kronecker": "max_rows",
    "model/small": "weight_scale visible_bias", "model/visible/gaussian":
    "model.visible.scale", "model/visible/poisson": "model.visible.scale",
    "scheduler/wsd": "lr_lambda.warmup_steps",
}  # fmt: skip
GROUPS = [
    path for path in sorted(CONF.rglob("*.yaml"))
    if path.relative_to(CONF).parts[0] not in ("experiment", "debug", "hydra")
]  # fmt: skip


def sections(value: Any, key: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every section with a `_target_`, and its key."""
    if not isinstance(value, dict):
        return []
    found = [(key, value)] if value.get("_target_") else []
    return found + [pair for name in value for pair in sections(value[name], f"{key}.{name}")]


def test_conf_is_in_step_with_the_signatures() -> None:
    """Each key is a parameter, and each default that of the class, but where `OTHER` says so."""
    other: dict[str, list[str]] = {}
    rows = inspect.signature(RowOptions).parameters
    for path in GROUPS:
        name = str(path.relative_to(CONF).with_suffix(""))
        content = yaml.safe_load(path.read_text())
        parts = sections(content)
        if name == "config":
            parts.append(("", {"_target_": Settings} | content["trainer"]))
        for key, section in parts:
            target = section["_target_"]
            found = target if target is Settings else locate(target, name)
            own = dict(inspect.signature(found).parameters)
            taken = {**(rows if name.startswith("metric/") else {}), **own}
            more = MORE.get(name.split("/")[0], ()) if not key else ()
            given = [each for each in section if each not in HYDRAS]
            open_ended = any(each.kind is each.VAR_KEYWORD for each in taken.values())
            assert open_ended or set(given) <= {*taken, *more}, (name, key)
            for each in given:
                own = taken[each].default if each in taken else inspect.Parameter.empty
                ours = getattr(found, "__module__", "").startswith("nws.")
                plain = ours and own is not inspect.Parameter.empty
                plain = plain and "{" not in str(section[each])  # a section, or filled in by Hydra
                if plain and own != section[each]:
                    other.setdefault(name, []).append(f"{key}.{each}".strip("."))
    assert {name: " ".join(keys) for name, keys in other.items()} == OTHER


def test_every_key_of_conf_has_a_comment() -> None:
    """Beside it or above it; the file itself in its first line."""
    plain = ("_target_", "_partial_", "defaults", "_self_", "name")
    for path in GROUPS:
        lines = path.read_text().partition("\nhydra:")[0].splitlines()
        assert lines[0].startswith("# "), path
        for above, line in zip(["#", *lines], lines, strict=False):
            key = line.strip().split(":")[0].lstrip("- ")
            explained = "#" in line or above.strip().startswith("#") or line.startswith("  - ")
            needs_none = key in plain or "hydra" in line or line.rstrip().endswith(":")
            assert explained or needs_none or not line.strip(), f"{path.name}: {line}"
