"""The multi-turn tool environment: question out, steps in, tool outputs out, reward at the end. algorithm.md section 2.

    reset -> question -> step(generated text) -> tool output -> step(...) -> ... -> reward

An environment is used for many episodes, one at a time, and holds nothing between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium

from rapo_rllib.envs.options import ToolEnvOptions, read_options
from rapo_rllib.envs.text_space import AnyText
from rapo_rllib.protocol.steps import boxed_answer, parse_step
from rapo_rllib.rewards import Episode, EpisodeStep, reward_terms, shared_scorer
from rapo_rllib.rewards.formats import well_formed
from rapo_rllib.tools import shared_tool
from rapo_rllib.tools.bounded import BoundedSession, BoundedTool
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
    turn_ended = True  # whether the policy ended its turn with this step; the rollout says so before each

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self.options = read_options(self.options_class, {**(env_config or {}), **kwargs})
        self.env_config = {**(env_config or {}), **kwargs}
        self.observation_space = AnyText()
        self.action_space = AnyText()
        self._tools = _by_tag([shared_tool(entry) for entry in self.options.tools])
        self._scorer = shared_scorer(self.options.scorer)
        self._sessions: dict[str, BoundedSession] = {}  # opened at the first call of an episode
        self._question: Question | None = None
        self._steps: list[EpisodeStep] = []
        self._num_calls = 0

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
        self.end_sessions()
        question = (options or {}).get("question") or self._random_question()
        self._question, self._num_calls, self._steps = question, 0, []
        return question.text, {}

    def _random_question(self) -> Question:
        if not hasattr(self, "questions"):
            raise ValueError(f"{type(self).__name__} has no questions of its own: reset(options={{'question': Question(...)}})")
        source = self.questions(self.env_config, "train")
        question: Question = source[int(self.np_random.integers(len(source)))]
        return question

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the text of one generated step.

        A complete tool call is run: observation is its bare output, info has ``tool``, ``tool_error``, ``tool_seconds``, and
        ``step_right`` where the environment knows a solution.
        Anything else ends the episode: info has ``correct``, ``format_ok``, ``predicted``, the ``reward_terms`` that add up
        to the reward, and ``score_failure`` if the scorer could not judge. One call too many truncates it, scored as
        unanswered, with ``end = "tool_limit"``.
        """
        if self._question is None:
            raise gymnasium.error.ResetNeeded("step() before reset(), or after the end of an episode")
        parsed = parse_step(action, self.options.protocol, self.tool_tags)
        if parsed.tool_tag is None:
            predicted = None if parsed.answer is None else boxed_answer(parsed.answer)
            reward, info = self._outcome(predicted, EpisodeStep(action))
            return "", reward, True, False, info
        self._num_calls += 1
        if self._num_calls > self.options.max_tool_calls:
            reward, info = self._outcome(None, EpisodeStep(action))
            return "", reward, False, True, {**info, "end": "tool_limit"}
        tool = self._tools[parsed.tool_tag]
        session = self._sessions.get(tool.tag) or self._sessions.setdefault(tool.tag, tool.session())
        result = session.run(parsed.tool_input or "")
        self._steps.append(EpisodeStep(action, tool.tag, result.text, result.error))
        called: dict[str, Any] = {"tool": tool.name, "tool_error": result.error, "tool_seconds": result.seconds}
        if (right := self.step_right(self._question, result.text)) is not None:
            called["step_right"] = right
        return result.text, 0.0, False, False, called

    def step_right(self, question: Question, output: str) -> bool | None:
        """Whether a tool's output is one of a solution to the question; None: that is not known. For metrics alone."""
        return None

    def truncate(self) -> tuple[float, dict[str, Any]]:
        """Judge an episode that a budget of the rollout ends behind a tool call: as one without an answer, by all its terms.

        Returns:
            Reward and info, as the last ``step`` returns them.
        """
        if self._question is None:
            raise gymnasium.error.ResetNeeded("truncate() before reset(), or after the end of an episode")
        return self._outcome(None)

    def end_sessions(self) -> None:
        """Let go of what tools keep for the present episode; also for an episode that is given up half-way."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def close(self) -> None:
        """Let go of everything."""
        self.end_sessions()

    def _outcome(self, predicted: str | None, *last: EpisodeStep) -> tuple[float, dict[str, Any]]:
        """Score the end of an episode; ``predicted`` is None if there was no answer, ``last`` the step that ended it."""
        assert self._question is not None
        options, episode = self.options, Episode((*self._steps, *last), self.options.protocol, self.turn_ended)
        check = options.reward.format_check
        format_ok = predicted is not None and well_formed(episode, check, self._tools, require_boxed=options.require_boxed)
        format_ok = format_ok and (self.turn_ended or not options.reward.require_eos)
        score = self._scorer(predicted, self._question, episode)
        all_tools = {step.tool for step in self._steps} == set(self._tools) != set()
        terms = reward_terms(score, options.reward, format_ok=format_ok, all_tools=all_tools, tool_errors=episode.tool_errors)
        self._question = None
        self.end_sessions()
        info = {"correct": score.correct, "format_ok": format_ok, "reward_terms": terms, "predicted": predicted or ""}
        return sum(terms.values()), info | ({"score_failure": score.failure} if score.failure else {})


def _by_tag(tools: Sequence[BoundedTool]) -> dict[str, BoundedTool]:
    for index, tool in enumerate(tools):
        for other in tools[:index]:
            if other.tag == tool.tag:
                names = f"{other.name!r} and {tool.name!r}"
                raise ValueError(f"env_config.tools: {names} are both called by <{tool.tag}>: leave one of them out")
    return {tool.tag: tool for tool in tools}
