"""Keys of the rollout: budgets, retrieval, branching, and the text protocol. algorithm.md sections 2, 3 and 10."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rapo_rllib.settings.knobs import Knobs, knob, knobs, shown
from rapo_rllib.settings.schedule import check_share

LEAST_TEMPERATURE = 1e-3  # of a training
TAG = re.compile(r"[\w.-]+")
CPU_TOOL_WORKERS, GPU_TOOL_WORKERS = 4, 32


def response_budget(hidden: bool = False) -> Any:
    """The declaration of the one key that both rollout and objective read."""
    return knob(
        4096,
        "tokens of a response, observations and retrieved ones included; `L` of constant aggregation, `L_max` of overlong",
        at_least=1,
        hidden=hidden,
    )


def _check_options(name: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name} = {shown(value)}: must be a mapping of the template's variables")


def _check_examples(name: str, value: Any) -> None:
    for pair in value if isinstance(value, tuple) else [value]:
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ValueError(f"{name} = {shown(value)}: must be a list of [question, response] pairs of texts")


def _check_template(name: str, value: Any) -> None:
    if not isinstance(value, str) or "{question}" not in value:
        raise ValueError(f"{name} = {shown(value)}: must be a text with {{question}} in it")


@dataclass(frozen=True)
class BranchingSettings(Knobs):
    """ARPO's entropy-based adaptive rollout: which trajectories fork after a tool result. algorithm.md section 10."""

    where: ClassVar[str] = "branching."

    initial: int | None = knob(None, "`N`, sampled from the start; None: half of the group", at_least=1)
    branches: int = knob(2, "`Z`, ways a fork goes on, the forking trajectory among them", at_least=2)
    base_prob: float = knob(0.5, "`α`: chance of a fork where the entropy has not changed", at_least=0, at_most=1)
    entropy_weight: float = knob(
        0.2, "`β`: of the change of entropy in that chance (released code: `w`)", at_least=-1e3, at_most=1e3
    )
    rule: Literal["threshold", "coin"] = knob(
        "threshold", "`threshold`: fork if P > τ; `coin`: fork with probability P (released code)"
    )
    threshold: float = knob(0.5, "`τ`: a fork needs more", at_least=0, at_most=1)
    entropy_tokens: int = knob(20, "`k`, first tokens of a step whose mean entropy is compared", at_least=1)


@dataclass(frozen=True)
class RolloutSettings(Knobs):
    """Budgets, retrieval and branching of one group of trajectories. algorithm.md sections 3 and 10."""

    group_size: int = knob(16, "`G`, trajectories per question (paper: 16)", at_least=1)
    num_hybrid: int = knob(8, "`N_hybrid`, how many of them may retrieve (paper: 8)", at_least=0)
    hybrid_groups: Literal["all", "failed"] = knob(
        "all",
        "which groups have them: `all` (paper), or those that have `failed`: the others of a group are sampled first, and "
        "where one of them is right the rest are on-policy, too",
    )
    retrieval_prob: float | tuple = knob(
        0.5,
        "chance of a retrieval after a completed step (paper: 0.5), or a schedule `[[env steps sampled, chance], ...]`",
        rule="between 0 and 1 or a schedule",
        check=check_share,
    )
    retrieval_by_success: bool = knob(
        False,
        "`1 - ŝ` of that chance: ŝ is how often the question is right in trajectories that retrieved nothing",
    )
    retrieval_level: Literal["step", "trajectory"] = knob(
        "step", "what is retrieved: a `step`, or a whole `trajectory`, once and before the first step"
    )
    retrieval_budget: Literal["response", "prompt_and_response"] = knob(
        "response", "what a trace must fit into with the rest: `response`, or `prompt_and_response` (released code)"
    )
    retrieval_noise: float = knob(
        0.0,
        "`p`: chance that a retrieved trace is replaced by a random one, of all that could be found",
        at_least=0,
        at_most=1,
    )
    temperature: float = knob(  # 0 is for those that only answer; vLLM refuses more than 2
        1.0,
        "of sampling; the learner divides its logits by it too",
        at_least=0,
        at_most=2,
        rule=f"between {LEAST_TEMPERATURE} and 2.0",
    )
    max_prompt_tokens: int = knob(1536, "longer prompts are refused", at_least=1)
    max_response_tokens: int = response_budget()
    max_step_tokens: int | None = knob(None, "generated tokens of one step; None: the response budget alone", at_least=1)
    max_tool_calls: int = knob(3, "calls of tools in a trajectory; one more ends it", at_least=0)
    max_steps: int | None = knob(
        None, "generated steps of a trajectory, for environments without a limit of their own", at_least=1
    )
    tool_workers: int | None = knob(None, "threads that wait for tools; None: 4, or 32 beside engines on GPUs", at_least=1)
    step_timeout_s: float = knob(
        120.0, "deadline of one env step (its tool call included; of several in a turn, each)", at_least=1e-3
    )
    entropy_top_k: int | None = knob(
        None, "likeliest tokens that a token's entropy is made of (released code: 10); None: all", at_least=1
    )
    branching: BranchingSettings | None = knob(None, "which trajectories fork; None: all of a group are sampled from the start")

    def check_trains(self) -> None:
        """Raise ``ValueError`` for what only answers: greedy tokens have no distribution that a ratio could be of."""
        if self.temperature < LEAST_TEMPERATURE:
            raise ValueError(f"temperature = {self.temperature}: must be {knobs(RolloutSettings)['temperature'].must_be}")

    @property
    def num_tool_workers(self) -> int:
        """``tool_workers``, resolved: on a CPU an engine is so slow that few tools are under way."""
        return self.tool_workers or CPU_TOOL_WORKERS


@dataclass(frozen=True)
class ProtocolSettings(Knobs):
    """The protocol: how a question becomes a prompt, and how calls and results are written. algorithm.md section 2."""

    where: ClassVar[str] = "protocol."

    format: Literal["tags", "native"] = knob(
        "tags",
        "`tags`: calls in tags of their own, in one turn (the paper); `native`: as the model's chat template has tools, "
        "results as tool turns",
    )
    tool_parser: str = knob(
        "auto",
        "what reads calls of `native`: any of vLLM's tool parsers, `json`, a turn of plain JSON, or `harmony`, of gpt-oss; "
        "`auto`: the first that reads back a call that the model's chat template wrote",
    )
    show_retrieved: Literal["turn", "tags"] = knob(
        "turn", "of `native`: a retrieved step is a user `turn` of its own, or stands in its `tags` in the policy's turn"
    )
    template_options: dict = knob(
        dict, "of `native`: variables of the chat template, for example `{enable_thinking: false}`", check=_check_options
    )
    system_prompt: str | None = knob(
        None, "None: the default one of the format, for `tags` made from the tool set", may_be_empty=True
    )
    examples: tuple[tuple[str, str], ...] = knob(
        (),
        "worked `[question, response]` pairs shown as earlier turns",
        rule="a list of [question, response] pairs of texts",
        check=_check_examples,
    )
    question_template: str = knob("{question}", "the user's turn", check=_check_template)
    retrieval_sentence: str = knob(
        "Additional context follows; use it if it helps.", "stands before a retrieved trace", may_be_empty=True
    )
    result_tag: ClassVar[str] = "result"  # around what a tool returned
    retrieve_tag: ClassVar[str] = "retrieve"  # around a retrieved trace
    answer_tag: ClassVar[str] = "answer"  # around the answer, which ends the episode
    think_tag: ClassVar[str] = "think"  # around reasoning
    own_tags: ClassVar[tuple[str, ...]] = (result_tag, retrieve_tag, answer_tag, think_tag)

    def check_tool_tags(self, tags: Any, whose: str, instead: str) -> None:
        """Refuse tags of tools that are none, or the protocol's own; records of both formats are written in tags.

        Args:
            tags: of tools.
            whose: what they belong to, for the message.
            instead: the advice.
        """
        if isinstance(tags, str) or not all(isinstance(tag, str) and TAG.fullmatch(tag) for tag in tags):
            raise ValueError(f"{whose}: {tags!r}: must be a list of names, of letters, digits and _ - .")
        for tag in tags:
            if tag in self.own_tags:
                raise ValueError(f"{whose}: a tool is called by <{tag}>, which is a tag of the protocol: {instead}")
