"""The keys of ``RAPOConfig.training`` with their types. `rllib config typing` makes this file of `rapo_rllib/settings/`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

class TrainingKeys(TypedDict, total=False):
    """RAPO's own keys, then those that RLlib's ``training`` has."""

    model: Mapping[str, Any]
    engine: Mapping[str, Any]
    protocol: Mapping[str, Any]
    step_trace_buffer: Mapping[str, Any]
    warm_start: Mapping[str, Any] | None
    group_size: int
    num_hybrid: int
    hybrid_groups: Literal["all", "failed"]
    retrieval_prob: float | Sequence[Any]
    retrieval_by_success: bool
    retrieval_level: Literal["step", "trajectory"]
    retrieval_budget: Literal["response", "prompt_and_response"]
    retrieval_noise: float
    temperature: float
    max_prompt_tokens: int
    max_response_tokens: int
    max_step_tokens: int | None
    max_tool_calls: int
    max_steps: int | None
    tool_workers: int | None
    step_timeout_s: float
    entropy_top_k: int | None
    branching: Mapping[str, Any] | None
    retrieval_advantage_weight: float
    importance_shaping_weight: float
    credit: Literal["trajectory", "gigpo"]
    advantage_baseline: Literal["group", "kind"]
    step_discount: float
    shaping_order: Literal["before_clip", "after_clip"]
    clip_low: float
    clip_high: float
    dual_clip: float | None
    clip_mode: Literal["hard", "gradient_preserving"]
    importance_level: Literal["token", "sequence"]
    kl_coeff: float
    loss_aggregation: Literal["trajectory", "token", "constant"]
    overlong_buffer_share: float
    mask_truncated: bool
    off_policy_shaping: float | None
    shown_steps: Literal["context", "imitated", "own"]
    normalize_std: bool
    advantage_epsilon: float
    retrieval_quality: Literal["fall", "rise", "none", "oracle"]
    retrieval_timing: Literal["high_entropy", "low_entropy", "none"]
    step_entropy_tokens: int | None
    step_entropy_reduction: Literal["mean", "sum"]
    importance_cap: float | None
    branch_advantage: Literal["soft", "hard"]
    questions_per_step: int
    dynamic_sampling: bool
    num_minibatches: int
    max_tokens_per_micro_batch: int
    old_logprobs: Literal["auto", "rollout", "learner"]
    weight_decay: float
    learner_num_threads: int | None
    learner_parallelism: Literal["ddp", "fsdp"]
    weight_transfer: Literal["auto", "object_store", "nccl", "ipc"]
    max_staleness: int
    stale_groups: Literal["drop", "wait"]
    off_policy_trajectories: int
    off_policy_source: Literal["expert", "replay"]
    expert_start_share: float
    expert_step_share: float | Sequence[Any]
    expert_traces: str
    preset: Any
    buffer_growth: Literal["none", "successful", "advantage"]
    export_with_checkpoints: bool
    evaluate_before_training: bool
    transcripts: bool | int
    time_budget_s: float | None
    add_default_connectors_to_learner_pipeline: Any
    gamma: Any
    grad_clip: Any
    grad_clip_by: Any
    learner_class: Any
    learner_config_dict: Any
    learner_connector: Any
    lr: Any
    max_requests_in_flight_per_aggregator_actor: Any
    max_requests_in_flight_per_sampler_worker: Any
    minibatch_size: Any
    num_aggregator_actors_per_learner: Any
    num_epochs: Any
    num_sgd_iter: Any
    optimizer: Any
    shuffle_batch_per_epoch: Any
    train_batch_size: Any
    train_batch_size_per_learner: Any
