"""Games that are longer than an embedder reads: which step of the same situation a buffer finds, with real parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from long_game import ROOMS, LongGame

from rapo_rllib.buffer.build import ensure_built
from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import HistoryQuery


def played(env_config: dict[str, Any]) -> Iterator[tuple[HistoryQuery, str]]:
    """What a player asks in held-out games, once the history is longer than 256 tokens, and the act that leads on then."""
    rng, game = random.Random(0), LongGame(env_config)
    for question in LongGame.questions(env_config, "test"):
        text, _ = game.reset(seed=question.seed)
        history = ""
        while game.left:
            right = ROOMS[game.left[0]][1]
            if len(history.split()) > 220:
                yield HistoryQuery(text, history.strip()), right
            for act in ["look around", right] if rng.random() < 0.2 else [right]:
                history += act + render_observation(game.step(act)[0], ProtocolSettings())


def share_found(buffer: StepTraceBuffer, env_config: dict[str, Any]) -> float:
    queries, acts = zip(*played(env_config), strict=True)
    assert len(queries) > 12
    found = buffer.retrieve(list(queries), 1)
    return sum(hits[0].trace.text.startswith(act) for hits, act in zip(found, acts, strict=True)) / len(acts)


@pytest.fixture
def cut_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys as they would be if the encoder cut them."""
    plain = Embedder.encode

    def encode(self: Embedder, pairs: Any) -> Any:
        assert plain is not Embedder.encode
        return self.encoder.encode([f"{question}\n{history}" for question, history in pairs])

    monkeypatch.setattr(Embedder, "encode", encode)


SAME_ORDER = {"shuffled": False}


@pytest.mark.parametrize(
    ("env_config", "settings", "least"),
    [
        pytest.param(SAME_ORDER, {}, 0.95, id="where the last steps tell the situation"),
        pytest.param({}, {"key_history_tokens": 32}, 0.95, id="where the last observation tells it"),
    ],
)
def test_the_step_of_the_same_situation_is_found(
    make_buffer: Callable[..., StepTraceBuffer], env_config: dict[str, Any], settings: dict[str, Any], least: float
) -> None:
    buffer = make_buffer(**settings)
    ensure_built(buffer, lambda: LongGame.expert_trajectories(env_config))
    assert share_found(buffer, env_config) >= least


@pytest.mark.usefixtures("cut_at_the_end")
@pytest.mark.parametrize("env_config", [SAME_ORDER, {}])
def test_keys_that_are_cut_at_the_end_do_not_find_it(
    make_buffer: Callable[..., StepTraceBuffer], env_config: dict[str, Any]
) -> None:
    buffer = make_buffer()
    ensure_built(buffer, lambda: LongGame.expert_trajectories(env_config))
    assert share_found(buffer, env_config) <= 0.3
