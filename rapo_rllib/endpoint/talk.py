"""What one agent and the policy have said: the sequences of tokens of a trajectory, and the requests that make them longer.

    Ask --Recorder--> Place --> Episode of a sequence, with what the request adds --engine--> Completion --> Answer

A sequence is an ``Episode``. The first is that of the trajectory; others are branches and further conversations, which are
trained with its advantage (``Trajectory.others``). Only the first retrieves.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from rapo_rllib.endpoint.conversation import Answer, Ask, Place, Recorder
from rapo_rllib.endpoint.function import Ended
from rapo_rllib.errors import GivenUpError, RequestError
from rapo_rllib.protocol.native import NativeProtocol
from rapo_rllib.protocol.template import Message
from rapo_rllib.protocol.turns import Piece, Schema, Turn
from rapo_rllib.rollout.coroutines import result_of
from rapo_rllib.rollout.engine import Completion
from rapo_rllib.rollout.episode import Episode
from rapo_rllib.rollout.group import RolloutGroup
from rapo_rllib.rollout.loop import Run
from rapo_rllib.types import TokenKind, ToolUse, Trajectory

ChatWith = Callable[[Sequence[Schema]], NativeProtocol]
_OVER = "this trajectory has ended"
_MOST_CHARACTERS = 128  # of a token: a longer text is over its budget, and is not encoded to know that


class Inbox:
    """What other threads tell a coroutine: requests, and the end of its agent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[Ask | Ended | GivenUpError] = deque()
        self._waiting: Future[None] | None = None
        self._open = True

    def put(self, item: Ask | Ended | GivenUpError) -> None:
        """Add one; a request to a trajectory that has ended is refused."""
        with self._lock:
            is_open, waiting, self._waiting = self._open, self._waiting, None
            if is_open:
                self._items.append(item)
        if waiting is not None:
            waiting.set_result(None)
        if not is_open and isinstance(item, Ask):
            item.refuse(_OVER)

    async def take(self) -> Ask | Ended | GivenUpError:
        """Wait for the next one."""
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                waiting = self._waiting = Future()
            await result_of(waiting)

    def close(self) -> None:
        """Refuse what is left, and what still comes."""
        with self._lock:
            self._open, left = False, list(self._items)
        for item in left:
            if isinstance(item, Ask):
                item.refuse(_OVER)


class Talk:
    """What one agent and the policy have said: the sequences of a trajectory, all changed by the thread of its coroutine.

    Args:
        chat_with: the model's own form of turns, for the tools of a request; raises ``RequestError`` where it has none.
        run: generates, retrieves, observes.
        group: of the trajectory.
        episode: of the trajectory; its first sequence.
        inbox: told where the group is given up.
    """

    def __init__(self, chat_with: ChatWith, run: Run, group: RolloutGroup, episode: Episode, inbox: Inbox) -> None:
        self._chat_with, self._run, self._group, self._episode, self._inbox = chat_with, run, group, episode, inbox
        self._recorder = Recorder()
        self._sequences: list[Episode] = []
        self._last_asked: dict[int, Ask] = {}  # of each sequence
        self._calls: dict[str, tuple[str, str]] = {}  # id of a call as the agent has it -> tool, id as the template has it
        self._under_way: set[str] = set()  # names of requests to the engine
        self._turns = 0
        self._said = ""  # behind the last step of the first sequence
        self.told = 0  # steps of the first sequence that the observer knows
        self.refused = ""  # the budget that the last refusal was about

    async def serve(self, limit: int) -> Ended | None:
        """Answer until the agent ends; None: it has asked for more than ``limit`` turns.

        Raises:
            GivenUpError: nobody wants the trajectory any more.
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
        """Answer one request, or refuse it; others are answered meanwhile."""
        try:
            ask.answer.set_result(await self._answered(ask))
        except RequestError as error:
            ask.refuse(str(error))
        except GivenUpError as error:
            self._inbox.put(error)
        finally:
            ask.refuse(_OVER)

    async def _answered(self, ask: Ask) -> Answer:
        place = self._recorder.find(ask)
        sequence = self._prepared(ask, place)
        self.refused, self._episode.trajectory.unfitting_tokens = "", 0  # the agent has found a way
        self._recorder.claim(place)
        if place.sequence == len(self._sequences):
            self._sequences.append(sequence)
        self._last_asked[place.sequence] = ask
        if sequence is self._episode and ask.retrieves:
            if place.behind is None:
                await self._run.maybe_retrieve(sequence, "trajectory")
            elif ask.messages and ask.messages[-1]["role"] == "tool":
                await self._run.maybe_retrieve(sequence, "step")
        if self._episode.closed:  # the agent has ended meanwhile
            raise RequestError(_OVER)
        if ask.text is None:
            sequence.open_turn()
        completion = await self._generated(sequence, ask)
        if self._episode.closed:
            raise RequestError(_OVER)
        if sequence is self._episode:
            self._tell()
        answer = self._read(sequence, sequence.append_step(completion), completion, ask)
        self._recorder.record(place, ask, answer)
        return answer

    async def _generated(self, sequence: Episode, ask: Ask) -> Completion:
        request = sequence.request()
        most = min(request.max_tokens, ask.max_tokens or request.max_tokens)
        request = replace(request, max_tokens=most, stop=(*request.stop, *ask.stop))
        self._under_way.add(request.request_id)
        completion = await self._run.engine.generate(request, self._group)
        self._under_way.discard(request.request_id)
        return completion

    def _prepared(self, ask: Ask, place: Place) -> Episode:
        """The sequence with what the request adds to it, up to the opening of the policy's turn.

        Raises:
            RequestError: it is over a budget, or the template refuses it; nothing has changed then.
        """
        first, plan = not self._sequences, self._episode.plan
        if place.behind is None:
            plan = replace(plan, chat=self._chat_with(ask.tools))
            sequence = self._episode if first else self._further(Trajectory(self._episode.question.id, (), own_prompt=True))
            prompt = self._prompt(ask, plan.chat)
            self._check_length(len(prompt), plan.settings.max_prompt_tokens, "max_prompt_tokens")
            sequence.plan, sequence.trajectory.prompt_ids = plan, prompt
            return sequence
        origin = self._sequences[place.behind.sequence]
        sequence = self._branched(origin, place.behind.turns) if place.is_branch else origin
        said, piece = self._added(ask, place.matched, sequence)
        if not sequence.append_turns(said, piece):
            length = len(sequence.trajectory.prompt_ids) + len(sequence.trajectory.token_ids) + len(piece.token_ids)
            most = len(sequence.trajectory.prompt_ids) + plan.settings.max_response_tokens
            self._check_length(max(length, most + 1), most, "max_response_tokens")
        if sequence is self._episode:
            self._said = said
        return sequence

    def _tell(self) -> None:
        """Complete the last step of the first sequence by what came behind it, now that another one follows."""
        steps = self._episode.trajectory.steps
        if self.told < len(steps):
            steps[-1].observation, self.told = self._said, len(steps)
            self._run.observer.stepped(self._episode, {}, "")

    def _check_length(self, length: int, most: int, key: str) -> None:
        if length > most:
            self.refused = f"the maximum context length is {most} tokens ({key}), and the request has {length}"
            raise RequestError(self.refused)

    def _prompt(self, ask: Ask, chat: Any) -> list[int]:
        most = self._episode.plan.settings.max_prompt_tokens
        characters = len(ask.text or "") + sum(len(message["content"]) for message in ask.messages)
        if characters > _MOST_CHARACTERS * most:
            self._check_length(characters // _MOST_CHARACTERS, most, "max_prompt_tokens")
        if ask.text is not None:
            return list(chat.tokenizer.encode(ask.text))
        try:
            return list(chat.conversation_ids(self._for_template(ask.messages)))
        except Exception as error:  # of a template, of which an agent's message is at fault
            raise RequestError(f"the messages are refused: {error}") from error

    def _added(self, ask: Ask, matched: int, sequence: Episode) -> tuple[str, Piece]:
        """What a request adds behind a turn: as text, and encoded."""
        chat: Any = sequence.plan.chat
        messages = ask.messages[matched:]
        said = "\n".join(message["content"] for message in messages) if ask.text is None else ask.text[matched:]
        if len(said) > _MOST_CHARACTERS * sequence.remaining_tokens:
            self._check_length(len(said) // _MOST_CHARACTERS, sequence.remaining_tokens, "max_response_tokens")
        if ask.text is not None:
            return said, Piece(chat.tokenizer.encode(said, add_special_tokens=False), said)
        ended = sequence.trajectory.token_ids[-1] in chat.end_ids
        try:
            return said, chat.turns(self._for_template(messages), ended)
        except Exception as error:  # of a template, of which an agent's message is at fault
            raise RequestError(f"the messages are refused: {error}") from error

    def _for_template(self, messages: Sequence[Message]) -> list[Message]:
        """Messages in which results say whose they are, and calls that were made here have the template's own ids."""
        found = []
        for message in messages:
            name, id = self._calls.get(message.get("tool_call_id", ""), ("", ""))
            told = {**message, **({"name": name, "tool_call_id": id} if name else {})}
            if "tool_calls" in told:
                known = [(call, self._calls.get(call["id"], ("", call["id"]))[1]) for call in told["tool_calls"]]
                told["tool_calls"] = [{**call, "id": own} for call, own in known]
            found.append(told)
        return found

    def _branched(self, origin: Episode, turns: int) -> Episode:
        """A new sequence with the tokens up to a turn: they are trained where they were generated."""
        source, stop = origin.trajectory, origin.trajectory.steps[turns - 1].stop
        own = Trajectory(source.question_id, source.prompt_ids, own_prompt=True)
        own.token_ids = source.token_ids[:stop]
        own.kinds = [TokenKind.GIVEN if kind == TokenKind.POLICY else kind for kind in source.kinds[:stop]]
        own.logprobs, own.entropies = [0.0] * stop, [0.0] * stop
        branch = self._further(own)
        branch.plan, branch.turn_open = origin.plan, False
        return branch

    def _further(self, trajectory: Trajectory) -> Episode:
        name, plan = f"{self._episode.name}.{len(self._sequences)}", self._episode.plan
        trajectory.policy_version = plan.policy_version
        return Episode(name, self._episode.question, plan, trajectory)

    def _read(self, sequence: Episode, turn: Turn, completion: Completion, ask: Ask) -> Answer:
        """The turn as the agent gets it; a call that could not be read stays text, as in any server."""
        calls = [call for call in turn.calls if not call.problem] if ask.reads_calls and ask.text is None else []
        written = []
        for call in calls:
            id = f"{len(self._calls) + 1:09d}"
            self._calls[id] = (call.name, call.id)
            written.append((id, call.name, json.dumps(dict(call.arguments), ensure_ascii=False)))
        step = sequence.trajectory.steps[-1]
        step.tool = ", ".join(dict.fromkeys(call.name for call in calls)) or None
        step.calls = tuple(ToolUse(call.name) for call in calls) if len(calls) > 1 else ()
        finish = "length" if completion.finish == "length" else "tool_calls" if calls else "stop"
        asked = len(sequence.trajectory.prompt_ids) + step.start
        return Answer(_text(turn, completion, ask), tuple(written), finish, asked, len(completion.token_ids))

    def close(self) -> None:
        """Forget what is being generated, leave out what nobody got, and give the trajectory its other sequences."""
        self._episode.closed = True
        self._run.engine.forget(self._under_way)
        for index, sequence in enumerate(self._sequences):
            steps = sequence.trajectory.steps
            if steps and self._last_asked[index].lost and self._last_asked[index].answered:
                _cut(sequence.trajectory)
        self._episode.trajectory.others = [one.trajectory for one in self._sequences[1:] if one.trajectory.steps]


def _text(turn: Turn, completion: Completion, ask: Ask) -> str:
    """The text of a turn: without calls and thoughts, unless there is a call that is not read, or could not be."""
    if completion.finish == "stop":
        return next((completion.text.removesuffix(stop) for stop in ask.stop if completion.text.endswith(stop)), "")
    if ask.text is not None:
        return completion.text
    return str(turn) if turn.calls and (not ask.reads_calls or all(call.problem for call in turn.calls)) else turn.content


def _cut(trajectory: Trajectory) -> None:
    """Take the last turn away: it had no effect on anything."""
    step = trajectory.steps.pop()
    for values in (trajectory.token_ids, trajectory.kinds, trajectory.logprobs, trajectory.entropies):
        del values[step.start :]  # type: ignore[attr-defined]
    trajectory.text = trajectory.text[: step.text_start]
    trajectory.version_changes = [change for change in trajectory.version_changes if change[0] < step.start]
