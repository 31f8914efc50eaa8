"""Calls as model families write them, read by vLLM's parsers and handed to an environment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calculator_turns import CALCULATOR
from chat_templates import FAMILIES, WEATHER, tokenizer_of, trl_template

from rapo_rllib.protocol.calls import ReadCalls
from rapo_rllib.protocol.native import NativeProtocol
from rapo_rllib.protocol.turns import Turn
from rapo_rllib.rollout.vllm.tool_calls import closed_calls, vllm_call_reader
from rapo_rllib.settings import ProtocolSettings

pytestmark = pytest.mark.process  # vLLM asks the machine what it is

SCHEMAS = [CALCULATOR, WEATHER]
Read = Callable[[str], Turn]


@pytest.fixture(scope="module")
def readers(smollm2: Path) -> dict[str, Read]:
    """By family: from the text of a turn that has ended to what was read."""

    def reader(tokenizer: Any) -> Read:
        return reading(made(tokenizer))

    return {family: reader(tokenizer_of(family, smollm2)) for family in FAMILIES}


def made(tokenizer: Any, **settings: Any) -> NativeProtocol:
    return NativeProtocol(tokenizer, ProtocolSettings(format="native", **settings), SCHEMAS, vllm_call_reader)


def reading(chat: NativeProtocol) -> Read:
    tokenizer = chat.tokenizer
    return lambda text: chat.read([*tokenizer.encode(text, add_special_tokens=False), chat.end_ids[0]], "", "", "eos")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parser_is_the_one_that_reads_the_templates_call(smollm2: Path, family: str) -> None:
    assert made(tokenizer_of(family, smollm2)).parser == FAMILIES[family].parser


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
def test_the_end_of_a_call_inside_it_is_told(readers: dict[str, Read], family: str) -> None:
    turn = readers[family](FAMILIES[family].calls(("weather", {"city": "</tool_call>"})))
    assert turn.answer is None and "could not be read" in turn.calls[-1].problem


def test_a_call_in_a_thought_is_none(readers: dict[str, Read]) -> None:
    call = FAMILIES["qwen3"].calls(("calculator", {"expression": "3 + 5"}))
    turn = readers["qwen3"](f"<think>\nShould I write {call}?\n</think>\n\nIt is 8.")
    assert (turn.calls, turn.answer) == ((), "It is 8.")
    assert readers["qwen3"](f"<think>\n{call}").calls == ()  # it never ends


CALL_IN_XML = "<tool_call>\n<function={name}>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def qwen36(smollm2: Path) -> NativeProtocol:
    """A family that writes XML, and whose opening begins a thought."""
    tokenizer = tokenizer_of("qwen3", smollm2)
    tokenizer.chat_template = trl_template("qwen3_6")
    return made(tokenizer)


def test_calls_in_xml(qwen36: NativeProtocol) -> None:
    assert qwen36.parser == "qwen3_coder"
    read, good = reading(qwen36), CALL_IN_XML.format(name="calculator", key="expression", value="print('</think>')")
    turn = read(f"Add.\n</think>\n\n{good}")
    assert [call.arguments for call in turn.calls] == [{"expression": "print('</think>')"}] and not turn.calls[0].problem
    assert turn.record == "<think>Add.\n</think><calculator>print('</think>')</calculator>"
    assert read(f"I could write {good}").calls == ()  # in a thought that never ends
    told = read(f"</think>{good}\n<tool_call>\n{{'name': 'weather'}}\n</tool_call>").calls
    assert "could not be read" in told[-1].problem and told[0].name == "calculator"
    answer = read("Add.</think>Write <think> and </think>: 8")
    assert answer.answer == "Write <think> and </think>: 8"


def test_a_call_in_xml_that_is_cut_off_is_told(qwen36: NativeProtocol) -> None:
    read, good = reading(qwen36), CALL_IN_XML.format(name="calculator", key="expression", value="3 + 5")
    cut = good[: good.index("</function>")]
    assert [call.problem != "" for call in read(f"</think>{cut}").calls] == [True]
    assert [call.problem != "" for call in read(f"</think>{good}\n{cut}").calls] == [False, True]
    assert [call.name for call in read(f"</think>I write <tool_call> now:\n{good}").calls] == ["calculator"]
    (told,) = read("</think><function=").calls
    assert "written like <tool_call>\n<function=sample_weather>" in told.problem and "calculator, weather" in told.problem


@pytest.mark.parametrize("value", ["x = '</parameter>'", "x = '</function>'"])
def test_an_argument_that_the_parser_cuts_is_told(qwen36: NativeProtocol, value: str) -> None:
    (call,) = reading(qwen36)(f"</think>{CALL_IN_XML.format(name='calculator', key='expression', value=value)}").calls
    assert "could not be read" in call.problem


@pytest.mark.timeout(30)
def test_a_turn_that_repeats_a_mark_costs_nothing(qwen36: NativeProtocol) -> None:
    (call,) = reading(qwen36)("</think><tool_call>\n<function=calculator>\n" + "<parameter=expression>\n" * 4000).calls
    assert "could not be read" in call.problem


PLAIN = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
SHOWS = "{{ tools | tojson if tools }}" + PLAIN
OWN = SHOWS.replace(
    "{{ m['content'] }}", "{{ m['content'] }}{% for c in m.tool_calls or [] %}CALL {{ c.function.name }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "parser", "message"),
    [
        (SHOWS, "auto", "protocol.tool_parser = 'auto': the model's chat template does not say how it writes calls"),
        (OWN, "auto", "protocol.tool_parser = 'auto': no parser reads back the call that the model's chat template writes"),
        (SHOWS, "mistral", "protocol.tool_parser = 'mistral': does not work with the model's tokenizer"),
        (SHOWS, "openai", "protocol.tool_parser = 'openai': does not work with the model's tokenizer: it does not read texts"),
        (SHOWS, "qwen", "protocol.tool_parser = 'qwen': is no tool parser of this vLLM; did you mean 'qwen3_xml'"),
        (SHOWS, "hermess", "did you mean 'hermes'"),
    ],
)
def test_a_parser_that_cannot_is_refused(smollm2: Path, template: str, parser: str, message: str) -> None:
    tokenizer = tokenizer_of("smollm2", smollm2)
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=re.escape(message)):
        made(tokenizer, tool_parser=parser)
    if parser in ("qwen", "hermess"):  # tools come with an agent's requests: known now all the same
        with pytest.raises(ValueError, match=re.escape(message)):
            NativeProtocol(tokenizer, ProtocolSettings(format="native", tool_parser=parser), (), vllm_call_reader)


def test_a_parser_of_another_form_is_warned_of(smollm2: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert made(tokenizer_of("qwen25", smollm2), tool_parser="qwen3_coder").parser == "qwen3_coder"
    assert "does not read the form in which the model's chat template writes calls (<tool_call>" in caplog.text
    caplog.clear()
    made(tokenizer_of("qwen25", smollm2), tool_parser="hermes")
    assert not caplog.text


def test_a_parser_that_fails_on_a_turn_has_read_none(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    read = reading(made(tokenizer_of("qwen25", smollm2)))
    monkeypatch.setattr(Hermes2ProToolParser, "extract_tool_calls", lambda *_: [][0])
    (call,) = read("x").calls
    assert "could not be read" in call.problem


def test_a_template_that_writes_no_calls_needs_a_name(smollm2: Path) -> None:
    tokenizer = tokenizer_of("smollm2", smollm2)
    tokenizer.add_tokens(["<|tool_call_start|>", "<|tool_call_end|>"], special_tokens=True)
    tokenizer.chat_template = trl_template("lfm2")
    read = reading(made(tokenizer, tool_parser="lfm2"))
    (call,) = read("<|tool_call_start|>[weather(city='Rome')]<|tool_call_end|>").calls
    assert (call.name, call.arguments, call.problem) == ("weather", {"city": "Rome"}, "")
    (call,) = read("<|tool_call_start|>[weather(city=").calls
    assert "could not be read" in call.problem
    with pytest.raises(ValueError, match="does not say how it writes calls"):
        made(tokenizer)


ADDS = json.dumps({"expression": "3 + 5"})
FORMS = {  # of families whose templates show no tools, or are not at hand
    "deepseek_v3": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>calculator\n```json\n{ADDS}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>calculator<｜tool▁sep｜>{ADDS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.calculator:0<|tool_call_argument_begin|>"
        f"{ADDS}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "llama4_pythonic": "[calculator(expression='3 + 5')]",
}


@pytest.mark.parametrize("parser", FORMS)
def test_a_parser_by_name(smollm2: Path, parser: str) -> None:
    tokenizer, form = tokenizer_of("smollm2", smollm2), FORMS[parser]
    tokenizer.add_tokens(re.findall(r"<[^<>]+>", form), special_tokens=True)
    read = vllm_call_reader(parser, tokenizer, SCHEMAS)
    assert [(name, json.loads(arguments)) for name, arguments in read(form).calls] == [("calculator", json.loads(ADDS))]
    cut = read(form[: form.index("expression") + 4])
    assert cut.broken or (cut.calls and cut.calls[0][1] != ADDS)
    assert read("It is 8.") == ReadCalls("It is 8.")


def test_arguments_that_are_no_object(readers: dict[str, Read]) -> None:
    (call,) = readers["qwen25"]('<tool_call>{"name": "calculator", "arguments": "3 + 5"}</tool_call>').calls
    assert "must be a JSON object" in call.problem


def test_what_is_cut_off_is_not_run() -> None:
    parser, begin, end = "gemma4", "<|tool_call>", "<tool_call|>"
    one, two = ("add", '{"a": "' + end + '"}'), ("add", "{}")
    assert closed_calls(f"{begin}add {end}{end}", (one,), parser) == (one,)  # quoted
    assert closed_calls(f"{begin}add {end}\n{begin}add", (two, two), parser) == (two,)
    assert closed_calls(f"{begin}add\n{begin}add{end}", (two, two), parser) == ()
    one, save = ("save", '{"o": "<function=x"}'), '<function=save><parameter=o>"\\u003cfunction=x"</parameter></function>'
    assert closed_calls(f"{save}<function=save><parameter=o>", (one, two), "qwen3_coder") == (one,)  # quoted, and escaped
