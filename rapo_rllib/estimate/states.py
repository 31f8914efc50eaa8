"""The memory of a learner between two passes: weights, gradients, moments, masters. Formulas; bytes.

The formulas count what ``learner/`` allocates; docs/learner.md says why it does. ``N``: parameters, ``A``: elements of
adapters, ``w``: bytes of an element of the weights, ``n``: learners.
"""

from __future__ import annotations

from dataclasses import dataclass

from rapo_rllib.estimate.parts import Part, Parts
from rapo_rllib.estimate.shape import ModelShape
from rapo_rllib.settings import ModelSettings

ITEMSIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FLOAT32 = 4


@dataclass(frozen=True)
class States:
    """Bytes of one learner."""

    weights: int
    gradients: int
    moments: int  # Adam's two
    masters: int  # float32 copies of bfloat16 weights

    @property
    def kept(self) -> Parts:
        """Those that stay between updates: all but the gradients."""
        named = (("weights", self.weights), ("Adam's moments", self.moments), ("master weights", self.masters))
        return tuple(Part(name, size) for name, size in named if size)


def learner_states(shape: ModelShape, settings: ModelSettings, shards: int = 1) -> States:
    """Bytes of one learner's states; ``shards``: learners that share them (fsdp), 1 for a learner that holds all (ddp).

    =====================  =========  =========  =======  =======  ====
    trained                weights    gradients  moments  masters  sum
    =====================  =========  =========  =======  =======  ====
    float32                4 N        4 N        8 N               16 N
    bfloat16, masters      2 N        4 N        8 N      4 N      18 N
    the same, n > 1        4 N / n    4 N / n    8 N / n           16 N / n
    bfloat16, no masters   2 N        2 N        4 N               8 N
    LoRA                   w N + 4 A  4 A        8 A               w N + 16 A
    =====================  =========  =========  =======  =======  ====

    All of it is divided by ``n`` where it is sharded. Sources: ``torch.optim.AdamW`` (moments in the dtype of what it steps
    on), ``learner/master_weights.py`` (gradients are summed at float32 masters), ``learner/fsdp.py`` (shards are the masters),
    ``learner/adapters.py`` (adapters are float32).
    """
    count, itemsize = shape.parameters, ITEMSIZE[settings.dtype]
    wide = max(itemsize, FLOAT32)
    if settings.lora is not None:
        adapters = shape.adapters * wide
        return _shared(States(count * itemsize + adapters, adapters, 2 * adapters, 0), shards)
    if itemsize >= FLOAT32 or settings.master_weights is None:
        return _shared(States(count * itemsize, count * itemsize, 2 * count * itemsize, 0), shards)
    if shards > 1:
        return _shared(States(count * FLOAT32, count * FLOAT32, 2 * count * FLOAT32, 0), shards)
    return States(count * itemsize, count * FLOAT32, 2 * count * FLOAT32, count * FLOAT32)


def gathered_bytes(shape: ModelShape, settings: ModelSettings) -> int:
    """Bytes at most that a learner with shards holds of whole weights during a pass.

    ``2 * root + 4 * layer``: the root unit's weights and their gradients, and of two decoder layers the same, since the next
    one is gathered while one computes. In the dtype that is gathered, gradients at least in float32 where there are masters.
    Source: PyTorch's FSDP2 (``fully_shard``), which ``learner/fsdp.py`` applies to every decoder layer and a root around them.
    """
    itemsize = ITEMSIZE[settings.dtype]
    gradient = itemsize if settings.master_weights is None or settings.lora is not None else max(itemsize, FLOAT32)
    trained = 0 if settings.lora is not None else 1
    return (shape.root + 2 * shape.largest_layer) * (itemsize + trained * gradient)


def reference_bytes(shape: ModelShape, settings: ModelSettings, kl_coeff: float, shards: int = 1) -> int:
    """Bytes of the frozen model of the KL term: ``w N / n``; 0 without the term, and with LoRA, whose base it is."""
    if kl_coeff <= 0 or settings.lora is not None:
        return 0
    return -(-shape.parameters * ITEMSIZE[settings.dtype] // shards)


def rounded_copy_bytes(shape: ModelShape, settings: ModelSettings, engine_dtype: str, shards: int = 1) -> int:
    """Bytes of the copies that the learner keeps while it scores as an engine would, after every update.

    ``w N / n`` where the engine's dtype is another (``weights/dtensor.py: rounded``); with LoRA the weights that adapters are
    added to, and whatever is rounded.
    """
    held = "float32" if shards > 1 and settings.lora is None and settings.master_weights is not None else settings.dtype
    itemsize = ITEMSIZE[held]
    merged = shape.adapted * itemsize if settings.lora is not None else 0
    other = shape.parameters * itemsize if held != engine_dtype else 0
    if settings.lora is not None and engine_dtype != "float32":
        other += shape.adapters * FLOAT32
    return -(-(merged + other) // shards)


def packed_bytes(shape: ModelShape, settings: ModelSettings, itemsize: int) -> int:
    """Bytes of ``RLModule.get_state()``: all weights and the LM head, which is among them also where it is tied; or adapters.

    ``(N + head) * itemsize``; LoRA: ``4 A``.
    """
    if settings.lora is not None:
        return shape.adapters * FLOAT32
    return (shape.parameters + (shape.head if shape.tied else 0)) * itemsize


def _shared(states: States, shards: int) -> States:
    return States(*(-(-size // shards) for size in (states.weights, states.gradients, states.moments, states.masters)))
