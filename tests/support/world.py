"""What code in a sandbox must not reach: files, listeners and processes of the test, one set for each attack."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from attacks import Attack

SECRET = "canary-5f0c"  # no output has it by chance
ENVIRONMENT = {"RAPO_CANARY": SECRET, "PATH": "/usr/bin:/bin"}


class Listeners:
    """Sockets of four kinds; ``arrived`` has the names that came in over any of them."""

    def __init__(self, folder: Path) -> None:
        self.arrived: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self.tcp = self._listen(socket.AF_INET, ("127.0.0.1", 0))
        self.udp = self._listen(socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM)
        self.unix = self._listen(socket.AF_UNIX, str(folder / "listener"))
        os.chmod(folder / "listener", 0o777)
        self.abstract = f"rapo-canary-{os.getpid()}-{folder.name}"
        self._listen(socket.AF_UNIX, f"\0{self.abstract}")
        self._stop, stopped = socket.socketpair()
        self._selector.register(stopped, selectors.EVENT_READ, "stop")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _listen(self, family: int, address: Any, kind: int = socket.SOCK_STREAM) -> socket.socket:
        listener = socket.socket(family, kind)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen(64)
        self._selector.register(listener, selectors.EVENT_READ, "read" if kind == socket.SOCK_DGRAM else "accept")
        return listener

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data == "stop":
                    return
                assert isinstance(key.fileobj, socket.socket)
                if key.data == "accept":
                    self._selector.register(key.fileobj.accept()[0], selectors.EVENT_READ, "read")
                else:
                    self._read(key.fileobj)

    def _read(self, source: socket.socket) -> None:
        data = source.recv(4096).decode("utf-8", "replace")
        self.arrived.add(data.split(" ")[1].removeprefix("/") if data.startswith("GET ") else data)
        if source is not self.udp:
            self._selector.unregister(source)
            source.close()

    def close(self) -> None:
        self._stop.send(b"x")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._stop.close()
        self._selector.close()


def _database() -> bytes:
    """Of SQLite, made in memory: on disk each would be waited for."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("create table t (x)")
        database.execute("insert into t values (?)", (SECRET,))
        database.commit()
        return database.serialize()


def as_user(uid: int, command: list[str]) -> list[str]:
    """Prefix a command so that it runs as ``uid``.

    Not ``Popen(user=...)``, which forks: the child of a process in which gRPC runs may abort before it is the command, and
    ``Popen`` does not notice.
    """
    if uid == os.geteuid():
        return command
    return [shutil.which("chroot") or "chroot", f"--userspec={uid}:{uid}", "--groups=", "/", *command]


class World:
    """Canaries for some attacks, which a process with the user id ``uid`` may read and change.

    Args:
        folder: that others can enter.
        attacks: those that get canaries.
        uid: whose they are.
    """

    def __init__(self, folder: Path, attacks: Iterable[Attack], uid: int) -> None:
        self.folder, self.uid, self.attacks = folder, uid, list(attacks)
        self.listeners = Listeners(folder)
        self._victims: dict[str, subprocess.Popen[bytes]] = {}
        self._database = _database()
        for number, attack in enumerate(self.attacks):
            self._set_up(attack, folder / str(number))
        self._before = {attack.name: self._state(attack) for attack in self.attacks}

    def _set_up(self, attack: Attack, folder: Path) -> None:
        folder.mkdir()
        (folder / "file").write_text(SECRET)
        (folder / f"{SECRET}-name").touch()
        (folder / "module.py").write_text(f"print({SECRET!r})")
        (folder / "database").write_bytes(self._database)
        for path in (folder, *folder.iterdir()):
            os.chown(path, self.uid, self.uid)
        if "W['victim']" in attack.code:
            self._victims[attack.name] = subprocess.Popen(as_user(self.uid, ["sleep", "600"]), env=ENVIRONMENT)

    def code(self, attack: Attack) -> str:
        """The snippet, told where things are."""
        folder = self._folder(attack)
        victim = self._victims.get(attack.name)
        told = {
            "tcp": self.listeners.tcp.getsockname(),
            "udp": self.listeners.udp.getsockname(),
            "unix": str(self.folder / "listener"),
            "abstract": self.listeners.abstract,
            "folder": str(folder),
            "file": str(folder / "file"),
            "module": str(folder / "module.py"),
            "database": str(folder / "database"),
            "victim": victim.pid if victim else 0,
        }
        return f"W, NAME = {told!r}, {self._token(attack)!r}\n{attack.code}"

    def _token(self, attack: Attack) -> str:
        return attack.name.replace(" ", "-")

    def _folder(self, attack: Attack) -> Path:
        return self.folder / str(self.attacks.index(attack))

    def _state(self, attack: Attack) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for path in sorted(self._folder(attack).iterdir()):
            about = path.lstat()
            attributes = os.listxattr(path, follow_symlinks=False)
            found.append((path.name, about.st_mode, about.st_uid, about.st_size, about.st_mtime_ns, attributes))
        return found

    def escaped(self, attack: Attack, output: str) -> bool:
        """Whether the attack reached its goal."""
        victim = self._victims.get(attack.name)
        return {
            "secret": SECRET in output,
            "canary": self._state(attack) != self._before[attack.name],
            "arrives": self._token(attack) in self.listeners.arrived,
            "victim": victim is not None and victim.poll() is not None,
            "says": "ESCAPED" in output,
        }.get(attack.goal, False)

    def close(self) -> None:
        self.listeners.close()
        for victim in self._victims.values():
            victim.kill()
            victim.wait()
