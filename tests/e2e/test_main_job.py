"""The main job, shortened: ``rllib train file``, vLLM, Milvus Lite, SmolLM2."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from typing import Any

import pytest
import spread_rewards
from cli_runs import rllib
from jobs import Trial, at, short_job, trials
from pages import metrics_on_the_page

from rapo_rllib.monitoring.metrics_flat import flattened

LIMIT_S = 1500  # a processor without bfloat16 needs several times what others need
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(LIMIT_S + 100)]

ROLLOUT = (
    *("episode_return_mean", "accuracy", "format_rate", "entropy", "groups_without_signal", "rollout_s", "tokens_per_s"),
    *("tokens/policy", "tokens/observation", "tokens/retrieved", "tokens/prompt"),
    *("retrieval/per_trajectory", "retrieval/hybrid_share", "retrieval/retrieved_share"),
    *("retrieval/retrieval_reward", "retrieval/entropy_before"),
    *("retrieval/entropy_after", "retrieval/similarity", "retrieval/seconds", "retrieval/failures"),
    *("tools/calls_per_trajectory", "tools/seconds"),
)
LEARNER = (
    *(
        "ratio",
        "clipped_low",
        "clipped_high",
        "mismatch",
        "mismatch_max",
        "gradient_norm",
        "entropy",
        "seconds",
        "tokens_per_s",
    ),
    "num_groups_without_signal",
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Trial]:
    folder = tmp_path_factory.mktemp("main_job")
    warm = {"num_trajectories": 16, "batch_size": 8, "folder": str(folder / "warm_start")}
    shutil.copy(spread_rewards.__file__, folder)
    changes = {"max_response_tokens": 160, "env_config": {"scorer": "spread_rewards:right_and_spread"}}
    changes["expert_step_share"] = [[0, 1.0], [8, 1.0], [9, 0.0]]  # the first iteration alone
    path = str(short_job(folder, task={}, warm_start=warm, **changes))
    # those of a small model are read back in other tests: this one's are 2 GB, with the optimiser's state
    done = rllib(folder, "train", "file", path, "--set", "checkpoint_config.checkpoint_at_end=false", timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (trial,) = trials(folder)
    return done, trial


def test_summary(job: tuple[Any, Trial]) -> None:
    done, trial = job
    summary = trial.summary
    assert 0 <= summary["accuracy_before"] <= 1
    assert 0 <= summary["accuracy_after"] <= 1
    assert summary["evaluated_questions"] == 2
    assert summary["seconds"] > 0
    assert summary["tokens_per_s"] > 0
    assert summary["retrievals"] == sum(len(t["retrievals"]) for t in trial.transcripts)
    assert "accuracy" in done.stdout


def test_progress_says_what_happens(job: tuple[Any, Trial]) -> None:
    out = job[0].stdout
    for phrase in ("the Step-Trace Buffer holds 40 step traces", "evaluating on 2 questions", "iteration 2: sampled 8 traj"):
        assert phrase in out, out[-3000:]
    assert "tokens/s, reward" in out


def test_every_metric_is_in_the_result(job: tuple[Any, Trial]) -> None:
    for result in job[1].results:
        for name in ROLLOUT:
            assert math.isfinite(at(result, f"env_runners/{name}")), name
        for name in LEARNER:
            assert math.isfinite(at(result, f"learners/default_policy/{name}")), name
        for name in ("rollout", "update", "sync"):
            assert at(result, f"timers/{name}") > 0
    assert [at(result, "sync/weight_version") for result in job[1].results] == [1, 2]


def test_every_metric_that_is_logged_is_explained(job: tuple[Any, Trial]) -> None:
    """In docs/metrics.md, or in RLlib's own documentation."""
    parts = ("env_runners/", "learners/default_policy/", "sync/", "buffer/", "rapo/", "sampling/")
    many = re.compile(
        r"env_runners/(ends|reward|tools|starts/right_of)/|_count$|num_trainable_parameters$|num_non_trainable_parameters$"
    )
    logged = {name for result in job[1].results for name in flattened(result) if name.startswith(parts)}
    assert len(logged) > 80
    assert {name for name in logged if not many.search(name)} - metrics_on_the_page() == set()


def test_tensorboard_has_the_same_names(job: tuple[Any, Trial]) -> None:
    events = b"".join(file.read_bytes() for file in job[1].folder.glob("events.out.tfevents.*"))
    for name in (*(f"env_runners/{name}" for name in ROLLOUT), *(f"learners/default_policy/{name}" for name in LEARNER)):
        assert f"ray/tune/{name}".encode() in events, name


def test_the_update_moved_the_policy_and_the_engine_followed(job: tuple[Any, Trial]) -> None:
    first, second = job[1].results
    assert at(first, "learners/default_policy/num_steps") >= 1
    assert at(first, "learners/default_policy/gradient_norm") > 0
    # engine and learner agree on the tokens that were just sampled, before and after the weights moved
    for result in (first, second):
        assert at(result, "learners/default_policy/mismatch") < 0.01
        assert at(result, "sync/canary_mean") < 0.01


def test_transcripts(job: tuple[Any, Trial]) -> None:
    transcripts = job[1].transcripts
    assert len(transcripts) == 2 * 2 * 4
    assert {t["policy_version"] for t in transcripts[:8]} == {0}
    assert {t["policy_version"] for t in transcripts[8:]} == {1}
    for t in transcripts:
        assert len(t["kinds"]) == len(t["token_ids"])
        if not t["retrievals"]:
            assert t["retrieved_share"] == 0
    retrieved = [t for t in transcripts if t["retrievals"]]
    assert all(t["hybrid"] and t["retrieved_share"] > 0 for t in retrieved)
