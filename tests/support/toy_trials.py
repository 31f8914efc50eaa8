"""Trials that learn nothing, where a test is about Tune, not about an algorithm: RLlib's take seconds to start."""

from __future__ import annotations

from typing import Any

from ray.tune import PlacementGroupFactory, Trainable


class Toy(Trainable):
    """Every second result has an evaluation, as with ``evaluation_interval: 2``; it fails if its config has ``fails``."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """One after the other, on a Ray of four CPUs."""
        return PlacementGroupFactory([{"CPU": 3}])

    def step(self) -> dict[str, Any]:
        if self.config.get("fails"):
            raise RuntimeError("the line is broken")
        if self.iteration % 2 == 0:  # counted after it
            return {}
        return {"evaluation": {"env_runners": {"episode_return_mean": 1.0, "num_episodes": 1}}}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """There is nothing to save."""
