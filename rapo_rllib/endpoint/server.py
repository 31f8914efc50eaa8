"""The HTTP server of one env runner, on a thread: a base URL of its own for each trajectory, on this machine alone.

client --/{trajectory}/v1/chat/completions--> Ask --put--> the trajectory's coroutine --Ask.answer--> client
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rapo_rllib.endpoint import wire
from rapo_rllib.endpoint.conversation import Answer, Ask
from rapo_rllib.errors import RequestError

_STOP_S = 30.0
_IDLE_S = 600  # longer than clients keep an idle connection (httpx: 5 s), so that none is closed under a request
_CLIENT_GONE = 499  # status that no client reads
_OVER = "this trajectory has ended"

Put = Callable[[Ask], None]


class Endpoint:
    """Server that hands each request to the trajectory of its base URL, and the answer back."""

    def __init__(self) -> None:
        self._puts: dict[str, Put] = {}
        routes = [
            Route("/{trajectory}/v1/chat/completions", self._served, methods=["POST"]),
            Route("/{trajectory}/v1/models", self._models, methods=["GET"]),
        ]
        listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._port = listening.getsockname()[1]
        settings = uvicorn.Config(
            Starlette(routes=routes),
            log_config=None,
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=_IDLE_S,
        )
        self._server = uvicorn.Server(settings)
        arguments = {"sockets": [listening]}  # where requests wait until the server has started
        self._thread = threading.Thread(target=self._server.run, kwargs=arguments, daemon=True, name="rapo-endpoint")
        self._thread.start()

    def open(self, put: Put) -> str:
        """Return a new base URL, whose requests are handed to ``put`` on the server's thread."""
        name = secrets.token_hex(8)
        self._puts[name] = put
        return f"http://127.0.0.1:{self._port}/{name}/v1"

    def close_url(self, url: str) -> None:
        """Refuse requests to a base URL from now on."""
        self._puts.pop(url.split("/")[-2], None)

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._thread.join(_STOP_S)

    async def _models(self, request: Request) -> Response:
        return Response(wire.models(), media_type=wire.JSON)

    async def _served(self, request: Request) -> Response:
        try:
            ask, form = wire.read_chat(await request.body(), request.headers)
        except RequestError as wrong:
            return _refused(wrong)
        put = self._puts.get(request.path_params["trajectory"])
        if put is None:
            return _refused(_OVER, 410)
        put(ask)
        answer = await _answer(request, ask)
        if answer is None:
            return Response(status_code=_CLIENT_GONE)
        if isinstance(answer, RequestError):
            return _refused(answer)
        return Response(form.body(answer), media_type=form.media_type)


async def _answer(request: Request, ask: Ask) -> Answer | RequestError | None:
    """Wait for the answer to a request, or its refusal; None: the client has gone first."""
    answer, gone = asyncio.wrap_future(ask.answer), asyncio.ensure_future(_gone(request))
    either: list[asyncio.Future[Any]] = [answer, gone]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if gone.done():
        ask.client_gone = True
        answer.add_done_callback(lambda done: done.exception())  # read, or asyncio warns; a repeated request gets it, too
        return None
    gone.cancel()
    wrong = answer.exception()
    return answer.result() if wrong is None else RequestError(str(wrong))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refused(why: RequestError | str, status: int = 400) -> Response:
    return Response(wire.error(str(why), status), status, media_type=wire.JSON)
