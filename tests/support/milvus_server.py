"""A real Milvus 2.3.5 server: the binary of the ``milvus`` package, with ports and a data folder of its own.

Neither docker nor root is needed. It dies with the process that started it, killed or not. (The server itself cannot be told to
listen on loopback alone; its components talk to each other over 127.0.0.1.)
"""

from __future__ import annotations

import lzma
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

START_TIMEOUT_S = 90.0
ROOT_TOKEN = "root:Milvus"
SERVICES = ("rootCoord", "proxy", "queryCoord", "queryNode", "indexNode", "dataCoord", "dataNode")
# PR_SET_PDEATHSIG outlives exec: the server keeps the process id, and is killed when its parent ends.
DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


def unpack_programs(folder: Path) -> Path:
    """The server and its libraries, 246 MB, out of the package."""
    import importlib.util

    spec = importlib.util.find_spec("milvus")
    assert spec is not None and spec.origin is not None
    packed = Path(spec.origin).parent / "data"
    (folder / "bin").mkdir(parents=True)

    def unpack(file: Path) -> None:
        with lzma.open(file) as source, (folder / "bin" / file.stem).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        (folder / "bin" / file.stem).chmod(0o755)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(unpack, sorted((packed / "bin").iterdir(), key=lambda file: -file.stat().st_size)))
    shutil.copy(packed / "glog.conf", folder)
    return folder


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, below those that outgoing connections take, so that a restarted server finds them free."""
    held: list[socket.socket] = []
    for port in random.SystemRandom().sample(range(15_000, 32_000), 2000):
        candidate = socket.socket()
        try:
            candidate.bind(("0.0.0.0", port))
        except OSError:
            candidate.close()
        else:
            held.append(candidate)
        if len(held) == count:
            break
    ports = [candidate.getsockname()[1] for candidate in held]
    for candidate in held:
        candidate.close()
    return ports


class MilvusServer:
    """One server process that can be killed, restarted on its data, and halted.

    Args:
        folder: of its data and logs.
        programs: what :func:`unpack_programs` made.
        certificate: files of certificate and private key; with them it speaks TLS and wants a token.
    """

    def __init__(self, folder: Path, programs: Path, certificate: tuple[Path, Path] | None = None) -> None:
        self.folder, self._programs, self._certificate = folder, programs, certificate
        self._process: subprocess.Popen | None = None
        ports = free_ports(len(SERVICES) + 4)
        self._metrics_port = ports.pop()
        self._write_configuration(ports)

    @property
    def uri(self) -> str:
        return f"https://localhost:{self._port}" if self._certificate else f"http://127.0.0.1:{self._port}"

    @property
    def token(self) -> str:
        return ROOT_TOKEN if self._certificate else ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _write_configuration(self, ports: list[int]) -> None:
        services: dict[str, dict] = {name: {"ip": "127.0.0.1", "port": ports.pop()} for name in SERVICES}
        self._port, services["proxy"]["internalPort"] = services["proxy"]["port"], ports.pop()
        client, peer = (f"http://127.0.0.1:{ports.pop()}" for _ in range(2))
        data = self.folder / "data"
        etcd = {
            "name": "default",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": True,
        }
        security: dict = {"authorizationEnabled": False}
        configuration: dict = {
            "etcd": {
                "use": {"embed": True},
                "data": {"dir": str(data / "etcd")},
                "config": {"path": str(self.folder / "configs" / "etcd.yaml")},
                "log": {"path": str(self.folder / "etcd.log"), "level": "warn"},
            },
            "metastore": {"type": "etcd"},
            "mq": {"type": "rocksmq"},
            "localStorage": {"path": str(data / "storage")},
            "rocksmq": {"path": str(data / "rocksmq")},
            "log": {"level": "warn"},
            # ttl: seconds until a killed server's place is free for the next one
            "common": {"storageType": "local", "session": {"ttl": 6}, "security": security},
            **services,
        }
        services["queryCoord"] |= {"checkInterval": 50, "distPullInterval": 50}  # ms; else each load takes 2.5 s
        services["proxy"] |= {"timeTickInterval": 50}  # ms; else each fresh read takes 0.4 s
        if self._certificate:
            security.update(authorizationEnabled=True, tlsMode=1)
            certificate, key = map(str, self._certificate)
            configuration["tls"] = {"serverPemPath": certificate, "serverKeyPath": key, "caPemPath": certificate}
        configs = self.folder / "configs"
        configs.mkdir(parents=True)
        shutil.copy(self._programs / "glog.conf", configs)
        (configs / "etcd.yaml").write_text(yaml.safe_dump(etcd))
        (configs / "milvus.yaml").write_text(yaml.safe_dump(configuration))

    def start(self) -> None:
        """Start the process; it serves some seconds later."""
        assert self._process is None
        environment = {
            **os.environ,
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(self._metrics_port),
            "MILVUS_RUN_DIR": str(self.folder / "run"),
            "LD_LIBRARY_PATH": str(self._programs / "bin"),
        }
        program = str(self._programs / "bin" / "milvus")
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", DIE_WITH_PARENT, program, "run", "standalone"],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_until_serving(self) -> None:
        from pymilvus import MilvusClient
        from pymilvus.exceptions import MilvusException

        end = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self._process is not None and self._process.poll() is None, f"the server ended; see {self.folder}/server.log"
            try:
                client = MilvusClient(uri=self.uri, token=self.token, timeout=2, dedicated=True)
                client.list_collections(timeout=2)
                return client.close()
            except MilvusException:
                assert time.monotonic() < end, f"the server does not serve; see {self.folder}/server.log"
                time.sleep(0.1)

    def make_database(self, name: str) -> None:
        from pymilvus import MilvusClient

        client = MilvusClient(uri=self.uri, token=self.token, timeout=10, dedicated=True)
        client.create_database(name)
        client.close()

    def kill(self) -> None:
        """End the process as the kernel would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Start it on the data that it left, and wait until it serves."""
        self.start()
        self.wait_until_serving()

    def pause(self) -> None:
        """Let it hang: connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
