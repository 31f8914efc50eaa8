"""What a job gets from a Ray that believes in four GPUs; a program, since a Ray of its own is needed. Prints JSON.

python fake_gpus.py MODEL_FOLDER
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rapo_rllib import RAPO, RAPOConfig

BASE = {"env": "rapo/word_problems", "num_hybrid": 0, "num_cpus_per_env_runner": 0.5, "num_cpus_per_learner": 0.5}


def config(folder: str, **keys: Any) -> RAPOConfig:
    """Of a small job with these keys."""
    return RAPOConfig().update_from_dict({**BASE, "model": {"name_or_path": folder}, **keys})


def group(keys: RAPOConfig) -> Any:
    """A placement group as Tune makes it for a trial."""
    made = RAPO.default_resource_request(keys.to_dict())()
    ray.get(made.ready(), timeout=60)
    return made


def within(made: Any, **resources: Any) -> Any:
    """Options of an actor or task in the group."""
    strategy = PlacementGroupSchedulingStrategy(made, placement_group_capture_child_tasks=True)
    return {"scheduling_strategy": strategy, **resources}


@ray.remote
class Device:
    """Says which GPUs Ray gave it."""

    def ids(self) -> list[int]:
        """Their numbers."""
        return [int(number) for number in ray.get_gpu_ids()]


@ray.remote
def executor(folder: str) -> str:
    """What an engine with two workers would start them by, here."""
    from vllm import EngineArgs

    from rapo_rllib.rollout.vllm.engine import engine_arguments
    from rapo_rllib.settings import EngineSettings

    settings = EngineSettings(dtype="float32", tensor_parallel_size=2)
    arguments = engine_arguments(folder, settings, max_model_len=64, on_cpu=True)
    return str(EngineArgs(**arguments).create_engine_config().parallel_config.distributed_executor_backend)


def shared_gpu(folder: str) -> list[list[int]]:
    """GPUs of an engine and a learner with half of one each."""
    halves = {"num_gpus_per_env_runner": 0.5, "num_gpus_per_learner": 0.5}
    made = group(config(folder, num_env_runners=1, num_learners=1, **halves))
    actors = [Device.options(**within(made, num_cpus=0.5, num_gpus=0.5)).remote() for _ in range(2)]
    found = ray.get([actor.ids.remote() for actor in actors])
    ray.util.remove_placement_group(made)
    return found


def two_workers(folder: str) -> str:
    """The executor of an engine with two GPUs, under Tune."""
    keys = {"num_env_runners": 1, "num_gpus_per_env_runner": 2, "engine": {"tensor_parallel_size": 2}}
    made = group(config(folder, num_learners=1, num_gpus_per_learner=1, **keys))
    found = ray.get(executor.options(**within(made, num_cpus=0.5, num_gpus=2)).remote(folder))
    ray.util.remove_placement_group(made)
    return found


def without_cuda(folder: str) -> dict[str, str]:
    """What an engine and a learner say that are given GPUs which PyTorch cannot use."""
    from rapo_rllib.env_runner.env_runner import RAPOEnvRunner

    job = config(folder, num_env_runners=1, num_learners=1, num_gpus_per_env_runner=1, num_gpus_per_learner=1)
    runner = ray.remote(RAPOEnvRunner).options(num_cpus=0.5, num_gpus=1).remote(config=job, worker_index=1, num_workers=1)
    learner = ray.remote(job.get_default_learner_class()).options(num_cpus=0.5, num_gpus=1)
    learner = learner.remote(config=job, module_spec=job.get_multi_rl_module_spec(spaces={"default_policy": (None, None)}))
    return {"engine": said(runner.engine_name.remote()), "learner": said(learner.build.remote())}


def said(reference: Any) -> str:
    """The error that comes of it."""
    try:
        ray.get(reference, timeout=120)
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    ray.init(num_cpus=4, num_gpus=4, include_dashboard=False, log_to_driver=False)
    model = sys.argv[1]
    answers = {"shared": shared_gpu(model), "two_workers": two_workers(model), "without_cuda": without_cuda(model)}
    ray.shutdown()
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
