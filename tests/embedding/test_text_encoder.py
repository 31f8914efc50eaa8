"""Texts to vectors: roles, and one model in memory for whoever asks."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from rapo_rllib.embedding.local import TextEncoder, _pad_to_few_lengths, preferred_dtype, resolve_embedder


def fresh_model() -> Any:
    """As sentence-transformers runs it."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(resolve_embedder("all-minilm-l6-v2", "embedder"), device="cpu")


def test_a_model_is_loaded_once_for_all_who_name_it() -> None:
    one, other = TextEncoder("all-minilm-l6-v2", key="a"), TextEncoder("all-minilm-l6-v2", "last_token", key="b")
    assert one.loaded() is other.loaded()
    assert pickle.loads(pickle.dumps(one)).loaded() is one.loaded()
    assert other.facts == one.facts | {"pooling": "last_token"}
    assert json.loads(json.dumps(one.facts))["dim"] == one.dim == 384


def test_a_role_puts_the_models_instruction_before_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TextEncoder("all-minilm-l6-v2", key="embedder")
    plain = encoder.encode(["Who wrote Faust?"])
    np.testing.assert_allclose(encoder.encode(["Who wrote Faust?"], role="query"), plain, atol=1e-6)
    assert encoder.prompts == {}
    monkeypatch.setitem(encoder.loaded().model.prompts, "query", "query: ")
    assert encoder.prompts == {"query": "query: "}
    instructed = encoder.encode(["query: Who wrote Faust?"])
    np.testing.assert_allclose(encoder.encode(["Who wrote Faust?"], role="query"), instructed, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(["Who wrote Faust?"], role="document"), plain, atol=1e-6)
    assert float(plain[0] @ instructed[0]) < 0.999


def test_bfloat16_where_the_cpu_multiplies_it() -> None:
    capabilities = torch.cpu.get_capabilities()
    fast = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    encoder = TextEncoder("all-minilm-l6-v2", key="embedder")
    assert next(encoder.loaded().model.parameters()).dtype == (torch.bfloat16 if fast else torch.float32)


def test_both_precisions_make_comparable_vectors() -> None:
    texts = [f"Ann has {i} apples." + " <python>3 + 5</python>" * i for i in range(8)]
    encoder = TextEncoder("all-minilm-l6-v2", key="embedder")
    one = encoder.encode(texts)
    other = fresh_model().to(torch.bfloat16 if preferred_dtype("cpu") == torch.float32 else torch.float32)
    two = np.asarray(other.encode(texts, normalize_embeddings=True, convert_to_numpy=True), np.float32)
    assert float((one * two).sum(axis=1).min()) > 0.99


def test_texts_are_padded_to_few_lengths_which_changes_no_vector() -> None:
    encoder = TextEncoder("all-minilm-l6-v2", key="embedder")
    model = encoder.loaded().model
    widths: list[int] = []
    hook = model[0].register_forward_pre_hook(lambda module, inputs: widths.append(inputs[0]["input_ids"].shape[1]))
    texts = ["apple " * count for count in (1, 9, 20, 300)]
    try:
        vectors = np.concatenate([encoder.encode([text]) for text in texts])
    finally:
        hook.remove()
    assert widths == [8, 16, 24, 256]
    other = np.asarray(fresh_model().encode(texts, batch_size=1, normalize_embeddings=True), np.float32)
    assert float((vectors * other).sum(axis=1).min()) > 0.999


@pytest.mark.parametrize(("limit", "pad_to"), [(256, 8), (250, None), (None, None)])
def test_no_model_is_padded_beyond_what_it_reads(limit: int | None, pad_to: int | None) -> None:
    transformer = fresh_model()[0]
    transformer.max_seq_length = limit
    _pad_to_few_lengths(transformer)
    assert transformer.processing_kwargs.get("text", {}).get("pad_to_multiple_of") == pad_to
