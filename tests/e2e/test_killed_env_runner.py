"""An env runner that dies in the middle of sampling: no question is lost or doubled, and it comes back with current weights."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import FaultyEngineRunner, FaultyLetters
from jobs import at, small_config

from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.errors import WeightSyncError

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


def faulty_config(folder: Path, model: str) -> Any:
    config = small_config(model).environment(FaultyLetters, env_config={"folder": str(folder)})
    config.transcripts = True
    return config.env_runners(env_runner_cls=FaultyEngineRunner)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def algorithm(folder: Path, ray_session: None, small_model: str) -> Iterator[Any]:
    algorithm = faulty_config(folder, small_model).env_runners(num_env_runners=2).training(lr=1e-6).build_algo()
    yield algorithm
    algorithm.stop()


def runners(algorithm: Any) -> list[tuple[int, int]]:
    """Process id and weight version of both env runners, when both are back."""
    group = algorithm.env_runner_group
    deadline = time.monotonic() + 240
    while group.num_healthy_remote_workers() < 2 and time.monotonic() < deadline:
        algorithm.restore_env_runners(group)
        time.sleep(1)
    held: list[tuple[int, int]] = group.foreach_env_runner(
        lambda runner: (os.getpid(), runner.policy_version), local_env_runner=False
    )
    return held


def trained(algorithm: Any) -> dict[str, Any]:
    """One iteration, of the questions whose turn it was, each once, by the weights that were current."""
    cursor = QuestionCursor(algorithm.config.question_source.questions("train"))
    cursor.set_state(algorithm._cursor.get_state())
    wanted = cursor.take(4)
    result: dict[str, Any] = algorithm.train()
    file = Path(algorithm.logdir) / "transcripts" / f"iteration_{algorithm.iteration:05d}.jsonl"
    transcripts = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [t["question_id"] for t in transcripts] == [question.id for question in wanted for _ in range(4)]
    version = at(result, "sync/weight_version")
    assert {t["policy_version"] for t in transcripts} == {version - 1}
    assert at(result, "env_runners/num_episodes") == 16
    assert at(result, "env_runners/num_episodes_lifetime") == 16 * algorithm.iteration
    assert at(result, "sync/canary_mean") < 0.01
    return result


@pytest.mark.slow  # 55 s, and 20 s; in short: tests/env_runner/test_dispatch.py, and e2e/test_streamed_run.py kills one
@pytest.mark.parametrize("fault", ["kill", "engine"])
def test_a_dead_env_runner(algorithm: Any, folder: Path, fault: str) -> None:
    if not algorithm.iteration:
        trained(algorithm)  # so that the current weights are not the first ones
    before = runners(algorithm)
    (folder / "asked").unlink()
    (folder / fault).touch()
    result = trained(algorithm)
    dead = int((folder / f"{fault}.done").read_text())
    assert dead in [pid for pid, _ in before]
    asked = Counter(tuple(map(int, line.split())) for line in (folder / "asked").read_text().splitlines())
    begun = {seed for pid, seed in asked if pid == dead}
    assert len(begun) == 2  # its share of the four questions ...
    again = {seed: count for (pid, seed), count in asked.items() if seed in begun and pid != dead}
    assert again and set(again.values()) == {4}  # ... was sampled again by another, but for what had come back before
    after = runners(algorithm)
    assert dead not in [pid for pid, _ in after]
    assert [version for _, version in after] == [at(result, "sync/weight_version")] * 2
    trained(algorithm)


@pytest.mark.slow  # 20 s; in short, with runners that are made up: tests/weights/test_weight_sync_check.py
def test_an_engine_that_cannot_load_comes_back_with_the_current_weights(algorithm: Any, folder: Path) -> None:
    before = runners(algorithm)
    (folder / "load").touch()
    result = trained(algorithm)
    dead = int((folder / "load.done").read_text())
    assert (at(result, "sync/engines"), at(result, "sync/engine_restarts")) == (2, 1)
    after = runners(algorithm)
    assert dead in [pid for pid, _ in before] and dead not in [pid for pid, _ in after]
    assert [version for _, version in after] == [at(result, "sync/weight_version")] * 2
    trained(algorithm)


@pytest.mark.slow  # in short: tests/e2e/test_weights_reach_the_engine.py, tests/weights/test_canary.py
def test_an_optimiser_step_at_1e6_that_one_engine_misses_ends_the_training(algorithm: Any, folder: Path) -> None:
    moved = at(trained(algorithm), "sync/learner_moved")
    assert 0 < moved < 0.01  # a tenth of the tolerance in bfloat16
    (folder / "miss_1").touch()
    with pytest.raises(WeightSyncError, match=r"env runner 1 on \S+ \(\w+\): since its .* stale or partial"):
        algorithm.train()
    (folder / "miss_1").unlink()
    assert algorithm.sync_engines().num_engines == 2
