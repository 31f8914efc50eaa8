"""The formulas: bytes of a learner and of an engine, line by line. Pure functions.

Symbols: ``N`` parameters (``A`` in adapters), ``D`` hidden, ``I`` intermediate, ``kv`` keys of a token, ``V`` vocabulary; a row
of ``L`` tokens, logits of ``c`` of them at a time; ``w`` bytes of an element of the weights, ``p`` of what a matrix product
returns (2 under autocast); ``n`` learners that share weights.

Sources: what ``learner/``, ``attention/`` and ``batching/chunked_logprobs.py`` keep; ``torch.optim.AdamW``; FSDP2's
``fully_shard``; vLLM. tests/estimate/ compares with the same passes counted tensor by tensor, and with measured jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rapo_rllib.batching.chunked_logprobs import ELEMENTS_AT_ONCE, ELEMENTS_AT_ONCE_CPU
from rapo_rllib.estimate.shape import Shape
from rapo_rllib.settings import EngineSettings, ModelSettings

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOAT32 = 4
MIN_BLOCK, MAX_BLOCK = 64, 512  # queries that attend at once on a CPU: attention/block_attention.py
BATCHED_TOKENS = 2048  # that vLLM computes at once, unless engine.extra says otherwise


@dataclass(frozen=True)
class Part:
    """Bytes with a name. Those of different phases are never there together; those without a phase always are."""

    name: str
    num_bytes: int
    phase: str = ""


Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Row:
    """The largest micro batch of a learner.

    Example: prompts of 256 with 8 responses of 224 tokens: a row of 2,048 holds one, ``Row(2048, 1792, 224, 480, ...)``.
    """

    tokens: int  # L
    scored: int  # tokens that are predicted
    block: int  # queries that attend at once on a CPU
    seen: int  # keys that they see
    several: bool  # whether an optimiser step has more rows, so that gradients are there when the pass begins


def row_of(budget: int, prompt: int, response: int, group_size: int, step_tokens: int) -> Row:
    """Fill a row of ``budget`` tokens with responses behind their prompts, one at least.

    ``step_tokens``: that one learner computes in an optimiser step, at most.
    """
    tokens = max(prompt + response, min(budget, step_tokens))
    group = min(prompt + group_size * response, tokens)
    block = min(max(response, MIN_BLOCK), MAX_BLOCK)
    seen = prompt + (max(response, block) + block) // 2
    return Row(tokens, tokens * (group - prompt) // group, block, seen, step_tokens > tokens)


def state_parts(shape: Shape, model: ModelSettings, shards: int = 1) -> Parts:
    """Count weights, moments, masters, and last the gradients, which are there in an update only.

    =====================  ===========  =========  =======  =======  ==============
    trained                weights      gradients  moments  masters  sum
    =====================  ===========  =========  =======  =======  ==============
    float32                4 N          4 N        8 N               16 N
    bfloat16, masters      2 N          4 N        8 N      4 N      18 N
    the same, n > 1        4 N / n      4 N / n    8 N / n           16 N / n
    bfloat16, no masters   2 N          2 N        4 N               8 N
    LoRA                   w N + 4 A    4 A        8 A               w N + 16 A
    =====================  ===========  =========  =======  =======  ==============

    All of it is divided by ``n`` where it is sharded; there the shards are the masters.
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
    return tuple(Part(name, -(-size // shards)) for name, size in sizes.items() if size)


def layer_bytes(shape: Shape, model: ModelSettings, row: Row, on_gpu: bool) -> tuple[int, int]:
    """Count a decoder layer's activations: all that its backward pass reads, and what is kept of it from the forward pass.

    Bytes a token of the first (norms, attention, MLP; source: what ``LlamaDecoderLayer`` of transformers saves for autograd):

    =========  ==============  ===============
    ..         all weights     LoRA
    =========  ==============  ===============
    bfloat16   22 D + 8 I      36 D + 10 I
    float32    36 D + 16 I     28 D + 16 I
    autocast   32 D + 8 I      24 D + 8 I
    =========  ==============  ===============

    and keys and values, ``2 p kv``; on a GPU those of every head where their number is no power of two (transformers'
    ``flex_attention_forward``); on a CPU also copies for each block of queries, ``2 p kv seen / block``, and under autocast a
    mask of 16 bits, ``2 seen``. Kept is all of it; with ``selective`` checkpointing the input and what matrix products and
    attention return, ``w D + p (4 D + 2 kv + 2 I)``, with LoRA the adapters' products, too; with ``true`` the input, ``w D``.
    """
    width, product = itemsizes(model)
    autocast, hidden, mlp = product != width, shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    expanded = queries if shape.heads & (shape.heads - 1) else keys
    attention = 2 * product * (queries + (expanded if on_gpu else keys * (1 + row.seen / row.block)))
    attention += 2 * row.seen if autocast and not on_gpu else 0
    results = product * (2 * (hidden + queries) + 2 * keys + 2 * mlp)
    if model.lora is None:
        norms = 26 if autocast else 24 if width == FLOAT32 else 16
        whole = norms * hidden + attention + product * (queries + 4 * mlp)
    else:  # six inputs in the adapters' dtype, three where that is the layer's own
        adapter, inputs = (FLOAT32, 3) if width == product == FLOAT32 else (product if autocast else FLOAT32, 6)
        whole = 2 * FLOAT32 * hidden + attention + 3 * product * mlp + adapter * ((inputs - 1) * hidden + queries + mlp)
        results += adapter * (2 * hidden + queries + 2 * keys + 2 * mlp)
    kept = {False: whole, True: width * hidden, "selective": width * hidden + results}[model.gradient_checkpointing]
    return int(whole * row.tokens), int(kept * row.tokens)


def pass_parts(shape: Shape, model: ModelSettings, row: Row, gradients: int, on_gpu: bool = False) -> Parts:
    """Count forward and backward pass of a row in four phases.

    - ``forward``: activations; logits, ``p c V``; under autocast 16-bit copies of matrices;
    - ``head``: activations; logits and their gradient, ``2 p c V``, or the head's, of two chunks and their sum, ``3 p V D``;
    - ``backward``: activations; a layer computed again, gradients of its MLP, ``2 p I L + w D I``; the head's, ``w V D``;
    - ``first layer``: the same of the layer that is reached last, or the embedding's gradient, ``w V D``; tied, up to 3 of it.

    Gradients are there from the beginning but in the first pass of an optimiser step, where they are all there in the end.
    """
    width, product = itemsizes(model)
    trained, recomputes, autocast = model.lora is None, model.gradient_checkpointing is not False, product != width
    whole, kept = layer_bytes(shape, model, row, on_gpu)
    copies, head_copy = (2 * shape.layer, 2 * shape.head) if autocast else (0, 0)  # a layer's live as long as its activations
    early = shape.layers * copies if recomputes and trained else 0  # or until the head has run
    activations = shape.layers * (kept + (0 if recomputes else copies)) + 3 * FLOAT32 * shape.hidden * row.tokens
    chunk = min(model.logits_chunk_size, row.scored)
    logits = product * chunk * shape.vocabulary
    softmax = 2 * FLOAT32 * min(chunk * shape.vocabulary, ELEMENTS_AT_ONCE if on_gpu else ELEMENTS_AT_ONCE_CPU)
    head, head_low = (width * shape.head, product * shape.head) if trained else (0, 0)  # gradients
    heads = 3 * head_low if row.scored > chunk else head_low + max(logits, head if autocast else 0)
    mlp = 2 * (product if trained or autocast else FLOAT32) * shape.intermediate * row.tokens
    layer = (whole + copies if recomputes else 0) + mlp + (width * shape.hidden * shape.intermediate if trained else 0)
    tied = (3 if row.several else 2) if shape.tied else 1  # gradients of the embedding, beside what is there
    middle = {
        "forward": Part("logits, copies of weights", logits + softmax + early + head_copy, "forward"),
        "head": Part("logits, gradient of the LM head", max(2 * logits + softmax, heads) + head_copy, "head"),
        "backward": Part("a layer's backward pass", layer + head, "backward"),
    }
    last = max(layer + (0 if recomputes else whole + copies), tied * head)
    before = [Part("gradients", gradients, phase) for phase in middle] if row.several else []
    return (
        *before,
        *(Part("activations", activations, phase) for phase in middle),
        *middle.values(),
        Part("gradients", gradients, "first layer"),
        Part("its backward pass, or the embedding's gradient", last, "first layer"),
    )


def gathered_bytes(shape: Shape, model: ModelSettings) -> int:
    """Count whole weights that a learner with shards gathers in a pass, at most: ``(root + 2 layers) * (w + gradient)``.

    The root unit (embedding, LM head, norm) stays; of two layers one is gathered while the other computes. Gradients are at
    least float32 where there are masters; frozen weights have none.
    """
    width = ITEMSIZE[model.dtype]
    gradient = 0 if model.lora is not None else width if model.master_weights is None else FLOAT32
    return (shape.root + 2 * shape.layer) * (width + gradient)


def rounded_bytes(shape: Shape, model: ModelSettings, engine_dtype: str, shards: int = 1) -> int:
    """Count what a learner copies while it scores as an engine would (``weights/dtensor.py: rounded``).

    ``w N / n`` where the engine's dtype is another; with LoRA the weights that adapters are added to, and rounded adapters.
    """
    held = "float32" if shards > 1 and model.lora is None and model.master_weights is not None else model.dtype
    size = shape.parameters * ITEMSIZE[held] if held != engine_dtype else 0
    if model.lora is not None:
        size += shape.layers * sum(outputs * inputs for outputs, inputs in shape.adapted(model.lora)) * ITEMSIZE[held]
        size += shape.adapters(model.lora) * FLOAT32 if engine_dtype != "float32" else 0
    return -(-size // shards)


def packed_bytes(shape: Shape, model: ModelSettings, itemsize: int) -> int:
    """Count ``RLModule.get_state()``: all weights, and the LM head once more where it is tied; with LoRA the adapters."""
    if model.lora is not None:
        return shape.adapters(model.lora) * FLOAT32
    return (shape.parameters + (shape.head if shape.tied else 0)) * itemsize


@dataclass(frozen=True)
class Engine:
    """Bytes of one worker of a vLLM engine."""

    weights: int
    kv_per_token: int
    step: int
    longest: int  # tokens of the longest trajectory


def engine_of(shape: Shape, settings: EngineSettings, longest: int, on_gpu: bool) -> Engine:
    """Count with ``b`` bytes of an element and ``t`` workers (``tensor_parallel_size``).

    - weights: ``b N / t``; on a CPU a tied LM head has a copy packed for its kernel (``rollout/vllm/worker.py``);
    - a token's keys and values: ``2 b layers heads head_dim``; each worker has a head at least (vLLM's ``get_num_kv_heads``);
    - one step, about: ``tokens (4 D + 3 I) b``, residual stream, attention, MLP; ``12 V`` a sequence, logits and entropies.
    """
    width, workers = ITEMSIZE[settings.dtype], settings.tensor_parallel_size
    tokens = int(settings.extra.get("max_num_batched_tokens", BATCHED_TOKENS))
    step = tokens * (4 * shape.hidden + 3 * shape.intermediate) * width + 12 * settings.max_num_seqs * shape.vocabulary
    return Engine(
        weights=(shape.parameters + (shape.head if shape.tied and not on_gpu else 0)) * width // workers,
        kv_per_token=2 * width * shape.layers * max(1, shape.kv_heads // workers) * shape.head_dim,
        step=step,
        longest=longest,
    )


def itemsizes(model: ModelSettings) -> tuple[int, int]:
    """Find ``w`` and ``p``."""
    width = ITEMSIZE[model.dtype]
    return width, width if model.autocast_dtype in (None, model.dtype, "float32") else 2
