"""Frozen settings: what the layers below RLlib are told. ``RAPOConfig`` builds them; they never see an ``AlgorithmConfig``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelSettings:
    """Which language model is trained, and in which precision."""

    name_or_path: str = "smollm2-135m-instruct"  # a folder, a Hugging Face id, or a packaged short name
    dtype: str = "float32"  # of the trained weights: float32 or bfloat16
    autocast_dtype: str | None = (
        "auto"  # of the learner's matrix products; auto: bfloat16 where the hardware has it; None: that of the weights
    )
    trust_remote_code: bool = False
    gradient_checkpointing: bool = False
    logits_chunk_size: int = 1024  # tokens whose logits exist at the same time in the learner


@dataclass(frozen=True)
class EngineSettings:
    """The vLLM engine of one env runner."""

    dtype: str = "auto"  # auto: bfloat16 where the hardware has it, else float32
    max_num_seqs: int = 64
    max_model_len: int | None = None  # None: prompt budget + response budget
    gpu_memory_utilization: float = 0.85  # CUDA only
    kv_cache_gib: float = 1.0  # CPU only
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    extra: dict = field(default_factory=dict)  # handed to vllm.EngineArgs as it is


@dataclass(frozen=True)
class RolloutSettings:
    """Budgets and hybrid policy of one group. ALGORITHM section 3."""

    group_size: int = 16  # G
    num_hybrid: int = 8  # N_hybrid
    temperature: float = 1.0
    max_prompt_tokens: int = 1536
    max_response_tokens: int = 4096  # observations and retrieved tokens included
    max_step_tokens: int | None = None  # generated tokens of one step
    max_tool_calls: int = 3
    tool_workers: int = 4  # threads that wait for tools
    step_timeout_s: float = 120.0  # deadline of one env step (its tool call included)


@dataclass(frozen=True)
class BufferSettings:
    """Where the Step-Trace Buffer lives, and how it is read. ALGORITHM section 4."""

    uri: str = "./step_traces.db"  # a Milvus Lite path ending in .db, or http(s)://host:port
    token: str = ""
    db_name: str = ""
    collection: str = "step_traces"
    embedder: str = "all-minilm-l6-v2"  # a sentence-transformers id or path, or the packaged short name
    traces: str | None = "expert"  # built from on first use: "expert" (the environment's), a .jsonl[.gz] file, None: must exist
    max_traces: int | None = None  # stop building after so many step traces
    top_k: int = 1  # nearest keys to look at
    selection: str = "nearest"  # nearest, or best_reward among the top_k
    timeout_s: float = 10.0


@dataclass(frozen=True)
class ObjectiveSettings:
    """Hyper-parameters of the objective. ALGORITHM sections 6 to 8, defaults as in the paper."""

    retrieval_advantage_weight: float = 0.2  # a, eq. 10
    importance_shaping_weight: float = 0.05  # m, eq. 8
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None  # lower bound c * A for negative advantages; released code: 3
    kl_coeff: float = 0.0  # beta, eq. 11
    loss_aggregation: str = "trajectory"  # trajectory (eq. 11) or token
    normalize_std: bool = True  # divide by the group's standard deviation
    advantage_epsilon: float = 1e-6
    importance_cap: float | None = 2.0  # truncation of learner / engine probability ratio; None: no correction


@dataclass(frozen=True)
class ProtocolSettings:
    """The text protocol: how a question becomes a prompt, and which tags mean what. ALGORITHM section 2."""

    system_prompt: str | None = None  # None: the default one, made from the tool set
    examples: tuple[tuple[str, str], ...] = ()  # worked (question, response) pairs shown as earlier turns
    question_template: str = "{question}"
    retrieval_sentence: str = "Additional context follows; use it if it helps."
    result_tag: str = "result"
    retrieve_tag: str = "retrieve"
    answer_tag: str = "answer"
    think_tag: str = "think"
