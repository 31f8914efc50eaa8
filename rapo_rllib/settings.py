"""Frozen settings: what the layers below RLlib are told. ``RAPOConfig`` builds them; they never see an ``AlgorithmConfig``."""

from __future__ import annotations

from dataclasses import dataclass, field

ALL_LINEAR = "all-linear"  # every linear layer but the LM head
MAX_RESPONSE_TOKENS = 4096  # default of the one key that both rollout and objective read


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters that train in place of the model's own weights, by ``peft``."""

    rank: int = 16  # of each adapter
    alpha: float = 32  # the adapter's output is scaled by alpha / rank
    target_modules: str | tuple[str, ...] = ALL_LINEAR  # or names of linear layers: (q_proj, v_proj)
    dropout: float = 0.0  # of an adapter's input; refused above 0, see docs/learner.md
    use_rslora: bool = False  # scale by alpha / sqrt(rank) instead

    @property
    def scaling(self) -> float:
        """Factor of the adapter's output."""
        return self.alpha / (self.rank**0.5 if self.use_rslora else self.rank)


@dataclass(frozen=True)
class ModelSettings:
    """Which language model is trained, and in which precision."""

    name_or_path: str = "smollm2-135m-instruct"  # a folder, a Hugging Face id, or a packaged short name
    dtype: str = "float32"  # of the trained weights: float32 or bfloat16
    autocast_dtype: str | None = (
        "auto"  # of the learner's matrix products; auto: bfloat16 where the hardware has it; None: that of the weights
    )
    master_weights: str | None = "float32"  # of a bfloat16 model: what the optimiser updates; None: the bfloat16 weights
    trust_remote_code: bool = False  # run code that comes with the model's files
    attention: str = "auto"  # over packed rows, in the learner: sdpa, flex (CUDA); auto: flex on CUDA, otherwise sdpa
    gradient_checkpointing: bool | str = False  # true, or selective: keep matrix products, compute what lies between again
    logits_chunk_size: int = 1024  # tokens whose logits exist at the same time in the learner
    lora: LoraSettings | None = None  # None: all weights train


@dataclass(frozen=True)
class EngineSettings:
    """The vLLM engine of one env runner."""

    dtype: str = "auto"  # auto: bfloat16 where the hardware has it, else float32
    max_num_seqs: int = 64  # sequences that are generated at the same time
    max_model_len: int | None = None  # None: prompt budget + response budget
    gpu_memory_utilization: float = 0.85  # share of the GPU's memory that the engine takes; CUDA only
    kv_cache_gib: float = 1.0  # memory for keys and values; CPU only
    tensor_parallel_size: int = 1  # GPUs that share the model; workers are processes of their own then
    multiprocess: bool = False  # the engine's core in a process of its own: its steps overlap with the rollout loop
    enforce_eager: bool = False  # no CUDA graphs and no compilation: a faster start, slower tokens
    sleep: bool = False  # CUDA only: give the GPU's memory back while the learner updates, for one GPU that both share
    extra: dict = field(default_factory=dict)  # handed to vllm.EngineArgs as it is


@dataclass(frozen=True)
class WarmStartSettings:
    """Imitation of worked steps before the first iteration, so that the policy can use its tools and read what it is shown."""

    traces: str = "expert"  # whose trajectories: "expert" (the environment's), or a .jsonl[.gz] file of them
    num_trajectories: int = 1000  # the first so many that are correct and fit into the budgets
    shown_share: float = (
        0.5  # chance that a step trace is shown before a step, as retrieval will do; 0 where nothing is retrieved
    )
    fitting_share: float = 0.8  # of those, that show the step that comes next; the others are of another question
    num_epochs: int = 1  # times that all of them are seen
    batch_size: int = 16  # trajectories of an optimiser step
    lr: float = 1e-4  # at first, after some steps of warm-up; it falls to 0
    seed: int = 0  # of the order, and of what is shown
    folder: str | None = None  # where the models are kept that came out; None: the cache; a cluster needs a shared one


@dataclass(frozen=True)
class BranchingSettings:
    """ARPO's entropy-based adaptive rollout: which trajectories fork after a tool result. algorithm.md section 10."""

    initial: int | None = None  # N, sampled from the start; None: half of the group
    branches: int = 2  # Z, ways a fork goes on, the forking trajectory among them
    base_prob: float = 0.5  # alpha: chance of a fork where the entropy has not changed
    entropy_weight: float = 0.2  # beta: of the change of entropy in that chance (released code: w)
    rule: str = "threshold"  # threshold: fork if P > tau; coin: fork with probability P (released code)
    threshold: float = 0.5  # tau: a fork needs more
    entropy_tokens: int = 20  # k, first tokens of a step whose mean entropy is compared


@dataclass(frozen=True)
class RolloutSettings:
    """Budgets, hybrid policy and branching of one group. algorithm.md sections 3 and 10."""

    group_size: int = 16  # G, trajectories per question
    num_hybrid: int = 8  # N_hybrid, how many of them may retrieve
    temperature: float = 1.0  # of sampling, 2 at most; the learner divides its logits by it too
    max_prompt_tokens: int = 1536  # longer prompts are refused
    max_response_tokens: int = MAX_RESPONSE_TOKENS  # observations and retrieved tokens included
    max_step_tokens: int | None = None  # generated tokens of one step
    max_tool_calls: int = 3  # what env_config.max_tool_calls is where it is not given
    max_steps: int | None = None  # generated steps of a trajectory, for environments without a limit of their own
    entropy_top_k: int | None = None  # likeliest tokens that a token's entropy is made of; None: all; released code: 10
    retrieval_noise: float = 0.0  # p: chance that a retrieved trace is replaced by a random one, of all that could be found
    tool_workers: int = 4  # threads that wait for tools
    step_timeout_s: float = 120.0  # deadline of one env step (its tool call included)
    branching: BranchingSettings | None = None  # None: all trajectories of a group are sampled from the start
    retrieval_level: str = "step"  # step, or trajectory: one whole trajectory is retrieved before the first step
    retrieval_query: str = "history"  # what is asked with: history, the retrieved steps in it included, or generated ones alone
    retrieval_budget: str = "response"  # what a trace must fit into with the rest: response, or prompt_and_response
    rollout_schedule: str = "continuous"  # continuous, or lockstep: nobody generates until all have their tool results


@dataclass(frozen=True)
class TraceFilter:
    """Which step traces may be retrieved; all, unless something is said."""

    sources: tuple[str, ...] | None = None  # only those of these agents; "policy" is the policy itself
    min_reward: float | None = None  # of the trajectory that a trace was cut from
    question: str = "any"  # any; other: none of the question that asks; same: only those
    max_age: int | None = None  # weight versions since the policy wrote it; what off-policy agents wrote does not age
    hide_answers: bool = False  # none that shows an accepted answer of the question that asks: its number, or its words


@dataclass(frozen=True)
class BufferSettings:
    """Where the Step-Trace Buffer lives, and how it is read. algorithm.md section 4."""

    uri: str = "./step_traces.db"  # a Milvus Lite path ending in .db, or http(s)://host:port
    token_env: str = "MILVUS_TOKEN"  # environment variable with a server's token, on every machine; not set: none is sent
    db_name: str = ""  # database of a server; empty: its default one
    collection: str = "step_traces"  # its name in Milvus
    embedder: str = "all-minilm-l6-v2"  # sentence-transformers id, path, packaged short name; or http(s)://host:port/v1#model
    embedder_tokenizer: str | None = None  # of an endpoint: id or path of what keys are cut with; None: MiniLM's
    embedder_timeout_s: float = 30.0  # of an endpoint: one try of one request
    traces: str | None = "expert"  # built from on first use: "expert" (the environment's), a .jsonl[.gz] file, None: must exist
    max_traces: int | None = None  # stop building after so many step traces
    top_k: int = 1  # nearest keys to look at
    selection: str = "nearest"  # nearest, or best_reward among the top_k
    fallback_text: str = ""  # shown where nothing suitable was found; empty: nothing is
    pooling: str = "mean"  # what a text's vector is made of: mean of its tokens, or last_token (released code)
    key_recipe: str = "question_and_recent"  # what is embedded: see keys.py; last_characters as in the released code
    index: str = "auto"  # auto: exact while small; exact; hnsw (released code)
    level: str = "step"  # retrieval_level: whether a trace is a step or a whole trajectory
    filter: TraceFilter = field(default_factory=TraceFilter)  # which traces may be shown at all
    usage_weight: float = 0.0  # of a trace's mean retrieval reward so far, beside its similarity, among the top_k
    growth: str = "none"  # buffer_growth: which steps of the policy's own enter: none, successful or advantage
    max_grown: int = 10_000  # step traces of the policy's own; above, those of the lowest score leave
    grown_half_life: float = 100.0  # weight versions after which such a trace's score has halved
    timeout_s: float = 10.0  # of one request to Milvus


@dataclass(frozen=True)
class ObjectiveSettings:
    """Hyper-parameters of the objective. algorithm.md sections 6 to 8 and 11, defaults as in the paper."""

    retrieval_advantage_weight: float = 0.2  # a, eq. 10
    importance_shaping_weight: float = 0.05  # m, eq. 8
    shaping_order: str = "before_clip"  # eq. 8 before the clip (eq. 11), or after_clip: the clip sees the unshaped ratio
    clip_low: float = 0.2  # epsilon_low, eq. 11
    clip_high: float = 0.28  # epsilon_high, eq. 11
    dual_clip: float | None = None  # lower bound c * A for negative advantages; released code: 3
    clip_mode: str = "hard"  # hard (eq. 11), or gradient_preserving (GPPO)
    importance_level: str = "token"  # what the ratio is of: token (eq. 11), sequence (GSPO), sequence_token (GSPO-token)
    kl_coeff: float = 0.0  # beta, eq. 11
    loss_aggregation: str = "trajectory"  # trajectory (eq. 11), token, or constant: over max_response_tokens (Dr. GRPO)
    max_response_tokens: int = MAX_RESPONSE_TOKENS  # the budget of the rollout: L of constant aggregation, L_max of overlong
    overlong_buffer_share: float = 0.0  # end of that budget in which length is punished; DAPO: 4,096 of 20,480 = 0.2; 0: none
    overlong_penalty: float = 1.0  # taken off the reward at the very end of the budget
    mask_truncated: bool = False  # leave trajectories that ended for length out of the loss (DAPO's overlong filtering)
    shown_steps: str = "context"  # what is learned of them: context (paper: nothing), removed, imitated, own; section 12
    off_policy_shaping: float | None = 0.1  # gamma of LUFFY's p / (p + gamma) on off-policy tokens; None: clipped like others
    normalize_std: bool = True  # divide by the group's standard deviation
    advantage_epsilon: float = 1e-6  # added to that deviation
    retrieval_quality: str = "fall"  # g, eq. 6: of the entropy's fall, its rise, or none; oracle: -1 for random traces, else 1
    retrieval_baseline: str = "none"  # what is taken off Z: nothing (eq. 9), or the same of on_policy trajectories of the group
    retrieval_timing: str = "high_entropy"  # second factor of eq. 7: H_before; low_entropy: exp(-H_before); none: 1
    step_entropy_tokens: int | None = None  # tokens from a step's start that its entropy is made of; released code: 20
    step_entropy_reduction: str = "mean"  # over those tokens: mean, or sum (released code)
    importance_cap: float | None = 2.0  # truncation of learner / engine probability ratio; None: no correction
    branch_advantage: str = "soft"  # of tokens that branches share: soft (each branch its own) or hard (their mean)


@dataclass(frozen=True)
class ProtocolSettings:
    """The text protocol: how a question becomes a prompt, and which tags mean what. algorithm.md section 2."""

    system_prompt: str | None = None  # None: the default one, made from the tool set
    examples: tuple[tuple[str, str], ...] = ()  # worked (question, response) pairs shown as earlier turns
    question_template: str = "{question}"  # the user's turn
    retrieval_sentence: str = "Additional context follows; use it if it helps."  # stands before a retrieved trace
    result_tag: str = "result"  # around what a tool returned
    retrieve_tag: str = "retrieve"  # around a retrieved trace
    answer_tag: str = "answer"  # around the answer, which ends the episode
    think_tag: str = "think"  # around reasoning
