"""One session with an MCP server: started, asked and ended from any thread; it runs in one thread of the process.

What the ``mcp`` package does is asynchronous; tools are called from threads. A session whose server died or hung is lost, and
says so at every later call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import mcp
import pydantic
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED

from rapo_rllib.services.credentials import secret_of
from rapo_rllib.tools.mcp.options import McpOptions

if TYPE_CHECKING:
    import httpx2

SESSION = "mcp-session-id"  # header of a request in a session, and of the response that begins one
# With a session in the request: 404 in the specification, 400 in several servers, 410 where one remembers.
_FORGOTTEN = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
_CONNECT_S = 30.0
T = TypeVar("T")
PROBE_S = 10.0  # for a server that has not answered a call to answer something else
_END_S = 10.0  # for a server to end by itself, and then to be killed
# becomes a program that ends with this process, even if it is killed
_BECOME = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python alone
    signal.signal(ignored, signal.SIG_DFL)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class HttpWatch:
    """Record of the responses of one session.

    Args:
        token_env: the variable with the token that goes with each request; None: none does.
    """

    def __init__(self, token_env: str | None) -> None:
        self._token_env = token_env
        self.has_session = False  # the server gave an id, so that it can say when it knows the session no more
        self.forgotten = ""  # how the server said that it does not know the session; empty: it did not
        self._refused = ""  # status of the last response, if it was an error

    def client(self) -> httpx2.AsyncClient:
        """Return a client whose responses are looked at."""
        import httpx2

        token = secret_of(self._token_env)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # a call has the time that its tool's limits give it, and a server that must tell its tools that of its options
        timeout = httpx2.Timeout(None, connect=_CONNECT_S)
        return httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [self.see]})

    async def see(self, response: Any) -> None:
        """Record a response."""
        status, asked = response.status_code, response.request
        said = f"HTTP {status} {response.reason_phrase}"
        self._refused = said if status >= HTTPStatus.BAD_REQUEST else ""
        self.has_session = self.has_session or SESSION in response.headers
        if SESSION in asked.headers and status in _FORGOTTEN and asked.method != "DELETE":
            self.forgotten = f"the server does not know the session any more ({said}): it was started again, or ended it"

    @property
    def problem(self) -> str:
        """The status of the last response and what to look at; empty: it was no error."""
        token = f"the server takes the token in {self._token_env}" if self._token_env else "it needs a token (mcp.token_env)"
        return self._refused and f"{self._refused}: see whether mcp.url is right (many have /mcp), and whether {token}"


class ServerLostError(Exception):
    """The server died, hung, or was never there; the session is unusable."""


class ServerHungError(ServerLostError):
    """The server answers nothing since this call, which may be the call's fault; the session is given up."""


class McpConnection:
    """A session; ``tools`` are those that the server has.

    Args:
        options: how to reach the server.
        timeout_s: until it must have told its tools.

    Raises:
        ServerLostError: it did not, and why.
    """

    def __init__(self, options: McpOptions, timeout_s: float) -> None:
        self._options = options
        self._http = HttpWatch(options.token_env)  # nothing is seen of a program
        self._needs_session = options.url is not None and options.ends_with_session
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (what a program writes to stderr, for as long as it lives)
        self._lost = ""
        self._client: Any = None
        self.users = 0  # trajectories or calls that have it; kept by ``McpServer``
        self.hung = 0  # calls that were given up
        self._unanswered: list[asyncio.Future[Any]] = []  # calls, the oldest first
        self.tools: list[mcp.Tool] = []
        self._ready, self._closing = asyncio.Event(), asyncio.Event()
        self._serving: Any = None  # the task in the loop, which ends with the program
        self._task = asyncio.run_coroutine_threadsafe(self._serve(), _loop())
        try:
            _wait(self._started(timeout_s))
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> bool:
        """Whether the connection is lost for good."""
        return bool(self._lost) or self._task.done()

    async def _serve(self) -> None:
        """Live the whole life of the session in one task, as ``mcp`` wants it."""
        self._serving = asyncio.current_task()
        try:
            # over HTTP the newest version of the protocol lacks sessions, by which a server reports lost state
            mode: Literal["legacy", "auto"] = "legacy" if self._needs_session else "auto"
            async with self._transport() as server, mcp.Client(server, mode=mode) as client:
                if self._needs_session and not self._http.has_session:
                    raise ConnectionError(
                        "it gives no session, so a restart without its state would go unnoticed: serve it with "
                        "sessions, or set mcp.state: none if its state survives restarts"
                    )
                cursor = None
                while True:
                    page = await client.list_tools(cursor=cursor)
                    self.tools += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
                self._client = client
                self._ready.set()
                await self._closing.wait()
        except BaseException as error:
            self._lost = self._lost or self._reason(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._client = None
            self._lost = self._lost or "the session has ended"
            self._ready.set()
            self._log.close()

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        options = self._options
        if options.url is None:
            become = ["-IS", "-c", _BECOME, str(os.getpid()), str(options.command), *options.args]
            program: dict[str, Any] = {"command": sys.executable, "args": become, "cwd": options.cwd}
            given = mcp.StdioServerParameters(**program, env=options.environment(), encoding_error_handler="replace")
            yield mcp.stdio_client(given, errlog=self._log)
            return
        async with self._http.client() as client:
            yield streamable_http_client(options.url, http_client=client)

    async def _started(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._ready.wait(), timeout_s)
        except TimeoutError as late:
            self._lost = self._reason(TimeoutError(f"it has not told its tools within {timeout_s:g} s"))
            raise ServerLostError(self._lost) from late
        if self._lost:
            raise ServerLostError(self._lost)

    def call(self, tool: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        """Call a tool; returns what ``mcp`` does. Takes at most ``timeout_s`` and ``PROBE_S``.

        Args:
            tool: its name.
            arguments: by name.
            timeout_s: of the call.

        Raises:
            TimeoutError: the call has no answer and was cancelled; the server answers others, and the session goes on.
            ServerLostError: the server died meanwhile or before, or was given up for an older call; its session ends.
            ServerHungError: it was given up for this call: it answers nothing at all.
            mcp.MCPError: the server refused the call.
        """
        if self.lost:
            raise ServerLostError(self._lost)
        return _wait(self._called(tool, dict(arguments), timeout_s))

    async def _called(self, tool: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        if self._client is None:
            raise ServerLostError(self._lost)
        call = asyncio.ensure_future(self._client.call_tool(tool, arguments))
        self._unanswered.append(call)
        try:
            if await self._done(call, timeout_s):
                return self._answer(call)
            await self._give_up(call, timeout_s)
        finally:
            self._unanswered.remove(call)

    async def _done(self, call: asyncio.Future[Any], timeout_s: float) -> bool:
        """Wait for an answer, as long as the session lasts; a call without one is cancelled, and the server is told."""
        await asyncio.wait([call, self._serving], timeout=timeout_s, return_when="FIRST_COMPLETED")
        return call.done() or not call.cancel()

    def _answer(self, call: asyncio.Future[Any]) -> Any:
        try:
            return call.result()
        except mcp.MCPError as error:
            if error.code != CONNECTION_CLOSED and not self._http.forgotten:
                raise
            self._lose(self._http.forgotten or "the server has died")
        except Exception as error:
            self._lose(f"the server cannot be reached: {error}")
        raise ServerLostError(self._lost)

    async def _give_up(self, call: asyncio.Future[Any], timeout_s: float) -> None:
        """Say what became of a cancelled call. Where the server answers nothing else either, the session ends."""
        why, is_oldest = f"the server has not answered within {timeout_s:.3g} s", self._unanswered[0] is call
        self.hung += 1
        if await self._answers():
            raise TimeoutError(why)
        if self._task.done():
            why, is_oldest = "the server has died", False
        is_first = not self._lost
        self._lose(why)
        raise ServerHungError(self._lost) if is_oldest and is_first else ServerLostError(self._lost)

    def answers(self) -> bool:
        """Return whether the server does, which may have died since it was asked last; takes ``PROBE_S`` at most."""
        return _wait(self._answers())

    async def _answers(self) -> bool:
        if self._client is None:
            return False
        probe = asyncio.ensure_future(self._client.list_tools(cache_mode="bypass"))
        return await self._done(probe, PROBE_S) and not probe.cancelled() and probe.exception() is None

    def _lose(self, why: str) -> None:
        self._lost = self._lost or self._reason(ConnectionError(why))
        self._closing.set()

    def _reason(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup) and error.exceptions:
            error = error.exceptions[0]
        if isinstance(error, pydantic.ValidationError):
            faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
            return f"what it says of itself is not as the protocol has it: {'; '.join(faults)}"
        said = []
        if not self._log.closed:
            self._log.seek(0)
            said = self._log.read().strip().splitlines()
        if isinstance(error, mcp.MCPError) and self._http.problem:
            return self._http.problem
        return f"{error}" + (f" (it wrote: {said[-1][:200]})" if said else "")

    def close(self) -> None:
        """End the session and its program; may be called twice, and waits until it is gone."""
        _loop().call_soon_threadsafe(self.end)
        with contextlib.suppress(Exception, CancelledError):
            self._task.result(2 * _END_S)

    def end(self) -> None:
        """Begin to end, in the thread of the sessions."""
        self._lost = self._lost or "the session has ended"
        if self._options.url is not None:  # what ends a program has deadlines, and leaves it behind if it is cancelled
            _loop().call_later(_END_S, self._task.cancel)
        if self._client is not None:
            self._closing.set()
        elif self._serving is None:
            self._task.cancel()
        elif not self._serving.cancelling():  # once: its program is ended meanwhile
            self._serving.cancel()


def end_all(connections: Sequence[McpConnection]) -> None:
    """Begin to end several, from any thread, and wait for none: garbage is collected in the thread of the sessions, too."""
    for connection in connections:
        _loop().call_soon_threadsafe(connection.end)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the one that all sessions of the process run in."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="rapo-mcp").start()
    return loop


def _wait(task: Coroutine[Any, Any, T]) -> T:
    """Wait for a task that has a deadline of its own."""
    return asyncio.run_coroutine_threadsafe(task, _loop()).result()
