"""The multi-turn tool environment: question out, steps in, tool outputs out, reward at the end. algorithm.md section 2.

    reset -> question -> step(generated text) -> tool output -> step(...) -> ... -> reward

An environment is used for many episodes, one at a time, and holds nothing between them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium

from rapo_rllib.envs.base import TextEnv, info_of
from rapo_rllib.envs.options import ToolEnvOptions
from rapo_rllib.errors import ToolError
from rapo_rllib.protocol.steps import Answers, parse_step, read_answer
from rapo_rllib.protocol.turns import Call, Observation, Schema, Turn
from rapo_rllib.rewards import Episode, EpisodeStep, Scorer, reward_terms, shared_scorer, step_rewards
from rapo_rllib.rewards.score import asks_words
from rapo_rllib.rewards.terms import well_formed
from rapo_rllib.tools import ToolResult, shared_tools
from rapo_rllib.tools.bounded import BoundedSession, BoundedTool
from rapo_rllib.tools.schema import input_of, problem_of
from rapo_rllib.types import Question, ToolUse

UNKNOWN = "unknown"  # the name that calls of missing tools are counted by


class ToolEnv(TextEnv):
    """Environment that runs the tool calls of a policy and scores its answer."""

    options_class: ClassVar[type[ToolEnvOptions]] = ToolEnvOptions
    env_steps: int | None = None  # sampled in training so far, set by the rollout; None: reward schedules are at their end
    extra_s = 0.0  # seconds that a step may take beyond one call: for its earlier calls, and calls that a branch repeats
    turn_ended = True  # whether the policy ended its turn with this step; set by the rollout before each step

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(env_config, **kwargs)
        self._tools = _by_tag([tool for entry in self.tool_entries() for tool in shared_tools(entry)])
        leave_out = "leave the tool out (a server's with mcp.only)"
        self.options.protocol.check_tool_tags(self.tool_tags, "env_config.tools", leave_out)
        self.tool_schemas = self._schemas()
        self._sessions: dict[str, BoundedSession] = {}  # by tag; opened at the first call, or with the episode
        self._shared: dict[Any, Any] = {}  # state that several of these sessions share
        self._scorer = self.make_scorer()
        self._question: Question | None = None
        self._steps: list[EpisodeStep] = []
        self._num_calls = 0
        self._turn = -1  # index of the last generated step; -1: none yet

    def tool_entries(self) -> Sequence[Any]:
        """Return the policy's tools in the form of ``env_config.tools``; by default those of the options."""
        return self.options.tools

    def make_scorer(self) -> Scorer:
        """Return the scorer of the answers; by default the one that the options name."""
        return shared_scorer(self.options.scorer)

    def _schemas(self) -> list[Schema]:
        """List the tool schemas for the prompt: of tools that take JSON arguments; in the native format of all tools."""
        native = self.options.protocol.format == "native"
        return [tool.schema for tool in self._tools.values() if native or tool.takes_json]

    @property
    def tool_tags(self) -> tuple[str, ...]:
        """Tags whose closing form ends a generated step."""
        return tuple(self._tools)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode on ``options["question"]``, else on a random training question.

        Returns the question's text and an empty info. Raises ``BusyError`` if a tool has no free session yet.
        """
        super().reset(seed=seed)
        self.end_sessions()
        question = self.asked(options)
        try:
            for tool in self._tools.values():
                if tool.begins:
                    self._sessions[tool.tag] = tool.session(self._shared)
        except ToolError:  # an episode must not hold one session while it waits for another
            self.end_sessions()
            raise
        self._question, self._num_calls, self._steps, self._turn, self.extra_s = question, 0, [], -1, 0.0
        return question.text, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one generated step: a text in the text protocol, or a :class:`Turn` with parsed calls.

        The step's complete tool calls are run: the observation is their bare output; info has ``tool``, ``tool_error``,
        ``tool_seconds``, ``tool_calls`` if there are several, and ``step_right`` if the environment knows a solution.
        Any other step ends the episode: info has ``correct``, ``format_ok``, ``predicted``, ``reward_terms`` (their sum is
        the reward), ``step_rewards`` (the part that single steps earned), and ``score_failure`` if the scorer could not judge.
        A call beyond ``max_tool_calls`` truncates the episode, scored as unanswered, with ``end = "tool_limit"``.
        """
        if self._question is None:
            raise gymnasium.error.ResetNeeded("step() before reset(), or after the end of an episode")
        turn = self._read(action)
        self._turn, self.extra_s = self._turn + 1, 0.0
        if not turn.calls:
            predicted = self._predicted(turn)
            reward, info = self._outcome(predicted, EpisodeStep(str(action), turn=self._turn), answer_text=turn.content)
            return "", reward, True, False, info
        self._num_calls += len(turn.calls)
        if self._num_calls > self.options.max_tool_calls:
            reward, info = self._outcome(None, EpisodeStep(str(action), turn=self._turn))
            return "", reward, False, True, {**info, "end": "tool_limit"}
        results = [self._called(call) for call in turn.calls]
        for index, (tag, result) in enumerate(results):
            self._steps.append(EpisodeStep("" if index else str(action), tag, result.text, result.error, self._turn))
        observation = Observation.of([result.text for _, result in results])
        return observation, 0.0, False, False, self._info_of(results)

    def _read(self, action: str) -> Turn:
        """Read the calls or the answer from a step."""
        if self.options.protocol.format == "native":
            return action if isinstance(action, Turn) and action.native else Turn.of(action, content=action, answer=action)
        parsed = parse_step(action, self.options.protocol, self.tool_tags)
        calls = () if parsed.tool_tag is None else (Call(parsed.tool_tag, {"": parsed.tool_input or ""}),)
        return Turn.of(action, calls=calls, answer=parsed.answer)

    def _predicted(self, turn: Turn) -> str | None:
        """Read the answer from a step; in a text that was cut off, only an answer in tags counts."""
        assert self._question is not None
        answers: Answers = self.options.read_answer if self.turn_ended else "tagged"
        said = turn.content if turn.native else turn  # without thoughts
        return read_answer(turn.answer, said, self.options.protocol, answers, asks_words(self._question))

    def _called(self, call: Call) -> tuple[str, ToolResult]:
        """Run one call, or describe what is wrong with it; return the tag that the call is counted by, and the result."""
        assert self._question is not None
        tool, offered = self._tools.get(call.name), self._question.tools
        if call.problem:
            return call.name if tool is not None else UNKNOWN, ToolResult(f"Error: {call.problem}", "malformed")
        if tool is None or (offered is not None and call.name not in offered):
            names = ", ".join(offered if offered is not None else self._tools) or "none"
            return UNKNOWN, ToolResult(f"Error: there is no tool {call.name!r}; the tools are: {names}", "unknown")
        if self.options.protocol.format == "tags":
            text, problem = tool.read(call.arguments[""])
        elif not (problem := problem_of(tool.schema, call.arguments)):
            text = json.dumps(call.arguments, ensure_ascii=False) if tool.takes_json else input_of(tool.schema, call.arguments)
        if problem:
            return tool.tag, ToolResult(f"Error: {problem}", "arguments")
        session = self._sessions.get(tool.tag) or self._sessions.setdefault(tool.tag, tool.session(self._shared))
        self.extra_s, started = self.extra_s + session.extra_s, time.monotonic()
        result = session.run(text)
        self.extra_s += time.monotonic() - started
        return tool.tag, result

    def _info_of(self, results: Sequence[tuple[str, ToolResult]]) -> dict[str, Any]:
        assert self._question is not None
        names = {tag: tool.name for tag, tool in self._tools.items()}
        info = info_of([ToolUse(names.get(tag, tag), result.error, result.seconds) for tag, result in results])
        judged = [self.step_right(self._question, result.text) for _, result in results]
        return info if None in judged else {**info, "step_right": all(judged)}

    def step_right(self, question: Question, output: str) -> bool | None:
        """Check whether a tool's output is part of a solution to the question; None: not known. Used for metrics only."""
        return None

    def truncate(self) -> tuple[float, dict[str, Any]]:
        """Score an episode that a rollout budget ends after a tool call: as unanswered, by all terms of the reward.

        Returns:
            Reward and info, as the last ``step`` returns them.
        """
        if self._question is None:
            raise gymnasium.error.ResetNeeded("truncate() before reset(), or after the end of an episode")
        return self._outcome(None)

    def end_sessions(self) -> None:
        """Close the tools' sessions of the present episode; also of an abandoned one."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
        self._shared.clear()

    def close(self) -> None:
        """Close the tools' sessions."""
        self.end_sessions()

    def _outcome(self, predicted: str | None, *last: EpisodeStep, answer_text: str = "") -> tuple[float, dict[str, Any]]:
        """Score the end of an episode; ``predicted`` is None if there was no answer, ``last`` the step that ended it."""
        assert self._question is not None
        options = self.options
        episode = Episode((*self._steps, *last), options.protocol, self.turn_ended, answer_text)
        weights = options.reward.at(self.env_steps)
        check = weights.format_check
        format_ok = predicted is not None and well_formed(episode, check, self._tools, require_boxed=options.require_boxed)
        score = self._scorer(predicted, self._question, episode)
        offered = self._tools.keys() if self._question.tools is None else set(self._question.tools)
        called = {step.tool for step in self._steps} & offered
        errors = episode.tool_errors
        told: dict[str, Any] = {"format_ok": format_ok, "all_tools": called == offered != set(), "called_tool": bool(called)}
        terms = reward_terms(score, weights, tool_errors=errors, **told)
        self._question = None
        self.end_sessions()
        info: dict[str, Any] = {"correct": score.correct, "format_ok": format_ok, "predicted": predicted or ""}
        info["reward_terms"] = terms
        if any(earned := step_rewards(score, weights, episode.steps)):
            info["step_rewards"] = earned
        return sum(terms.values()), info | ({"score_failure": score.failure} if score.failure else {})


def _by_tag(tools: Sequence[BoundedTool]) -> dict[str, BoundedTool]:
    found: dict[str, BoundedTool] = {}
    for tool in tools:
        if tool.tag in found:
            names = f"{found[tool.tag].name!r} and {tool.name!r}"
            raise ValueError(
                f"env_config.tools: {names} are both called by <{tool.tag}>: leave one out (a server's with mcp.only)"
            )
        found[tool.tag] = tool
    return found
