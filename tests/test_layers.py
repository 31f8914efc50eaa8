"""The house keeps its order: imports go down one list of folders, and heavy packages have one home."""

import ast
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from syntax import tree_of

PACKAGE = "rapo_rllib"
ROOT = Path(__file__).resolve().parents[1] / PACKAGE

# From the ground up: a folder imports itself and those before it. A new folder belongs into this list.
FOLDERS = (
    *("errors.py", "types.py", "validation.py", "services", "settings"),
    *("objective", "protocol", "traces", "models", "embedding", "weights", "checkpoints"),
    *("sandbox", "tools", "rewards", "milvus", "buffer", "corpus", "web_search", "envs"),
    *("batching", "attention", "monitoring", "rollout", "endpoint", "learner"),
    *("config", "agents", "env_runner", "evaluation", "algorithm", "registration.py", "__init__.py"),
    *("report", "estimate", "cli"),
)

ROOT_FILES = 6  # at most
FEW_LINES = 40  # a shorter file belongs to its only importer
SMALL = ("objective/*", "*__init__.py")  # an equation is a file all the same

FACE = "__init__.py"  # loads what stands above it when it is used

# (importer, imported): folders that must not know each other, whatever their order.
STRANGERS = (("corpus", "buffer"), ("envs", "buffer"), ("batching", "envs"))

# Files whose class declares what the class of another package that it extends has set: RLlib's, FSDP's, vLLM's.
DECLARING = ("algorithm/algorithm.py", "learner/fsdp.py", "learner/learner.py", "rollout/vllm/worker.py")

# Packages from outside that only these files may import.
HOMES = {
    "ray": (
        *("weights/*", "checkpoints/*", "monitoring/*", "learner/*", "config/*", "env_runner/*", "evaluation/*", "algorithm/*"),
        *("registration.py", "cli/*", "milvus/lite/handle.py"),
    ),
    "vllm": ("rollout/vllm/*.py", "weights/vllm_transfer.py", "endpoint/wire.py"),
    "pymilvus": ("milvus/*",),
    "milvus_lite": ("milvus/lite/*",),
    "diskcache": ("web_search/store.py",),
    "mcp": ("tools/mcp/*",),
}

# Folders that import nothing from outside but these and the standard library.
ONLY = {"objective/*": ("torch",), "sandbox/inside/*": ()}


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def place_of(path: str) -> int | None:
    folder = path.split("/")[0]
    return FOLDERS.index(folder) if folder in FOLDERS else None


def imported_names(tree: ast.AST, path: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import: in functions, for hints, and ``import_module("...")`` as well."""
    folders = [PACKAGE, *Path(path).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folders[: len(folders) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def module_path(name: str, root: Path) -> str | None:
    """Path of the module of the package in which ``rapo_rllib.a.b.Name`` is found; the root's own names: ``__init__.py``."""
    parts = name.split(".")[1:]
    for length in range(len(parts), 0, -1):
        stem = Path(*parts[:length])
        for path in (stem.with_suffix(".py"), stem.with_suffix(".pyi"), stem / "__init__.py"):
            if (root / path).is_file():
                return path.as_posix()
    return "__init__.py" if len(parts) < 2 else None


def fault_of_internal(path: str, name: str, root: Path) -> str | None:
    target = module_path(name, root)
    if target is None:
        return f"{name}: no such module"
    place, other = place_of(path), place_of(target)
    if place is None or other is None or path == FACE:
        return None
    if other > place:
        return f"{FOLDERS[place]} stands below {FOLDERS[other]} and must not import {target}"
    if (path.split("/")[0], target.split("/")[0]) in STRANGERS:
        return f"{path.split('/')[0]} must not import {target}"
    return None


def fault_of_external(path: str, name: str) -> str | None:
    package = name.split(".")[0]
    if package in HOMES and not matches(path, HOMES[package]):
        return f"{package} may be imported only in {', '.join(HOMES[package])}"
    for folder, allowed in ONLY.items():
        if fnmatch(path, folder) and package not in (*sys.stdlib_module_names, *allowed):
            return f"{folder} imports {package}: only {', '.join(allowed)} and the standard library are allowed"
    return None


def faults(root: Path) -> list[str]:
    """Every broken rule of the package in folder ``root``, as ``file:line: what is wrong``."""
    found = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if place_of(path) is None:
            found.append(f"{path}: in no known folder; add it to FOLDERS in tests/test_layers.py")
        for line, name in imported_names(tree_of(file.read_text(encoding="utf-8")), path):
            internal = name.split(".")[0] == PACKAGE
            fault = fault_of_internal(path, name, root) if internal else fault_of_external(path, name)
            if fault:
                found.append(f"{path}:{line}: {fault}")
    return list(dict.fromkeys(found))


def siblings(root: Path) -> list[str]:
    """Prefixes that three files or more of a folder share (``run.py``, ``run_name.py``): they want a folder of their own."""
    found = []
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        count = Counter(file.stem.split("_")[0] for file in folder.glob("*.py") if file.stem != "__init__")
        found += [f"{folder.relative_to(root).as_posix()}: {prefix}_*" for prefix, many in count.items() if many >= 3]
    return found


def circles(root: Path) -> list[set[str]]:
    """Files of which each comes back to itself over imports, those for hints included."""
    graph: dict[str, set[str]] = {}
    for file in root.rglob("*.py"):
        path = file.relative_to(root).as_posix()
        names = (name for _, name in imported_names(tree_of(file.read_text(encoding="utf-8")), path))
        targets = {module_path(name, root) for name in names if name.split(".")[0] == PACKAGE}
        graph[path] = set() if path == FACE else {target for target in targets if target not in (None, path)}  # type: ignore[misc]

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for target in graph.get(ahead.pop(), set()) - seen:
                seen.add(target)
                ahead.append(target)
        return seen

    reach = {path: reached(path) for path in graph}
    found = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in graph if a in reach[a]}
    return [set(circle) for circle in found]


def lonely(root: Path) -> list[str]:
    """Files of fewer than ``FEW_LINES`` lines that one other file imports at most."""
    importers: dict[str, set[str]] = {}
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in root.rglob("*.py")}
    for path, text in texts.items():
        for _, name in imported_names(tree_of(text), path):
            target = module_path(name, root) if name.split(".")[0] == PACKAGE else None
            importers.setdefault(target or "", set()).add(path)
    short = (path for path, text in texts.items() if text.count("\n") < FEW_LINES and not matches(path, SMALL))
    return sorted(path for path in short if len(importers.get(path, ())) < 2)


def _is_own(declared: ast.AnnAssign, path: str) -> bool:
    """Whether a declaration without a value is a field, or a constant of subclasses."""
    return "ClassVar" in ast.unparse(declared.annotation) or path in DECLARING


def borrowed(tree: ast.AST, path: str) -> list[str]:
    """Attributes that a class declares and never sets: those of a host that it is mixed into."""
    found = []
    for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        bases = " ".join(ast.unparse(base) for base in cls.bases)
        if cls.decorator_list or any(kind in bases for kind in ("Protocol", "NamedTuple", "TypedDict")):
            continue
        stores = [node for node in ast.walk(cls) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
        own = {node.attr for node in stores}
        declared = (node for node in cls.body if isinstance(node, ast.AnnAssign) and node.value is None)
        found += [
            f"{path}:{node.lineno}: {cls.name}.{node.target.id}"
            for node in declared
            if isinstance(node.target, ast.Name) and node.target.id not in own and not _is_own(node, path)
        ]
    return found


def untyped_settings(tree: ast.AST, path: str) -> list[str]:
    """Arguments and attributes that are called ``config`` or ``settings`` and typed ``Any``."""
    named = [(node.arg, node) for node in ast.walk(tree) if isinstance(node, ast.arg)]
    named += [
        (node.target.id, node)
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return [
        f"{path}:{node.lineno}: {name}"
        for name, node in named
        if name in ("config", "settings", "self.config", "self.settings")
        and node.annotation is not None
        and ast.unparse(node.annotation) == "Any"
    ]


def in_all_files(root: Path, rule: Callable[[ast.AST, str], list[str]]) -> list[str]:
    files = sorted(root.rglob("*.py"))
    return [
        fault for file in files for fault in rule(tree_of(file.read_text(encoding="utf-8")), file.relative_to(root).as_posix())
    ]


def test_no_class_declares_attributes_of_its_host() -> None:
    """What needs something of another object is given it, and is owned: ``learner.weights.publish()`` says where it happens."""
    assert in_all_files(ROOT, borrowed) == []


def test_no_settings_are_untyped() -> None:
    assert in_all_files(ROOT, untyped_settings) == []


def test_a_mixin_and_untyped_settings_are_seen() -> None:
    text = """
        class Mixin:
            config: Any
            group: Group
            kind: ClassVar[str]
            own: int

            def __init__(self, settings: Any, model: Any) -> None:
                self.own = 1

        @dataclass
        class Data:
            field: int
    """
    tree = tree_of(textwrap.dedent(text))
    assert borrowed(tree, "a.py") == ["a.py:3: Mixin.config", "a.py:4: Mixin.group"]
    assert sorted(untyped_settings(tree, "a.py")) == ["a.py:3: config", "a.py:8: settings"]


def test_package_keeps_the_order() -> None:
    assert len(list(ROOT.rglob("*.py"))) > 5, "the package was not found"
    assert faults(ROOT) == []


def test_only_an_algorithm_and_its_config_know_each_other() -> None:
    """RLlib has it so. What belongs to the two knows the config, whose methods they are parts of."""
    assert all(path.startswith("algorithm/") for circle in circles(ROOT) for path in circle)


def test_a_circle_is_found(tmp_path: Path) -> None:
    package = {
        "buffer/a.py": "from rapo_rllib.buffer import b",
        "buffer/b.py": "import rapo_rllib.buffer.a",
        "buffer/c.py": "from . import a",
    }
    assert circles(write_tree(tmp_path, package)) == [{"buffer/a.py", "buffer/b.py"}]


def test_the_root_has_few_files() -> None:
    assert len(list(ROOT.glob("*.py"))) <= ROOT_FILES


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """A small package with a module in some folders, then ``files``."""
    skeleton = (
        *("types.py", "objective/loss.py", "tools/base.py", "envs/base.py", "buffer/store.py", "rollout/loop.py"),
        *("learner/learner.py", "__init__.py"),
    )
    for path, text in (dict.fromkeys(skeleton, "") | files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


LEARNER = "learner/learner.py"


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("types.py", "import rapo_rllib.learner.learner", "types.py:1: types.py stands below learner and must not import"),
        ("types.py", "from rapo_rllib.objective import loss", "types.py:1: types.py stands below objective"),
        ("tools/base.py", "from ..envs.base import Env", "tools/base.py:1: tools stands below envs and must not import envs/"),
        ("tools/base.py", "from ..learner import learner", "tools/base.py:1: tools stands below learner"),
        (
            "rollout/loop.py",
            "\ndef f():\n    from rapo_rllib import RAPO",
            "rollout/loop.py:3: rollout stands below __init__.py",
        ),
        ("envs/base.py", "from rapo_rllib.buffer.store import x", "envs/base.py:1: envs must not import buffer/store.py"),
        ("buffer/store.py", "import rapo_rllib.envs.base", "buffer/store.py:1: buffer stands below envs"),
        ("batching/pack.py", "import rapo_rllib.envs.base", "batching/pack.py:1: batching must not import envs/base.py"),
        ("rollout/loop.py", "import ray", "rollout/loop.py:1: ray may be imported only in weights/*"),
        ("rollout/loop.py", "import vllm.config", "rollout/loop.py:1: vllm may be imported only in rollout/vllm/*.py"),
        (LEARNER, "from vllm import LLM", f"{LEARNER}:1: vllm may be imported only in rollout/vllm/*.py"),
        (LEARNER, "import importlib\nimportlib.import_module('vllm')", f"{LEARNER}:2: vllm may be imported only in"),
        ("buffer/store.py", "import pymilvus", "buffer/store.py:1: pymilvus may be imported only in milvus/*"),
        (
            "buffer/store.py",
            "import milvus_lite",
            "buffer/store.py:1: milvus_lite may be imported only in milvus/lite/*",
        ),
        ("objective/loss.py", "import numpy", "objective/loss.py:1: objective/* imports numpy: only torch"),
        (LEARNER, "from rapo_rllib.gone.away import x", f"{LEARNER}:1: rapo_rllib.gone.away.x: no such module"),
        ("novelty.py", "", "novelty.py: in no known folder; add it to FOLDERS"),
        ("novelty/x.py", "", "novelty/x.py: in no known folder; add it to FOLDERS"),
    ],
)
def test_a_broken_rule_is_named(tmp_path: Path, path: str, text: str, fault: str) -> None:
    found = faults(write_tree(tmp_path, {path: text}))
    assert len(found) == 1
    assert found[0].startswith(fault)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (LEARNER, "import ray\nfrom rapo_rllib.rollout.loop import x\nfrom .. import types"),
        ("rollout/loop.py", "from rapo_rllib.envs.base import E\nfrom rapo_rllib.buffer import store"),
        ("rollout/vllm/engine.py", "def f():\n    import vllm"),
        ("milvus/lite/database.py", "import pymilvus, milvus_lite"),
        ("objective/loss.py", "import math\nimport torch\nfrom ..types import Trajectory"),
        ("cli/main.py", "import ray\nfrom rapo_rllib import RAPO"),
        ("__init__.py", "from rapo_rllib.cli.main import main"),
    ],
)
def test_an_import_downwards_is_allowed(tmp_path: Path, path: str, text: str) -> None:
    files = {path: text} if path == "cli/main.py" else {"cli/main.py": "", path: text}
    assert faults(write_tree(tmp_path, files)) == []


def test_the_architecture_page_knows_every_folder() -> None:
    page = (ROOT.parent / "docs" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = [name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert named == [folder for folder in FOLDERS if folder not in ("registration.py", "__init__.py")]


def test_no_three_siblings_share_a_prefix() -> None:
    assert siblings(ROOT) == []


def test_siblings_with_a_prefix_are_seen(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, dict.fromkeys(("learner/rank_a.py", "learner/rank_b.py", "learner/rank_c.py"), ""))
    assert siblings(tree) == ["learner: rank_*"]


def test_a_short_file_belongs_to_its_only_importer() -> None:
    assert lonely(ROOT) == []


def test_a_short_file_with_one_importer_is_seen(tmp_path: Path) -> None:
    used = "from rapo_rllib.tools import alone, shared"
    files = {"tools/alone.py": "", "tools/shared.py": "", "tools/long.py": "\n" * FEW_LINES, "envs/base.py": used}
    tree = write_tree(tmp_path, files | {"learner/learner.py": "\n" * FEW_LINES + used.replace("alone, ", "")})
    assert [path for path in lonely(tree) if path.startswith("tools/") and path != "tools/base.py"] == ["tools/alone.py"]


def test_tests_mirror_the_package() -> None:
    tests = ROOT.parent / "tests"
    folders = {folder.name for folder in tests.iterdir() if folder.is_dir() and any(folder.glob("test_*.py"))}
    others = {"benchmarks", "docs", "e2e", "package"}  # of what is outside the package, or of all of it
    assert folders - others <= set(FOLDERS)
    helpers = [file for file in tests.rglob("*.py") if not file.name.startswith(("test_", "conftest"))]
    assert {file.relative_to(tests).parts[0] for file in helpers} == {"support", "kill_lite.py"}  # which is a command
