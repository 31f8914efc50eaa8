"""Texts to vectors: roles, and one model in memory for whoever asks."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch

from rapo_rllib.text_encoder import TextEncoder


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


def test_messages_name_the_key_of_whoever_asked() -> None:
    with pytest.raises(ValueError, match=r"--embedder: there is no sentence-transformers model in '\./nowhere'"):
        TextEncoder("./nowhere", key="--embedder")


def test_bfloat16_where_the_cpu_multiplies_it() -> None:
    capabilities = torch.cpu.get_capabilities()
    fast = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    encoder = TextEncoder("all-minilm-l6-v2", key="embedder")
    assert encoder.dtype == ("bfloat16" if fast else "float32")


def test_both_precisions_make_comparable_vectors() -> None:
    texts = [f"Ann has {i} apples." + " <python>3 + 5</python>" * i for i in range(8)]
    model = TextEncoder("all-minilm-l6-v2", key="embedder").loaded().model
    other = copy.deepcopy(model).to(torch.bfloat16 if model.dtype == torch.float32 else torch.float32)
    one, two = (
        np.asarray(m.encode(texts, normalize_embeddings=True, convert_to_numpy=True), np.float32) for m in (model, other)
    )
    assert float((one * two).sum(axis=1).min()) > 0.99
