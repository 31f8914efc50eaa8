"""Trajectories of agents: each agent runs on a thread, and the trajectory's coroutine answers its requests until it ends.

Agents.roll_out: agent --HTTP--> Endpoint --Ask--> Talk --Answer--> agent ... Ended --> AgentEnv.step --> reward
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import lru_cache, partial

from rapo_rllib.endpoint.function import GIVEN, Ended, call_function, start_agent
from rapo_rllib.endpoint.server import Endpoint
from rapo_rllib.endpoint.talk import Inbox, Talk
from rapo_rllib.errors import EnvError, RequestError
from rapo_rllib.protocol.calls import MakeReader
from rapo_rllib.protocol.native import NativeProtocol
from rapo_rllib.protocol.turns import Schema
from rapo_rllib.rollout.env_calls import step_env, truncate_env
from rapo_rllib.rollout.episode import Episode
from rapo_rllib.rollout.group import RolloutGroup
from rapo_rllib.rollout.loop import Run

logger = logging.getLogger(__name__)

MOST_CHATS = 64  # sets of tools whose protocols are kept


class Agents:
    """Loop that rolls out agents: serves the policy to agents, and passes their results to their environments.

    Args:
        chat: the model's own form of turns, without tools.
        make_reader: makes the reader of calls for the tools of a request; None: calls are plain JSON.
    """

    def __init__(self, chat: NativeProtocol, make_reader: MakeReader | None) -> None:
        self._chat, self._make_reader = chat, make_reader
        self._chat_with = lru_cache(MOST_CHATS)(self._make_chat)
        self._endpoint: Endpoint | None = None
        self._refusals: set[str] = set()

    async def roll_out(self, run: Run, group: RolloutGroup, episode: Episode) -> str:
        """Roll out a trajectory and return what ended it; ``EnvError`` and ``RequestError`` cost this trajectory alone."""
        self._endpoint = self._endpoint or Endpoint()
        episode.trajectory.own_prompt, episode.trajectory.question_text = True, await run.reset(episode)
        run.observer.started(episode)
        options, inbox = episode.env.unwrapped.options, Inbox()
        url = self._endpoint.open(inbox.put)
        given = dict(zip(GIVEN, (episode.trajectory.question_text, url, episode.question), strict=True))
        talk = Talk(self.chat_with, run, group, episode, inbox)
        limit = min(options.max_requests, episode.plan.settings.max_steps or options.max_requests)
        call = partial(call_function, options.agent, given, options.agent_options)
        deadline = start_agent(call, options.agent_timeout_s, inbox.put)
        try:
            ended = await talk.serve(limit)
            if ended is not None and ended.late:
                run.stats.deadlines["agent"] += 1
        finally:
            self._endpoint.close_url(url)
            inbox.close()
            deadline.cancel()
            talk.close()
        return await self._judge(run, episode, talk, ended)

    async def _judge(self, run: Run, episode: Episode, talk: Talk, ended: Ended | None) -> str:
        """Pay for what the agent returned; if a budget ended or broke the agent, judge it as without an answer."""
        if not any(sequence.steps for sequence in episode.trajectory.sequences):
            refused = f"; it was refused: {talk.refused}" if talk.refused else ": did it ask at its base_url?"
            raise EnvError(f"the agent has ended without a turn of the policy{refused} {'' if ended is None else ended.error}")
        if ended is None or (ended.error and talk.refused):
            result = await run.env_calls.call(truncate_env, episode)
            episode.take_judgement(result)
            end = "length"
        elif ended.error or ended.returned is None:
            raise EnvError(ended.error or "the agent returned nothing: return an answer (a text) or a reward (a number)")
        else:
            result = await run.env_calls.call(step_env, episode, ended.returned, True)
            episode.take_judgement(result)
            end, episode.trajectory.unfitting_tokens = "answer", 0  # a text that did not fit has not ended it
        if talk.told < len(episode.trajectory.steps):
            run.observer.stepped(episode, result.info, end)
        return end

    def chat_with(self, tools: Sequence[Schema]) -> NativeProtocol:
        """Return the form of turns for the tools of a request. Raises ``RequestError`` if the model has no form for them."""
        return self._chat_with(json.dumps(tools))

    def _make_chat(self, tools: str) -> NativeProtocol:
        schemas = json.loads(tools)
        try:
            return NativeProtocol(self._chat.tokenizer, self._chat.settings, schemas, self._make_reader, game=not schemas)
        except Exception as error:  # a template or a parser does not take the agent's tools
            if str(error) not in self._refusals:
                logger.error("an agent's tools are refused, which fails each of its trajectories: %s", error)
            self._refusals.add(str(error))
            raise RequestError(f"the tools are refused: {error}") from error

    def close(self) -> None:
        """Stop serving."""
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None
