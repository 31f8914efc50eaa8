"""Importing pymilvus leaves the logging of the process alone."""

import subprocess
import sys

SCRIPT = """
import logging

class Handler(logging.StreamHandler):
    closed = False
    def close(self):
        self.closed = True
        super().close()

handler = Handler()
logging.getLogger().addHandler(handler)
from rapo_rllib.milvus.connection import MilvusConnection
try:
    MilvusConnection("http://127.0.0.1:9", timeout_s=0.5, uri_key="uri").call("has_collection", "steps")
except Exception as error:
    print(type(error).__name__)
print(handler.closed, "pymilvus" in __import__("sys").modules)
"""


def test_handlers_are_not_shut_down() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["RetrievalError", "False True"], done.stderr
