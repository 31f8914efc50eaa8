"""ARPO end to end, shortened and together with retrieval: vLLM, Milvus Lite, a small model, branches that reach the learner."""

from __future__ import annotations

import math
from typing import Any

import pytest
from jobs import Trial, at, short_job, trained_here

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory, speaking_model: str, ray_session: None) -> Trial:
    folder = tmp_path_factory.mktemp("arpo")
    changes: dict[str, Any] = {"branching": {"initial": 6, "base_prob": 1.0}, "branch_advantage": "hard"}
    changes |= {"group_size": 8, "num_hybrid": 8, "model": {"name_or_path": speaking_model}}
    job = short_job(folder, "arpo_math.yaml", iterations=1, **changes, evaluation_interval=0, evaluate_before_training=False)
    with pytest.MonkeyPatch.context() as patch:
        return trained_here(patch, "train", "file", str(job))


def test_branches_share_what_came_before_them(trial: Trial) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for transcript in trial.transcripts:
        groups.setdefault(transcript["question_id"], []).append(transcript)
    assert [len(group) for group in groups.values()] == [8] * 2
    branches = [(t, group) for group in groups.values() for t in group if len(t["segments"]) > 1]
    assert branches
    for branch, group in branches:
        start = branch["segments"][-1][0]
        origin = group[branch["segments"][-2][1]]
        assert branch["token_ids"][:start] == origin["token_ids"][:start]
        assert branch["kinds"][start - 1] != 0 and branch["kinds"][start] == 0  # right after a tool result or a step trace


def test_metrics_count_every_event_once(trial: Trial) -> None:
    (result,) = trial.results
    transcripts = trial.transcripts
    forks = sum(len(t["segments"]) > 1 for t in transcripts)
    assert at(result, "env_runners/branching/forks") == forks > 0
    assert at(result, "env_runners/branching/forks") + at(result, "env_runners/branching/refilled") <= 4
    assert at(result, "env_runners/tokens/response") == sum(len(t["token_ids"]) for t in transcripts)
    by_source = [at(result, f"env_runners/tokens/{source}") for source in ("policy", "observation", "retrieved")]
    assert sum(by_source) == at(result, "env_runners/tokens/response") and min(by_source) > 0
    assert at(result, "env_runners/tokens/generated") < at(result, "env_runners/tokens/policy")
    assert 0 < at(result, "env_runners/prefix_cache_share") < 1
    assert at(result, "env_runners/retrieval/count") > 0


def test_the_learner_takes_a_finite_step(trial: Trial) -> None:
    (result,) = trial.results
    learner = at(result, "learners/default_policy")
    assert learner["num_steps"] == 1 and learner["num_skipped_steps"] == 0
    assert math.isfinite(learner["total_loss"]) and learner["gradient_norm"] > 0
