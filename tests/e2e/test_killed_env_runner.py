"""An env runner that is killed: its questions are sampled by the others, and it comes back with the current weights."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from jobs import at, small_config
from letters_env import weights

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


def test_a_killed_env_runner_comes_back_with_current_weights(ray_session: None) -> None:
    algorithm = small_config().env_runners(num_env_runners=2).learners(num_learners=1).build_algo()
    try:
        first = algorithm.train()
        pids = algorithm.env_runner_group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)
        assert len(set(pids)) == 2
        killer = threading.Timer(0.3, os.kill, (pids[0], signal.SIGKILL))
        killer.start()
        second = algorithm.train()
        killer.join()
        assert at(first, "env_runners/num_episodes") == at(second, "env_runners/num_episodes") == 16
        assert at(second, "env_runners/num_episodes_lifetime") == 32
        deadline = time.monotonic() + 120
        while algorithm.env_runner_group.num_healthy_remote_workers() < 2 and time.monotonic() < deadline:
            algorithm.restore_env_runners(algorithm.env_runner_group)
            time.sleep(1)
        held = algorithm.env_runner_group.foreach_env_runner(
            lambda runner: (os.getpid(), runner.policy_version), local_env_runner=False
        )
        assert [version for _, version in held] == [2, 2]
        assert pids[0] not in [pid for pid, _ in held]
        third = algorithm.train()
        assert at(third, "sync/weight_version") == 3
        copied = algorithm.get_module().language_model.state_dict()  # of the remote learner's
        (held,) = (result.get() for result in algorithm.learner_group.foreach_learner(weights).result_or_errors)
        assert np.array_equal(copied["model.layers.3.mlp.up_proj.weight"].numpy(), held)
    finally:
        algorithm.stop()
