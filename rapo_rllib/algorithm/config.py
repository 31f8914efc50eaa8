"""``RAPOConfig``: every hyper-parameter once, with the paper's default, validated before anything heavy starts.

Flat attributes as in RLlib; the layers below get frozen settings (``config.objective_settings`` and the like) made from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms import algorithm_config
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.utils.annotations import override

from rapo_rllib.algorithm.config_classes import MadeClasses
from rapo_rllib.algorithm.config_defaults import set_rllib_defaults
from rapo_rllib.algorithm.rllib_keys import check_rllib_keys
from rapo_rllib.config.checks import check_rapo_values, check_schedule, known_keys, refuse_token
from rapo_rllib.config.presets import UPDATE_DEFAULTS, apply_preset, with_preset
from rapo_rllib.settings import ObjectiveSettings, RolloutSettings
from rapo_rllib.validation import refuse_unknown_keys

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm

NotProvided: Any = algorithm_config.NotProvided  # RLlib's sentinel, which stands for a value of any type
_NO_ATTRIBUTES = ("self", "kwargs", "model", "preset", "__class__")  # of training(): not to be set as they are given


class RAPOConfig(MadeClasses, AlgorithmConfig):
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
    temperature: float
    dynamic_sampling: bool
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
        self.preset: Any = None
        self._applied_preset: str | None = None  # whose values the flat keys have; not `preset` while a search is to choose it
        super().__init__(algo_class=algo_class or _algorithm_class())
        self.engine: dict[str, Any] = {}
        self.protocol: dict[str, Any] = {}
        self.step_trace_buffer: dict[str, Any] = {}
        self._set_paper_defaults()
        set_rllib_defaults(self)

    @classmethod
    def released_code(cls) -> RAPOConfig:
        """The behaviour of the authors' released code where it differs from the paper (``presets.RELEASED_CODE``).

        Keys that are set afterwards override it. Its python tool without a sandbox is deliberately not among the differences,
        and the division of its entropies by ``log V`` needs no key, since it cancels.
        """
        return cls().training(preset="released_code")

    def _set_paper_defaults(self) -> None:
        for settings in (ObjectiveSettings(), RolloutSettings()):
            for key, value in asdict(settings).items():
                setattr(self, key, value)
        for key, value in UPDATE_DEFAULTS.items():
            setattr(self, key, value)
        self.warm_start: dict[str, Any] | None = None
        self._started_from: str | None = None  # folder of the model that a warm start has made; of a running RAPO
        self.questions_per_step = 32
        self.num_minibatches = 2
        self.retrieval_prob: float | list = 0.5
        self.lr = 1e-6
        self.num_epochs = 1
        self.weight_decay = 0.01
        self.adam_betas = (0.9, 0.999)
        self.grad_clip = 1.0
        self.grad_clip_by = "global_norm"
        self.max_sampling_rounds = 4
        self.replay_per_question = 4
        self.replay_capacity = 16384
        self.max_tokens_per_micro_batch = 8192
        self.max_consecutive_nan = 5
        self.learner_num_threads: int | None = None
        self.learner_parallelism = "ddp"
        self.max_retrieval_failure_share = 0.5
        self.canary_tolerance: float | None = None
        self.weight_transfer = "auto"
        self.one_step_off = False
        self.buffer_growth = "none"
        self.export_with_checkpoints = True
        self.evaluate_before_training = True
        self.time_budget_s: float | None = None
        self.transcripts = False
        self.transcripts_to_keep: int | None = None

    @override(AlgorithmConfig)
    def training(  # type: ignore[override]  # RLlib's own keys arrive in kwargs
        self,
        *,
        preset: str | None = NotProvided,
        model: Mapping[str, Any] = NotProvided,
        engine: Mapping[str, Any] = NotProvided,
        protocol: Mapping[str, Any] = NotProvided,
        step_trace_buffer: Mapping[str, Any] = NotProvided,
        warm_start: Mapping[str, Any] | None = NotProvided,
        questions_per_step: int = NotProvided,
        group_size: int = NotProvided,
        num_hybrid: int = NotProvided,
        branching: Mapping[str, Any] | None = NotProvided,
        retrieval_prob: float | list = NotProvided,
        retrieval_level: str = NotProvided,
        retrieval_noise: float = NotProvided,
        buffer_growth: str = NotProvided,
        retrieval_query: str = NotProvided,
        retrieval_budget: str = NotProvided,
        rollout_schedule: str = NotProvided,
        entropy_top_k: int | None = NotProvided,
        step_entropy_tokens: int | None = NotProvided,
        step_entropy_reduction: str = NotProvided,
        retrieval_quality: str = NotProvided,
        retrieval_baseline: str = NotProvided,
        retrieval_timing: str = NotProvided,
        retrieval_advantage_weight: float = NotProvided,
        importance_shaping_weight: float = NotProvided,
        shaping_order: str = NotProvided,
        clip_low: float = NotProvided,
        clip_high: float = NotProvided,
        dual_clip: float | None = NotProvided,
        clip_mode: str = NotProvided,
        importance_level: str = NotProvided,
        kl_coeff: float = NotProvided,
        loss_aggregation: str = NotProvided,
        normalize_std: bool = NotProvided,
        advantage_epsilon: float = NotProvided,
        importance_cap: float | None = NotProvided,
        old_logprobs: str = NotProvided,
        overlong_buffer_share: float = NotProvided,
        overlong_penalty: float = NotProvided,
        mask_truncated: bool = NotProvided,
        off_policy_trajectories: int = NotProvided,
        off_policy_source: str = NotProvided,
        off_policy_shaping: float | None = NotProvided,
        shown_steps: str = NotProvided,
        replay_per_question: int = NotProvided,
        replay_capacity: int = NotProvided,
        dynamic_sampling: bool = NotProvided,
        max_sampling_rounds: int = NotProvided,
        num_minibatches: int = NotProvided,
        max_tokens_per_micro_batch: int = NotProvided,
        weight_decay: float = NotProvided,
        adam_betas: Sequence[float] = NotProvided,
        max_consecutive_nan: int = NotProvided,
        learner_num_threads: int | None = NotProvided,
        learner_parallelism: str = NotProvided,
        weight_transfer: str = NotProvided,
        one_step_off: bool = NotProvided,
        export_with_checkpoints: bool = NotProvided,
        evaluate_before_training: bool = NotProvided,
        transcripts: bool = NotProvided,
        transcripts_to_keep: int | None = NotProvided,
        canary_tolerance: float | None = NotProvided,
        max_retrieval_failure_share: float = NotProvided,
        time_budget_s: float | None = NotProvided,
        **kwargs: Any,
    ) -> RAPOConfig:
        """Set the hyper-parameters of model, rollout, objective and update.

        Args:
            preset: one name for several keys, which those given beside it override: an algorithm (``grpo``, ``dapo``, ...;
                ``config/algorithm_presets.py``), ``released_code`` or an ablation of the paper (``config/presets.py``).
            model: ``ModelSettings``: name_or_path, dtype, autocast_dtype, lora (``LoraSettings``: rank, alpha, ...), ...
            engine: ``EngineSettings``: dtype, max_num_seqs, gpu_memory_utilization, kv_cache_gib, ...
            protocol: ``ProtocolSettings``: system_prompt, examples, tags.
            step_trace_buffer: ``BufferSettings``: uri, embedder, traces, top_k, selection, ...
            warm_start: ``WarmStartSettings``: num_trajectories, shown_share, lr, ...; worked steps are imitated before the
                first iteration. None: none are.
            questions_per_step: questions of one training step (paper: 32).
            group_size: ``G``, trajectories per question (paper: 16).
            num_hybrid: ``N_hybrid``, how many of them may retrieve (paper: 8).
            branching: ``BranchingSettings`` of ARPO: initial, branches, base_prob, ...; None: no trajectory forks.
            retrieval_prob: chance of a retrieval after a completed step (paper: 0.5), or a schedule
                ``[[env steps sampled, chance], ...]``.
            retrieval_level: what is retrieved: a ``step``, or a whole ``trajectory``, once and before the first step.
            buffer_growth: which of the policy's own steps enter the buffer: ``none``, those of ``successful`` trajectories, or
                of those with a positive ``advantage``; see docs/buffer.md.
            retrieval_noise: chance that a retrieved trace is replaced by a random one.
            retrieval_query: what the buffer is asked with: the whole ``history``, retrieved steps included (the paper), or the
                ``generated`` steps alone.
            retrieval_budget: what a trace must fit into: ``response``, or ``prompt_and_response`` (released code).
            rollout_schedule: ``continuous``, or ``lockstep``: every trajectory waits for the slowest of the round (released
                code).
            entropy_top_k: likeliest tokens that a token's entropy is made of (released code: 10); None: all.
            step_entropy_tokens: tokens from a step's start that its entropy is made of (released code: 20); None: all.
            step_entropy_reduction: ``mean`` over them, or ``sum`` (released code).
            retrieval_quality: ``g`` of eq. 6: of the entropy's ``fall`` (paper), its ``rise``, or ``none``; ``oracle``: -1 for
                what ``retrieval_noise`` shows, else 1.
            retrieval_baseline: what is taken off ``Z``: nothing (``none``, paper), or what the entropy falls by in the group's
                trajectories that retrieve nothing (``on_policy``).
            retrieval_timing: second factor of eq. 7: ``high_entropy`` (paper), ``low_entropy``, or ``none``.
            retrieval_advantage_weight: ``a`` of eq. 10 (paper: 0.2).
            importance_shaping_weight: ``m`` of eq. 8 (paper: 0.05).
            shaping_order: eq. 8 ``before_clip`` (eq. 11), or ``after_clip``: for clip ranges that are narrower than ``m``.
            clip_low: ``ε_low`` of eq. 11 (0.2).
            clip_high: ``ε_high`` of eq. 11 (0.28).
            dual_clip: bound ``c`` for negative advantages (released code: 3); None: none.
            clip_mode: ``hard``, or ``gradient_preserving``: in the forward pass only (GPPO).
            importance_level: the ratio is a ``token``'s, the ``sequence``'s (GSPO), or the latter with every token's own
                gradient (``sequence_token``, GSPO-token).
            kl_coeff: ``β`` of the KL term to the initial model (paper: 0).
            loss_aggregation: ``trajectory`` (eq. 11), ``token``, or ``constant``: over ``max_response_tokens`` (Dr. GRPO).
            normalize_std: divide advantages by the group's standard deviation.
            advantage_epsilon: added to that standard deviation.
            importance_cap: truncation of the learner / engine probability ratio (``old_logprobs``); None: no correction.
            old_logprobs: ``π_old`` is the engine's (``rollout``) or the ``learner``'s; ``auto``: the learner's where that costs
                nothing, with one minibatch and without ``one_step_off``.
            overlong_buffer_share: end of ``max_response_tokens`` in which length is punished, as a share of it (DAPO: 0.2).
            overlong_penalty: what the reward of a response at the very end of it loses.
            mask_truncated: leave responses that were cut for length out of the loss (DAPO's overlong filtering).
            off_policy_trajectories: trajectories of others that join each group before its advantages, on top of ``G``.
            off_policy_source: whose: the environment's ``expert`` (LUFFY), or the policy's own earlier successes (``replay``).
            off_policy_shaping: ``γ`` of LUFFY's ``p / (p + γ)`` on their tokens; None: clipped as all others.
            shown_steps: what is learned beside the paper's loss where steps were retrieved: nothing (``context``); what was
                written behind them, without them in the context (``removed``); the steps, as if the policy had written them
                (``imitated``); or both (``own``).
            replay_per_question: newest successes that are kept of a question.
            replay_capacity: trajectories that are kept in all.
            dynamic_sampling: drop groups with equal rewards and sample others in their place (DAPO).
            max_sampling_rounds: at most so many rounds of sampling per training step.
            num_minibatches: optimiser steps per epoch, by whole groups (paper: 2).
            max_tokens_per_micro_batch: tokens of one forward and backward pass.
            weight_decay: of AdamW.
            adam_betas: of AdamW.
            max_consecutive_nan: stop after so many optimiser steps in a row whose loss or gradient was not finite.
            learner_num_threads: CPU threads of a learner; None: all cores if it is local.
            learner_parallelism: what several learners hold: all weights each (``ddp``), or shards of them (``fsdp``: FSDP2).
            weight_transfer: how weights reach engines in other processes: ``auto`` (shared memory on the learner's machine,
                Ray's object store to others), ``object_store``; or vLLM's own from GPU to GPU: ``nccl``, or ``ipc`` where a
                learner and an engine share each GPU.
            one_step_off: the next rollout runs while the learner updates, with weights one update older.
            export_with_checkpoints: put the policy as a Hugging Face folder into every checkpoint.
            evaluate_before_training: evaluate the untrained policy too, before the first step.
            transcripts: write every trajectory as a JSON line into the trial's folder.
            transcripts_to_keep: newest iterations whose transcripts stay there; None: all.
            canary_tolerance: nats by which engine and learner may differ in the mean log-probability of fixed sequences, which
                is checked after each update; None: 0.01 where both compute in float32, else 0.1.
            max_retrieval_failure_share: the run stops when a larger share of all its retrievals has failed.
            time_budget_s: end after about so many seconds, with a last evaluation inside them; None: no limit.
            **kwargs: RLlib's own (``lr``, ``grad_clip``, ``num_epochs``, ...).
        """
        given = {k: v for k, v in locals().items() if k not in _NO_ATTRIBUTES and v is not NotProvided}
        if model is not NotProvided:
            self.language_model = dict(model)
        refuse_token(step_trace_buffer)
        refuse_unknown_keys(kwargs, _setter_names(AlgorithmConfig.training) | set(vars(self)))
        if preset is not NotProvided:
            apply_preset(self, preset)
        own = {key: kwargs.pop(key) for key in list(kwargs) if key not in _setter_names(AlgorithmConfig.training)}
        super().training(**kwargs)
        for key, value in {**given, **own}.items():
            setattr(self, key, dict(value) if isinstance(value, Mapping) else value)
        return self

    @override(AlgorithmConfig)
    def update_from_dict(self, config_dict: dict[str, Any]) -> RAPOConfig:
        """RLlib's, with unknown keys refused; ``model`` is the language model (RLlib keeps old network defaults there)."""
        config_dict = dict(config_dict)
        refuse_token(config_dict.get("step_trace_buffer"))
        if "model" in config_dict:
            given = config_dict.pop("model")
            if "fcnet_hiddens" not in given:
                self.language_model = dict(given)
        translated = [self._translate_special_keys(key, warn_deprecated=False) for key in config_dict]
        refuse_unknown_keys([key for key in translated if not key.startswith("__")], known_keys(self))  # __x__: Tune's own
        if "preset" in config_dict:
            config_dict = with_preset(self, config_dict)
        return super().update_from_dict(config_dict)

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """Refuse what cannot work, naming key, value and fix."""
        check_rllib_keys(self)
        # a local engine beside remote ones would only cost memory
        if not self._is_frozen:
            self.create_local_env_runner = self.num_env_runners == 0
        if isinstance(self.lr, list | tuple) and self.lr:  # RLlib's own check breaks off at points that are none
            check_schedule("lr", self.lr)
        super().validate()
        _ = (self.model_settings, self.protocol_settings, self.buffer_settings, self.rollout_settings, self.warm_start_settings)
        check_rapo_values(self)

    def preflight(self) -> None:
        """Check that model, environment, questions and buffer exist, in seconds and without loading any of them.

        Raises:
            ValueError: naming the key, its value and what to do.
        """
        from rapo_rllib.algorithm.preflight import check_parts

        self.validate()
        check_parts(self)


def _setter_names(function: Any) -> set[str]:
    import inspect

    return {name for name in inspect.signature(function).parameters if name not in ("self", "kwargs")}


def _algorithm_class() -> type[Algorithm]:
    from rapo_rllib.algorithm.algorithm import RAPO

    return RAPO
