"""Weights that change under running requests: every token is of one version, and its logprob is what that version says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from swapped_weights import PROMPTS, TOKENS, Swapped, make_engine, polls, swapped, three_versions
from tiny_models import save_tiny_model

from rapo_rllib.rollout.engine import GenerationRequest
from rapo_rllib.settings import LoraSettings, ModelSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), head_dim=32))


@pytest.fixture(scope="module", params=[None, LoraSettings(rank=4)], ids=["weights", "adapters"])
def lora(request: pytest.FixtureRequest) -> LoraSettings | None:
    """How the learner trains: it gives weights, or adapters."""
    return request.param


@pytest.fixture(scope="module")
def engine(folder: str, lora: LoraSettings | None) -> Iterator[Any]:
    engine = make_engine(folder, ModelSettings(folder, lora=lora))
    yield engine
    engine.close()


def check(found: Swapped) -> None:
    """Three versions wrote every response, each with its own probabilities; no prefix of an older one was used."""
    for versions in found.versions:
        assert len(versions) == TOKENS and sorted(versions) == versions, versions
    assert max(found.worst.values()) < 1e-4 and found.scores < 1e-4 and found.again < 1e-4, found
    assert found.apart > 0.05  # else a wrong version would not be seen


def test_each_token_has_the_version_and_the_logprob_of_the_weights_that_sampled_it(
    engine: Any, folder: str, lora: LoraSettings | None
) -> None:
    found = swapped(folder, engine, polls(8), lora)
    check(found)
    # eight steps each, and the swap itself scores three sequences beside them, which takes one or two steps
    assert all(set(versions) == {0, 1, 2} for versions in found.versions)


def test_more_requests_than_the_engine_has_room_for(engine: Any, folder: str, lora: LoraSettings | None) -> None:
    """What is scored comes first; the others wait, and none is lost."""
    _, weights = three_versions(folder, lora)[0]
    for index in range(9):
        engine.submit(GenerationRequest(f"many{index}", PROMPTS[index % 3], max_tokens=12, seed=index))
    done = polls(3)(engine)
    engine.weights.load(weights, 7)
    assert len(engine.score([[5, 6, 7]])[0]) == 2
    assert engine.num_unfinished + len(engine._finished_beside) == 9 - len(done)
    while engine.num_unfinished or engine._finished_beside:
        done += engine.poll()
    assert sorted(completion.request_id for completion in done) == [f"many{index}" for index in range(9)]
    assert {completion.versions[-1] for completion in done} == {7}
    assert all(len(completion.token_ids) == 12 or completion.finish == "eos" for completion in done)


@pytest.mark.slow  # 25 s each
@pytest.mark.parametrize("settings", [{"tensor_parallel_size": 2}], ids=["two workers"])
def test_the_same_across_processes(folder: str, settings: dict[str, Any]) -> None:
    command = [sys.executable, str(SUPPORT / "swapped_weights.py"), folder, json.dumps(settings)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(SUPPORT))
    assert result.returncode == 0, result.stderr[-3000:]
    found = Swapped(**json.loads(result.stdout.strip().splitlines()[-1]))
    check(found)
    assert all(versions[-1] == 2 and len(set(versions)) > 1 for versions in found.versions)
