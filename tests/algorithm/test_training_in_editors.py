"""Editors and type checkers read ``RAPOConfig.training`` from its source: the keys there are those that are declared."""

from __future__ import annotations

import ast
import inspect

from rapo_rllib.algorithm import config


def test_training_names_every_declared_key_for_editors() -> None:
    functions = [node for node in ast.walk(ast.parse(inspect.getsource(config))) if isinstance(node, ast.FunctionDef)]
    (written,) = [node for node in functions if node.name == "training" and node.args.kwonlyargs]
    assert [each.arg for each in written.args.kwonlyargs] == [name for name, _, _ in config.training_keys()]
