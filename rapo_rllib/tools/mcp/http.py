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
        self._status = 0  # of the last response, if it was an error

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
        self._status = status if status >= HTTPStatus.BAD_REQUEST else 0
        self.has_session = self.has_session or SESSION in response.headers
        if SESSION in asked.headers and status in _FORGOTTEN and asked.method != "DELETE":
            self.forgotten = (
                f"the server does not know the session any more ({_named(status)}): it was started again, or ended it"
            )

    @property
    def problem(self) -> str:
        """The status of the last response and what to do about it; empty: it was no error."""
        if not self._status:
            return ""
        return f"{_named(self._status)}{self._advice()}"

    def _advice(self) -> str:
        if self._status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            if self._token_env is None:
                return ": name the environment variable that holds a token of the server in mcp.token_env"
            return (
                f": the server does not take the token in the environment variable {self._token_env}; set it where you "
                "start the job"
            )
        if self._status == HTTPStatus.NOT_FOUND:
            return ": no MCP server has this path; see mcp.url (many have /mcp)"
        return ""


def _named(status: int) -> str:
    names = {one.value: one.phrase for one in HTTPStatus}
    return f"HTTP {status} {names.get(status, '')}".strip()
