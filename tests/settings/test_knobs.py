"""A key is declared once; what it is made into follows: attribute, ``training()``, checks, page, command."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.config.settings import default_keys
from rapo_rllib.settings import FLAT, NESTED, RLlibSettings, RolloutSettings
from rapo_rllib.settings.knobs import Knobs, build, knob, knobs

PACKAGE = Path(__file__).resolve().parents[2] / "rapo_rllib"
DECLARED = "dynamic_sampling: bool = knob("
NEW = 'patience: int = knob(7, "how long a test waits", at_least=2)\n    '

# what a user of the copy sees of the new key
PROBE = """
import inspect
from typer.testing import CliRunner
from rapo_rllib import RAPOConfig
from rapo_rllib.cli.reference import markdown
from rapo_rllib.cli.main import app

def refused(**keys):
    try:
        RAPOConfig().environment("rapo/word_problems").training(**keys).validate()
    except ValueError as error:
        return str(error)

print(RAPOConfig().patience, RAPOConfig().training(patience=9).settings.update.patience)
print(inspect.signature(RAPOConfig.training).parameters["patience"])
print("patience: how long a test waits." in inspect.getdoc(RAPOConfig.training))
print(refused(patience=1))
print(refused(patiense=3))
print("| `patience` | a whole number at least 2 | `7` | how long a test waits |" in markdown())
print(CliRunner().invoke(app, ["config", "keys", "test waits"]).output)
"""


def test_a_new_key_is_one_declaration(tmp_path: Path) -> None:
    copy = tmp_path / "rapo_rllib"
    subprocess.run(["cp", "-r", str(PACKAGE), str(copy)], check=True)
    declarations = copy / "settings" / "job.py"
    before = declarations.read_text(encoding="utf-8")
    assert before.count(DECLARED) == 1
    declarations.write_text(before.replace(DECLARED, NEW + DECLARED), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    default, parameter, *rest = done.stdout.splitlines()
    assert default == "7 9"
    assert parameter.startswith("patience: int = ")
    assert rest[:6] == [
        "True",
        "patience = 1: must be a whole number at least 2",
        "unknown key 'patiense': did you mean 'patience'? (docs/from_verl_or_trl.md translates keys of verl and TRL)",
        "True",
        "patience: a whole number at least 2 (default: 7)",
        "    how long a test waits",
    ]


def test_the_signature_of_training_has_every_key_with_its_meaning() -> None:
    parameters = inspect.signature(RAPOConfig.training).parameters
    flat = {name: declared for cls in FLAT for name, declared in knobs(cls).items()}
    assert set(parameters) == {"self", *NESTED, *flat, "kwargs"}
    said = " ".join((inspect.getdoc(RAPOConfig.training) or "").split())
    assert [name for name in flat if f"{name}: " not in said] == []
    assert parameters["group_size"].annotation is int


def test_every_default_is_right_itself() -> None:
    for cls in (*FLAT, *NESTED.values(), RLlibSettings):
        cls()


def test_a_checkpoints_config_gets_the_keys_that_it_lacks() -> None:
    config = RAPOConfig().environment("rapo/word_problems").training(group_size=4, num_hybrid=2)
    for key in ("shown_steps", "transcripts", "warm_start"):  # as if they were declared since
        del config.__dict__[key]
    restored = pickle.loads(pickle.dumps(config))
    restored.validate()
    assert (restored.group_size, restored.shown_steps, restored.warm_start) == (4, "context", None)


def test_no_two_configs_share_a_default() -> None:
    keys = ("language_model", "engine", "protocol", "step_trace_buffer")
    first, second = default_keys(), default_keys()
    assert all(first[key] is not second[key] for key in keys)
    assert RAPOConfig().env_config is not RAPOConfig().env_config


@dataclass(frozen=True)
class Inner(Knobs):
    where: ClassVar[str] = "outer.inner."

    size: int = knob(1, "of it", at_least=1)


@dataclass(frozen=True)
class Outer(Knobs):
    where: ClassVar[str] = "outer."

    share: float | None = knob(0.5, "a share", at_least=0, at_most=1)
    time: float = knob(1.0, "seconds", above=0)
    mode: Literal["a", "b"] = knob("a", "a choice")
    flag: bool | Literal["some"] = knob(False, "true, false, or some")
    names: tuple[str, ...] = knob((), "texts")
    pairs: tuple[int, ...] = knob((1, 2), "whole numbers", at_least=1, at_most=3)
    extra: dict = knob(dict, "anything")
    inner: Inner | None = knob(None, "more keys")
    whole: Inner = knob(Inner, "more keys, always")
    plain: Any = field(default="no knob")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"share": 1.5}, "outer.share = 1.5: must be between 0 and 1 or null"),
        ({"share": True}, "outer.share = True: must be between 0 and 1 or null"),
        ({"share": float("nan")}, "outer.share = nan: must be"),
        ({"time": 0}, "outer.time = 0: must be a number above 0"),
        ({"time": float("inf")}, "outer.time = inf: must be a number above 0"),
        ({"mode": "c"}, "outer.mode = 'c': must be one of 'a', 'b'"),
        ({"mode": ["a"]}, "outer.mode = ['a']: must be one of 'a', 'b'"),
        ({"flag": 1}, "outer.flag = 1: must be true or false or 'some'"),
        ({"names": "x"}, "outer.names = 'x': must be a list of texts"),
        ({"names": ["x", 1]}, "outer.names = ['x', 1]: must be a list of texts"),
        ({"pairs": [0, 2]}, "outer.pairs = [0, 2]: must be a list"),
        ({"extra": 3}, "outer.extra = 3: must be a mapping"),
        ({"inner": True}, "outer.inner = True: must be a mapping of size"),
        ({"whole": None}, "outer.whole = None: must be a mapping of size"),
        ({"inner": {"size": 0}}, "outer.inner.size = 0: must be a whole number at least 1"),
        ({"inner": {"sise": 1}}, "unknown key 'outer.inner.sise': did you mean 'outer.inner.size'?"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        build(Outer, given)
    assert message in str(refused.value)


def test_what_can_be_is_built() -> None:
    made = build(Outer, {"share": None, "time": 3, "flag": "some", "names": ["x"], "inner": {"size": 2}, "plain": 3})
    assert made == Outer(None, 3, "a", "some", ("x",), (1, 2), {}, Inner(2), Inner(), 3)
    assert "plain" not in knobs(Outer)


def test_settings_that_are_made_by_hand_are_checked_too() -> None:
    with pytest.raises(ValueError, match="group_size = 0: must be a whole number at least 1"):
        RolloutSettings(group_size=0)
