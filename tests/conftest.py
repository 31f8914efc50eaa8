"""Shared fixtures. The environment variables keep runs quiet and offline; libraries read them when they are imported."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
for name, value in QUIET.items():
    os.environ.setdefault(name, value)

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets: ``RAPO_SHARED_DATA``, or ``shared/data`` beside the repository."""
    named = os.environ.get("RAPO_SHARED_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if named and not folder.is_dir():
        pytest.fail(f"RAPO_SHARED_DATA={named} is no folder")
    if not folder.is_dir():
        pytest.skip("no shared/data beside the repository; name the folder in RAPO_SHARED_DATA")
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of the packaged SmolLM2-135M-Instruct."""
    from rapo_rllib.models import resolve_model

    return Path(resolve_model("smollm2-135m-instruct"))


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local Ray with four logical CPUs, for the tests of the whole session that need one."""
    import ray

    path = os.pathsep.join(filter(None, [str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH")]))
    options: dict = {"include_dashboard": False, "logging_level": logging.WARNING, "log_to_driver": False}
    ray.init(num_cpus=4, runtime_env={"env_vars": {"PYTHONPATH": path}}, **options)
    yield
    ray.shutdown()
