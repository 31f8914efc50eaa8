"""``env_config`` as typed, checked options: every environment declares its keys as a frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from rapo_rllib.protocol.answers import Answers
from rapo_rllib.rewards import RewardOptions, check_scorer, with_reward_preset
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.settings.knobs import Knobs, build, knob
from rapo_rllib.validation import require

Options = TypeVar("Options")


def read_options(cls: type[Options], values: Mapping[str, Any], where: str = "env_config.") -> Options:
    """Build ``cls`` from a user's dictionary; nested dataclasses from nested dictionaries, tuples from lists.

    Raises:
        ValueError: an unknown key, named with the nearest valid one; or what ``cls`` itself refuses.
    """
    return build(cls, with_reward_preset(values), where)


@dataclass(frozen=True)
class ToolEnvOptions(Knobs):
    """Keys of ``env_config`` that every tool environment understands."""

    where: ClassVar[str] = "env_config."

    tools: tuple[Any, ...] = knob(
        ("python",), "names or import paths; or {name: ..., options: {...}}", rule="a list of tool names, for example [python]"
    )
    max_tool_calls: int = knob(3, "one call more ends the episode", at_least=0)
    scorer: Any = knob("math", "math, qa (token F1), qa_em, auto (by the question's source), judge, or package.module:function")
    read_answer: Answers = knob("tagged", "where the answer is read; boxed: in the last box; any: as the model gives it")
    require_boxed: bool = knob(True, "a well-formed answer holds one \\boxed{...}")
    reward: RewardOptions = knob(RewardOptions, "a mapping of weights, or the name of a preset")
    protocol: ProtocolSettings = knob(ProtocolSettings, "its tags are read here")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scorer(self.scorer)
        whole_text = self.protocol.format == "native" and self.reward.format_check == "whole_text"
        rule = "with protocol.format = 'native' there are no tags to check: must be 'final_step'"
        require(not whole_text, "reward.format_check", self.reward.format_check, rule)
