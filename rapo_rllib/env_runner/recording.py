"""``AlgorithmConfig.offline_data(output=...)``: episodes to files, in RLlib's formats and places."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

logger = logging.getLogger(__name__)


class _Routed(SingleAgentEnvRunner):
    """Stands where RLlib's recorder would make an environment and a module of its own."""

    def __init__(self, *, config: AlgorithmConfig, worker_index: int, env_name: str) -> None:
        self.config, self.worker_index = config, worker_index
        named: Any = env_name
        self.env = named


class EpisodeRecorder(OfflineSingleAgentEnvRunner, _Routed):
    """RLlib's recorder for episodes that are sampled elsewhere: its keys, columns, folders and file systems.

    When it writes is its own: RLlib's writes all that it has ever recorded at each call, and with ``output_max_rows_per_file``
    drops whatever fills more than one file.

    Args:
        config: an ``AlgorithmConfig`` with ``output``.
        worker_index: of the env runner; part of the folder's name.
        env_name: the folder below ``output``.
    """

    def __init__(self, config: AlgorithmConfig, worker_index: int, env_name: str) -> None:
        super().__init__(config=config, worker_index=worker_index, env_name=env_name)
        # a task that writes a file must not wait for a CPU that engines and learners hold to the end
        self.output_write_method_kwargs = {"ray_remote_args": {"num_cpus": 0}, **self.output_write_method_kwargs}

    def record(self, episodes: Sequence[SingleAgentEpisode]) -> int:
        """Write episodes, or keep them until a file is full; returns how many rows are kept.

        What cannot be written is kept as well, and written with the next.
        """
        recorded: list[Any] = [_plain(episode) for episode in episodes]
        if self.output_write_episodes:
            self._samples += [msgpack.packb(one.get_state()) for one in recorded]  # texts and numbers: nothing of NumPy
        else:
            self._map_episodes_to_data(recorded)
        limit = self.output_max_rows_per_file
        while len(self._samples) >= (limit or 1) and self._write(limit or len(self._samples)):
            pass
        return len(self._samples)

    def stop(self) -> None:
        """Write what is kept, where ``output_write_remaining_data`` asks for it or it could not be written before."""
        while self._samples and (self.write_remaining_data or not self.output_max_rows_per_file):
            if not self._write(self.output_max_rows_per_file or len(self._samples)):
                return

    def _write(self, count: int) -> bool:
        self._sample_counter += 1
        name = self.worker_path + f"-{self._sample_counter}".zfill(6)
        path = f"{str(self.output_path).rstrip('/')}/{self.subdir_path}/{name}"
        try:
            rows = ray.data.from_items(self._samples[:count], override_num_blocks=1)  # else a task and a file for each row
            getattr(rows, self.output_write_method)(path, **self.output_write_method_kwargs)
        except Exception:
            logger.exception("%d recorded rows could not be written to %s; they are kept", len(self._samples[:count]), path)
            return False
        del self._samples[:count]
        return True

    def _get_subdir_path(self) -> str:
        return str(self.env)


def _plain(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    """A copy whose infos hold only what JSON has: no trajectory, no objects of an environment."""
    return SingleAgentEpisode(
        id_=episode.id_,
        observations=list(episode.get_observations()),
        actions=list(episode.get_actions()),
        rewards=list(episode.get_rewards()),
        infos=[_plain_values(info) for info in episode.get_infos()],
        terminated=episode.is_terminated,
        truncated=episode.is_truncated,
        extra_model_outputs={name: list(episode.get_extra_model_outputs(name)) for name in episode.extra_model_outputs},
        len_lookback_buffer=0,
    )


def _plain_values(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if isinstance(value, str | int | float | bool | None)}
