"""The common part of the adapters: the policy's action is found in its step, and what each step earns is kept.

A step of the policy holds an action in one of three forms: ``<act>up</act>`` in the text protocol, a call of the tool ``act``
in the model's own format, or, without ``action_tag``, all that the policy wrote.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import gymnasium

from rapo_rllib.envs.base import SeedQuestions, check_split
from rapo_rllib.envs.options import CountOptions, read_options
from rapo_rllib.envs.text_space import AnyText
from rapo_rllib.protocol.steps import parse_step
from rapo_rllib.protocol.turns import Call, Observation, Schema, Turn
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.tools.schema import input_of, problem_of, tool_schema
from rapo_rllib.types import Question, ToolUse
from rapo_rllib.validation import require

_OVER = "The episode is over: this was not done."
_ROUNDING = 1e-9  # of rewards such as three thirds


@dataclass(frozen=True)
class ExternalOptions(Knobs):
    """Keys of ``env_config`` that all environments of other packages understand."""

    where: ClassVar[str] = "env_config."

    action_tag: str | None = knob(
        None, "the tag (`act`), or the tool, that an action stands in; None: all that the policy writes in a step is the action"
    )
    action_template: str = knob("{action}", "what the environment gets of an action that stood in the tag")
    success_reward: float = knob(1.0, "an episode is correct if its last step, or all together, earned as much")
    protocol: ProtocolSettings = knob(ProtocolSettings, "its format and its tags are read here", hidden=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require("{action}" in self.action_template, "action_template", self.action_template, "must hold {action}")
        tag, rule = self.action_tag, "stands for something else in the text protocol"
        require(tag not in self.protocol.own_tags, "action_tag", tag, rule)
        tags = () if tag is None else (tag,)
        self.protocol.check_tool_tags(tags, "env_config.action_tag", "name another")


@dataclass(frozen=True)
class SeededOptions(CountOptions, ExternalOptions):
    """Keys of ``env_config`` of environments whose questions are seeds: the training questions those from 0 on."""

    def questions(self, split: str) -> SeedQuestions:
        """Those of a split."""
        check_split(split)
        return SeedQuestions(self.num_train) if split == "train" else SeedQuestions(self.num_test, offset=2**30)


@dataclass(frozen=True)
class Played:
    """An environment's answer to one action."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)


class _Action(NamedTuple):
    text: str
    problem: str = ""  # why a call cannot be played, for the policy to read
    kind: str = ""  # of the problem, as tools name errors


@dataclass(frozen=True)
class _Act:
    """The action as a tool, for its schema."""

    tag: str
    description: str = "Makes one move."
    argument: str = "action"


class ExternalEnv(gymnasium.Env[str, str]):
    """An environment of another package. Subclasses write ``begin`` and ``play``.

    Args:
        env_config: the keys of ``options_class``.
        **kwargs: further keys, as ``gymnasium.make`` passes them.

    Raises:
        ValueError: an unknown key, a value that cannot be, or a package that is missing.
    """

    options_class: ClassVar[type[ExternalOptions]] = ExternalOptions
    is_game = True  # a turn that calls no tool is an action, too, and no answer

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self.env_config = {**(env_config or {}), **kwargs}
        self.options = read_options(self.options_class, self.env_config)
        self.observation_space, self.action_space = AnyText(), AnyText()
        tag = self.options.action_tag
        self._native = self.options.protocol.format == "native"
        self._schema: Schema | None = tool_schema(_Act(tag)) if tag else None
        self.tool_schemas = [self._schema] if self._schema is not None and self._native else None
        self._total = 0.0
        self._running = False

    @property
    def tool_tags(self) -> tuple[str, ...]:
        """Tags whose closing form ends a generated step."""
        tag = self.options.action_tag
        return () if self._native or tag is None else (tag,)

    @abstractmethod
    def begin(self, question: Question) -> str:
        """Start an episode; returns what the policy reads first. Raises whatever says that the environment failed."""

    @abstractmethod
    def play(self, action: str) -> Played:
        """Take one action. Raises whatever says that the environment failed, which costs the trajectory."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode on ``options["question"]``; without one, on a random training question."""
        super().reset(seed=seed)
        question = (options or {}).get("question") or self._random_question()
        self._total, self._running = 0.0, True
        return self.begin(question), {}

    def _random_question(self) -> Question:
        source = self.questions(self.env_config, "train")  # type: ignore[attr-defined]
        question: Question = source[int(self.np_random.integers(len(source)))]
        return question

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play the action of one generated step, or those of a turn with several calls, until the episode ends.

        info has ``tool`` and ``tool_error`` of an action that stood in its tag, ``correct`` at the end, and what the
        environment itself tells.
        """
        if not self._running:
            raise gymnasium.error.ResetNeeded("step() before reset(), or after the end of an episode")
        actions = self._actions_in(action)
        played = [self._one(given) for given in actions]
        last = next((one for one in reversed(played) if one is not None), Played(""))
        texts = [_OVER if one is None else one.observation for one in played]
        reward = sum(one.reward for one in played if one is not None)
        info = {**last.info, **self._uses(actions, played)}
        if not self._running:
            correct = max(last.reward, self._total) >= self.options.success_reward - _ROUNDING
            info = {"correct": correct, "format_ok": True, **info}
        return Observation.of(texts), reward, last.terminated, last.truncated, info

    def _one(self, given: _Action) -> Played | None:
        """Play one action; None: the episode was over."""
        if not self._running:
            return None
        if given.problem:
            return Played(f"Error: {given.problem}")
        played = self.play(given.text)
        self._total += played.reward
        self._running = not (played.terminated or played.truncated)
        return played

    def _actions_in(self, action: str) -> list[_Action]:
        """Those of a step: of its calls, in its tag, or the step itself."""
        if isinstance(action, Turn) and action.native and action.calls:
            return [self._called(call) for call in action.calls]
        tag = self.options.action_tag
        if tag is not None and not self._native:
            parsed = parse_step(action, self.options.protocol, (tag,))
            if parsed.tool_tag is not None:
                return [_Action(self._filled(parsed.tool_input or ""))]
        return [_Action(str(action))]

    def _called(self, call: Call) -> _Action:
        if call.problem:
            return _Action("", call.problem, "malformed")
        if self._schema is None or call.name != self.options.action_tag:
            return _Action("", f"there is no tool {call.name!r}; the tools are: {self.options.action_tag or 'none'}", "unknown")
        if problem := problem_of(self._schema, call.arguments):
            return _Action("", problem, "arguments")
        return _Action(self._filled(input_of(self._schema, call.arguments)))

    def _filled(self, action: str) -> str:
        return self.options.action_template.replace("{action}", action)

    def _uses(self, actions: list[_Action], played: list[Played | None]) -> dict[str, Any]:
        """The calls of a step, for metrics and step traces; nothing where the step itself is the action."""
        tag = self.options.action_tag
        if tag is None:
            return {}
        errors = [
            given.kind or ("over" if one is None else one.info.get("tool_error"))
            for given, one in zip(actions, played, strict=True)
        ]
        uses = [ToolUse("unknown" if error == "unknown" else tag, error) for error in errors]
        info: dict[str, Any] = {"tool": uses[0].tool, "tool_error": next((use.error for use in uses if use.error), None)}
        if len(uses) > 1:
            info["tool_calls"] = [(use.tool, use.error, use.seconds) for use in uses]
        return info

    def truncate(self) -> tuple[float, dict[str, Any]]:
        """End an episode that a budget of the rollout cuts off: it is not correct, whatever it has earned."""
        self._running = False
        return 0.0, {"correct": False, "format_ok": False}
