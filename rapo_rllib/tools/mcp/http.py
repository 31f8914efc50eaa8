"""The HTTP side of a session: its client, and what the status of each response says about server and session.

A server that was started again does not know its earlier sessions and says so by a status, which the ``mcp`` package passes on
as an ordinary refusal of the call. Here it is told apart.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from rapo_rllib.services.credentials import secret_of

if TYPE_CHECKING:
    import httpx2

SESSION = "mcp-session-id"  # header of a request in a session, and of the response that begins one
# With a session in the request: 404 in the specification, 400 in several servers, 410 where one remembers.
_FORGOTTEN = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
_CONNECT_S = 30.0


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
        """A client whose responses are looked at."""
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
