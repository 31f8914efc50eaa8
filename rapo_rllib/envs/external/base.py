"""The common part of the adapters: find the policy's action in its step, play it, and add up the rewards.

A step of the policy holds an action in one of three forms: ``<act>up</act>`` in the text protocol, a call of the tool ``act``
in the model's own format, or, without ``action_tag``, all that the policy wrote.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium

from rapo_rllib.envs.base import SeedQuestions, TextEnv, info_of
from rapo_rllib.envs.options import CountOptions
from rapo_rllib.protocol.steps import parse_step
from rapo_rllib.protocol.turns import Call, Observation, Schema, Turn
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.tools.schema import input_of, problem_of, tool_schema
from rapo_rllib.types import Question, ToolUse
from rapo_rllib.validation import require

_OVER = "The episode is over: this was not done."
_SUCCESS = 1.0 - 1e-9  # least reward, of the last step or of all steps in sum (such as three thirds), that counts as correct


@dataclass(frozen=True)
class ExternalOptions(Knobs):
    """Keys of ``env_config`` that all environments of other packages understand."""

    where: ClassVar[str] = "env_config."

    action_tag: str | None = knob(
        None, "tag or tool of an action (`act`); None: all that the policy writes in a step is the action"
    )
    protocol: ProtocolSettings = knob(ProtocolSettings, "its format and its tags are read here", hidden=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        tag, rule = self.action_tag, "stands for something else in the text protocol"
        require(tag not in self.protocol.own_tags, "action_tag", tag, rule)
        tags = () if tag is None else (tag,)
        self.protocol.check_tool_tags(tags, "env_config.action_tag", "name another")


@dataclass(frozen=True)
class SeededOptions(CountOptions, ExternalOptions):
    """The ``env_config`` keys of environments whose questions are seeds; training seeds begin at 0, test seeds at 2**30."""

    def questions(self, split: str) -> SeedQuestions:
        """Return the questions of a split."""
        return SeedQuestions(self.count(split), offset=0 if split == "train" else 2**30)


@dataclass(frozen=True)
class Played:
    """An environment's answer to one action."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)


class ExternalEnv(TextEnv):
    """Base of environments that play a policy's actions. Subclasses implement ``begin``, ``play`` and ``questions``."""

    options_class: ClassVar[type[ExternalOptions]] = ExternalOptions
    template: ClassVar[str] = "{action}"  # form in which an action from the tag goes to the environment

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(env_config, **kwargs)
        self._tag = self.options.action_tag
        self._native = self.options.protocol.format == "native"
        tool = SimpleNamespace(tag=self._tag, description="Makes one move.", argument="action")
        self._schema: Schema | None = tool_schema(tool) if self._tag else None
        self.tool_schemas = [self._schema] if self._schema is not None and self._native else None
        self._total = 0.0
        self._running = False

    @property
    def tool_tags(self) -> tuple[str, ...]:
        """Tags whose closing form ends a generated step."""
        return () if self._native or self._tag is None else (self._tag,)

    @abstractmethod
    def begin(self, question: Question) -> str:
        """Start an episode and return its first observation. Any exception means that the environment failed."""

    @abstractmethod
    def play(self, action: str) -> Played:
        """Play one action. Any exception means that the environment failed, which costs the trajectory."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode on ``options["question"]``, else on a random training question."""
        super().reset(seed=seed)
        question = self.asked(options)
        self._total, self._running = 0.0, True
        return self.begin(question), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play the action of one generated step, or all actions of a turn with several calls, until the episode ends.

        info has the environment's own entries, ``tool`` and ``tool_error`` if ``action_tag`` is set, and at the end
        ``correct`` and ``format_ok``.
        """
        if not self._running:
            raise gymnasium.error.ResetNeeded("step() before reset(), or after the end of an episode")
        played = [self._one(given) for given in self._actions_in(action)]
        last = next((one for one in played if one.terminated or one.truncated), played[-1])
        info = dict(last.info)
        if self._tag is not None:
            errors = [one.info.get("tool_error") for one in played]
            info |= info_of([ToolUse(error if error == "unknown" else self._tag, error) for error in errors])
        if not self._running:
            correct = max(last.reward, self._total) >= _SUCCESS
            info = {"correct": correct, "format_ok": True, **info}
        observation = Observation.of([one.observation for one in played])
        return observation, sum(one.reward for one in played), last.terminated, last.truncated, info

    def _one(self, given: str | Played) -> Played:
        """Play one action; ``given`` is a ``Played`` if a call was refused, and is returned."""
        if not self._running:
            return Played(_OVER, info={"tool_error": "over"})
        if isinstance(given, Played):
            return given
        played = self.play(given)
        self._total += played.reward
        self._running = not (played.terminated or played.truncated)
        return played

    def _actions_in(self, action: str) -> list[str | Played]:
        """Find the actions in a step: its calls, the text in its tag, or the whole step."""
        if isinstance(action, Turn) and action.native and action.calls:
            return [self._called(call) for call in action.calls]
        if self._tag is not None and not self._native:
            parsed = parse_step(action, self.options.protocol, (self._tag,))
            if parsed.tool_tag is not None:
                return [self.template.replace("{action}", parsed.tool_input or "")]
        return [str(action)]

    def _called(self, call: Call) -> str | Played:
        if call.problem:
            return _refused(call.problem, "malformed")
        if self._schema is None or call.name != self._tag:
            return _refused(f"there is no tool {call.name!r}; the tools are: {self._tag or 'none'}", "unknown")
        if problem := problem_of(self._schema, call.arguments):
            return _refused(problem, "arguments")
        return self.template.replace("{action}", input_of(self._schema, call.arguments))

    def truncate(self) -> tuple[float, dict[str, Any]]:
        """End an episode that a rollout budget cuts off: it is not correct, whatever it has earned."""
        self._running = False
        return 0.0, {"correct": False, "format_ok": False}


def _refused(problem: str, kind: str) -> Played:
    """Build the answer to a call that is not played; ``kind``: its error in one word, as tools name errors."""
    return Played(f"Error: {problem}", info={"tool_error": kind})
