"""Lessons: which attempts they are drawn from, what the agent is asked, where they stand, and that none is asked for twice."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from scripted import ByteTokenizer, CalculatorEnv, ScriptedEngine

from rapo_rllib.agents.attempts import AnsweredQuestion, Attempt, TextRequest, WrittenText
from rapo_rllib.agents.journal import Journal
from rapo_rllib.agents.lessons.distil import Distiller
from rapo_rllib.agents.lessons.evidence import Tried, TriedQuestion, lesson_rows, nearest_others, shown_for, told_apart
from rapo_rllib.agents.lessons.journal import LessonJournal
from rapo_rllib.agents.lessons.prompt import PROMPT, LessonPlan, lesson_prompt, read_lesson, shortened
from rapo_rllib.agents.vllm_agent import VLLMAgent
from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.buffer.keys import trace_id
from rapo_rllib.cli.buffer.build import _lesson_plan
from rapo_rllib.errors import AgentError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import LESSON, Question

QUESTIONS = [Question(f"q{i}", f"What is {i} + 1?", str(i + 1)) for i in range(3)]
SHORT = LessonPlan(prompt="{attempts}\nThe lesson:", max_tokens=40)


def attempt(text: str, right: bool = True, end: str = "answer", then: str = "<answer>8</answer>") -> Attempt:
    return Attempt((text, then), float(right), end, correct=right)


def tried(question: str, *marks: str) -> TriedQuestion:
    """``+x``: a right attempt that begins with ``x``; ``-x``: a wrong one."""
    attempts = [attempt(mark[1:], mark[0] == "+") for mark in marks]
    return TriedQuestion(question, f"{question}?", told_apart(f"{question}?", attempts, 99))


def first_steps(attempts: list[Tried] | tuple[Tried, ...]) -> str:
    return "".join(one.steps[0] for one in attempts)


def test_right_and_wrong_attempts_in_turn_each_once() -> None:
    given = [attempt("a"), attempt("b"), attempt("a"), attempt("c"), attempt("x", False), attempt("y", False, "length")]
    given += [attempt("failed", False, "error"), attempt("")]
    assert first_steps(told_apart("q", given, 9)) == "axbyc"
    assert first_steps(told_apart("q", given, 3)) == "axb"
    assert [one.right for one in told_apart("q", given, 9)] == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("near", "count", "number", "expected"),
    [
        ((), 3, 0, "axb"),
        ((), 3, 1, "yax"),  # begins where the first ended, and around
        ((), 9, 0, "axby"),
        ((("+n", "-m"),), 4, 0, "anxm"),
        ((("+n",), ("+k", "-l")), 4, 0, "ankx"),
    ],
)
def test_the_attempts_of_a_lesson(near: tuple[tuple[str, ...], ...], count: int, number: int, expected: str) -> None:
    others = [tried(f"n{index}", *marks) for index, marks in enumerate(near)]
    assert first_steps(shown_for(tried("q", "+a", "+b", "-x", "-y"), others, count, number)) == expected


def test_a_lesson_stands_at_every_place_of_its_own_attempts() -> None:
    own, near = tried("q", "+a", "-x"), tried("n", "+k")
    rows = lesson_rows("Add.", own, [*own.attempts, *near.attempts], "solver", "step")
    assert [(row.history, row.step_index) for row in rows] == [("", 0), ("a", 1), ("x", 1)]
    assert {(row.text, row.question, row.question_id, row.kind, row.reward) for row in rows} == {
        ("Add.", "q?", "q", LESSON, 1.0)
    }
    whole = [trace_id(f"{question}?", "", f"{text}<answer>8</answer>", "solver") for question, text in ("qa", "qx", "nk")]
    assert {row.lesson_of for row in rows} == {tuple(whole)} and len({row.id for row in rows}) == 3
    (one,) = lesson_rows("Add.", own, own.attempts[1:], "solver", "trajectory")
    assert (one.history, one.reward) == ("", 0.0)


def test_the_nearest_others() -> None:
    vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [-1.0, 0.0]], dtype=np.float32)
    assert nearest_others(vectors, 2) == [[2, 1], [2, 0], [1, 0], [1, 2]]
    assert nearest_others(vectors[:1], 2) == [[]]


def test_what_the_agent_is_asked() -> None:
    shown = [*tried("q", "+a", "-x").attempts, *tried("n", "+k").attempts]
    text = lesson_prompt(SHORT, shown, 400, len)
    assert text == (
        "Question: q?\n\nAttempt 1, right:\na<answer>8</answer>\n\nAttempt 2, wrong:\nx<answer>8</answer>\n\n"
        "Question: n?\n\nAttempt 3, right:\nk<answer>8</answer>\nThe lesson:"
    )


def test_long_attempts_are_shortened_in_their_middle() -> None:
    assert shortened("abcdefghij", 9, len) == "a [...] j" and shortened("abcdefghij", 10, len) == "abcdefghij"
    shown = tried("q", f"+{'a' * 500}", f"-{'x' * 500}").attempts
    text = lesson_prompt(SHORT, shown, 300, len)
    assert 290 <= len(text) <= 300 and text.count(" [...] ") == 2 and "</answer>\n\nAttempt 2" in text
    with pytest.raises(ValueError, match=r"--lesson-traces = 4: 2 attempts have no room .* in 90 tokens"):
        lesson_prompt(SHORT, shown, 90, len)


@pytest.mark.parametrize(
    ("written", "lesson"),
    [
        (" Add first.\n", "Add first."),
        ("<think>a</think>b", "b"),
        ("<think>a, still", ""),
        ("**Lesson:** <calc> first", "<calc> first"),
        ("<lesson>\nAdd.\n</lesson>", "Add."),
        ("Lessons are short.", "Lessons are short."),
        ("  ", ""),
    ],
)
def test_what_is_taken_of_the_answer(written: str, lesson: str) -> None:
    assert read_lesson(written, ProtocolSettings()) == lesson


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"per_question": 0}, "--lessons = 0: must be 1 or more"),
        ({"traces": 1}, "--lesson-traces = 1: must be 2 or more"),
        ({"near": -1}, "--lesson-near = -1"),
        ({"max_tokens": 3}, "--lesson-tokens = 3"),
        ({"prompt": "Write a lesson."}, r"--lesson-prompt: the text must hold \{attempts\} once.* it does 0 times"),
    ],
)
def test_a_plan_that_is_wrong(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LessonPlan(**wrong)


def test_a_byte_order_mark_is_no_part_of_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT, encoding="utf-8-sig")
    plan = _lesson_plan(1, 4, 0, 128, tmp_path / "prompt.txt")
    assert plan is not None and plan.prompt == PROMPT


class Writer:
    """An agent with a scripted engine: every other attempt is wrong; its lessons name what they were drawn from."""

    def __init__(self) -> None:
        number = itertools.count()

        def script(said: str) -> str:
            if said.endswith("The lesson:\n\nAnswer:"):
                return f"Lesson: {said.count(', right:')} right and {said.count(', wrong:')} wrong."
            asked = int(said.rsplit("What is ", 1)[1].split()[0])
            return f"<answer>{asked + 1 + next(number) % 2}</answer>"

        self.engine = ScriptedEngine(script)
        settings = RolloutSettings(group_size=4, max_prompt_tokens=1200, max_response_tokens=200)
        chat = ChatProtocol(ByteTokenizer(), ProtocolSettings())
        self.agent = VLLMAgent(self.engine, chat, CalculatorEnv, settings, 2, 1, None, 0.0, lambda stats: None)

    @property
    def lessons(self) -> int:
        """How often it was asked for one."""
        return sum(bytes(request.token_ids).decode().endswith("The lesson:\n\nAnswer:") for request in self.engine.requests)


@contextmanager
def distiller(folder: Path, plan: LessonPlan = SHORT, embedder: Any = None) -> Iterator[tuple[Journal, Distiller]]:
    with (
        Journal(folder / "b", {"name": "m"}, plan.attempts) as journal,
        LessonJournal(folder / "b.lessons.jsonl", journal.finished) as lessons,
    ):
        yield journal, Distiller(journal, lessons, plan, "solver", "step", cast(Embedder, embedder), ProtocolSettings())


def answer(journal: Journal, writer: Writer) -> None:
    for answered in writer.agent.answers(QUESTIONS, lambda: None):
        journal.add(answered, answered.attempts[:1], "solver")


def test_lessons_of_right_and_wrong_attempts_and_none_twice(tmp_path: Path) -> None:
    writer = Writer()
    with closing(writer.agent), distiller(tmp_path) as (journal, first):
        answer(journal, writer)
        written = first.write(writer.agent)
        assert {row.text for row in next(written)} == {"1 right and 1 wrong."}
        written.close()  # as a kill would end it: one lesson is on the disk
    with closing(Writer().agent), distiller(tmp_path) as (journal, again):
        assert again.left() == [("q1", 0), ("q2", 0)] and again.num_left == 2
        other = Writer()
        rows = list(again.write(other.agent))
        assert len(rows) == other.lessons == 2 and not again.left()
        assert {row.question_id for row in again.lessons.rows()} == {"q0", "q1", "q2"}
        assert again.lessons.written == 3 and again.lessons.tokens == 3 * len("Lesson: 1 right and 1 wrong.")
    with distiller(tmp_path) as (_, last):
        assert list(last.write(Writer().agent)) == []


def test_two_lessons_of_a_question_with_a_near_one(tmp_path: Path) -> None:
    class Embeds:
        def encode(self, pairs: list[tuple[str, str]]) -> np.ndarray:
            return np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=np.float32)[: len(pairs)]

    plan = LessonPlan(per_question=2, traces=4, near=1, max_tokens=40, prompt=SHORT.prompt)
    writer = Writer()
    with closing(writer.agent), distiller(tmp_path, plan, Embeds()) as (journal, drawn):
        answer(journal, writer)
        rows = list(drawn.write(writer.agent))
    assert len(rows) == 6 and {row.text for lesson in rows for row in lesson} == {"2 right and 2 wrong."}
    asked = [bytes(request.token_ids).decode() for request in writer.engine.requests][-6:]
    assert all("Question: What is 2 + 1?" in text for text in asked)  # q2 is the nearest of both others
    assert len({row.lesson_of for lesson in rows for row in lesson}) >= 3


class Silent(Writer):
    """An agent that cannot be asked for lessons any more."""

    def __init__(self) -> None:
        super().__init__()
        self.agent.texts = self.fail  # type: ignore[method-assign]

    def fail(self, requests: Iterator[TextRequest], max_tokens: int) -> Iterator[WrittenText]:
        for _ in requests:
            yield WrittenText("", error="connection refused")


def test_what_the_agent_could_not_be_asked_is_asked_again(tmp_path: Path) -> None:
    with distiller(tmp_path) as (journal, drawn):
        answer(journal, Writer())
        with pytest.raises(AgentError, match="failed at 3 lessons in a row: connection refused"):
            list(drawn.write(Silent().agent))
        assert drawn.failed == 3 and len(drawn.left()) == 3


def test_one_attempt_is_no_lesson(tmp_path: Path) -> None:
    with distiller(tmp_path) as (journal, drawn):
        journal.add(AnsweredQuestion(QUESTIONS[0], (attempt("a"), attempt("a"))), [], "solver")
        writer = Writer()
        assert list(drawn.write(writer.agent)) == [[]] and not writer.lessons and not drawn.left()


def damage_number(text: str) -> str:
    return text.replace('"number"', '"nummer"')


@pytest.mark.parametrize(
    ("change", "message"),
    [(damage_number, "is damaged"), (lambda text: text.replace('"q0"', '"x"'), "is of another build")],
)
def test_a_file_of_lessons_that_is_wrong(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    with distiller(tmp_path) as (journal, drawn):
        answer(journal, Writer())
        list(drawn.write(Writer().agent))
    file = tmp_path / "b.lessons.jsonl"
    file.write_text(change(file.read_text()))
    with pytest.raises(ValueError, match=message), distiller(tmp_path):
        pass


def test_cut_at_any_byte_both_files_go_on_to_the_same(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    with distiller(whole) as (journal, drawn):
        answer(journal, Writer())
        list(drawn.write(Writer().agent))
    names = [f"b.{name}.jsonl" for name in ("traces", "attempts", "progress", "lessons")]
    files = {name: (whole / name).read_bytes() for name in names}
    ends = [json.loads(line)["attempts_bytes"] for line in files["b.progress.jsonl"].splitlines()[1:]]
    assert ends[-1] == len(files["b.attempts.jsonl"])
    for cut in range(0, len(files["b.lessons.jsonl"]), 60):
        folder = tmp_path / str(cut)
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content[:cut] if name == "b.lessons.jsonl" else content)
        with distiller(folder) as (_, again):
            list(again.write(Writer().agent))
        assert {name: (folder / name).read_bytes() for name in files} == files
