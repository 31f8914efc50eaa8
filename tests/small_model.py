"""A random model of a few million weights that real engines take, for tests in which nothing has to be understood."""

from __future__ import annotations

from pathlib import Path

import torch


def save_small_model(folder: Path, smollm2: Path) -> Path:
    """SmolLM2's tokenizer and chat template over four random layers: engine and learner take it in a second."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = AutoConfig.from_pretrained(smollm2, num_hidden_layers=4, head_dim=32, **sizes)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    AutoTokenizer.from_pretrained(smollm2).save_pretrained(folder)
    return folder
