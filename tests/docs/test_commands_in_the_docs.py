"""Every command of README and docs, parsed by the real parser of its program; test_docs_commands_run.py runs them."""

from __future__ import annotations

import ast
import re
import tomllib
from typing import Any

import pytest
from pages import PAGES, REPOSITORY, blocks, commands, commands_in_sentences, name
from syntax import tree_of
from typer.main import get_command

from rapo_rllib.cli.main import app

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
LANGUAGES = {"", "bash", "json", "python", "yaml"}  # "": what a program shows
PLACEHOLDER = re.compile(r"^[A-Z_]+$|\.\.\.|^<")


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that ``rllib WORDS`` calls, and what is left for its own parser."""
    command: Any = get_command(app)
    while getattr(command, "commands", None):
        assert words and words[0] in command.commands, f"no such command: {words}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def options_of(script: str) -> set[str]:
    """Options that a benchmark script, or the module beside it that has its command line, declares."""
    path = REPOSITORY / script
    files = [path, *path.parent.glob(f"{path.stem}_parts/*.py")]
    calls = [node for file in files for node in ast.walk(tree_of(file.read_text())) if isinstance(node, ast.Call)]
    declared = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    return {arg.value for call in declared for arg in call.args if isinstance(arg, ast.Constant)}


def check_rllib(words: list[str]) -> None:
    command, rest = command_of(words[1:])
    command.make_context(command.name, rest)


def check_pip(words: list[str]) -> None:
    requirements = " ".join(requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra)
    wheel = f"dist/{PROJECT['name']}-{PROJECT['version']}-py3-none-any.whl"
    for word in words[2:]:
        extra = re.fullmatch(rf"(?:\.|{re.escape(wheel)})\[([\w,-]+)\]", word)
        if extra:
            assert set(extra[1].split(",")) <= set(PROJECT["optional-dependencies"]), word
        elif not word.startswith(("-", "$")) and words[1] != "wheel":
            assert word in requirements + MAKEFILE, word


def check_make(words: list[str]) -> None:
    targets = [word for word in words[1:] if "=" not in word]
    variables = [word.split("=")[0] for word in words[1:] if "=" in word]
    assert all(re.search(rf"^{target}:", MAKEFILE, flags=re.MULTILINE) for target in targets), words
    assert all(re.search(rf"^{variable} \?=", MAKEFILE, flags=re.MULTILINE) for variable in variables), words


def check_python(words: list[str]) -> None:
    assert {word.split("=")[0] for word in words[2:] if word.startswith("--")} <= options_of(words[1]), words


def check_ray(words: list[str]) -> None:
    from ray.scripts.scripts import cli

    command = cli.commands[words[1]]
    command.make_context(words[1], list(words[2:]))


def check_tensorboard(words: list[str]) -> None:
    """It is not installed for the tests, which read its files themselves."""
    assert words[1:2] == ["--logdir"] and len(words) == 3, words


CHECKS = {
    "tensorboard": check_tensorboard,
    "rllib": check_rllib,
    "pip": check_pip,
    "make": check_make,
    "python": check_python,
    "ray": check_ray,
    "export": lambda words: None,  # sets a variable; the command that reads it stands beside it
}


@pytest.mark.parametrize(("page", "words"), commands(), ids=lambda value: value if isinstance(value, str) else " ".join(value))
def test_a_command_is_one_that_its_program_knows(page: str, words: list[str]) -> None:
    assert words[0] in CHECKS, f"{page}: nothing checks {words[0]}"
    CHECKS[words[0]](words)


@pytest.mark.parametrize("words", [["rllib", "train", "flie", "x.yaml"], ["rllib", "buffer", "stats", "--htlm", "x"]])
def test_a_wrong_command_would_be_found(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"no such command|No such option"):
        check_rllib(words)


def test_every_block_says_what_it_is() -> None:
    fences = [
        (name(page), fence)
        for page in PAGES
        for fence in re.findall(r"^```(.*)\n(?:.*\n)*?```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]
    assert [fence for fence in fences if fence[1] not in LANGUAGES] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_inside_sentences_exist(page: Any) -> None:
    for text in [words for where, words in commands_in_sentences() if where == name(page)]:
        words = [word for word in text[1:] if word != "..."]
        command: Any = get_command(app)
        while getattr(command, "commands", None) and words and not PLACEHOLDER.search(words[0]):
            assert words[0] in command.commands, text
            command, words = command.commands[words[0]], words[1:]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known, text


def test_the_programs_of_readme_are_shown_in_blocks() -> None:
    assert len(blocks(REPOSITORY / "README.md", "bash")) >= 2
    assert len(commands()) > 20
