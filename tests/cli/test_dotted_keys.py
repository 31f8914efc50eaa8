"""``--set`` keys with dots, over a config that is there already."""

from __future__ import annotations

import pytest
from ray.rllib.algorithms.ppo import PPOConfig

from rapo_rllib import RAPOConfig
from rapo_rllib.cli.values import with_overrides


def test_every_dot_is_a_level() -> None:
    config = RAPOConfig().training(step_trace_buffer={"top_k": 3, "filter": {"hide_answers": True}}, engine={"sleep": True})
    with_overrides(config, [("step_trace_buffer.filter.question", "same"), ("model.lora.rank", 4), ("engine.dtype", "float32")])
    settings = config.settings.buffer
    assert (settings.top_k, settings.filter.hide_answers, settings.filter.question) == (3, True, "same")
    assert config.settings.model.lora is not None and config.settings.model.lora.rank == 4
    assert (config.settings.engine.dtype, config.settings.engine.sleep) == ("float32", True)


def test_of_another_algorithm() -> None:
    config = PPOConfig().environment("CartPole-v1", env_config={"a": {"b": 0, "c": 2}})
    with_overrides(config, [("env_config.a.b", 1), ("model.fcnet_hiddens", [8])])
    assert config.env_config == {"a": {"b": 1, "c": 2}}
    assert config.model["fcnet_hiddens"] == [8]


@pytest.mark.parametrize(
    ("key", "message"),
    [("engin.dtype", "unknown key '--set engin': did you mean '--set engine'"), ("temperature.a", "which has no keys")],
)
def test_a_wrong_key_is_named(key: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_overrides(RAPOConfig(), [(key, 1)])
