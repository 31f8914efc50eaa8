"""Conversation of one agent with the policy: the agent's requests extend the token sequences of a trajectory.

    Ask --Recorder--> Place --> Episode of a sequence, with what the request adds --engine--> Completion --> Answer

Each sequence is an ``Episode``. The first is the trajectory's own; the others are branches and further conversations, which
are trained with the trajectory's advantage (``Trajectory.others``). Only the first sequence retrieves.

If the chat template leaves out thoughts of earlier turns, each request is rendered as a whole. A sequence continues only if
the text begins with the previous rendering and the thoughts of the turn after it. Otherwise a new sequence begins.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from rapo_rllib.endpoint.conversation import Answer, Ask, Place, Recorder
from rapo_rllib.endpoint.function import Ended
from rapo_rllib.errors import GivenUpError, RequestError
from rapo_rllib.protocol.native import NativeProtocol
from rapo_rllib.protocol.template import Message, num_common
from rapo_rllib.protocol.turns import Schema, Turn
from rapo_rllib.rollout.coroutines import result_of
from rapo_rllib.rollout.engine import Completion
from rapo_rllib.rollout.episode import Episode, RunPlan
from rapo_rllib.rollout.group import RolloutGroup
from rapo_rllib.rollout.loop import Run
from rapo_rllib.types import TokenKind, ToolUse, Trajectory

ChatWith = Callable[[Sequence[Schema]], NativeProtocol]
_OVER = "this trajectory has ended"


class Inbox:
    """Queue from other threads to a coroutine: requests, and the end of its agent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[Ask | Ended | GivenUpError] = deque()
        self._waiting: Future[None] | None = None
        self._open = True

    def put(self, item: Ask | Ended | GivenUpError) -> None:
        """Add an item; refuse a request if the trajectory has ended."""
        with self._lock:
            is_open, waiting, self._waiting = self._open, self._waiting, None
            if is_open:
                self._items.append(item)
        if waiting is not None:
            waiting.set_result(None)
        if not is_open and isinstance(item, Ask):
            item.refuse(_OVER)

    async def take(self) -> Ask | Ended | GivenUpError:
        """Wait for the next item, and return it."""
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                waiting = self._waiting = Future()
            await result_of(waiting)

    def close(self) -> None:
        """Refuse the requests that are left, and all that still come."""
        with self._lock:
            self._open, left = False, list(self._items)
        for item in left:
            if isinstance(item, Ask):
                item.refuse(_OVER)


@dataclass
class _Sequence:
    """A token sequence that grows, and its messages as the chat template writes them."""

    episode: Episode
    text: str  # of the last request, as the template writes it, with the thoughts of the turn that answered it
    thoughts: dict[int, str] = field(default_factory=dict)  # of the policy's turns, by index of their messages
    ends: list[int] = field(default_factory=list)  # offsets in ``text`` at which thoughts of generated turns end
    asked: Ask = field(default_factory=Ask)  # the last request


class Talk:
    """Conversation of one agent with the policy; only the thread of the trajectory's coroutine changes its sequences.

    Args:
        chat_with: returns the form of turns for the tools of a request; raises ``RequestError`` if the model has none.
        run: generates, retrieves, observes.
        group: of the trajectory.
        episode: of the trajectory; its first sequence.
        inbox: queue of requests; gets an error when the group is given up.
    """

    def __init__(self, chat_with: ChatWith, run: Run, group: RolloutGroup, episode: Episode, inbox: Inbox) -> None:
        self._chat_with, self._run, self._group, self._episode, self._inbox = chat_with, run, group, episode, inbox
        self._recorder = Recorder()
        self._sequences: list[_Sequence] = []
        self._calls: dict[str, tuple[str, str]] = {}  # id of a call for the agent -> name of its tool, its id in the template
        self._under_way: set[str] = set()  # names of requests to the engine
        self._turns = 0
        self._said = ""  # the text after the last step of the first sequence
        self.told = 0  # steps of the first sequence that the observer knows
        self.refused = ""  # why a budget refused the last request; empty: it did not

    async def serve(self, limit: int) -> Ended | None:
        """Answer requests until the agent ends; return None if it asks for more than ``limit`` turns.

        Raises:
            GivenUpError: the trajectory's group was given up.
        """
        while not isinstance(item := await self._inbox.take(), Ended):
            if isinstance(item, GivenUpError):
                raise item
            earlier = self._recorder.earlier(item)
            if earlier is not None:
                item.answer_as(earlier)
            elif self._turns == limit:
                item.refuse(f"the agent has asked for more than {limit} turns")
                return None
            else:
                self._turns += 1
                self._run.spawn(self.answer(item))
        return item

    async def answer(self, ask: Ask) -> None:
        """Answer one request, or refuse it; other requests are answered at the same time."""
        try:
            ask.answer.set_result(await self._answered(ask))
        except RequestError as error:
            ask.refuse(str(error))
        except GivenUpError as error:
            self._inbox.put(error)
        finally:
            ask.refuse(_OVER)

    async def _answered(self, ask: Ask) -> Answer:
        place, sequence = self._prepared(ask)
        episode, sequence.asked = sequence.episode, ask
        self.refused, self._episode.trajectory.unfitting_tokens = "", 0  # the agent has made a request that fits
        self._recorder.claim(place)
        if place.sequence == len(self._sequences):
            self._sequences.append(sequence)
        if episode is self._episode:
            if place.behind is None:
                await self._run.maybe_retrieve(episode, "trajectory")
            elif ask.messages[-1]["role"] == "tool":
                await self._run.maybe_retrieve(episode, "step")
        if self._episode.closed:  # the agent has ended meanwhile
            raise RequestError(_OVER)
        episode.open_turn()
        completion = await self._generated(episode, ask)
        if self._episode.closed:
            raise RequestError(_OVER)
        if episode is self._episode:
            self._tell()
        turn = episode.append_step(completion)
        answer = self._read(episode, turn, completion, ask)
        sequence.text += turn.thoughts.rstrip()
        sequence.ends.append(len(sequence.text))
        if not answer.text.startswith(turn.thoughts.rstrip()):  # else the agent's message has them
            sequence.thoughts[len(ask.messages)] = turn.thoughts
        self._recorder.record(place, ask, answer)
        return answer

    async def _generated(self, episode: Episode, ask: Ask) -> Completion:
        request = episode.request()
        most = min(request.max_tokens, ask.max_tokens or request.max_tokens)
        request = replace(request, max_tokens=most, stop=(*request.stop, *ask.stop))
        self._under_way.add(request.request_id)
        completion = await self._run.engine.generate(request, self._group)
        self._under_way.discard(request.request_id)
        return completion

    def _prepared(self, ask: Ask) -> tuple[Place, _Sequence]:
        """Find the place where a request continues, and append its new messages there, up to the opening of the policy's turn.

        Raises:
            RequestError: the request is over a budget, or the template refuses it; then nothing has changed.
        """
        place = self._recorder.find(ask)
        if place.behind is None:
            return place, self._begun(ask)
        origin = self._sequences[place.behind.sequence]
        thoughts = {index: thought for index, thought in origin.thoughts.items() if index < place.matched}
        sequence = self._branched(origin, place.behind.turns, thoughts) if place.is_branch else origin
        episode, said = sequence.episode, ask.said(place.matched)
        chat: Any = episode.plan.chat
        text, most = sequence.text, episode.plan.settings.max_response_tokens
        if chat.drops_thoughts:
            messages = self._for_template(ask.messages, thoughts)
            text = self._rendered(chat.conversation, messages).text
            if not text.startswith(sequence.text):
                return replace(place, sequence=len(self._sequences)), self._anew(origin, thoughts, messages)
        ended = episode.trajectory.token_ids[-1] in chat.end_ids
        piece = self._rendered(chat.turns, self._for_template(ask.messages[place.matched :]), ended)
        if not episode.append_turns(said, piece):
            before, length = len(episode.trajectory.prompt_ids), len(episode.trajectory.token_ids) + len(piece.token_ids)
            self._check_length(before + max(length, most + 1), before + most, "max_response_tokens")
        sequence.text = text
        if episode is self._episode:
            self._said = said
        return place, sequence

    def _tell(self) -> None:
        """Complete the last step of the first sequence by the text after it, as another step follows, and tell the observer."""
        steps = self._episode.trajectory.steps
        if self.told < len(steps):
            steps[-1].observation, self.told = self._said, len(steps)
            self._run.observer.stepped(self._episode, {}, "")

    def _check_length(self, length: int, most: int, key: str) -> None:
        if length > most:
            self.refused = f"the maximum context length is {most} tokens ({key}), and the request has {length}"
            raise RequestError(self.refused)

    def _begun(self, ask: Ask) -> _Sequence:
        """Build a sequence whose prompt is a request."""
        plan = replace(self._episode.plan, chat=self._chat_with(ask.tools))
        chat: Any = plan.chat
        prompt, text = self._rendered(chat.conversation, self._for_template(ask.messages))
        self._check_length(len(prompt), plan.settings.max_prompt_tokens, "max_prompt_tokens")
        if self._sequences:
            return _Sequence(self._further(Trajectory(self._episode.question.id, prompt, own_prompt=True), plan), text)
        self._episode.plan, self._episode.trajectory.prompt_ids = plan, prompt
        return _Sequence(self._episode, text)

    def _rendered(self, write: Callable[..., Any], *told: Any) -> Any:
        try:
            return write(*told)
        except Exception as error:  # of the template, at an agent's message
            raise RequestError(f"the messages are refused: {error}") from error

    def _for_template(self, messages: Sequence[Message], thoughts: Mapping[int, str] | None = None) -> list[Message]:
        """Prepare messages for the template: name the tool of each result, and restore the policy's call ids and thoughts."""
        found = []
        for index, message in enumerate(messages):
            name, id = self._calls.get(message.get("tool_call_id", ""), ("", ""))
            told = {**message, **({"name": name, "tool_call_id": id} if name else {})}
            if thoughts and index in thoughts:
                told["thoughts"] = thoughts[index]
            if "tool_calls" in told:
                known = [(call, self._calls.get(call["id"], ("", call["id"]))[1]) for call in told["tool_calls"]]
                told["tool_calls"] = [{**call, "id": own} for call, own in known]
            found.append(told)
        return found

    def _branched(self, origin: _Sequence, turns: int, thoughts: dict[int, str]) -> _Sequence:
        """Build a sequence from the tokens up to a turn, untrained here: they are trained where they were generated."""
        source, stop = origin.episode.trajectory, origin.episode.trajectory.steps[turns - 1].stop
        own = Trajectory(source.question_id, source.prompt_ids, own_prompt=True)
        own.token_ids = source.token_ids[:stop]
        own.kinds = [TokenKind.GIVEN if kind == TokenKind.POLICY else kind for kind in source.kinds[:stop]]
        own.logprobs, own.entropies = [0.0] * stop, [0.0] * stop
        branch = self._further(own, origin.episode.plan)
        branch.turn_open = False
        return _Sequence(branch, origin.text[: origin.ends[turns - 1]], thoughts)

    def _anew(self, origin: _Sequence, thoughts: dict[int, str], messages: list[Message]) -> _Sequence:
        """Build a sequence from what the template writes now; its prompt is the part in common with the origin's prompt."""
        chat: Any = origin.episode.plan.chat
        source, (ids, text) = origin.episode.trajectory, self._rendered(chat.conversation, messages)
        shared = num_common(source.prompt_ids, ids)
        most = shared + origin.episode.plan.settings.max_response_tokens - 1
        self._check_length(len(ids), most, "max_response_tokens")
        own = Trajectory(source.question_id, ids[:shared], own_prompt=True)
        own.append_given(ids[shared:])
        return _Sequence(self._further(own, origin.episode.plan), text, thoughts)

    def _further(self, trajectory: Trajectory, plan: RunPlan) -> Episode:
        trajectory.policy_version = plan.policy_version
        return Episode(f"{self._episode.name}.{len(self._sequences)}", self._episode.question, plan, trajectory)

    def _read(self, episode: Episode, turn: Turn, completion: Completion, ask: Ask) -> Answer:
        """Convert a turn to the agent's answer, and note its calls; a call that cannot be read stays text, as in any server."""
        calls = [call for call in turn.calls if not call.problem] if ask.reads_calls else []
        written = []
        for call in calls:
            id = f"{len(self._calls) + 1:09d}"
            self._calls[id] = (call.name, call.id)
            written.append((id, call.name, json.dumps(dict(call.arguments), ensure_ascii=False)))
        step = episode.trajectory.steps[-1]
        step.tool = ", ".join(dict.fromkeys(call.name for call in calls)) or None
        step.calls = tuple(ToolUse(call.name) for call in calls) if len(calls) > 1 else ()
        finish = "length" if completion.finish == "length" else "tool_calls" if calls else "stop"
        asked = len(episode.trajectory.prompt_ids) + step.start
        return Answer(_text(turn, completion, ask), tuple(written), finish, asked, len(completion.token_ids))

    def close(self) -> None:
        """Stop generating, remove turns that no client got, and give the trajectory its other sequences."""
        self._episode.closed = True
        self._run.engine.forget(self._under_way)
        trajectories = [sequence.episode.trajectory for sequence in self._sequences]
        for sequence, trajectory in zip(self._sequences, trajectories, strict=True):
            if trajectory.steps and sequence.asked.lost and sequence.asked.answered:
                _cut(trajectory)
        self._episode.trajectory.others = [trajectory for trajectory in trajectories[1:] if trajectory.steps]


def _text(turn: Turn, completion: Completion, ask: Ask) -> str:
    """Return a turn's text: up to a stop string; else without thoughts and calls, or whole if it has calls and none is read."""
    if completion.finish == "stop":
        return next((completion.text.removesuffix(stop) for stop in ask.stop if completion.text.endswith(stop)), "")
    return str(turn) if turn.calls and (not ask.reads_calls or all(call.problem for call in turn.calls)) else turn.content


def _cut(trajectory: Trajectory) -> None:
    """Remove the last turn, which had no effect on anything."""
    step = trajectory.steps.pop()
    for values in (trajectory.token_ids, trajectory.kinds, trajectory.logprobs, trajectory.entropies):
        del values[step.start :]  # type: ignore[attr-defined]
    trajectory.text = trajectory.text[: step.text_start]
    trajectory.version_changes = [change for change in trajectory.version_changes if change[0] < step.start]
