"""The files and commands of docs/buffer.md, as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rapo_rllib.cli.main import app

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "buffer.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command says, run one after the other."""
    folder = tmp_path_factory.mktemp("docs")
    for name, text in re.findall(r"`(\w+\.jsonl)`:\n```json\n(.*?)```", TEXT, flags=re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    commands = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, flags=re.DOTALL) for line in block.splitlines()]
    outputs = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in commands:
            result = CliRunner().invoke(app, shlex.split(command)[1:], catch_exceptions=False)
            assert result.exit_code == 0, f"{command}\n{result.output}"
            outputs[command.removeprefix("rllib buffer ")] = result.output
    return outputs


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("import solutions.jsonl chats", ["source 'human': 4 step traces", "source 'gpt-4': 2 step traces", "6 were added."]),
        ("import released", ["source 'aepo-14b': 1 step traces", "left out: 1 (padding of the released code", "1 were added."]),
        ("import solutions.jsonl --uri ./clean", ["left out: 1 (question of the evaluation)", "holds 2 step traces"]),
        ("stats --uri ./clean.db", ["2 step traces", "source 'human': 2 step traces, mean reward 1"]),
        ('search "Tom', ["[1] ", "[2] ", "by human, reward 1"]),
        ('search "<python>', ['"step_index": 1']),
        ("stats --questions", ["step traces", "gpt-4", "training questions with a trace", "1 of 2 (50.0%)"]),
        ("export", ["traces.jsonl.gz holds the 7 step traces"]),
        ("import traces.jsonl.gz", ["holds 7 step traces; 7 were added."]),
        ("drop", ["copy.db (step_traces): 7 step traces and their notes will be deleted.", "Deleted."]),
    ],
)
def test_a_command_of_the_page(said: dict[str, str], command: str, lines: list[str]) -> None:
    output = said[min((name for name in said if name.startswith(command)), key=len)]
    for line in lines:
        assert line in output
