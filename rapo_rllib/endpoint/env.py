"""``rapo/agent``: questions of a data set, which an agent with a loop of its own answers. docs/agents.md.

env_config.agent -> AgentOptions;   what the agent returned -> AgentEnv.step -> reward
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from rapo_rllib.endpoint.function import GIVEN, agent_function, bound
from rapo_rllib.envs.options import ToolEnvOptions
from rapo_rllib.envs.questions import Questions, QuestionsOptions
from rapo_rllib.protocol.steps import Answers
from rapo_rllib.rewards import EpisodeStep
from rapo_rllib.settings import OffPolicySettings
from rapo_rllib.settings.knobs import knob
from rapo_rllib.types import Question
from rapo_rllib.validation import require

_UNREAD = (
    *("max_tool_calls", "reward.called_tool", "reward.all_tools", "reward.all_tools_for", "reward.tool_error"),
    *("protocol.system_prompt", "protocol.examples", "protocol.question_template"),
)


@dataclass(frozen=True)
class AgentOptions(QuestionsOptions):
    """Keys of ``env_config`` of ``rapo/agent``, beside those of ``rapo/questions`` that judge an answer."""

    tools: tuple[Any, ...] = knob((), "an agent brings its own", hidden=True)
    read_answer: Answers = knob("any", "where the answer is read in the text that the agent returns")
    require_boxed: bool = knob(False, "a well-formed answer holds one \\boxed{...}")
    agent: str = knob(
        "", "import path of a function, package.module:run, that returns an answer (a text) or a reward (a number)"
    )
    agent_options: dict = knob(dict, "further arguments of the function")
    agent_timeout_s: float = knob(600.0, "deadline of the agent, from its start to its end", above=0)
    max_requests: int = knob(64, "turns that it may ask for in a trajectory; one more ends it", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        native = self.protocol.format == "native"
        rule = "an agent's messages are written as the model's chat template has them: set protocol.format to 'native'"
        require(native, "protocol.format", self.protocol.format, rule)
        require(self.tools == (), "tools", list(self.tools), "an agent brings its own tools: leave it out")
        for key in _UNREAD:
            value, usual = attrgetter(key)(self), attrgetter(key)(ToolEnvOptions())
            require(value == usual, key, value, "an agent writes its own messages, and calls its own tools: leave it out")
        try:
            bound(agent_function(self.agent), dict.fromkeys(GIVEN), self.agent_options)
        except TypeError as error:
            raise ValueError(f"env_config.agent = {self.agent!r}, with agent_options: {error}") from error

    def check_rows(self, name: str, questions: Sequence[Question]) -> None:
        """Accept rows with any tools: an agent reads from ``task.tools`` which tools it is to offer."""


def check_begins(off_policy: OffPolicySettings) -> None:
    """Raise ``ValueError`` if keys of a job ask an agent to begin after an expert's steps."""
    for key in ("expert_start_share", "expert_step_share"):
        if value := getattr(off_policy, key):
            raise ValueError(f"{key} = {value} with an agent: it begins by itself, not behind an expert's steps; set it to 0")


class AgentEnv(Questions):
    """Environment that judges what an agent returns; ``endpoint/loop.py`` runs the agent, and passes its result to ``step``."""

    options_class: ClassVar[type[AgentOptions]] = AgentOptions

    def step(self, action: str | float) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """End the episode: a text is an answer, and scored; a number is the reward."""
        if isinstance(action, str):
            return super().step(action)
        self.end_sessions()
        return "", action, True, False, {"end": "answer"}

    def _outcome(self, predicted: str | None, *last: EpisodeStep, answer_text: str = "") -> tuple[float, dict[str, Any]]:
        """Score the end, without rewards of single steps, as the environment's one step stands for all steps of the agent."""
        reward, info = super()._outcome(predicted, *last, answer_text=answer_text)
        info.pop("step_rewards", None)
        return reward, info

    def __deepcopy__(self, memo: dict[int, Any]) -> AgentEnv:
        raise TypeError("an agent cannot be copied while it runs")
