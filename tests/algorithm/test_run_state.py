"""Where a run stands when it goes on from a checkpoint."""

from __future__ import annotations

from threading import RLock
from types import SimpleNamespace

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm.algorithm import RAPO
from rapo_rllib.algorithm.sampling import Sampling
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.types import Question

QUESTIONS = [Question(f"q{index}", "?") for index in range(4)]


def test_a_schedule_goes_on_at_the_steps_of_the_checkpoint() -> None:
    rapo = RAPO.__new__(RAPO)  # which was never set up
    settings = RAPOConfig().training(retrieval_prob=[[0, 0.5], [100, 0.1]]).settings
    rapo._sampling, rapo.eval_env_runner_group = Sampling(settings, QuestionCursor(QUESTIONS, seed=0), None, lambda: None), None
    rapo._weights_lock = RLock()
    rapo.metrics = SimpleNamespace(peek=lambda key, default: 50)
    rapo.set_state({})
    assert rapo._sampling.retrieval_prob == pytest.approx(0.3)
