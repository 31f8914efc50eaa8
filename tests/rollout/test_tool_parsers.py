"""Calls as model families write them, read by vLLM's parsers and handed to an environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calculator_turns import CALCULATOR
from chat_templates import FAMILIES, WEATHER, tokenizer_of

from rapo_rllib.protocol.native import NativeProtocol
from rapo_rllib.protocol.turns import Turn
from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader
from rapo_rllib.settings import ProtocolSettings

pytestmark = pytest.mark.process  # vLLM asks the machine what it is

SCHEMAS = [CALCULATOR, WEATHER]
Read = Callable[[str], Turn]


@pytest.fixture(scope="module")
def readers(smollm2: Path) -> dict[str, Read]:
    """By family: from the text of a turn that has ended to what was read."""

    def reader(tokenizer: Any) -> Read:
        found = NativeProtocol(tokenizer, ProtocolSettings(format="native"), SCHEMAS)
        chat = NativeProtocol(tokenizer, found.settings, SCHEMAS, vllm_call_reader(found.parser, tokenizer, SCHEMAS))
        return lambda text: chat.read([*tokenizer.encode(text, add_special_tokens=False), chat.end_ids[0]], "", "", "eos")

    return {family: reader(tokenizer_of(family, smollm2)) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_several_calls_in_one_turn(readers: dict[str, Read], family: str) -> None:
    calls = [("calculator", {"expression": "3 + 5"}), ("weather", {"city": "Köln", "days": 2})]
    text = FAMILIES[family].calls(*calls)
    turn = readers[family](text)
    assert turn == text and turn.native and turn.answer is None
    assert [(call.name, call.arguments, call.id) for call in turn.calls] == [
        ("calculator", {"expression": "3 + 5"}, "000000001"),
        ("weather", {"city": "Köln", "days": 2}, "000000002"),
    ]
    told = json.dumps({"city": "Köln", "days": 2}, ensure_ascii=False)
    assert turn.record == f"<calculator>3 + 5</calculator>\n<weather>{told}</weather>"


@pytest.mark.parametrize("family", ["qwen25", "qwen3", "smollm2", "mistral"])
def test_words_before_a_call(readers: dict[str, Read], family: str) -> None:
    turn = readers[family]("I add.\n" + FAMILIES[family].calls(("calculator", {"expression": "3 + 5"})))
    assert turn.content == "I add." and turn.record == "I add.\n<calculator>3 + 5</calculator>"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_without_a_call_is_the_answer(readers: dict[str, Read], family: str, capfd: pytest.CaptureFixture[str]) -> None:
    turn = readers[family]("It is \\boxed{8}.")
    assert (turn.calls, turn.answer, turn.record) == ((), "It is \\boxed{8}.", "<answer>It is \\boxed{8}.</answer>")
    assert "Traceback" not in capfd.readouterr().err


BROKEN = {
    "qwen25": '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 + 5"\n</tool_call>',
    "qwen3": "<tool_call>\ncalculator(3 + 5)\n</tool_call>",
    "llama31": '{"name": "calculator", "parameters": {"expression": ',
    "mistral": '[TOOL_CALLS] [{"name": "calculator", "arguments": {"expression": "3 + 5"}',
    "smollm2": '<tool_call>[{"name": "calculator"</tool_call>',
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_malformed_call_is_no_answer(readers: dict[str, Read], family: str) -> None:
    turn = readers[family](BROKEN[family])
    (call,) = turn.calls
    assert turn.answer is None and "could not be read" in call.problem and "calculator, weather" in call.problem


@pytest.mark.parametrize("family", ["mistral", "smollm2"])
def test_a_malformed_call_behind_a_good_one_is_told(readers: dict[str, Read], family: str) -> None:
    good = '{"name": "calculator", "arguments": {"expression": "3 + 5"}}'
    listed = f'[{good}, {{"nome": "weather", "arguments": {{}}}}]'
    turn = readers[family](f"[TOOL_CALLS] {listed}" if family == "mistral" else f"<tool_call>{listed}</tool_call>")
    assert [call.name for call in turn.calls] == ["calculator", ""] and not turn.calls[0].problem
    assert "could not be read" in turn.calls[1].problem and turn.calls[1].id == "000000002"
    assert turn.record == "<calculator>3 + 5</calculator>"


@pytest.mark.parametrize("family", ["qwen25", "qwen3", "smollm2"])
def test_a_text_may_hold_the_end_of_a_call(readers: dict[str, Read], family: str) -> None:
    calls = [("weather", {"city": "</tool_call>"}), ("calculator", {"expression": "<tool_call>1</tool_call> + 2"})]
    turn = readers[family](FAMILIES[family].calls(*calls))
    assert [(call.name, call.arguments) for call in turn.calls] == calls


def test_a_call_in_a_thought_is_none(readers: dict[str, Read]) -> None:
    call = FAMILIES["qwen3"].calls(("calculator", {"expression": "3 + 5"}))
    turn = readers["qwen3"](f"<think>\nShould I write {call}?\n</think>\n\nIt is 8.")
    assert (turn.calls, turn.answer) == ((), "It is 8.")
    assert readers["qwen3"](f"<think>\n{call}").calls == ()  # it never ends


def test_arguments_that_are_no_object(readers: dict[str, Read]) -> None:
    (call,) = readers["qwen25"]('<tool_call>{"name": "calculator", "arguments": "3 + 5"}</tool_call>').calls
    assert "must be a JSON object" in call.problem
