"""Keys of ``env_config`` that only our environments read, given to one of a user's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
from ray.tune.registry import _global_registry, register_env

from rapo_rllib import RAPOConfig
from rapo_rllib.envs.base import AnyText
from rapo_rllib.envs.tool_env import ToolEnv


class Plain(gymnasium.Env[str, str]):
    """Copies its config, as many do."""

    def __init__(self, env_config: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.options = {"moves": 3, **(env_config or {}), **kwargs}
        self.observation_space = self.action_space = AnyText()


class Declares(Plain):
    env_config_keys = ("tools", "dataset")


class Named(Plain):
    def __init__(self, env_config: dict[str, Any] | None = None, *, reward: float = 1.0) -> None:
        super().__init__(env_config)


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """The ways to name the plain environment."""
    register_env("plain-of-tune", lambda env_config: gymnasium.wrappers.TimeLimit(Plain(env_config), 9))
    gymnasium.register("user/Plain-v0", entry_point=Plain)
    gymnasium.register("user/Made-v0", entry_point=lambda **keys: Plain(**keys))
    yield {"class": Plain, "tune": "plain-of-tune", "gymnasium": "user/Plain-v0", "creator": "user/Made-v0"}
    for name in ("user/Plain-v0", "user/Made-v0"):
        del gymnasium.registry[name]
    _global_registry.unregister_all()


@pytest.mark.parametrize("how", ["class", "tune", "gymnasium", "creator"])
def test_a_key_of_ours_is_refused_by_name(names: dict[str, Any], how: str) -> None:
    def made(**keys: Any) -> gymnasium.Env:
        return RAPOConfig().environment(names[how], env_config=keys).question_source.env_maker()()

    made(moves=4).close()
    for key, value, advice in (
        ("tools", ["python"], "derive your environment from rapo_rllib.envs.tool_env.ToolEnv"),
        ("max_tool_calls", 5, "ToolEnv"),
        ("reward", {"format": 1.0}, "ToolEnv"),
        ("scorer", "math", "ToolEnv"),
        ("limits", {"timeout_s": 1}, "limits stand in an entry of its tools"),
        ("dataset", "rows.jsonl", "use env: rapo/questions"),
        ("limit_train", 3, "use env: rapo/questions"),
        ("traces", "t.jsonl", "use env: rapo/questions"),
        ("protocol", {"format": "native"}, "set protocol beside env_config"),
    ):
        with pytest.raises(ValueError, match=rf"env_config\.{key}: Plain would ignore it.*{advice}.*env_config_keys"):
            made(moves=4, **{key: value})


def test_a_class_that_reads_it_says_so() -> None:
    def made(env: type, **keys: Any) -> Any:
        return RAPOConfig().environment(env, env_config=keys).question_source.env_maker()()

    assert made(Declares, tools=["mine"], dataset="x").options["tools"] == ["mine"]
    made(Named, reward=1.0)
    for env, key in ((Declares, "reward"), (Named, "tools")):
        with pytest.raises(ValueError, match=f"env_config.{key}: {env.__name__} would ignore it"):
            made(env, **{key: []})


def test_our_own_refuse_what_they_do_not_know() -> None:
    class Derived(ToolEnv):
        pass

    for env, key, near in ((Derived, "tolls", "tools"), ("rapo/word_problems", "max_tool_call", "max_tool_calls")):
        with pytest.raises(ValueError, match=f"'env_config.{key}': did you mean 'env_config.{near}'"):
            RAPOConfig().environment(env, env_config={key: 1}).question_source.env_maker()()


def test_tags_of_an_environment_that_are_the_protocols_own_are_refused() -> None:
    from rapo_rllib.protocol.make import check_env
    from rapo_rllib.settings import ProtocolSettings

    for format in ("tags", "native"):
        for tags, message in (
            (("act", "answer"), "a tool is called by <answer>, which is a tag of the protocol: rename it"),
            (["think"], "<think>, which is a tag of the protocol"),
            ("act", "tool_tags: 'act': must be a list of names"),
            ((1,), "must be a list of names"),
            (("a b",), "must be a list of names"),
            (("",), "must be a list of names"),
        ):
            env = Plain()
            env.tool_tags = tags  # type: ignore[attr-defined]
            with pytest.raises(ValueError, match=f"the environment Plain: .*{message}"):
                check_env(env, ProtocolSettings(format=format))
