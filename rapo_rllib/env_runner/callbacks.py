"""Find and call the RLlib callbacks that the user has defined for an env runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from gymnasium.vector import VectorEnv
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import force_list

EPISODE_CALLBACKS = ("on_environment_created", "on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")
SAMPLE_CALLBACK = "on_sample_end"


class RunnerCallbacks:
    """The callbacks of one env runner, as set by ``AlgorithmConfig.callbacks``.

    Args:
        env_runner: passed to every callback; its ``config`` holds the callback classes and functions.
    """

    def __init__(self, env_runner: Any) -> None:
        self._env_runner = env_runner
        self._objects: list[RLlibCallback] = [make() for make in force_list(env_runner.config.callbacks_class)]
        self._heard = {name for name in (*EPISODE_CALLBACKS, SAMPLE_CALLBACK) if self._functions(name) or self._methods(name)}
        self._known_envs: WeakValueDictionary[int, Any] = WeakValueDictionary()

    @property
    def listens(self) -> bool:
        """Whether the user has defined any callback on environments, episodes or samples."""
        return bool(self._heard)

    def _functions(self, name: str) -> Any:
        return getattr(self._env_runner.config, f"callbacks_{name}")

    def _methods(self, name: str) -> list[Any]:
        """Find the callback objects that override the method ``name``."""
        unchanged = getattr(RLlibCallback, name)
        return [one for one in self._objects if getattr(getattr(one, name), "__func__", None) is not unchanged]

    def environment_created(self, env: Any) -> None:
        """Call ``on_environment_created`` if the environment is new."""
        if "on_environment_created" not in self._heard or self._known_envs.get(id(env)) is env:
            return
        self._known_envs[id(env)] = env
        runner = self._env_runner
        context = EnvContext(runner.config.env_config, runner.worker_index or 0, num_workers=runner.num_workers or 0)
        self._call("on_environment_created", env=OneTextEnv(env), env_context=context)

    def episode(self, name: str, episode: SingleAgentEpisode, env: Any) -> None:
        """Call the callback ``name`` for an episode in ``env``; a trajectory has a single environment, at index 0."""
        if name not in self._heard:
            return
        more: dict[str, Any] = {"prev_episode_chunks": []} if name == "on_episode_end" else {}  # trajectories are never cut
        self._call(name, episode=episode, env=OneTextEnv(env), rl_module=self._env_runner.module, env_index=0, **more)

    def sample_end(self, samples: Sequence[SingleAgentEpisode]) -> None:
        """Call ``on_sample_end`` with all episodes of a sampling phase."""
        if SAMPLE_CALLBACK in self._heard:
            self._call(SAMPLE_CALLBACK, samples=list(samples))

    def _call(self, name: str, **kwargs: Any) -> None:
        common = {"env_runner": self._env_runner, "metrics_logger": self._env_runner.metrics}
        make_callback(
            name, callbacks_objects=self._objects, callbacks_functions=self._functions(name), kwargs={**common, **kwargs}
        )


class OneTextEnv(VectorEnv):
    """The environment of one trajectory as RLlib's vector environment; ``envs[0]`` is None once the environment hangs."""

    num_envs = 1

    def __init__(self, env: Any) -> None:
        self.envs = (env,)
