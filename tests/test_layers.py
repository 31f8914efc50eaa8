"""Imports go down the layers only, and heavy packages have one home (DESIGN section 2)."""

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from syntax import tree_of

PACKAGE = "rapo_rllib"
ROOT = Path(__file__).resolve().parents[1] / PACKAGE

# Where a file stands, by its path inside the package; "*" covers sub-folders too. A new module belongs into this table.
LAYERS = {
    0: ("types.py", "errors.py", "settings.py", "unknown_keys.py", "credentials.py", "env_config.py", "_version.py"),
    1: (
        *("objective/*", "protocol/*", "sandbox/*", "tools/*", "rewards/*", "web_search/*", "milvus/*", "trace_formats/*"),
        *(
            "hardware.py",
            "models.py",
            "dropout.py",
            "lora.py",
            "weights.py",
            "shared_weights.py",
            "weight_digest.py",
            "trace_files.py",
            "json_service.py",
        ),
        *("text_encoder.py", "openvino_forward.py", "endpoint_encoder.py"),
        "text_lines.py",
    ),
    2: ("envs/*", "buffer/*", "corpus/*", "batching/*", "attention/*"),
    3: ("rollout/*", "agents/*"),
    4: (
        *(
            "rl_module.py",
            "sharding.py",
            "activation_checkpointing.py",
            "learner*.py",
            "env_runner*.py",
            "algorithm*.py",
            "config*.py",
            "dispatch*.py",
            "evaluation*.py",
        ),
        *("checkpoint*.py", "callbacks.py", "episodes.py", "metrics*.py", "rollout_metrics.py", "transcripts.py"),
        *(
            "agent_setup.py",
            "buffer_setup.py",
            "buffer_upkeep.py",
            "preflight.py",
            "progress.py",
            "run_name.py",
            "run_summary.py",
            "question_source.py",
            "retrieval_effect.py",
            "retrieval_failures.py",
            "presets.py",
            "off_policy_setup.py",
            "failed_batch.py",
            "phase.py",
            "warm_start.py",
            "training_warning*.py",
        ),
        *(
            "training_loop*.py",
            "weight_sync.py",
            "weight_publisher.py",
            "canary.py",
            "engine_restarts.py",
            "sampling*.py",
            "registration.py",
            "__init__.py",
        ),
    ),
    5: ("cli/*", "report/*", "loggers/*", "evaluate.py", "__main__.py"),
}

# (importer, imported): folders of one layer that must not know each other.
STRANGERS = (
    ("envs/*", "buffer/*"),
    ("buffer/*", "envs/*"),
    ("batching/*", "envs/*"),
    ("batching/*", "attention/*"),
    ("corpus/*", "buffer/*"),
    ("buffer/*", "corpus/*"),
)

# Packages from outside that only the layers from this one up may import.
LOWEST_LAYER = {"ray": 4}

# Packages from outside that only these files may import.
HOMES = {
    "vllm": ("rollout/vllm_*.py",),
    "pymilvus": ("milvus/*",),
    "milvus_lite": ("milvus/lite_server.py", "milvus/lite_engine.py"),
    "diskcache": ("web_search/store.py",),
    "mlflow": ("loggers/mlflow_logger.py",),
    "wandb": ("loggers/wandb_logger.py",),
}

# Folders that import nothing from outside but these and the standard library.
ONLY = {"objective/*": ("torch",), "sandbox/inside/*": ()}


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def layer_of(path: str) -> int | None:
    return next((layer for layer, patterns in LAYERS.items() if matches(path, patterns)), None)


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
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if (root / path).is_file():
                return path.as_posix()
    return "__init__.py" if len(parts) < 2 else None


def fault_of_internal(path: str, name: str, root: Path) -> str | None:
    target = module_path(name, root)
    if target is None:
        return f"{name}: no such module"
    layer, below = layer_of(path), layer_of(target)
    if layer is None or below is None or path == "__init__.py":  # the package's face exports from every layer, lazily
        return None
    if below > layer:
        return f"layer {layer} imports {target} of layer {below}"
    if any(fnmatch(path, importer) and fnmatch(target, imported) for importer, imported in STRANGERS):
        return f"{path.split('/')[0]} must not import {target}"
    return None


def fault_of_external(path: str, name: str) -> str | None:
    package, layer = name.split(".")[0], layer_of(path)
    if layer is not None and layer < LOWEST_LAYER.get(package, 0):
        return f"layer {layer} imports {package}, which belongs to layers {LOWEST_LAYER[package]} and up"
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
        if layer_of(path) is None:
            found.append(f"{path}: in no layer; add it to LAYERS in tests/test_layers.py")
        for line, name in imported_names(tree_of(file.read_text(encoding="utf-8")), path):
            internal = name.split(".")[0] == PACKAGE
            fault = fault_of_internal(path, name, root) if internal else fault_of_external(path, name)
            if fault:
                found.append(f"{path}:{line}: {fault}")
    return list(dict.fromkeys(found))


def test_package_keeps_the_layers() -> None:
    assert len(list(ROOT.rglob("*.py"))) > 5, "the package was not found"
    assert faults(ROOT) == []


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """A small package: one empty module of every layer, then ``files``."""
    skeleton = (
        "types.py",
        "objective/loss.py",
        "envs/base.py",
        "buffer/store.py",
        "rollout/loop.py",
        "learner.py",
        "__init__.py",
    )
    for path, text in (dict.fromkeys(skeleton, "") | files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("types.py", "import rapo_rllib.learner", "types.py:1: layer 0 imports learner.py of layer 4"),
        ("types.py", "from rapo_rllib.objective import loss", "types.py:1: layer 0 imports objective/loss.py of layer 1"),
        ("tools/base.py", "from ..envs.base import Env", "tools/base.py:1: layer 1 imports envs/base.py of layer 2"),
        ("tools/base.py", "from .. import learner", "tools/base.py:1: layer 1 imports learner.py of layer 4"),
        (
            "rollout/loop.py",
            "\ndef f():\n    from rapo_rllib import RAPO",
            "rollout/loop.py:3: layer 3 imports __init__.py of layer 4",
        ),
        ("envs/base.py", "from rapo_rllib.buffer.store import x", "envs/base.py:1: envs must not import buffer/store.py"),
        ("buffer/store.py", "import rapo_rllib.envs.base", "buffer/store.py:1: buffer must not import envs/base.py"),
        ("batching/pack.py", "import rapo_rllib.envs.base", "batching/pack.py:1: batching must not import envs/base.py"),
        ("rollout/loop.py", "import ray", "rollout/loop.py:1: layer 3 imports ray, which belongs to layers 4"),
        ("rollout/loop.py", "import vllm.config", "rollout/loop.py:1: vllm may be imported only in rollout/vllm_*.py"),
        ("learner.py", "from vllm import LLM", "learner.py:1: vllm may be imported only in rollout/vllm_*.py"),
        ("learner.py", "import importlib\nimportlib.import_module('vllm')", "learner.py:2: vllm may be imported only in"),
        ("buffer/store.py", "import pymilvus", "buffer/store.py:1: pymilvus may be imported only in milvus/*"),
        (
            "buffer/store.py",
            "import milvus_lite",
            "buffer/store.py:1: milvus_lite may be imported only in milvus/lite_server.py, milvus/lite_engine.py",
        ),
        ("objective/loss.py", "import numpy", "objective/loss.py:1: objective/* imports numpy: only torch"),
        ("learner.py", "from rapo_rllib.gone.away import x", "learner.py:1: rapo_rllib.gone.away.x: no such module"),
        ("novelty.py", "", "novelty.py: in no layer; add it to LAYERS"),
        ("novelty/x.py", "", "novelty/x.py: in no layer; add it to LAYERS"),
    ],
)
def test_a_broken_rule_is_named(tmp_path: Path, path: str, text: str, fault: str) -> None:
    found = faults(write_tree(tmp_path, {path: text}))
    assert len(found) == 1
    assert found[0].startswith(fault)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("learner.py", "import ray\nfrom rapo_rllib.rollout.loop import x\nfrom . import types"),
        ("rollout/loop.py", "from rapo_rllib.envs.base import E\nfrom rapo_rllib.buffer import store"),
        ("rollout/vllm_engine.py", "def f():\n    import vllm"),
        ("milvus/lite_server.py", "import pymilvus, milvus_lite"),
        ("objective/loss.py", "import math\nimport torch\nfrom ..types import Trajectory"),
        ("cli/main.py", "import ray\nfrom rapo_rllib import RAPO"),
        ("__init__.py", "from rapo_rllib.cli.main import main"),
    ],
)
def test_an_import_downwards_is_allowed(tmp_path: Path, path: str, text: str) -> None:
    files = {path: text} if path == "cli/main.py" else {"cli/main.py": "", path: text}
    assert faults(write_tree(tmp_path, files)) == []
