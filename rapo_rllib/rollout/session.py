"""One trajectory while it grows: what may happen next, budgets, and how it ends. algorithm.md section 3.

reset -> generate -> env step -> (observation, maybe a step trace) -> generate -> ... -> end

What a budget of the rollout ends is judged by its environment, too (``Next.JUDGE``): running over must not pay.
"""

from __future__ import annotations

import copy
import random
import time
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from rapo_rllib.buffer.shown_answers import shows_answer
from rapo_rllib.errors import EnvError
from rapo_rllib.protocol.chat import ChatProtocol, without_spill
from rapo_rllib.protocol.steps import boxed_answer, parse_step, render_observation
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.settings import RolloutSettings
from rapo_rllib.types import FALLBACK, HistoryQuery, Question, Retrieval, RetrievedTrace, StepTrace, Trajectory


class Next(Enum):
    """What a session waits for."""

    GENERATE = "generate"
    RETRIEVE = "retrieve"
    JUDGE = "judge"  # what there is, by the environment: a budget has ended the trajectory
    END = "end"


@dataclass(frozen=True)
class EnvResult:
    """What ``env.step`` returned, or ``env.truncate``."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass
class Session:
    """The state of one trajectory, without threads or engines."""

    name: str  # unique in the run
    path: str  # within its group; coins and sampling seeds depend on it
    question: Question
    trajectory: Trajectory
    chat: ChatProtocol
    settings: RolloutSettings
    retrieval_prob: float
    rng: random.Random
    env: Any = None
    stop: tuple[str, ...] = ()
    question_text: str = ""
    history: str = ""  # the steps so far, as keys in the buffer have them: without the tags around what was retrieved
    completion: Completion | None = None
    started: float = field(default_factory=time.monotonic)
    env_started: float | None = None  # when the call of its env that is running began; None: none runs
    cut: bool = False  # by a budget: what the env answers next is its judgement
    opening_entropy: float | None = None  # of the first tokens of step 0, nats; only where branching needs it
    retrieval_asked: float | None = None  # when it began to wait for a step trace
    retrieval_wait_s: float = 0.0
    num_requests: int = 0
    retrieval_skipped: int = 0

    @property
    def room(self) -> int:
        """Response tokens left in the budget."""
        return self.settings.max_response_tokens - len(self.trajectory.token_ids)

    def fork(self, name: str, path: str, member: int, rng: random.Random) -> Session:
        """A session that shares everything so far, environment included, and goes its own way from here."""
        return replace(
            self,
            name=name,
            path=path,
            rng=rng,
            trajectory=self.trajectory.fork(member),
            env=copy.deepcopy(self.env),
            completion=None,
            started=time.monotonic(),
            num_requests=0,
            retrieval_skipped=0,
            retrieval_wait_s=0.0,
        )

    def take_question(self, text: str) -> None:
        """Make the prompt. Raises ``EnvError`` if it is over the budget."""
        self.question_text = self.trajectory.question_text = text
        self.trajectory.prompt_ids = self.chat.prompt_ids(text)
        length, limit = len(self.trajectory.prompt_ids), self.settings.max_prompt_tokens
        if length > limit:
            raise EnvError(f"prompt of {length} tokens is over max_prompt_tokens = {limit}")

    def start(self) -> Next:
        """What a fresh session waits for: the policy, or a whole trajectory of another one."""
        return self._next(self.settings.retrieval_level == "trajectory")

    def _next(self, may_retrieve: bool) -> Next:
        if may_retrieve and self.trajectory.hybrid and self.rng.random() < self.retrieval_prob:
            self.retrieval_asked = time.monotonic()
            return Next.RETRIEVE
        return Next.GENERATE

    def request(self, temperature: float, seeded: bool = False) -> GenerationRequest:
        """The next generation: everything so far, continued by one step."""
        self.num_requests += 1
        limit = min(self.room, self.settings.max_step_tokens or self.room)
        return GenerationRequest(
            request_id=f"{self.name}/{self.num_requests}",
            token_ids=[*self.trajectory.prompt_ids, *self.trajectory.token_ids],
            max_tokens=limit,
            stop=self.stop,
            final_stop=self._closing_tag,
            end_ids=tuple(self.chat.end_ids),
            temperature=temperature,
            entropy_top_k=self.settings.entropy_top_k,
            seed=self.rng.getrandbits(31) if seeded and temperature > 0 else None,
        )

    @property
    def _closing_tag(self) -> str:
        return f"</{self.chat.settings.answer_tag}>"

    def query(self) -> HistoryQuery:
        """What this trajectory asks the Step-Trace Buffer now."""
        question, version = self.question, self.trajectory.policy_version
        return HistoryQuery(self.question_text, self.history.strip(), question.id, self.name, version, question.answers)

    def take_completion(self, completion: Completion) -> None:
        """Append a generated step."""
        step = self.trajectory.append_policy(completion.token_ids, completion.logprobs, completion.entropies)
        step.text, step.text_start = completion.text, len(self.trajectory.text)
        self.trajectory.text += completion.text + completion.spill
        self.history += completion.text
        self.completion = completion
        ids, finish = completion.token_ids, completion.finish
        # what its last token wrote behind the answer's tag is part of the turn
        self.trajectory.turn_ended = finish == "eos" or (
            finish == "stop" and bool(ids) and ids[-1] in self.chat.end_ids and not completion.spill.strip()
        )

    def take_env_result(self, result: EnvResult) -> Next:
        """Account for what the environment made of the step; append its observation; decide what comes next."""
        assert self.completion is not None
        if self.cut:
            return self._take_judgement(result)
        step = self.trajectory.steps[-1]
        step.tool, step.tool_error = result.info.get("tool"), result.info.get("tool_error")
        step.tool_seconds, step.observation = result.info.get("tool_seconds", 0.0), result.observation
        step.right = result.info.get("step_right")
        self.trajectory.reward += float(result.reward)
        if result.terminated or result.truncated:
            self._take_outcome(result.info)
            return self.end(result.info.get("end") or self._natural_end())
        out_of_steps = self.settings.max_steps is not None and len(self.trajectory.steps) >= self.settings.max_steps
        if self.completion.finish == "length" or out_of_steps:
            return self._cut_short()
        return self._append_observation(result.observation)

    def _cut_short(self) -> Next:
        self.cut = True
        return Next.JUDGE

    def _take_judgement(self, result: EnvResult) -> Next:
        self.trajectory.reward += float(result.reward)
        self._take_outcome(result.info)
        return self.end("length")

    def _take_outcome(self, info: dict[str, Any]) -> None:
        self.trajectory.predicted = str(info.get("predicted", ""))
        self.trajectory.correct = bool(info.get("correct", self.trajectory.reward > 0))
        self.trajectory.format_ok = bool(info.get("format_ok", True))
        self.trajectory.reward_terms = dict(info.get("reward_terms", {}))
        self.trajectory.score_failure = str(info.get("score_failure", ""))

    def _natural_end(self) -> str:
        assert self.completion is not None
        if self._closing_tag in self.completion.text:
            return "answer"
        return "length" if self.completion.finish == "length" else "eos"

    def _append_observation(self, observation: str) -> Next:
        assert self.completion is not None
        rendered = render_observation(observation, self.chat.settings)
        text = without_spill(rendered, self.completion.spill)
        token_ids = self.chat.encode(text)
        self.history += rendered
        if len(token_ids) >= self.room:
            self.trajectory.unfitting_tokens = len(token_ids)
            return self._cut_short()
        self.trajectory.append_observation(token_ids)
        self.trajectory.text += text
        return self._next(self.settings.retrieval_level == "step")

    def on_retrieval_miss(self) -> Next:
        """The buffer had nothing to say, or did not answer: go on without."""
        self._stop_waiting()
        return Next.GENERATE

    def _stop_waiting(self) -> None:
        if self.retrieval_asked is not None:
            self.retrieval_wait_s += time.monotonic() - self.retrieval_asked
            self.retrieval_asked = None

    def take_retrieved(self, retrieved: RetrievedTrace) -> Next:
        """Append a step trace, unless it would pass the response budget; the policy always writes the next step."""
        self._stop_waiting()
        text = self.chat.retrieved_text(retrieved.trace.text)
        token_ids = self.chat.encode(text)
        counted = len(self.trajectory.prompt_ids) if self.settings.retrieval_budget == "prompt_and_response" else 0
        if counted + len(token_ids) >= self.room:
            self.retrieval_skipped += 1
        else:
            self.trajectory.append_retrieved(token_ids, retrieved)
            self._note_shown(self.trajectory.retrievals[-1], retrieved.trace)
            self.trajectory.text += text
            if self.settings.retrieval_query == "history" and retrieved.trace.source != FALLBACK:  # which is no step
                self.history += retrieved.trace.text.rstrip() + "\n"
        return Next.GENERATE

    def _note_shown(self, shown: Retrieval, trace: StepTrace) -> None:
        shown.text_start = len(self.trajectory.text)
        shown.own_question = trace.question == self.question_text
        shown.shows_answer = shows_answer(trace.text, self.question.answers)
        answer = parse_step(trace.text, self.chat.settings, ()).answer
        shown.answer = "" if answer is None else boxed_answer(answer)

    def end(self, reason: str, error: str = "") -> Next:
        """Close the trajectory under the name of what ended it."""
        self.trajectory.end = reason
        self.trajectory.error = error
        self.trajectory.seconds = time.monotonic() - self.started
        return Next.END
