"""docs/from_verl_or_trl.md: TRL's names are the installed TRL's, ours are read by our code, and the translation is faithful."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from pages import REPOSITORY, blocks
from syntax import tree_of
from tiny_models import tiny_model
from tiny_tokenizers import byte_tokenizer

from rapo_rllib import RAPOConfig
from rapo_rllib.cli.reference import config_sections
from rapo_rllib.config.checks import known_keys
from rapo_rllib.envs.dataset_rows import question_from_row

PAGE = REPOSITORY / "docs" / "from_verl_or_trl.md"
ROWS = [line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][2:]


def package_file(package: str, path: str) -> ast.Module:
    """A module's source, without importing the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return tree_of((Path(spec.origin).parent / path).read_text(encoding="utf-8"))


def annotated(module: ast.Module) -> set[str]:
    return {
        node.target.id for node in ast.walk(module) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def trl_names() -> set[str]:
    trainer = package_file("trl", "trainer/grpo_trainer.py")
    arguments = {node.arg for node in ast.walk(trainer) if isinstance(node, ast.arg)}
    config = annotated(package_file("trl", "trainer/grpo_config.py"))
    return arguments | config | annotated(package_file("transformers", "training_args.py"))


def names(cell: str) -> list[str]:
    return [name.split(":")[0] for name in re.findall(r"`([^`]+)`", cell)]


def test_the_names_of_trl() -> None:
    used = {name for row in ROWS for name in names(row[1])}
    assert len(used) > 25
    assert used - trl_names() == set()


def test_our_keys() -> None:
    known = {key.name for section in config_sections() for key in section.keys} | known_keys(RAPOConfig())
    used = [name for row in ROWS for name in names(row[2])]
    assert len(used) > 40
    assert set(used) - known == set()


@pytest.mark.parametrize("key", ["num_generations", "actor_rollout_ref"])
def test_a_name_of_theirs_leads_to_the_page(key: str) -> None:
    with pytest.raises(ValueError, match=f"unknown key '{key}': .*docs/from_verl_or_trl.md"):
        RAPOConfig().update_from_dict({key: 8})


def script_arguments() -> dict[str, Any]:
    """Constant keyword arguments of the page's script."""
    (script,) = [block for block in blocks(PAGE, "python") if "GRPOTrainer" in block]
    keywords = [keyword for node in ast.walk(tree_of(script)) if isinstance(node, ast.Call) for keyword in node.keywords]
    return {keyword.arg: keyword.value.value for keyword in keywords if keyword.arg and isinstance(keyword.value, ast.Constant)}


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    (block,) = blocks(PAGE, "yaml")
    return yaml.safe_load(block)["gsm8k-grpo"]


def run(part: int, **given: Any) -> RAPOConfig:
    """The config that a Python block of the page makes."""
    names = {"__name__": "my_rewards", **given}
    exec(compile(blocks(PAGE, "python")[part], str(PAGE), "exec"), names)
    return names["config"]


def answered(config: RAPOConfig, text: str, split: str = "train") -> tuple[float, dict[str, Any]]:
    """Reward and info of an answer to the first question."""
    source = config.question_source
    env = source.env_maker()()
    env.reset(options={"question": source.questions(split)[0]})
    _, reward, _, _, info = env.step(text)
    return reward, info


def test_rewards_and_objects_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAPO_CACHE", str(tmp_path))
    config, again = (run(0, model=tiny_model(), tokenizer=byte_tokenizer()) for _ in range(2))
    folder = Path(config.settings.model.name_or_path)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}
    assert folder.parent == tmp_path / "models" and again.settings.model.name_or_path == str(folder)
    reward, info = answered(config, "It is 1")
    terms = {name: value for name, value in info["reward_terms"].items() if value}
    assert terms == {"right": 1.0, "brief": pytest.approx(-0.035)} and info["correct"]
    assert reward == pytest.approx(0.965)
    assert answered(config, "It is 2")[1]["correct"] is False


def test_rewards_of_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"prompt": [{"role": "user", "content": "3 + 5?"}], "data_source": "sums", "ability": "math"}
    row = {**asked, "reward_model": {"style": "rule", "ground_truth": "8"}, "extra_info": {"level": 2, "index": 0}}
    for split in ("train", "test"):
        datasets.Dataset.from_list([row]).to_parquet(f"{split}.parquet")
    config = run(1)
    assert answered(config, "It is 8")[0] == 1.0 and answered(config, "It is 9", "test")[0] == 0.0


def test_the_script_uses_names_of_trl() -> None:
    assert set(script_arguments()) - {"split"} <= trl_names()


def test_the_translation_says_the_same(job: dict[str, Any]) -> None:
    trl = script_arguments()
    config = RAPOConfig().update_from_dict(job["config"] | {"env": job["env"]})
    config.validate()
    completions = trl["per_device_train_batch_size"] * trl["gradient_accumulation_steps"]
    assert config.questions_per_step * config.group_size == completions
    same = {
        "group_size": "num_generations",
        "max_response_tokens": "max_completion_length",
        "temperature": "temperature",
        "clip_low": "epsilon",
        "clip_high": "epsilon_high",
        "kl_coeff": "beta",
        "lr": "learning_rate",
        "grad_clip": "max_grad_norm",
        "seed": "seed",
    }
    assert {ours: getattr(config, ours) for ours in same} == {ours: trl[theirs] for ours, theirs in same.items()}
    assert (config.loss_aggregation, config.num_hybrid) == ("trajectory", 0)
    assert config.settings.model.name_or_path == trl["model"]
    assert config.settings.engine.gpu_memory_utilization == trl["vllm_gpu_memory_utilization"]
    assert job["stop"]["training_iteration"] == trl["max_steps"]
    assert job["checkpoint_config"]["checkpoint_frequency"] == trl["save_steps"]


def test_the_rows_of_the_script_and_of_search_r1() -> None:
    """The columns that the page names: TRL's need ``answer_field``, Search-R1's are known."""
    asked = [{"role": "user", "content": "3 + 5?"}]
    script = {"prompt": asked, "solution": "8"}
    named = re.search(r"`answer_field: (\w+)`", PAGE.read_text(encoding="utf-8"))
    assert named is not None and f'"{named[1]}"' in blocks(PAGE, "python")[-1]
    assert question_from_row(script, "f", "f-1", answer_field=named[1]).answer == "8"
    with pytest.raises(ValueError, match=r"fields of this row: prompt, solution\. Name one in env_config\.answer_field"):
        question_from_row(script, "f", "f-1")
    target = {"ground_truth": {"target": ["8"]}, "style": "rule"}
    row = {"question": "3 + 5?", "golden_answers": ["8", "eight"], "prompt": asked, "reward_model": target}
    assert question_from_row(row, "f", "f-1").aliases == ("eight",)
