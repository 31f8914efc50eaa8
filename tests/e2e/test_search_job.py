"""Multi-hop QA with the search tool end to end, shortened: corpus and job by the command line, vLLM, Milvus Lite, SmolLM2."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runs import rllib
from jobs import at, example, merged, trials

from rapo_rllib.protocol.steps import boxed_answer, parse_step
from rapo_rllib.rewards.qa import token_f1
from rapo_rllib.settings import ProtocolSettings

pytestmark = pytest.mark.e2e

SHOWN = (
    "<search>capital of France</search>\n<result>\n[1] Paris\nParis is the capital of France.\n</result>\n"
    "<answer>\\boxed{Paris}</answer>"
)
CHANGES: dict[str, Any] = {
    "model": {"name_or_path": "smollm2-135m-instruct", "logits_chunk_size": 128},
    "engine": {"max_num_seqs": 16, "kv_cache_gib": 0.5, "enforce_eager": True},
    "protocol": {
        "system_prompt": "Answer the question. Search first.",
        "examples": [["What is the capital of France?", SHOWN], ["Which city is the capital of France?", SHOWN]],
    },
    **{"questions_per_step": 2, "group_size": 4, "num_hybrid": 4, "retrieval_prob": 1.0, "num_minibatches": 1},
    **{"max_prompt_tokens": 512, "max_response_tokens": 384, "max_step_tokens": 40, "max_tool_calls": 2},
    **{"max_tokens_per_micro_batch": 2048, "evaluation_interval": 0, "evaluate_before_training": False, "transcripts": True},
    "learner_num_threads": 1,  # other tests run beside it
    **{"num_env_runners": 0, "num_gpus_per_env_runner": 0, "num_learners": 0, "num_gpus_per_learner": 0},
}


def write_questions(shared_data: Path, path: Path) -> None:
    """Questions of HotpotQA with their paragraphs, which are the corpus, too."""
    with gzip.open(shared_data / "qa_ctx" / "hotpotqa_ctx.jsonl.gz", "rt", encoding="utf-8") as file:
        path.write_text("".join(islice(file, 4)), encoding="utf-8")


def test_a_policy_that_searches_is_trained(shared_data: Path, tmp_path: Path) -> None:
    write_questions(shared_data, tmp_path / "questions.jsonl")
    built = rllib(tmp_path, "corpus", "build", "questions.jsonl", "--passages-field", "paragraphs")
    assert built.returncode == 0, built.stdout + built.stderr
    experiment = example("rapo_search.yaml")
    env_config = {**experiment["config"]["env_config"], "dataset": "questions.jsonl", "test_dataset": "questions.jsonl"}
    config = merged(experiment["config"], CHANGES)
    config["env_config"] = {**env_config, "dataset_config": None, "limit_train": None, "limit_test": None}
    traces = str(shared_data / "traces" / "fireact_hotpotqa_react.jsonl.gz")
    config["step_trace_buffer"] = {"uri": "./traces.db", "traces": traces, "max_traces": 40}
    job = {**experiment, "stop": {"training_iteration": 1}, "config": config}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"search": job}), encoding="utf-8")
    done = rllib(tmp_path, "train", "file", "job.yaml", timeout_s=500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (trial,) = trials(tmp_path)
    (result,) = trial.results
    steps = [step for t in trial.transcripts for step in t["steps"]]
    searches = [step for step in steps if step["tool"] == "search"]
    assert at(result, "env_runners/tools/search/calls") == len(searches) > 0
    titles = [p["title"] for row in (tmp_path / "questions.jsonl").open() for p in json.loads(row)["paragraphs"]]
    found = [step["observation"] for step in searches if step["tool_error"] is None]
    assert found and all(text.startswith("[1] ") and any(title in text for title in titles) for text in found)
    for trajectory in trial.transcripts:
        answer = parse_step(trajectory["steps"][-1]["text"], ProtocolSettings(), ["search"]).answer
        f1 = 0.0 if answer is None else token_f1(boxed_answer(answer), trajectory["gold"])
        assert trajectory["reward_terms"].get("correct", 0.0) == pytest.approx(f1)  # none where the budget ended it
    assert at(result, "env_runners/retrieval/queries") > 0  # long traces may pass the small budget
    assert at(result, "env_runners/retrieval/count") == sum(len(t["retrievals"]) for t in trial.transcripts)
