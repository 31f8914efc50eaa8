"""The sizes of a language model that its memory depends on, from its ``config.json`` alone."""

from __future__ import annotations

from dataclasses import dataclass

from rapo_rllib.settings import ALL_LINEAR, LoraSettings, ModelSettings


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
        """All: those of the layers, the embedding, the LM head unless it is the same, the last norm."""
        return self.layers * self.layer + self.head * (1 if self.tied else 2) + self.hidden

    def adapters(self, lora: LoraSettings | None) -> int:
        """Elements of LoRA's ``A [rank, inputs]`` and ``B [outputs, rank]`` in all layers; an unknown matrix is the largest."""
        if lora is None:
            return 0
        largest = max(self.linears.values())
        names = self.linears if lora.target_modules == ALL_LINEAR else lora.target_modules
        return self.layers * lora.rank * sum(sum(self.linears.get(name.rpartition(".")[2], largest)) for name in names)


def read_shape(model: ModelSettings) -> Shape:
    """Read ``config.json``: fetched for a Hugging Face id, unless it was before."""
    from transformers import AutoConfig

    from rapo_rllib.models.loading import resolve_model

    config = AutoConfig.from_pretrained(resolve_model(model.name_or_path), trust_remote_code=model.trust_remote_code)
    hidden, heads = config.hidden_size, config.num_attention_heads
    mlp, keys, size = (getattr(config, name, None) for name in ("intermediate_size", "num_key_value_heads", "head_dim"))
    sizes = (hidden, mlp or 4 * hidden, config.num_hidden_layers, heads, keys or heads, size or hidden // heads)
    return Shape(*sizes, config.vocab_size, config.tie_word_embeddings)
