"""Multi-hop QA with the search tool end to end, shortened: corpus and job by the command line, vLLM, Milvus Lite."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runs import run_here
from jobs import at, example, merged, trained_here
from small_model import save_speaking_model

from rapo_rllib.protocol.steps import boxed_answer, parse_step
from rapo_rllib.rewards.qa import token_f1
from rapo_rllib.settings import ProtocolSettings

pytestmark = pytest.mark.e2e

# a search, or the answer to one of the two questions
SAYS = (
    ("\n", "<", "search", ">", "real", " estate", " <", "/", "search", ">"),
    ("\n", "<", "answer", ">\\", "box", "ed", "{", "no", "}", "</", "ans", "wer", ">"),
    ("\n", "<", "answer", ">\\", "box", "ed", "{", "Chief", " of", " Protocol", "}", "</", "ans", "wer", ">"),
)
CHANGES: dict[str, Any] = {
    "model": {"logits_chunk_size": 128},
    "engine": {"max_num_seqs": 16, "kv_cache_gib": 0.2, "enforce_eager": True},
    **{"questions_per_step": 2, "group_size": 4, "num_hybrid": 4, "retrieval_prob": 1.0, "num_minibatches": 1},
    **{"max_response_tokens": 2048, "max_step_tokens": 40, "max_tool_calls": 2},
    **{"max_tokens_per_micro_batch": 4096, "evaluation_interval": 0, "evaluate_before_training": False, "transcripts": True},
    "learner_num_threads": 1,  # other tests run beside it
    **{"num_env_runners": 0, "num_gpus_per_env_runner": 0, "num_learners": 0, "num_gpus_per_learner": 0},
}


def write_questions(shared_data: Path, path: Path) -> None:
    """Two questions of HotpotQA with their paragraphs, which are the corpus, too."""
    with gzip.open(shared_data / "qa_ctx" / "hotpotqa_ctx.jsonl.gz", "rt", encoding="utf-8") as file:
        first, _, _, fourth = islice(file, 4)
    assert [json.loads(row)["answer"] for row in (first, fourth)] == ["Chief of Protocol", "no"]
    path.write_text(first + fourth, encoding="utf-8")


def test_a_policy_that_searches_is_trained(
    shared_data: Path, smollm2: Path, tmp_path: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_questions(shared_data, tmp_path / "questions.jsonl")
    run_here(monkeypatch, "corpus", "build", "questions.jsonl", "--passages-field", "paragraphs")
    experiment = example("rapo_search.yaml")
    env_config = {**experiment["config"]["env_config"], "dataset": "questions.jsonl", "test_dataset": "questions.jsonl"}
    config = merged(experiment["config"], CHANGES)
    config["model"]["name_or_path"] = str(save_speaking_model(tmp_path / "model", smollm2, SAYS))
    config["env_config"] = {**env_config, "dataset_config": None, "limit_train": None, "limit_test": None}
    traces = str(shared_data / "traces" / "fireact_hotpotqa_react.jsonl.gz")
    config["step_trace_buffer"] = {"uri": "./traces.db", "traces": traces, "max_traces": 40}
    job = {**experiment, "stop": {"training_iteration": 1}, "config": config}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"search": job}), encoding="utf-8")
    trial = trained_here(monkeypatch, "train", "file", "job.yaml")
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
    assert {t["reward_terms"].get("correct", 0.0) for t in trial.transcripts} == {0.0, 1.0}
    assert at(result, "env_runners/retrieval/count") == sum(len(t["retrievals"]) for t in trial.transcripts) > 0
    assert at(result, "learners/default_policy/num_steps") == 1
