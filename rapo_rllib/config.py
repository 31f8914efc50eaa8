"""``RAPOConfig``: every hyper-parameter once, with the paper's default, validated before anything heavy starts.

Flat attributes as in RLlib; the layers below get frozen settings (``config.objective_settings`` and the like) made from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms import algorithm_config
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override

from rapo_rllib.config_checks import check_rapo_values, known_keys, settings_from
from rapo_rllib.hardware import resolved_dtype
from rapo_rllib.settings import (
    BufferSettings,
    EngineSettings,
    ModelSettings,
    ObjectiveSettings,
    ProtocolSettings,
    RolloutSettings,
)
from rapo_rllib.unknown_keys import refuse_unknown_keys

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm

NotProvided: Any = algorithm_config.NotProvided  # RLlib's sentinel, which stands for a value of any type
_OBJECTIVE_KEYS = tuple(ObjectiveSettings.__dataclass_fields__)
_ROLLOUT_KEYS = tuple(RolloutSettings.__dataclass_fields__)


class RAPOConfig(AlgorithmConfig):
    """Configuration of RAPO.

    Example:
        >>> config = (  # doctest: +SKIP
        ...     RAPOConfig()
        ...     .environment("rapo/word_problems", env_config={"steps": [1, 2]})
        ...     .training(model={"name_or_path": "smollm2-135m-instruct"}, group_size=8, num_hybrid=4, lr=5e-6)
        ... )
        >>> algo = config.build_algo()  # doctest: +SKIP
    """

    # for the type checker: hyper-parameters from RolloutSettings, and attributes that RLlib initialises with None
    num_hybrid: int
    temperature: float
    lr: Any
    grad_clip: Any
    min_time_s_per_iteration: Any
    env_runner_cls: Any
    observation_space: Any
    action_space: Any
    merge_env_runner_states: Any
    custom_evaluation_function: Any
    train_batch_size_per_learner: Any

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        self.language_model: dict[str, Any] = {}
        super().__init__(algo_class=algo_class or _algorithm_class())
        self.engine: dict[str, Any] = {}
        self.protocol: dict[str, Any] = {}
        self.step_trace_buffer: dict[str, Any] = {}
        self._set_paper_defaults()
        self._set_rllib_defaults()

    def _set_paper_defaults(self) -> None:
        for settings in (ObjectiveSettings(), RolloutSettings()):
            for key, value in asdict(settings).items():
                setattr(self, key, value)
        self.questions_per_step = 32
        self.num_minibatches = 2
        self.retrieval_prob: float | list = 0.5
        self.lr = 1e-6
        self.num_epochs = 1
        self.weight_decay = 0.01
        self.adam_betas = (0.9, 0.999)
        self.grad_clip = 1.0
        self.grad_clip_by = "global_norm"
        self.dynamic_sampling = False
        self.max_sampling_rounds = 4
        self.max_tokens_per_micro_batch = 8192
        self.old_logprobs = "rollout"
        self.max_skipped_updates = 5
        self.learner_num_threads: int | None = None
        self.max_retrieval_failure_share = 0.5
        self.canary_tolerance = 0.1
        self.evaluate_before_training = True
        self.time_budget_s: float | None = None
        self.transcripts = False

    def _set_rllib_defaults(self) -> None:
        from rapo_rllib.env_runner import RAPOEnvRunner
        from rapo_rllib.envs.text_space import AnyText
        from rapo_rllib.evaluation import evaluate_on_env_runners

        self.env_runner_cls = RAPOEnvRunner
        self.observation_space = AnyText()
        self.action_space = AnyText()
        self.num_env_runners = 0
        self.create_local_env_runner = True
        self.add_default_connectors_to_env_to_module_pipeline = False
        self.add_default_connectors_to_module_to_env_pipeline = False
        self.add_default_connectors_to_learner_pipeline = False
        # weights and counters go through weight_sync.py, which confirms them; there are no connector states
        self.merge_env_runner_states = False
        self.broadcast_env_runner_states = False
        self._dont_auto_sync_env_runner_states = True
        self.custom_evaluation_function = evaluate_on_env_runners
        self.restart_failed_env_runners = True
        self.delay_between_env_runner_restarts_s = 1.0
        self.env_runner_health_probe_timeout_s = 120.0
        self.sample_timeout_s = 24 * 3600.0
        self.evaluation_sample_timeout_s = 24 * 3600.0
        self.min_time_s_per_iteration = 0
        self.train_batch_size_per_learner = 1

    @override(AlgorithmConfig)
    def training(  # type: ignore[override]  # RLlib's own keys arrive in kwargs
        self,
        *,
        model: Mapping[str, Any] = NotProvided,
        engine: Mapping[str, Any] = NotProvided,
        protocol: Mapping[str, Any] = NotProvided,
        step_trace_buffer: Mapping[str, Any] = NotProvided,
        questions_per_step: int = NotProvided,
        group_size: int = NotProvided,
        num_hybrid: int = NotProvided,
        retrieval_prob: float | list = NotProvided,
        retrieval_advantage_weight: float = NotProvided,
        importance_shaping_weight: float = NotProvided,
        clip_low: float = NotProvided,
        clip_high: float = NotProvided,
        dual_clip: float | None = NotProvided,
        kl_coeff: float = NotProvided,
        loss_aggregation: str = NotProvided,
        normalize_std: bool = NotProvided,
        advantage_epsilon: float = NotProvided,
        importance_cap: float | None = NotProvided,
        old_logprobs: str = NotProvided,
        dynamic_sampling: bool = NotProvided,
        max_sampling_rounds: int = NotProvided,
        num_minibatches: int = NotProvided,
        max_tokens_per_micro_batch: int = NotProvided,
        weight_decay: float = NotProvided,
        adam_betas: Sequence[float] = NotProvided,
        max_skipped_updates: int = NotProvided,
        learner_num_threads: int | None = NotProvided,
        time_budget_s: float | None = NotProvided,
        **kwargs: Any,
    ) -> RAPOConfig:
        """Set the hyper-parameters of model, rollout, objective and update.

        Args:
            model: ``ModelSettings``: name_or_path, dtype, autocast_dtype, gradient_checkpointing, ...
            engine: ``EngineSettings``: dtype, max_num_seqs, gpu_memory_utilization, kv_cache_gib, ...
            protocol: ``ProtocolSettings``: system_prompt, examples, tags.
            step_trace_buffer: ``BufferSettings``: uri, embedder, traces, top_k, selection, ...
            questions_per_step: questions of one training step (paper: 32).
            group_size: ``G``, trajectories per question (paper: 16).
            num_hybrid: ``N_hybrid``, how many of them may retrieve (paper: 8).
            retrieval_prob: chance of a retrieval after a completed step (paper: 0.5), or a schedule
                ``[[env steps sampled, chance], ...]``.
            retrieval_advantage_weight: ``a`` of eq. 10 (paper: 0.2).
            importance_shaping_weight: ``m`` of eq. 8 (paper: 0.05).
            clip_low: ``ε_low`` of eq. 11 (0.2).
            clip_high: ``ε_high`` of eq. 11 (0.28).
            dual_clip: bound ``c`` for negative advantages (released code: 3); None: none.
            kl_coeff: ``β`` of the KL term to the initial model (paper: 0).
            loss_aggregation: ``trajectory`` (eq. 11) or ``token``.
            normalize_std: divide advantages by the group's standard deviation.
            advantage_epsilon: added to that standard deviation.
            importance_cap: truncation of the learner / engine probability ratio; None: no correction.
            old_logprobs: ``π_old`` is the engine's (``rollout``) or computed anew (``learner``).
            dynamic_sampling: drop groups with equal rewards and sample others in their place (DAPO).
            max_sampling_rounds: at most so many rounds of sampling per training step.
            num_minibatches: optimiser steps per epoch, by whole groups (paper: 2).
            max_tokens_per_micro_batch: tokens of one forward and backward pass.
            weight_decay: of AdamW.
            adam_betas: of AdamW.
            max_skipped_updates: stop after more non-finite updates in a row.
            learner_num_threads: CPU threads of a learner; None: all cores if it is local.
            time_budget_s: end after about so many seconds, with a last evaluation inside them; None: no limit.
            **kwargs: RLlib's own (``lr``, ``grad_clip``, ``num_epochs``, ...).
        """
        given = {
            k: v for k, v in locals().items() if k not in ("self", "kwargs", "model", "__class__") and v is not NotProvided
        }
        if model is not NotProvided:
            self.language_model = dict(model)
        refuse_unknown_keys(kwargs, _setter_names(AlgorithmConfig.training) | set(vars(self)))
        own = {key: kwargs.pop(key) for key in list(kwargs) if key not in _setter_names(AlgorithmConfig.training)}
        super().training(**kwargs)
        for key, value in {**given, **own}.items():
            setattr(self, key, dict(value) if isinstance(value, Mapping) else value)
        return self

    @override(AlgorithmConfig)
    def update_from_dict(self, config_dict: dict[str, Any]) -> RAPOConfig:
        """RLlib's, with unknown keys refused; ``model`` is the language model (RLlib keeps old network defaults there)."""
        config_dict = dict(config_dict)
        if "model" in config_dict:
            given = config_dict.pop("model")
            if "fcnet_hiddens" not in given:
                self.language_model = dict(given)
        translated = [self._translate_special_keys(key, warn_deprecated=False) for key in config_dict]
        refuse_unknown_keys([key for key in translated if not key.startswith("__")], known_keys(self))  # __x__: Tune's own
        return super().update_from_dict(config_dict)

    @property
    def model_settings(self) -> ModelSettings:
        """The model as the learner loads it, ``auto`` resolved."""
        settings = settings_from(ModelSettings, self.language_model, "model")
        auto = "bfloat16" if self.num_gpus_per_learner else None
        autocast = (auto or resolved_dtype("auto")) if settings.autocast_dtype == "auto" else settings.autocast_dtype
        return ModelSettings(**{**asdict(settings), "autocast_dtype": autocast})

    @property
    def engine_settings(self) -> EngineSettings:
        """The engine of one env runner, ``auto`` resolved."""
        settings = settings_from(EngineSettings, self.engine, "engine")
        auto = "bfloat16" if self.num_gpus_per_env_runner else None
        dtype = (auto or resolved_dtype("auto")) if settings.dtype == "auto" else settings.dtype
        return EngineSettings(**{**asdict(settings), "dtype": dtype})

    @property
    def protocol_settings(self) -> ProtocolSettings:
        """The text protocol."""
        values = dict(self.protocol)
        if "examples" in values:
            values["examples"] = tuple(tuple(pair) for pair in values["examples"])
        return settings_from(ProtocolSettings, values, "protocol")

    @property
    def buffer_settings(self) -> BufferSettings:
        """The Step-Trace Buffer."""
        return settings_from(BufferSettings, self.step_trace_buffer, "step_trace_buffer")

    @property
    def objective_settings(self) -> ObjectiveSettings:
        """The objective."""
        return ObjectiveSettings(**{key: getattr(self, key) for key in _OBJECTIVE_KEYS})

    @property
    def rollout_settings(self) -> RolloutSettings:
        """Budgets and hybrid policy."""
        return RolloutSettings(**{key: getattr(self, key) for key in _ROLLOUT_KEYS})

    @property
    def uses_retrieval(self) -> bool:
        """Whether any trajectory can ever retrieve."""
        never = self.retrieval_prob == 0 if not isinstance(self.retrieval_prob, (list, tuple)) else False
        return self.num_hybrid > 0 and not never

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """The language model."""
        from rapo_rllib.rl_module import CausalLMRLModule

        settings = asdict(self.model_settings)
        extra = {"engine_dtype": self.engine_settings.dtype, "temperature": self.temperature}
        return RLModuleSpec(module_class=CausalLMRLModule, model_config={**settings, **extra})

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type:
        """The learner."""
        from rapo_rllib.learner import RAPOTorchLearner

        return RAPOTorchLearner

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """Refuse what cannot work, naming key, value and fix."""
        # a local engine beside remote ones would only cost memory
        if not self._is_frozen:
            self.create_local_env_runner = self.num_env_runners == 0
        super().validate()
        _ = (self.model_settings, self.protocol_settings, self.buffer_settings)
        check_rapo_values(self)

    def preflight(self) -> None:
        """Check that model, environment, questions and buffer exist, in seconds and without loading any of them.

        Raises:
            ValueError: naming the key, its value and what to do.
        """
        from rapo_rllib.preflight import check_parts

        self.validate()
        check_parts(self)


def _setter_names(function: Any) -> set[str]:
    import inspect

    return {name for name in inspect.signature(function).parameters if name not in ("self", "kwargs")}


def _algorithm_class() -> type[Algorithm]:
    from rapo_rllib.algorithm import RAPO

    return RAPO
