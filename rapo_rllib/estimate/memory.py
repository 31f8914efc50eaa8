"""Formulas of the memory of a learner and an engine, from the shape of a model. All functions but ``read_shape`` are pure.

Symbols: ``N`` parameters; sizes ``D`` hidden, ``Q`` queries of a token, ``K`` its keys, ``I`` intermediate, ``V`` vocabulary;
bytes ``w`` of an element of the weights, ``p`` of an element that a matrix product returns (2 under autocast).

Sources: what ``learner/``, ``attention/`` and ``batching/chunked_logprobs.py`` keep; ``torch.optim.AdamW``; FSDP2's
``fully_shard``; vLLM. tests/estimate/ compares with passes that were counted tensor by tensor, and with measured jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rapo_rllib.batching.chunked_logprobs import ELEMENTS_AT_ONCE, ELEMENTS_AT_ONCE_CPU
from rapo_rllib.settings import ALL_LINEAR, LoraSettings, ModelSettings, Settings

ITEMSIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FLOAT32 = 4
BATCHED_TOKENS = 2048  # that vLLM computes at once, unless engine.extra says otherwise
# Bytes that the backward pass of a layer reads for a token, per element of D, Q (keys are repeated for every head) and I:
# what ``LlamaDecoderLayer`` of transformers saves for autograd. By precision, and whether the layer is frozen under adapters.
LAYER = {
    ("16 bits", False): (16, 10, 8),
    ("16 bits", True): (28, 12, 10),
    ("float32", False): (24, 20, 16),
    ("float32", True): (16, 20, 16),
    ("autocast", False): (26, 10, 8),
    ("autocast", True): (18, 10, 8),
}


@dataclass(frozen=True)
class Shape:
    """A dense decoder with a gated MLP: Llama, Mistral, Qwen, Gemma, SmolLM and their like.

    Parameters are those of its matrices and of two norms a layer; biases and further norms, under 0.1 %, are left out. An MLP
    without a gate has a third less than is said here.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool  # whether the LM head is the embedding

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of the matrices of a layer, under Hugging Face's names."""
        hidden, mlp, queries, keys = self.hidden, self.intermediate, self.heads * self.head_dim, self.kv_heads * self.head_dim
        heads = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden), "o_proj": (hidden, queries)}
        return {**heads, "gate_proj": (mlp, hidden), "up_proj": (mlp, hidden), "down_proj": (hidden, mlp)}

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        return sum(outputs * inputs for outputs, inputs in self.linears.values()) + 2 * self.hidden

    @property
    def head(self) -> int:
        """Elements of the LM head."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All elements: layers, embedding, LM head unless it is tied, last norm."""
        return self.layers * self.layer + self.head * (1 if self.tied else 2) + self.hidden

    def adapters(self, lora: LoraSettings | None) -> int:
        """Count elements of LoRA's ``A [rank, inputs]`` and ``B [outputs, rank]``; an unknown matrix counts as the largest."""
        if lora is None:
            return 0
        largest = max(self.linears.values())
        names = self.linears if lora.target_modules == ALL_LINEAR else lora.target_modules
        return self.layers * lora.rank * sum(sum(self.linears.get(name.rpartition(".")[2], largest)) for name in names)


def read_shape(model: ModelSettings) -> Shape:
    """Read the shape from ``config.json``, which is fetched for a Hugging Face id unless it was fetched before."""
    from transformers import AutoConfig

    from rapo_rllib.models.loading import resolve_model

    config = AutoConfig.from_pretrained(resolve_model(model.name_or_path), trust_remote_code=model.trust_remote_code)
    hidden, heads = config.hidden_size, config.num_attention_heads
    mlp, keys, size = (getattr(config, name, None) for name in ("intermediate_size", "num_key_value_heads", "head_dim"))
    sizes = (hidden, mlp or 4 * hidden, config.num_hidden_layers, heads, keys or heads, size or hidden // heads)
    return Shape(*sizes, config.vocab_size, config.tie_word_embeddings)


@dataclass(frozen=True)
class Part:
    """Bytes with a name. Parts of different phases are never in memory together; parts without a phase always are."""

    name: str
    num_bytes: int
    phase: str = ""


Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Row:
    """The largest micro batch of a learner.

    Example: a row of 2,048 tokens, filled by a prompt of 256 and its 8 responses of 224: ``Row(2048, 1792, 480)``.
    """

    tokens: int
    scored: int  # tokens that are predicted
    longest: int  # tokens of the longest trajectory


def row_of(settings: Settings) -> Row:
    """Fill a row with responses behind their prompts: at least one, and no more tokens than an optimiser step has."""
    rollout, update = settings.rollout, settings.update
    prompt, response, group = rollout.max_prompt_tokens, rollout.max_response_tokens, rollout.group_size
    trajectories = group + settings.off_policy.off_policy_trajectories
    shares = max(1, settings.rllib.num_learners) * update.num_minibatches
    step_tokens = -(-update.questions_per_step * (prompt + trajectories * response) // shares)
    tokens = max(prompt + response, min(update.max_tokens_per_micro_batch, step_tokens))
    filled = min(prompt + group * response, tokens)
    return Row(tokens, tokens * (filled - prompt) // filled, prompt + response)


def state_parts(shape: Shape, model: ModelSettings, shards: int = 1) -> Parts:
    """Count bytes of weights, moments, master weights, and gradients (in updates only), on one of ``shards`` learners.

    If the weights are sharded, the shards are the master weights. A step of a single micro batch needs less than this.
    """
    width, adapters = ITEMSIZE[model.dtype], shape.adapters(model.lora)
    masters = model.lora is None and model.master_weights is not None and width < FLOAT32
    trained = shape.parameters if model.lora is None else adapters
    step = FLOAT32 if masters or adapters else width  # bytes of what the optimiser steps on
    sizes = {
        "weights": shape.parameters * (step if masters and shards > 1 else width),
        "adapters": adapters * step,
        "master weights": trained * step if masters and shards == 1 else 0,
        "Adam's moments": 2 * trained * step,
        "gradients": trained * step,
    }
    return tuple(Part(name, -(-n // shards), "update" if name == "gradients" else "") for name, n in sizes.items() if n)


def layer_bytes(shape: Shape, model: ModelSettings, row: Row, on_gpu: bool) -> tuple[int, int]:
    """Count bytes of a decoder layer's activations: all that its backward pass reads, and those kept from the forward pass.

    All: ``LAYER``, and under autocast on a CPU a mask of 16 bits. Kept without checkpointing: all. Kept with ``selective``: the
    input and the results of matrix products and attention, ``w D + 2 p (D + Q + K + I)`` a token; with LoRA also the adapters'
    products. Kept with ``true``: the input, ``w D`` a token.
    """
    width, product = _itemsizes(model)
    hidden, mlp = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    precision = "autocast" if product != width else "float32" if width >= FLOAT32 else "16 bits"
    per_hidden, per_query, per_mlp = LAYER[precision, model.lora is not None]
    whole = (per_hidden * hidden + per_query * queries + per_mlp * mlp) * max(1, width // FLOAT32)
    if precision == "autocast" and not on_gpu:
        whole += 2 * row.longest
    kept = width * hidden if model.gradient_checkpointing else whole
    if model.gradient_checkpointing == "selective":
        kept += product * 2 * (hidden + queries + keys + mlp)
        if model.lora is not None:
            kept += (product if precision == "autocast" else FLOAT32) * (2 * (hidden + keys + mlp) + queries)
    return whole * row.tokens, kept * row.tokens


def pass_parts(shape: Shape, model: ModelSettings, row: Row, on_gpu: bool = False) -> Parts:
    """Count bytes that forward and backward pass of a row hold at their peak, beside weights and gradients.

    The peak is the largest of four, each with the activations of all layers unless it says otherwise:

    - after the layers: logits of ``c`` tokens, ``p c V``; 16-bit copies of matrices; here and at the head ``12 D`` a token;
    - at the LM head: its gradients of two chunks and their sum, ``3 p V D``;
    - in the last layer: its recomputed activations; gradients of its MLP, ``2 p I`` a token; the head's gradient, ``w V D``;
    - in the end, without activations: gradients of the embedding, ``w V D``, three times that if it is tied.
    """
    width, product = _itemsizes(model)
    trained, recomputes, autocast = model.lora is None, bool(model.gradient_checkpointing), product != width
    whole, kept = layer_bytes(shape, model, row, on_gpu)
    copies, head_copy = (2 * shape.layer, 2 * shape.head) if autocast else (0, 0)  # live as long as the layer's activations
    early = shape.layers * copies if recomputes and trained else 0  # copies that live until the head has run
    activations, norm = shape.layers * (kept + (0 if recomputes else copies)), 3 * FLOAT32 * shape.hidden * row.tokens
    chunk = min(model.logits_chunk_size, row.scored)
    logits = product * chunk * shape.vocabulary
    softmax = 2 * FLOAT32 * min(chunk * shape.vocabulary, ELEMENTS_AT_ONCE if on_gpu else ELEMENTS_AT_ONCE_CPU)
    head, head_low = (width * shape.head, product * shape.head) if trained else (0, 0)  # gradients
    heads = 3 * head_low if row.scored > chunk else head_low + max(logits, head if autocast else 0)
    most = max(
        norm + head_copy + max(logits + softmax + early, heads),
        (whole + copies if recomputes else 0) + 2 * product * shape.intermediate * row.tokens + head,
        (3 if shape.tied else 1) * head - activations,
    )
    return Part("activations", activations, "update"), Part("logits, gradients on their way", most, "update")


def whole_bytes(shape: Shape, model: ModelSettings, shards: int) -> int:
    """Count bytes of whole weights and gradients beside the shards: the root unit, two layers, the gradients of one layer.

    Gradients are float32 if there are master weights; frozen weights have none. The root's come when activations are gone.
    """
    width = ITEMSIZE[model.dtype]
    gradient = 0 if model.lora is not None else width if model.master_weights is None else FLOAT32
    root = shape.parameters - shape.layers * shape.layer
    return root * width + shape.layer * (2 * width + gradient) if shards > 1 else 0


def packed_bytes(shape: Shape, model: ModelSettings, itemsize: int) -> int:
    """Count bytes of ``RLModule.get_state()``: all weights, and a tied LM head once more; with LoRA only the adapters."""
    if model.lora is not None:
        return shape.adapters(model.lora) * FLOAT32
    return (shape.parameters + (shape.head if shape.tied else 0)) * itemsize


def engine_bytes(shape: Shape, settings: Settings) -> tuple[int, int, int]:
    """Count bytes of weights, one step, and a token's keys and values in one of ``t`` vLLM workers, ``b`` bytes an element.

    - weights: ``b N / t``; on a CPU a tied LM head has a copy packed for its kernel (``rollout/vllm/worker.py``);
    - one step, about: ``tokens (4 D + 3 I) b`` for residual stream, attention, MLP; ``12 V`` a sequence for logits, entropies;
    - a token: ``2 b layers heads head_dim``, of the worker's KV heads, at least one (vLLM's ``get_num_kv_heads``).
    """
    engine = settings.engine
    width, workers = ITEMSIZE[engine.dtype], engine.tensor_parallel_size
    copy = shape.head if shape.tied and not settings.rllib.num_gpus_per_env_runner else 0
    tokens = int(engine.extra.get("max_num_batched_tokens", BATCHED_TOKENS))
    step = tokens * (4 * shape.hidden + 3 * shape.intermediate) * width + 12 * engine.max_num_seqs * shape.vocabulary
    kv_per_token = 2 * width * shape.layers * max(1, shape.kv_heads // workers) * shape.head_dim
    return (shape.parameters + copy) * width // workers, step, kv_per_token


def _itemsizes(model: ModelSettings) -> tuple[int, int]:
    """Find ``w`` and ``p``, the bytes of an element of the weights, and of what a matrix product returns."""
    width = ITEMSIZE[model.dtype]
    return width, width if model.autocast_dtype in (None, model.dtype, "float32") else 2
