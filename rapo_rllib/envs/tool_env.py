"""The multi-turn tool environment: question out, steps in, tool outputs out, reward at the end. ALGORITHM section 2.

    reset -> question -> step(generated text) -> tool output -> step(...) -> ... -> reward

An environment is used for many episodes, one at a time, and holds nothing between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium

from rapo_rllib.envs.options import ToolEnvOptions, read_options
from rapo_rllib.envs.scoring import Score, scorer_for
from rapo_rllib.envs.text_space import AnyText
from rapo_rllib.protocol.steps import boxed_answer, format_ok, parse_step
from rapo_rllib.tools import Tool, make_tool
from rapo_rllib.types import Question


class ToolEnv(gymnasium.Env[str, str]):
    """Runs the tool calls of a policy and scores its answer.

    Args:
        env_config: the keys of ``options_class``.
        **kwargs: further keys, as ``gymnasium.make`` passes them.

    Raises:
        ValueError: an unknown key or a value that cannot be.
    """

    options_class: ClassVar[type[ToolEnvOptions]] = ToolEnvOptions

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self.options = read_options(self.options_class, {**(env_config or {}), **kwargs})
        self.env_config = {**(env_config or {}), **kwargs}
        self.observation_space = AnyText()
        self.action_space = AnyText()
        self._tools = {tool.tag: tool for tool in map(_made_tool, self.options.tools)}
        self._question: Question | None = None
        self._num_calls = 0
        self._called: set[str] = set()

    @property
    def tool_tags(self) -> tuple[str, ...]:
        """Tags whose closing form ends a generated step."""
        return tuple(self._tools)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode on ``options["question"]``; without one, on a random training question.

        Returns:
            The question's text, and an empty info.
        """
        super().reset(seed=seed)
        question = (options or {}).get("question") or self._random_question()
        self._question, self._num_calls, self._called = question, 0, set()
        return question.text, {}

    def _random_question(self) -> Question:
        if not hasattr(self, "questions"):
            raise ValueError(f"{type(self).__name__} has no questions of its own: reset(options={{'question': Question(...)}})")
        source = self.questions(self.env_config, "train")
        question: Question = source[int(self.np_random.integers(len(source)))]
        return question

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the text of one generated step.

        A complete tool call is run: observation is its bare output, info has ``tool``, ``tool_error``, ``tool_seconds``.
        Anything else ends the episode: info has ``correct``, ``format_ok``, ``predicted`` and the ``reward_terms`` that add up
        to the reward. One call too many truncates it, scored as unanswered, with ``end = "tool_limit"``.
        """
        if self._question is None:
            raise gymnasium.error.ResetNeeded("step() before reset(), or after the end of an episode")
        parsed = parse_step(action, self.options.protocol, self.tool_tags)
        if parsed.tool_tag is None:
            predicted = None if parsed.answer is None else boxed_answer(parsed.answer)
            reward, info = self._outcome(predicted, action)
            return "", reward, True, False, info
        self._num_calls += 1
        if self._num_calls > self.options.max_tool_calls:
            reward, info = self._outcome(None, action)
            return "", reward, False, True, {**info, "end": "tool_limit"}
        tool = self._tools[parsed.tool_tag]
        self._called.add(tool.tag)
        result = tool.run(parsed.tool_input or "")
        info = {"tool": tool.name, "tool_error": result.error, "tool_seconds": result.seconds}
        return result.text, 0.0, False, False, info

    def _outcome(self, predicted: str | None, text: str) -> tuple[float, dict[str, Any]]:
        """Score the end of an episode; ``predicted`` is None if there was no answer."""
        assert self._question is not None
        settings, weights = self.options.protocol, self.options.reward
        well_formed = predicted is not None and format_ok(text, settings, require_boxed=self.options.require_boxed)
        scorer = scorer_for(self.options.scorer, self._question)
        score = Score(0.0, False) if predicted is None else scorer(predicted, self._question)
        counts = well_formed or not weights.strict_format
        terms = {
            "correct": weights.correct * score.value if counts else 0.0,
            "format": weights.format if well_formed else 0.0,
            "bad_format": 0.0 if well_formed else weights.bad_format,
            "all_tools": weights.all_tools if counts and score.correct and self._called == set(self._tools) != set() else 0.0,
        }
        self._question = None
        info = {"correct": score.correct, "format_ok": well_formed, "reward_terms": terms, "predicted": predicted or ""}
        return sum(terms.values()), info


def _made_tool(entry: Any) -> Tool:
    if isinstance(entry, str):
        return make_tool(entry)
    if isinstance(entry, Mapping) and "name" in entry and set(entry) <= {"name", "options"}:
        return make_tool(entry["name"], **(entry.get("options") or {}))
    raise ValueError(f"env_config.tools: {entry!r}: each entry is a name or {{name: python, options: {{timeout_s: 5}}}}")
