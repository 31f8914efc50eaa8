"""The state of one trajectory while it grows: its tokens, its random draws, its environment and its budgets."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rapo_rllib.buffer.shown_answers import shows_answer
from rapo_rllib.errors import EnvError, RequestError
from rapo_rllib.protocol.expert_tokens import NOTHING_PRINTED, does_the_same, split_observation
from rapo_rllib.protocol.make import RolloutProtocol
from rapo_rllib.protocol.steps import boxed_answer, parse_step, render_observation
from rapo_rllib.protocol.turns import Piece, Turn
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.env_answers import EnvResult
from rapo_rllib.settings import BranchingSettings, RolloutSettings
from rapo_rllib.types import EXPERT, HistoryQuery, Question, Retrieval, RetrievedTrace, StepTrace, ToolUse, Trajectory


@dataclass(frozen=True)
class RunPlan:
    """The facts that all trajectories of a run share."""

    chat: RolloutProtocol
    settings: RolloutSettings
    size: int  # G, or ARPO's budget M
    num_hybrid: int  # N_hybrid, at most ``size``
    retrieval_prob: float
    policy_version: int
    seed: int
    seeded: bool  # whether the sampling of requests depends on the seed, too
    greedy: bool
    branching: BranchingSettings | None
    env_steps: int | None = None  # sampled so far in training, for schedules of the reward; None: not counted


@dataclass
class Episode:
    """A running trajectory. Its random draws depend on its name and the seed, never on timing."""

    name: str  # unique in the run: "version/question/3", or ".../3.1.0" for the first fork of that one at its step 1
    question: Question
    plan: RunPlan
    trajectory: Trajectory
    env: Any = None
    stop: tuple[str, ...] = ()  # closing tags of the environment's tools and of the answer
    turn: Turn = field(default_factory=Turn)  # the last turn that the policy wrote
    turn_open: bool = True  # the policy's next turn has begun
    env_started: float | None = None  # start of the running call of ``env``; None: no call runs
    env_failed: bool = False
    closed: bool = False  # its agent has ended: nothing is written to it any more, nor its last request answered
    history: str = ""  # the steps so far in the form of the buffer's keys: without tags around retrieved steps
    state: str = ""  # key of the environment's state; "": the environment has given none
    opening_entropy: float | None = None  # of the first tokens of step 0, nats; only with branching
    started: float = field(init=False)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.rng = random.Random(f"{self.plan.seed}/{self.name}")

    def fork(self, branch: int, member: int) -> Episode:
        """Make an episode with everything so far, a copy of the environment included, that goes its own way from here."""
        name = f"{self.name}.{len(self.trajectory.steps)}.{branch}"
        return replace(self, name=name, trajectory=self.trajectory.fork(member), env=copy.deepcopy(self.env))

    @property
    def remaining_tokens(self) -> int:
        """Response tokens left in the budget."""
        return self.plan.settings.max_response_tokens - len(self.trajectory.token_ids)

    @property
    def out_of_steps(self) -> bool:
        """Whether its budget of generated steps is used up."""
        limit = self.plan.settings.max_steps
        return limit is not None and len(self.trajectory.steps) >= limit

    def begin(self, question_text: str) -> None:
        """Make the prompt. Raises ``RequestError`` if it exceeds the budget."""
        self.trajectory.question_text = question_text
        self.trajectory.prompt_ids = self.plan.chat.prompt_ids(question_text, self.question)
        length, limit = len(self.trajectory.prompt_ids), self.plan.settings.max_prompt_tokens
        if length > limit:
            raise RequestError(f"prompt of {length} tokens is over max_prompt_tokens = {limit}")

    def give(self, step: str) -> Turn:
        """Append a step that another agent wrote, after which the policy goes on; return the step as a turn of the policy.

        Raises:
            RequestError: the step is empty, or cannot be put in the policy's form.
        """
        chat = self.plan.chat
        written = split_observation(step, chat.settings)[0].strip()
        try:
            piece = chat.written(written)
        except RequestError as error:
            raise self._refusal(str(error)) from error
        if not piece.token_ids:
            raise self._refusal(f"step {len(self.trajectory.given) + 1} to begin behind is empty")
        self.turn, self.turn_open = chat.read(piece.token_ids, piece.text, "", "stop"), False
        self.trajectory.turn_ended = piece.token_ids[-1] in chat.end_ids
        self._give(piece)
        self.trajectory.given += (written,)
        return self.turn

    def give_result(self, result: EnvResult) -> None:
        """Append the environment's answer to a given step; the reward in the answer is not the policy's, and is dropped.

        Raises:
            RequestError: the environment ends the episode there, or the answer leaves no tokens for the policy.
        """
        chat, (*before, written) = self.plan.chat, self.trajectory.given
        where = f"step {len(before) + 1} of {len(self.question.start)} to begin behind"
        if result.terminated or result.truncated:
            raise self._refusal(f"the environment ends at {where}")
        self._give(chat.observation(result.observation, self.turn))
        given = written + render_observation(result.observation, chat.settings)
        self.trajectory.given = (*before, given)
        self.history += given
        self.state = str(result.info.get("state", ""))
        if len(chat.opening.token_ids) >= self.remaining_tokens:
            raise self._refusal(f"{where} leaves nothing of max_response_tokens = {self.plan.settings.max_response_tokens}")

    def _refusal(self, why: str) -> RequestError:
        self.trajectory.start_refused = True
        return RequestError(why)

    def _give(self, piece: Piece) -> None:
        self.trajectory.append_given(piece.token_ids)
        self.trajectory.text += piece.text

    def wants_trace(self, level: str) -> bool:
        """Decide whether to retrieve now: at the settings' retrieval ``level`` a hybrid trajectory tosses its coin."""
        asks_here = level == self.plan.settings.retrieval_level and self.trajectory.hybrid
        return asks_here and self.rng.random() < self.plan.retrieval_prob * self.question.retrieval_share

    def request(self) -> GenerationRequest:
        """Build the request for the next step, which continues all tokens so far."""
        temperature = 0.0 if self.plan.greedy else self.plan.settings.temperature
        stop, final_stop = self.plan.chat.stops(self.stop)
        return GenerationRequest(
            request_id=f"{self.name}/{len(self.trajectory.own_steps) + 1}",
            token_ids=[*self.trajectory.prompt_ids, *self.trajectory.token_ids],
            max_tokens=min(self.remaining_tokens, self.plan.settings.max_step_tokens or self.remaining_tokens),
            stop=stop,
            final_stop=final_stop,
            end_ids=tuple(self.plan.chat.end_ids),
            temperature=temperature,
            entropy_top_k=self.plan.settings.entropy_top_k,
            seed=self.rng.getrandbits(31) if self.plan.seeded and temperature else None,
            question=self.question,
            trajectory=self.trajectory,
        )

    def query(self) -> HistoryQuery:
        """Build the query for the Step-Trace Buffer from the question and the history so far."""
        text, question = self.trajectory.question_text, self.question
        return HistoryQuery(text, self.history.strip(), question.id, self.name, question.answers)

    def append_step(self, completion: Completion) -> Turn:
        """Append a generated step and return it as a parsed turn."""
        ids, finish = completion.token_ids, completion.finish
        turn = self.turn = self.plan.chat.read(ids, completion.text, completion.spill, finish)
        self.turn_open = False
        if completion.logprobs is None or completion.entropies is None:
            self.trajectory.origin, step = EXPERT, self.trajectory.append_expert(ids)
        else:
            versions = completion.versions or [completion.policy_version] * len(ids)
            step = self.trajectory.append_policy(ids, completion.logprobs, completion.entropies, versions)
        step.num_sampled = completion.num_sampled
        step.text, step.record, step.text_start = str(turn), turn.record, len(self.trajectory.text)
        step.state = self.state
        self.trajectory.text += turn + turn.spill
        self.history += step.as_text
        # text after the answer's tag belongs to the turn, so a turn with such text has not ended
        self.trajectory.turn_ended = finish == "eos" or (
            finish == "stop" and bool(ids) and ids[-1] in self.plan.chat.end_ids and not completion.spill.strip()
        )
        return turn

    def take_result(self, result: EnvResult) -> None:
        """Record the environment's result of the last step."""
        step, info = self.trajectory.steps[-1], result.info
        step.tool, step.tool_error, step.tool_seconds = info.get("tool"), info.get("tool_error"), info.get("tool_seconds", 0.0)
        step.observation, step.right = str(result.observation), info.get("step_right")
        step.calls = tuple(ToolUse(*use) for use in info.get("tool_calls", ()))
        self.state = str(info.get("state", ""))
        self._pay(result.reward)

    def judge_step(self) -> str:
        """Reward a single step if it does what the expert did; return the name of the trajectory's end."""
        step, expected = self.trajectory.steps[-1], self.question.expected
        silent = step.tool_error is not None or step.observation.strip() in ("", NOTHING_PRINTED)
        answered = "" if silent else step.observation
        right = does_the_same(step.as_text, answered, expected, self.plan.chat.settings, self._tools())
        step.reward = self.trajectory.reward = float(right)
        self.trajectory.correct = self.trajectory.format_ok = right
        return "step"

    def _tools(self) -> list[str]:
        return sorted({*(closing[2:-1] for closing in self.stop), *self.plan.chat.tools})

    def take_judgement(self, judgement: EnvResult) -> None:
        """Record the environment's reward and info for an episode that a budget has ended."""
        self._pay(judgement.reward)
        self.take_outcome(judgement.info)

    def _pay(self, reward: float) -> None:
        if self.trajectory.steps:
            self.trajectory.steps[-1].reward += reward
        self.trajectory.reward += reward

    def append_observation(self, observation: str) -> bool:
        """Append an observation; False: the budget has no room for it and a next step of the policy."""
        return self.append_turns(observation, self.plan.chat.observation(observation, self.turn))

    def append_turns(self, said: str, piece: Piece) -> bool:
        """Append turns that are already encoded, and their text ``said`` to the history; False: the budget has no room."""
        chat = self.plan.chat
        length = len(piece.token_ids) + len(chat.opening.token_ids)
        if length >= self.remaining_tokens:
            self.trajectory.unfitting_tokens = length
            return False
        self.trajectory.append_observation(piece.token_ids)
        self.trajectory.text += piece.text
        self.history += render_observation(said, chat.settings)
        return True

    def open_turn(self) -> None:
        """Append the tokens that open the policy's next turn, unless they are there already."""
        if not self.turn_open:
            self.trajectory.append_observation(self.plan.chat.opening.token_ids)
            self.trajectory.text += self.plan.chat.opening.text
            self.turn_open = True

    def append_retrieved(self, retrieved: RetrievedTrace) -> bool:
        """Append a step trace; False: the budget has no room for it and a next step of the policy."""
        settings, trace, chat = self.plan.settings, retrieved.trace, self.plan.chat
        piece = chat.retrieved(trace.text)
        counted = len(self.trajectory.prompt_ids) if settings.retrieval_budget == "prompt_and_response" else 0
        opening = 0 if self.turn_open else len(chat.opening.token_ids)
        if counted + len(piece.token_ids) + opening >= self.remaining_tokens:
            return False
        if chat.shows_in_turn:
            self.open_turn()
        self.trajectory.append_retrieved(piece.token_ids, retrieved)
        self._note_shown(self.trajectory.retrievals[-1], trace)
        self.trajectory.text += piece.text
        if self.trajectory.retrievals[-1].is_step:
            self.history += trace.text.rstrip() + "\n"
        return True

    def _note_shown(self, shown: Retrieval, trace: StepTrace) -> None:
        shown.text_start = len(self.trajectory.text)
        shown.own_question = trace.question == self.trajectory.question_text
        shown.shows_answer = shows_answer(trace.text, self.question.answers)
        answer = parse_step(trace.text, self.plan.chat.settings, ()).answer
        shown.answer = "" if answer is None else boxed_answer(answer)

    def take_outcome(self, info: Mapping[str, Any]) -> None:
        """Record the environment's info at the end. Raises ``EnvError`` if it rewards more steps than there are."""
        paid = [float(reward) for reward in info.get("step_rewards", ())]
        earlier = paid[len(self.trajectory.given) :]  # given steps' rewards stay in the total reward, equal for the whole group
        if len(earlier) > len(self.trajectory.steps):
            raise EnvError(f"info['step_rewards'] has {len(earlier)} rewards for {len(self.trajectory.steps)} steps")
        self.trajectory.earlier = {index: reward for index, reward in enumerate(earlier) if reward}
        self.trajectory.predicted = str(info.get("predicted", ""))
        self.trajectory.correct = bool(info.get("correct", self.trajectory.reward > 0))
        self.trajectory.format_ok = bool(info.get("format_ok", True))
        self.trajectory.reward_terms = dict(info.get("reward_terms", {}))
        self.trajectory.score_failure = str(info.get("score_failure", ""))

    def natural_end(self, completion: Completion) -> str:
        """Name the trajectory's end if the environment has not named it."""
        if self.turn.answer is not None:
            return "answer"
        return "length" if completion.finish == "length" else "eos"

    def called_tool(self) -> str | None:
        """Return the tool that the last generated step calls, whether or not the call has returned."""
        return parse_step(self.turn.record or self.turn, self.plan.chat.settings, self._tools()).tool_tag
