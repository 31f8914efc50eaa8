"""Shared fixtures. The environment variables keep runs quiet and offline; libraries read them when they are imported."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

pytest_plugins = ["frozen_imports", "gates", "groups", "lite_paths", "pure_tests", "time_limit"]

if TYPE_CHECKING:
    from milvus_server import MilvusServer

hypothesis.settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("unhurried")

QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    # as Ray gives its workers: sums of several threads differ in their last bits, and threads that wait for each other spin
    "OMP_NUM_THREADS": "1",
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

# A shell has background jobs ignore SIGINT, and what they start inherits that; some tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Ctrl-C means to each test what it means to a program: Tune, run by an earlier one, leaves its own handler behind."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


SERVING: list[MilvusServer] = []  # servers that fixtures have started


@pytest.fixture(scope="session")
def house_url() -> Iterator[str]:
    """The address of an OpenEnv server."""
    pytest.importorskip("openenv.core", reason="pip install --no-deps openenv-core, and fastmcp")
    from servers import Served

    with Served("openenv_house.py") as house:
        yield house.url


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
    from rapo_rllib.models.loading import resolve_model

    return Path(resolve_model("smollm2-135m-instruct"))


@pytest.fixture(scope="session")
def small_model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random model of a few million weights, with SmolLM2's tokenizer."""
    from small_model import save_small_model

    return str(save_small_model(tmp_path_factory.mktemp("small_model"), smollm2))


@pytest.fixture(scope="session")
def speaking_model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a small model that calls the python tool, or answers, as often."""
    from small_model import save_speaking_model

    return str(save_speaking_model(tmp_path_factory.mktemp("speaking_model"), smollm2))


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local Ray with four logical CPUs, for the tests of the whole session that need one."""
    import ray

    path = os.pathsep.join(filter(None, [str(REPOSITORY / "tests" / "support"), os.environ.get("PYTHONPATH")]))
    options: dict = {"include_dashboard": False, "logging_level": logging.WARNING, "log_to_driver": False}
    ray.init(num_cpus=4, runtime_env={"env_vars": {"PYTHONPATH": path}}, **options)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def milvus_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The unpacked Milvus server."""
    from milvus_server import unpack_programs

    folder = unpack_programs(tmp_path_factory.mktemp("milvus_programs"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def milvus_server(milvus_programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    """A Milvus server without TLS and users, as on one's own machine. Tests that want it are marked ``milvus``."""
    yield from served(tmp_path_factory.mktemp("milvus_server"), milvus_programs)


@pytest.fixture(scope="session")
def hosted_milvus(milvus_programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    """A Milvus server with TLS and a token, as others host it. Tests that want it are marked ``milvus``."""
    import trustme

    folder = tmp_path_factory.mktemp("hosted_milvus")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key, roots = folder / "server.pem", folder / "server.key", folder / "roots.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(roots)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(roots))
        yield from served(folder, milvus_programs, (certificate, key))


def served(folder: Path, programs: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[MilvusServer]:
    from milvus_server import MilvusServer

    server = MilvusServer(folder, programs, certificate)
    SERVING.append(server)
    try:
        server.restart()
        yield server
    finally:
        server.kill()
    shutil.rmtree(folder / "data")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the Milvus servers behind the last test that is marked ``milvus``: an idle one takes a tenth of a core.

    Not where tests of the same file follow: what its fixtures hold on a server is dropped only when one of them needs another.
    """
    if not item.get_closest_marker("milvus"):
        return
    if nextitem is None or not (nextitem.get_closest_marker("milvus") or nextitem.path == item.path):
        for server in SERVING:
            server.kill()
