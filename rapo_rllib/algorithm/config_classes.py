"""What RLlib makes of a ``RAPOConfig``: the module, the learner, and the group of learners. Imported when they are made."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rapo_rllib.config.settings_views import SettingsViews

if TYPE_CHECKING:
    from ray.rllib.core.learner.learner_group import LearnerGroup
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec


class MadeClasses(SettingsViews):
    """The part of ``RAPOConfig`` that names classes; these override RLlib's methods of ``AlgorithmConfig``."""

    # attributes of RAPOConfig and AlgorithmConfig that are read here
    temperature: float
    copy: Any
    get_multi_rl_module_spec: Any

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """The language model."""
        from ray.rllib.core.rl_module.rl_module import RLModuleSpec

        from rapo_rllib.learner.rl_module import CausalLMRLModule

        settings = asdict(self.model_settings)
        extra = {"engine_dtype": self.engine_settings.dtype, "temperature": self.temperature}
        return RLModuleSpec(module_class=CausalLMRLModule, model_config={**settings, **extra})

    def get_default_learner_class(self) -> type:
        """The learner."""
        from rapo_rllib.learner.learner import RAPOTorchLearner

        return RAPOTorchLearner

    def build_learner_group(
        self, *, env: Any = None, spaces: Any = None, rl_module_spec: Any = None, placement_group: Any = None
    ) -> LearnerGroup:
        """Learners whose weights may be sharded; see RLlib for the arguments."""
        from rapo_rllib.learner.ranks import RAPOLearnerGroup

        spec = rl_module_spec or self.get_multi_rl_module_spec(env=env, spaces=spaces)
        return RAPOLearnerGroup(config=self.copy(), module_spec=spec, placement_group=placement_group)
