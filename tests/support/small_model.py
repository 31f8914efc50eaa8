"""Random models of a few million weights that real engines take, for tests in which nothing has to be understood."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

SURE = 18.0  # logit of a token that may follow; the others' is 0
# what a model of word problems writes: a call, or an answer, as often. No token goes on in two ways that both must be right:
# closing tags are written in pieces of their own
CALLS_PYTHON = (
    ("\n", "<", "python", ">", "3", " +", " ", "5", " <", "/", "python", ">"),
    ("\n", "<", "answer", ">\\", "box", "ed", "{", "8", "}", "</", "ans", "wer", ">"),
)


def save_small_model(folder: Path, smollm2: Path) -> Path:
    """SmolLM2's tokenizer and chat template over four random layers: engine and learner take it in a second."""
    return _save(folder, smollm2, _small(smollm2))


def save_speaking_model(folder: Path, smollm2: Path, chains: Sequence[Sequence[str]] = CALLS_PYTHON) -> Path:
    """A small model that says what ``chains`` say: each token is followed by what follows it there, each way as likely.

    A prompt ends with a line break, so chains begin with one; so does whatever they do not hold. Attention and MLP add nothing
    at first, and are trained like others.
    """
    from transformers import AutoTokenizer

    model, tokenizer = _small(smollm2, tie_word_embeddings=False), AutoTokenizer.from_pretrained(smollm2)
    follows: dict[int, list[int]] = defaultdict(list)
    for chain in chains:
        tokens = [tokenizer.encode(text) for text in chain]
        assert all(len(ids) == 1 for ids in tokens), f"not one token each: {chain}"
        for (one,), (other,) in pairwise(tokens):
            follows[one].append(other)
    size = model.config.hidden_size
    assert len(follows) <= size, "each token that goes on has a dimension of its own"
    with torch.no_grad():
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight.zero_()
        embedding.copy_(size**0.5 * torch.eye(size)[0].expand_as(embedding))  # that of the first token of the first chain
        for dimension, (token, next_tokens) in enumerate(follows.items()):
            embedding[token] = size**0.5 * torch.eye(size)[dimension]
            head[next_tokens, dimension] = SURE / size**0.5
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return _save(folder, smollm2, model)


def save_calling_model(folder: Path, smollm2: Path, tool: Sequence[str], argument: str, answers: str = "8") -> Any:
    """A small model that calls a tool with ``3 + 5`` as Qwen2.5's template has it, or answers; returns its tokenizer.

    The parser takes a call whose tag is not closed.
    """
    from chat_templates import template
    from transformers import AutoTokenizer

    call = ("<", "tool", "_", "call", ">", '{"', "name", '":"', *tool, '","', "arguments", '":', ' {"', argument, '"', ':"')
    chains = [("\n", *call, "3", " +", " ", "5", '"}', "}", "<|im_end|>")]
    chains += [("\n", "\\", "box", "ed", "{", answer, "}", "<|im_end|>") for answer in answers]
    tokenizer = AutoTokenizer.from_pretrained(save_speaking_model(folder, smollm2, chains))
    tokenizer.chat_template = template("qwen25")
    tokenizer.save_pretrained(folder)
    return tokenizer


def _small(smollm2: Path, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = AutoConfig.from_pretrained(smollm2, num_hidden_layers=4, head_dim=32, **sizes, **changes)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def _save(folder: Path, smollm2: Path, model: Any) -> Path:
    from transformers import AutoTokenizer

    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(smollm2).save_pretrained(folder)
    return folder
