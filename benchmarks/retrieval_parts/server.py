"""The Milvus server of the tests (``tests/support/milvus_server.py``), for the time of a measurement."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS_SERVER = Path(__file__).resolve().parents[2] / "tests" / "support" / "milvus_server.py"


@contextmanager
def milvus_server(cache: Path) -> Iterator[str | None]:
    """URI of a fresh server, ended afterwards; None, with a sentence, if its package is not installed.

    Args:
        cache: where its programs are unpacked to, once.
    """
    if importlib.util.find_spec("milvus") is None:
        print("  no Milvus server: the package milvus==2.3.5 is not installed", flush=True)
        yield None
        return
    spec = importlib.util.spec_from_file_location("milvus_server", TESTS_SERVER)
    assert spec is not None and spec.loader is not None
    tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    cache = cache.resolve()  # the server works in a folder of its own
    programs = cache / "milvus_programs"
    if not (programs / "bin").exists():
        shutil.rmtree(programs, ignore_errors=True)
        tests.unpack_programs(programs)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        server = tests.MilvusServer(Path(folder), programs)
        try:
            server.start()
            server.wait_until_serving()
            yield server.uri
        finally:
            server.kill()
