"""One session with an MCP server. Any thread may start, call and end it; all sessions of a process run in one thread.

The ``mcp`` package is asynchronous, but tools are called from threads. If its server died or hung, a session is lost: every
later call raises ``ServerLostError``.
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
# Answers to a request in a session that the server does not know: 404 by the specification, 400 or 410 by some servers.
_FORGOTTEN = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
_CONNECT_S = 30.0
T = TypeVar("T")
PROBE_S = 10.0  # for a server that has not answered a call to answer another request
_END_S = 10.0  # for a server to end by itself, and then to be killed
# Python code that becomes the server's program, which then ends with this process even if this process is killed.
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
        token_env: environment variable of the token that goes with each request; None: there is no token.
    """

    def __init__(self, token_env: str | None) -> None:
        self._token_env = token_env
        self.has_session = False  # whether the server gave a session id, so that it can say when it has forgotten the session
        self.forgotten = ""  # how the server said that it has forgotten the session; empty: it did not
        self._refused = ""  # status of the last response, if it was an error

    def client(self) -> httpx2.AsyncClient:
        """Make a client whose responses go to :meth:`see`."""
        import httpx2

        token = secret_of(self._token_env)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # no timeout but this: a tool's limits bound its calls, and ``start_timeout_s`` bounds the listing of tools
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
        """The status of the last response and what to check; empty: it was no error."""
        token = f"the server takes the token in {self._token_env}" if self._token_env else "it needs a token (mcp.token_env)"
        return self._refused and f"{self._refused}: see whether mcp.url is right (many have /mcp), and whether {token}"


class ServerLostError(Exception):
    """The server died, hung, or was never there; the session is unusable."""


class ServerHungError(ServerLostError):
    """The server has answered nothing since this call, which may be the call's fault; the session is given up."""


class McpConnection:
    """A session with a server; ``tools`` lists the server's tools.

    Args:
        options: how to reach the server.
        timeout_s: seconds until the server must have listed its tools.

    Raises:
        ServerLostError: the server did not; the message says why.
    """

    def __init__(self, options: McpOptions, timeout_s: float) -> None:
        self._options = options
        self._http = HttpWatch(options.token_env)  # stays empty for a program, which has no HTTP
        self._needs_session = options.url is not None and options.ends_with_session
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (what a program writes to stderr, for as long as it lives)
        self._lost = ""
        self._client: Any = None
        self.users = 0  # trajectories or calls that use the session; counted by ``McpServer``
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
        """Begin, hold and end the session in one task, as ``mcp`` requires."""
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
        """Call a tool, and return the result as ``mcp`` gives it. Takes at most ``timeout_s + PROBE_S`` seconds.

        Args:
            tool: its name.
            arguments: by name.
            timeout_s: seconds until the call is cancelled.

        Raises:
            TimeoutError: no answer came, and the call was cancelled; the server answers other requests, the session goes on.
            ServerLostError: the server died before or during the call, or an older call hung it; the session ends.
            ServerHungError: the server answers nothing since this call; the session ends.
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
        """Wait for an answer while the session lasts; without one, cancel the call, tell the server, and return False."""
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
        """Raise the error of a cancelled call. If the server answers no other request either, the session ends."""
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
        """Probe whether the server answers: it may have died since its last answer. Takes ``PROBE_S`` seconds at most."""
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
        """End the session and its program, and wait until both are gone; may be called twice."""
        _loop().call_soon_threadsafe(self.end)
        with contextlib.suppress(Exception, CancelledError):
            self._task.result(2 * _END_S)

    def end(self) -> None:
        """Begin to end the session; called in the thread of the sessions."""
        self._lost = self._lost or "the session has ended"
        if self._options.url is not None:  # ending a program has its own deadlines, and cancelled it leaves one behind
            _loop().call_later(_END_S, self._task.cancel)
        if self._client is not None:
            self._closing.set()
        elif self._serving is None:
            self._task.cancel()
        elif not self._serving.cancelling():  # only once: its program is being ended
            self._serving.cancel()


def end_all(connections: Sequence[McpConnection]) -> None:
    """Begin to end several sessions, and wait for none: the garbage collector may call this in the sessions' own thread."""
    for connection in connections:
        _loop().call_soon_threadsafe(connection.end)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all sessions of the process; the first call starts its thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="rapo-mcp").start()
    return loop


def _wait(task: Coroutine[Any, Any, T]) -> T:
    """Wait for the result of a task that has a deadline of its own."""
    return asyncio.run_coroutine_threadsafe(task, _loop()).result()
