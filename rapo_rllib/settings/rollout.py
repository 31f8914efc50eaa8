"""Keys of the rollout: budgets, retrieval, branching, and the text protocol. algorithm.md sections 2, 3 and 10."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rapo_rllib.settings.knobs import Knobs, knob, knobs, shown
from rapo_rllib.settings.schedule import check_share

LEAST_TEMPERATURE = 1e-3  # in training
TAG = re.compile(r"[\w.-]+")
CPU_TOOL_WORKERS, GPU_TOOL_WORKERS = 4, 32


def response_budget(hidden: bool = False) -> Any:
    """Declare ``max_response_tokens``, the one key that both rollout and objective read."""
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

    initial: int | None = knob(None, "`N`, trajectories sampled from the start; None: half of the group", at_least=1)
    branches: int = knob(2, "`Z`, branches of a fork, the forking trajectory included", at_least=2)
    base_prob: float = knob(0.5, "`α`: probability of a fork if the entropy has not changed", at_least=0, at_most=1)
    entropy_weight: float = knob(
        0.2, "`β`: weight of the change of entropy in that probability (released code: `w`)", at_least=-1e3, at_most=1e3
    )
    rule: Literal["threshold", "coin"] = knob(
        "threshold", "`threshold`: fork if P > τ; `coin`: fork with probability P (released code)"
    )
    threshold: float = knob(0.5, "`τ`: fork if P is larger", at_least=0, at_most=1)
    entropy_tokens: int = knob(20, "`k`: compare the mean entropy of the first k tokens of a step", at_least=1)


@dataclass(frozen=True)
class RolloutSettings(Knobs):
    """Budgets, retrieval and branching of one group of trajectories. algorithm.md sections 3 and 10."""

    group_size: int = knob(16, "`G`, trajectories per question (paper: 16)", at_least=1)
    num_hybrid: int = knob(8, "`N_hybrid`, trajectories per question that may retrieve (paper: 8)", at_least=0)
    hybrid_groups: Literal["all", "failed"] = knob(
        "all",
        "which groups have hybrid trajectories: `all` (paper), or `failed`: the others of a group are sampled first, and only "
        "if none of them is right may the rest retrieve",
    )
    retrieval_prob: float | tuple = knob(
        0.5,
        "probability of a retrieval after a completed step (paper: 0.5), or a schedule `[[env steps, probability], ...]`",
        rule="between 0 and 1 or a schedule",
        check=check_share,
    )
    retrieval_by_success: bool = knob(
        False, "multiply `retrieval_prob` by `1 - ŝ`; ŝ is the question's success rate in trajectories without retrieval"
    )
    retrieval_level: Literal["step", "trajectory"] = knob(
        "step", "what is retrieved: a `step`, or a whole `trajectory`, once, before the first step"
    )
    retrieval_budget: Literal["response", "prompt_and_response"] = knob(
        "response", "the budget that a trace must fit into: the `response`, or `prompt_and_response` (released code)"
    )
    retrieval_noise: float = knob(
        0.0, "`p`: probability that a retrieved trace is replaced by a random one that the filter allows", at_least=0, at_most=1
    )
    temperature: float = knob(  # 0 is for evaluations and agents, which do not train; vLLM refuses more than 2
        1.0,
        "sampling temperature; the learner divides its logits by it, too",
        at_least=0,
        at_most=2,
        rule=f"between {LEAST_TEMPERATURE} and 2.0",
    )
    max_prompt_tokens: int = knob(1536, "most tokens of a prompt; longer ones are refused", at_least=1)
    max_response_tokens: int = response_budget()
    max_step_tokens: int | None = knob(
        None, "most generated tokens of a step; None: only the response budget counts", at_least=1
    )
    max_tool_calls: int = knob(3, "most tool calls of a trajectory; one more ends it", at_least=0)
    max_steps: int | None = knob(
        None, "most generated steps of a trajectory, for environments without a limit of their own; None: no limit", at_least=1
    )
    tool_workers: int | None = knob(None, "threads for tool calls; None: 4, or 32 with engines on GPUs", at_least=1)
    step_timeout_s: float = knob(
        120.0, "deadline of one env step with its tool call; each of several calls in a turn has it", at_least=1e-3
    )
    entropy_top_k: int | None = knob(
        None, "compute a token's entropy over its k likeliest tokens (released code: 10); None: over all", at_least=1
    )
    branching: BranchingSettings | None = knob(
        None, "ARPO's forks of trajectories; None: all trajectories of a group are sampled from the start"
    )

    def check_trains(self) -> None:
        """Raise ``ValueError`` if the temperature is too low to train: greedy tokens have no distribution for a ratio."""
        if self.temperature < LEAST_TEMPERATURE:
            raise ValueError(f"temperature = {self.temperature}: must be {knobs(RolloutSettings)['temperature'].must_be}")

    @property
    def num_tool_workers(self) -> int:
        """``tool_workers``, or its default on a CPU, where an engine is so slow that few tools run at once."""
        return self.tool_workers or CPU_TOOL_WORKERS


@dataclass(frozen=True)
class ProtocolSettings(Knobs):
    """The protocol: how a question becomes a prompt, and how calls and results are written. algorithm.md section 2."""

    where: ClassVar[str] = "protocol."

    format: Literal["tags", "native"] = knob(
        "tags", "`tags`: calls in tags, in one turn (paper); `native`: the chat template's tools, calls and tool turns"
    )
    tool_parser: str = knob(
        "auto",
        "parser of calls with `native`: one of vLLM's tool parsers, or `json` (a turn of plain JSON); "
        "`auto`: the first that reads back a call as the chat template writes it",
    )
    template_options: dict = knob(
        dict, "with `native`: variables of the chat template, for example `{enable_thinking: false}`", check=_check_options
    )
    system_prompt: str | None = knob(
        None, "the system prompt; None: the format's default one, for `tags` made from the tools", may_be_empty=True
    )
    examples: tuple[tuple[str, str], ...] = knob(
        (),
        "worked `[question, response]` pairs shown as earlier turns",
        rule="a list of [question, response] pairs of texts",
        check=_check_examples,
    )
    question_template: str = knob("{question}", "text of the user's turn", check=_check_template)
    retrieval_sentence: str = knob(
        "Additional context follows; use it if it helps.", "text before a retrieved trace", may_be_empty=True
    )
    result_tag: ClassVar[str] = "result"  # around what a tool returned
    retrieve_tag: ClassVar[str] = "retrieve"  # around a retrieved trace
    answer_tag: ClassVar[str] = "answer"  # around the answer, which ends the episode
    think_tag: ClassVar[str] = "think"  # around reasoning
    own_tags: ClassVar[tuple[str, ...]] = (result_tag, retrieve_tag, answer_tag, think_tag)

    def check_tool_tags(self, tags: Any, whose: str, instead: str) -> None:
        """Refuse tool tags that are malformed or the protocol's own, in both formats: records are always written in tags.

        Args:
            tags: the tags of tools.
            whose: the owner of the tags, for the message.
            instead: the advice that ends the message.
        """
        if isinstance(tags, str) or not all(isinstance(tag, str) and TAG.fullmatch(tag) for tag in tags):
            raise ValueError(f"{whose}: {tags!r}: must be a list of names, of letters, digits and _ - .")
        for tag in tags:
            if tag in self.own_tags:
                raise ValueError(f"{whose}: a tool is called by <{tag}>, which is a tag of the protocol: {instead}")
