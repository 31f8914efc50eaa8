"""The data that crosses layers: question, step trace, trajectory, group.

    Question --rollout--> Trajectory (x G) --> TrajectoryGroup --batching--> learner

Shapes: ``T`` response tokens of one trajectory, ``P`` prompt tokens, ``G`` trajectories of a group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any


@dataclass(frozen=True)
class Question:
    """One training prompt with a checkable ground truth.

    Example: ``Question(id="gsm8k-train-7", text="Tom has 3 apples...", answer="8")``
    """

    id: str
    text: str
    answer: str = ""  # empty only for environments that score by themselves
    aliases: tuple[str, ...] = ()  # further accepted answers
    seed: int | None = None  # handed to `env.reset(seed=...)`
    source: str = ""
    benchmark: str = ""  # an evaluation also reports the accuracy per benchmark, under this name
    # (role, text) of the turns that the data set puts before the question: a system prompt, then user and assistant turns; a
    # third item holds more fields of a message, as chat templates take them: an assistant's `tool_calls`, a result's `name`
    turns: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)
    tools: tuple[str, ...] | None = field(default=None, repr=False)  # names of the tools that may be called; None: all
    schemas: tuple[dict[str, Any], ...] = field(default=(), repr=False)  # of its data row, shown in place of the job's
    # first steps, by another agent, in the text protocol; trajectories go on from there; none in an evaluation
    start: tuple[str, ...] = field(default=(), repr=False)
    # the agent's step after `start`: a trajectory is one step, and right if it does the same; empty: trajectories are whole
    expected: str = field(default="", repr=False)
    columns: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # its data row's, for scorers
    retrieval_share: float = field(default=1.0, repr=False)  # factor on the chance that its trajectories retrieve

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The turns before the question, as chat templates take them."""
        return [{"role": role, "content": text, **dict(*more)} for role, text, *more in self.turns]

    @property
    def answers(self) -> tuple[str, ...]:
        """All accepted answers."""
        return tuple(filter(None, (self.answer, *self.aliases)))

    @property
    def is_whole(self) -> bool:
        """Whether its trajectories are whole: no first steps are given, and they are not cut to a single step."""
        return not self.start and not self.expected


@dataclass(frozen=True)
class StepTrace:
    """A step that an off-policy agent wrote (value), with the history before it (key). algorithm.md section 4.

    Example: question "Tom has 3...", history "<python>3 + 5</python> <result>8</result>", text "<answer>8</answer>".
    """

    id: str  # derived from the content, so that every import can be repeated
    question: str
    history: str  # the steps before this one, in the text protocol; "" for step 0
    text: str  # thought, action and observation of this step, in the text protocol
    reward: float  # outcome reward of the trajectory it was cut from
    question_id: str = ""
    step_index: int = 0
    source: str = ""
    weight_version: int = -1  # of the policy that wrote it in training; -1: written beforehand by an off-policy agent


@dataclass(frozen=True)
class HistoryQuery:
    """Query of a trajectory to the Step-Trace Buffer: the trajectory's question and its steps so far."""

    question: str
    history: str
    question_id: str = ""
    asker: str = ""  # name of the trajectory; it seeds retrieval noise, so that chance does not depend on timing
    answers: tuple[str, ...] = ()  # accepted answers, for the filter that hides them


FALLBACK = "fallback"  # id and source of the trace that stands for "nothing suitable was found"


@dataclass(frozen=True)
class RetrievedTrace:
    """A step trace with the cosine similarity of its key to the query, in [-1, 1]; 0 if its key was not compared."""

    trace: StepTrace
    similarity: float
    noisy: bool = False  # a random one in place of the retrieved one (retrieval_noise)


@dataclass(frozen=True)
class ExpertTrajectory:
    """A whole trajectory of an off-policy agent, cut into steps: what a Step-Trace Buffer is built from.

    Example: ``steps=("<python>3 + 5</python> <result>8</result>", "<answer>8</answer>")``
    """

    question: Question
    steps: tuple[str, ...]
    reward: float
    source: str


class TokenKind(IntEnum):
    """Writers of response tokens. ``POLICY`` and ``EXPERT`` tokens are trained; only ``POLICY`` has logprob and entropy."""

    POLICY = 0
    OBSERVATION = 1
    RETRIEVED = 2
    EXPERT = 3  # in an off-policy trajectory, what its author wrote
    GIVEN = 4  # first steps taken from another agent: the agent's text, and what tools answer to it now


TRAINED_KINDS = (TokenKind.POLICY, TokenKind.EXPERT)
ROLLOUT, EXPERT, REPLAY = "rollout", "expert", "replay"  # origins of a trajectory


@dataclass(frozen=True)
class ToolUse:
    """One tool call that was run, or could not be."""

    tool: str  # its name
    error: str | None = None  # why it failed, e.g. "timeout"
    seconds: float = 0.0


@dataclass
class Step:
    """One generated step: the policy tokens ``token_ids[start:stop]`` of its trajectory."""

    start: int
    stop: int
    text: str = ""
    tool: str | None = None  # name of the tool it called
    tool_error: str | None = None  # why the call failed, e.g. "timeout"
    tool_seconds: float = 0.0
    observation: str = ""
    reward: float = 0.0  # paid by the environment at this step; a trajectory's reward is the sum over its steps
    state: str = ""  # key of the environment's state in which it was written, if the environment gives one
    right: bool | None = None  # whether it is a step of a solution; None: the environment cannot tell
    text_start: int = -1  # offset of its text in the trajectory's text, in characters; -1: not recorded
    record: str | None = None  # its text in the text protocol, if `text` is in another format
    calls: tuple[ToolUse, ...] = ()  # of a turn with several calls
    num_sampled: int | None = None  # tokens as its author counts them, with another tokenizer; None: ``stop - start``

    @property
    def as_text(self) -> str:
        """The step's text in the text protocol, the format of histories and step traces."""
        return self.text if self.record is None else self.record

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        """All tool calls of the step."""
        if self.calls or self.tool is None:
            return self.calls
        return (ToolUse(self.tool, self.tool_error, self.tool_seconds),)


@dataclass
class Retrieval:
    """One retrieved step trace, between the generated steps ``after_step`` and ``after_step + 1`` of its trajectory."""

    trace_id: str
    source: str
    similarity: float
    after_step: int  # index into Trajectory.steps of the generated step before it
    start: int  # its tokens are token_ids[start:stop]
    stop: int
    noisy: bool = False  # a random trace (retrieval_noise)
    own_question: bool = False  # cut from a trajectory of the same question
    shows_answer: bool = False  # holds an accepted answer to the question, as a number or in words
    answer: str = ""  # that the step trace gives; empty: none
    text_start: int = -1  # as in Step
    text: str = ""  # of the step trace

    @property
    def is_step(self) -> bool:
        """Whether a solver's step is shown, which can be imitated, and not the fallback."""
        return self.source != FALLBACK


@dataclass
class Trajectory:
    """The steps of one rollout of one question, as tokens. algorithm.md sections 2, 3.

    The per-token lists grow together, by one append method per kind of token, so their lengths stay equal.

    Example, response ``<python>3 + 5</python><result>8</result><answer>8</answer>``: kinds are POLICY for the call, OBSERVATION
    for the result, POLICY for the answer; ``logprobs`` and ``entropies`` are 0.0 on the OBSERVATION tokens and never read.
    """

    question_id: str
    prompt_ids: Sequence[int]  # [P], shared by the group
    question_text: str = ""  # as the environment put it
    hybrid: bool = False  # may retrieve; on-policy trajectories never do
    policy_version: int = 0  # of the weights that began it; for an expert's: of the weights in training
    origin: str = ROLLOUT  # rollout; off-policy: expert, or replay (an earlier rollout of the policy's own)
    token_ids: list[int] = field(default_factory=list)  # [T]
    kinds: list[int] = field(default_factory=list)  # [T] TokenKind
    logprobs: list[float] = field(default_factory=list)  # [T] of the distribution sampled from, nats
    entropies: list[float] = field(default_factory=list)  # [T] over the vocabulary (or `entropy_top_k` tokens), nats (eq. 2)
    steps: list[Step] = field(default_factory=list)
    retrievals: list[Retrieval] = field(default_factory=list)
    text: str = ""  # the response, for people, tools and retrieval; never encoded again
    given: tuple[str, ...] = ()  # first steps that were given, with what tools answered, as in histories
    reward: float = 0.0
    reward_terms: dict[str, float] = field(default_factory=dict)  # their sum is the reward, if the environment names any
    earlier: dict[int, float] = field(default_factory=dict)  # step -> reward that was paid at the end, but earned by this step
    predicted: str = ""  # its answer, if it gave one and the environment reports it
    correct: bool = False
    format_ok: bool = False
    score_failure: str = ""  # why the scorer could not judge, e.g. "judge/unreachable" or "math/timeout"
    failed_retrievals: int = 0  # times that the buffer did not answer; the trajectory went on without
    end: str = ""  # answer, eos, length (tokens or steps), tool_limit, step (after a single step) or error
    turn_ended: bool = False  # the last token that was sampled is EOS, with nothing but blanks between it and the answer
    unfitting_tokens: int = 0  # of a tool's result that did not fit into the budget, which ended the trajectory
    error: str = ""
    start_refused: bool = False  # it could not begin after the first steps that it was given
    seconds: float = 0.0
    # (first token, member of the group that wrote from there on), in order: a branch begins with tokens of another member.
    # Empty: all tokens are its own.
    segments: list[tuple[int, int]] = field(default_factory=list)
    # (first token, version), in order: other weights wrote from there on (max_staleness above 0). Empty: one version wrote all
    version_changes: list[tuple[int, int]] = field(default_factory=list)
    unaided: Trajectory | None = None  # its form without help, trained beside it (shown_steps); None: it has none
    own_prompt: bool = False  # an agent made its prompt, which may differ from the prompts of its group
    # an agent's other sequences: branches of a history that it rewrote, other conversations; trained with this one's advantage
    others: list[Trajectory] = field(default_factory=list)

    def fork(self, member: int) -> Trajectory:
        """Return a copy of the trajectory that member ``member`` of the group continues."""
        own: dict[str, Any] = {name: copy(value) for name, value in vars(self).items() if isinstance(value, list | dict)}
        return replace(self, **own | {"segments": [*self.segments, (len(self.token_ids), member)]})

    @property
    def step_rewards(self) -> list[float]:
        """The rewards of the steps; their sum is the reward of the trajectory.

        A step's reward was paid at the step, or at the end for the step (``earlier``); the last step has the rest.

        Example: ``[0.5, 1.0]`` was paid, and 0.25 of the 1.0 was for step 0: ``[0.75, 0.75]``.
        """
        if not self.steps:
            return []
        before = [step.reward + self.earlier.get(index, 0.0) for index, step in enumerate(self.steps[:-1])]
        return [*before, self.reward - math.fsum(before)]

    @property
    def sequences(self) -> list[Trajectory]:
        """The trajectory itself, and ``others``, which are trained with its advantage."""
        return [self, *self.others]

    @property
    def own_start(self) -> int:
        """Index of the first token of its own; the tokens before come from the trajectory that it branched off."""
        return self.segments[-1][0] if len(self.segments) > 1 else 0

    @property
    def own_steps(self) -> list[Step]:
        """The steps that it generated itself, in all its sequences."""
        return [step for one in self.sequences for step in one.steps if step.start >= one.own_start]

    @property
    def own_retrievals(self) -> list[Retrieval]:
        """The retrievals of its own, without those of the trajectory that it branched off."""
        return [retrieval for retrieval in self.retrievals if retrieval.start >= self.own_start]

    @property
    def newest_version(self) -> int:
        """The version of the weights that wrote its last policy tokens."""
        return self.version_changes[-1][1] if self.version_changes else self.policy_version

    @property
    def token_versions(self) -> list[int]:
        """Version of the weights for each response token, ``[T]``; it has a meaning for policy tokens only.

        Example: begun by version 3, from token 2 on written by version 4, four tokens: ``[3, 3, 4, 4]``.
        """
        versions, version, start = [], self.policy_version, 0
        for change, other in [*self.version_changes, (len(self.token_ids), 0)]:
            versions += [version] * (change - start)
            version, start = other, change
        return versions

    def append_policy(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        entropies: Sequence[float],
        versions: Sequence[int] | None = None,
    ) -> Step:
        """Append one generated step. ``versions``: of the weights, one per token; None: the same as before.

        Raises:
            ValueError: the lists differ in length.
        """
        versions = [self.newest_version] * len(token_ids) if versions is None else versions
        if not len(token_ids) == len(logprobs) == len(entropies) == len(versions):
            raise ValueError(
                f"a generated step needs one logprob, entropy and version per token: got {len(token_ids)} tokens, "
                f"{len(logprobs)} logprobs, {len(entropies)} entropies, {len(versions)} versions"
            )
        start = len(self.token_ids)
        for token, version in enumerate(versions, start):
            if version != self.newest_version:
                self.version_changes.append((token, version))
        self.token_ids.extend(token_ids)
        self.kinds.extend([TokenKind.POLICY] * len(token_ids))
        self.logprobs.extend(logprobs)
        self.entropies.extend(entropies)
        self.steps.append(Step(start, len(self.token_ids)))
        return self.steps[-1]

    def append_expert(self, token_ids: Sequence[int], text: str = "") -> Step:
        """Append one step that another agent wrote, for the policy to be trained on; its probabilities are not known."""
        start = len(self.token_ids)
        self._append_foreign(token_ids, TokenKind.EXPERT)
        self.steps.append(Step(start, len(self.token_ids), text))
        return self.steps[-1]

    def append_observation(self, token_ids: Sequence[int]) -> None:
        """Append the tokens of a tool's result."""
        self._append_foreign(token_ids, TokenKind.OBSERVATION)

    def append_given(self, token_ids: Sequence[int]) -> None:
        """Append tokens of the given first steps: they are not trained, and not in ``steps``."""
        self._append_foreign(token_ids, TokenKind.GIVEN)

    def append_retrieved(self, token_ids: Sequence[int], retrieved: RetrievedTrace) -> None:
        """Append the tokens of a retrieved step trace, after the last generated step."""
        start = len(self.token_ids)
        self._append_foreign(token_ids, TokenKind.RETRIEVED)
        trace = retrieved.trace
        where = (len(self.steps) - 1, start, len(self.token_ids))
        shown = Retrieval(trace.id, trace.source, retrieved.similarity, *where, noisy=retrieved.noisy, text=trace.text)
        self.retrievals.append(shown)

    def _append_foreign(self, token_ids: Sequence[int], kind: TokenKind) -> None:
        self.token_ids.extend(token_ids)
        self.kinds.extend([kind] * len(token_ids))
        self.logprobs.extend([0.0] * len(token_ids))
        self.entropies.extend([0.0] * len(token_ids))

    def num_tokens(self, kind: TokenKind) -> int:
        """Count the response tokens of one kind; all kinds sum to ``len(token_ids)``."""
        return self.kinds.count(kind)

    @property
    def num_trained(self) -> int:
        """Number of tokens that the policy is trained on."""
        return sum(self.num_tokens(kind) for kind in TRAINED_KINDS)

    @property
    def failed(self) -> bool:
        """Whether its environment, request or prompt failed; if so, it is in no statistic of its group and in no loss."""
        return self.end == "error"

    @property
    def off_policy(self) -> bool:
        """Whether it is an expert's trajectory or a replay, not a rollout of the present policy."""
        return self.origin != ROLLOUT

    @property
    def num_generated(self) -> int:
        """Number of policy tokens generated for it, without those of the trajectory that it branched off."""
        return sum(sequence.kinds[sequence.own_start :].count(TokenKind.POLICY) for sequence in self.sequences)

    @property
    def retrieved_share(self) -> float:
        """``F_ret``: retrieved tokens / response tokens (section 8); 0 for an empty response."""
        return self.num_tokens(TokenKind.RETRIEVED) / len(self.token_ids) if self.token_ids else 0.0

    def step_entropies(self, index: int) -> Sequence[float]:
        """Return the token entropies of generated step ``index``, in nats."""
        step = self.steps[index]
        return self.entropies[step.start : step.stop]


@dataclass
class TrajectoryGroup:
    """The ``G`` trajectories of one question, and the off-policy ones trained with them (algorithm.md section 11)."""

    question: Question
    trajectories: list[Trajectory]  # rolled out by the present policy; rollout metrics cover only these
    policy_version: int = 0  # of the weights that began it
    off_policy: list[Trajectory] = field(default_factory=list)

    @property
    def counted(self) -> list[Trajectory]:
        """The rollouts that did not fail: those whose outcome says something about the policy."""
        return [t for t in self.trajectories if not t.failed]

    @property
    def members(self) -> list[Trajectory]:
        """The trajectories that advantages are computed over; none if every rollout failed."""
        counted = self.counted
        return [*counted, *self.off_policy] if counted else []

    @property
    def rewards(self) -> list[float]:
        """Outcome rewards of the rollouts that count."""
        return [t.reward for t in self.counted]
