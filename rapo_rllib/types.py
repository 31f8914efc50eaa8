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
    benchmark: str = ""  # an evaluation also tells the accuracy on the questions of each, by this name
    # (role, text) of turns that its data set puts before it: a system prompt, then users' and assistants' in turn; a third
    # item holds further fields of a message, as chat templates take them: an assistant's `tool_calls`, a result's `name`
    turns: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)
    tools: tuple[str, ...] | None = field(default=None, repr=False)  # names of those that it may call; None: all there are
    schemas: tuple[dict[str, Any], ...] = field(default=(), repr=False)  # its row's own, shown in place of the job's
    # steps of another agent that its trajectories begin behind, in the text protocol; none in an evaluation
    start: tuple[str, ...] = field(default=(), repr=False)
    # the step that this agent wrote then: a trajectory is a single step, right if it does the same; empty: it is a whole one
    expected: str = field(default="", repr=False)
    columns: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # of its row, for scorers
    retrieval_share: float = field(default=1.0, repr=False)  # of the chance of a retrieval, that its trajectories have

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The turns before it, as chat templates take them."""
        return [{"role": role, "content": text, **dict(*more)} for role, text, *more in self.turns]

    @property
    def answers(self) -> tuple[str, ...]:
        """All accepted answers."""
        return tuple(filter(None, (self.answer, *self.aliases)))

    @property
    def is_whole(self) -> bool:
        """Whether trajectories begin with it, and go on to an end."""
        return not self.start and not self.expected


@dataclass(frozen=True)
class StepTrace:
    """A step that an off-policy agent wrote (value), with the history it followed (key). algorithm.md section 4.

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
    weight_version: int = -1  # of the policy that wrote it during training; -1: an off-policy agent did, beforehand


@dataclass(frozen=True)
class HistoryQuery:
    """A question of a trajectory to the Step-Trace Buffer: its question and its steps so far."""

    question: str
    history: str
    question_id: str = ""
    asker: str = ""  # name of the trajectory: retrieval noise draws from it, so that chance does not depend on timing
    answers: tuple[str, ...] = ()  # that are accepted, for the filter that hides them


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
    """Writers of response tokens. Only ``POLICY`` tokens carry a logprob and an entropy; they and ``EXPERT`` are trained."""

    POLICY = 0
    OBSERVATION = 1
    RETRIEVED = 2
    EXPERT = 3  # in an off-policy trajectory, what its author wrote
    GIVEN = 4  # of the steps that it begins behind: what another agent wrote, and what tools answer to that now


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
    reward: float = 0.0  # that the environment paid at it; a trajectory's is their sum
    state: str = ""  # key of the environment's state that it was written in, where its environment tells
    right: bool | None = None  # whether it is a step of a solution, where its environment can tell
    text_start: int = -1  # where its text begins in that of the trajectory, in characters; -1: not noted
    record: str | None = None  # its text in the text protocol, where it is written in another form
    calls: tuple[ToolUse, ...] = ()  # of a turn with several
    num_sampled: int | None = None  # tokens as its author counts them, with another tokenizer; None: ``stop - start``

    @property
    def as_text(self) -> str:
        """Its text in the text protocol, which histories and step traces are kept in."""
        return self.text if self.record is None else self.record

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        """Every tool call of it."""
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
    own_question: bool = False  # cut from a trajectory of the very question
    shows_answer: bool = False  # holds an accepted answer to it: its number, or its words
    answer: str = ""  # that it gives; empty: it gives none
    text_start: int = -1  # as in Step
    text: str = ""  # of the step trace

    @property
    def is_step(self) -> bool:
        """Whether it shows what a solver did, so that it can be imitated."""
        return self.source != FALLBACK


@dataclass
class Trajectory:
    """The steps of one rollout of one question, as tokens. algorithm.md sections 2, 3.

    The per-token lists grow together, by one append method per kind of token, so they cannot fall out of line.

    Example, response ``<python>3 + 5</python><result>8</result><answer>8</answer>``: kinds are POLICY for the call, OBSERVATION
    for the result, POLICY for the answer; ``logprobs`` and ``entropies`` are 0.0 on the OBSERVATION tokens and never read.
    """

    question_id: str
    prompt_ids: Sequence[int]  # [P], shared by the group
    question_text: str = ""  # as the environment put it
    hybrid: bool = False  # may retrieve; on-policy trajectories never do
    policy_version: int = 0  # of the weights that began it; an expert's: of those that are trained
    origin: str = ROLLOUT  # rollout; off-policy: expert, or replay (an earlier rollout of the policy's own)
    token_ids: list[int] = field(default_factory=list)  # [T]
    kinds: list[int] = field(default_factory=list)  # [T] TokenKind
    logprobs: list[float] = field(default_factory=list)  # [T] of the distribution sampled from, nats
    entropies: list[float] = field(default_factory=list)  # [T] full vocabulary (entropy_top_k: of so many tokens), nats (eq. 2)
    steps: list[Step] = field(default_factory=list)
    retrievals: list[Retrieval] = field(default_factory=list)
    text: str = ""  # the response, for people, tools and retrieval; never encoded again
    given: tuple[str, ...] = ()  # the steps that it begins behind, with what tools answered, as histories have them
    reward: float = 0.0
    reward_terms: dict[str, float] = field(default_factory=dict)  # which add up to the reward, where the environment names them
    earlier: dict[int, float] = field(default_factory=dict)  # step -> what was paid at the end, but earned by it
    predicted: str = ""  # its answer, where it gave one and its environment told
    correct: bool = False
    format_ok: bool = False
    score_failure: str = ""  # why the scorer could not judge, so that another one did: "judge/unreachable"
    failed_retrievals: int = 0  # the buffer did not answer; it went on without
    end: str = ""  # answer, eos, length (of tokens or steps), tool_limit, step (of single ones) or error
    turn_ended: bool = False  # the last token that was sampled is EOS, with nothing but blanks between it and the answer
    unfitting_tokens: int = 0  # of a tool's result that the budget had no room for: it ended the trajectory
    error: str = ""
    start_refused: bool = False  # it could not begin behind the steps that it was to begin behind
    seconds: float = 0.0
    # (first token, member of the group that wrote from there on), in order: a branch begins with tokens of another member.
    # Empty: all its own.
    segments: list[tuple[int, int]] = field(default_factory=list)
    # (first token, version), in order: where other weights went on writing (max_staleness above 0). Empty: the same wrote all
    version_changes: list[tuple[int, int]] = field(default_factory=list)
    unaided: Trajectory | None = None  # the same without help, trained beside it (shown_steps); None: nothing is
    own_prompt: bool = False  # an agent made its prompt: it may differ from those of its group
    # of an agent: branches of a history that it rewrote, and its other conversations; trained with the advantage of this one
    others: list[Trajectory] = field(default_factory=list)

    def fork(self, member: int) -> Trajectory:
        """Return a copy of the trajectory that member ``member`` of the group continues."""
        own: dict[str, Any] = {name: copy(value) for name, value in vars(self).items() if isinstance(value, list | dict)}
        return replace(self, **own | {"segments": [*self.segments, (len(self.token_ids), member)]})

    @property
    def step_rewards(self) -> list[float]:
        """The rewards of the steps; together the reward of the trajectory.

        It is what was paid at the step, and what the end paid for it (``earlier``); the last step has the rest.

        Example: paid ``[0.5, 1.0]``, of which 0.25 at the end for step 0: ``[0.75, 0.75]``.
        """
        if not self.steps:
            return []
        before = [step.reward + self.earlier.get(index, 0.0) for index, step in enumerate(self.steps[:-1])]
        return [*before, self.reward - math.fsum(before)]

    @property
    def sequences(self) -> list[Trajectory]:
        """Itself, and the others that are trained with its advantage."""
        return [self, *self.others]

    @property
    def own_start(self) -> int:
        """The first token that is its own; those before it were taken over from the trajectory it branched off."""
        return self.segments[-1][0] if len(self.segments) > 1 else 0

    @property
    def own_steps(self) -> list[Step]:
        """The steps that it generated itself, in all its sequences."""
        return [step for one in self.sequences for step in one.steps if step.start >= one.own_start]

    @property
    def own_retrievals(self) -> list[Retrieval]:
        """The step traces that it asked for itself."""
        return [retrieval for retrieval in self.retrievals if retrieval.start >= self.own_start]

    @property
    def newest_version(self) -> int:
        """The version of the weights that wrote its last policy tokens."""
        return self.version_changes[-1][1] if self.version_changes else self.policy_version

    @property
    def token_versions(self) -> list[int]:
        """Version of the weights for each response token, ``[T]``; it says something where the policy wrote.

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
        """Append one generated step; ``versions`` of the weights by token, None: the same as before.

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
        """Append tokens of the steps that it begins behind: untrained, and no steps of its own."""
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
        """Return the number of response tokens of one kind; all kinds sum to ``len(token_ids)``."""
        return self.kinds.count(kind)

    @property
    def num_trained(self) -> int:
        """Tokens that the policy is trained on."""
        return sum(self.num_tokens(kind) for kind in TRAINED_KINDS)

    @property
    def failed(self) -> bool:
        """Whether its environment, its request or its prompt failed: it is in no statistic of its group and in no loss."""
        return self.end == "error"

    @property
    def off_policy(self) -> bool:
        """Whether something else than the present policy wrote it."""
        return self.origin != ROLLOUT

    @property
    def num_generated(self) -> int:
        """Policy tokens that were generated for this trajectory: without those of the trajectory it branched off."""
        return sum(sequence.kinds[sequence.own_start :].count(TokenKind.POLICY) for sequence in self.sequences)

    @property
    def retrieved_share(self) -> float:
        """``F_ret``: retrieved tokens / response tokens (section 8); 0 for an empty response."""
        return self.num_tokens(TokenKind.RETRIEVED) / len(self.token_ids) if self.token_ids else 0.0

    def step_entropies(self, index: int) -> Sequence[float]:
        """Return token entropies of generated step ``index``, nats."""
        step = self.steps[index]
        return self.entropies[step.start : step.stop]


@dataclass
class TrajectoryGroup:
    """The ``G`` trajectories of one question, and those of others that are trained on with them (algorithm.md section 11)."""

    question: Question
    trajectories: list[Trajectory]  # rolled out by the present policy: what the metrics of a rollout are about
    policy_version: int = 0  # of the weights that began it
    off_policy: list[Trajectory] = field(default_factory=list)

    @property
    def counted(self) -> list[Trajectory]:
        """The rollouts that did not fail: those whose outcome says something about the policy."""
        return [t for t in self.trajectories if not t.failed]

    @property
    def members(self) -> list[Trajectory]:
        """All that advantages are taken over; none where every rollout failed."""
        counted = self.counted
        return [*counted, *self.off_policy] if counted else []

    @property
    def rewards(self) -> list[float]:
        """Outcome rewards of the rollouts that count."""
        return [t.reward for t in self.counted]
