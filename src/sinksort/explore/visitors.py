"""Who may talk to the playground: pages that came from it, and not too many at once.

The server listens on the loopback alone, but every page that a browser has open can send requests there. A foreign page
can even pass for one of ours: its owner lets the name of its site stand for 127.0.0.1, and the browser believes that it
talks to that site (DNS rebinding). The request then says that name as its Host. So Host must be a name of the loopback,
and the Origin of a request, if it says one, a page of this server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from bokeh.server.auth_provider import AuthProvider
from bokeh.util.token import get_session_id
from tornado.web import HTTPError, RequestHandler

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_PAGES = 50  #: open at once, or just closed: each holds a few megabytes for as long as it is open


class Visitors(AuthProvider):  # type: ignore[misc]  # which has no types
    """Asked before the page, its data or its connection is given to anybody."""

    def __init__(self, port: int) -> None:
        self._port = port
        super().__init__()

    @property
    def get_user_async(self) -> Callable[[RequestHandler], Awaitable[str]]:
        return self._admitted

    async def _admitted(self, handler: RequestHandler) -> str:
        request = handler.request
        host, origin = _place(f"//{request.headers.get('Host', '')}"), request.headers.get("Origin")
        if host is None or host[0] not in LOOPBACK:
            raise HTTPError(403, reason="The playground answers to the names 127.0.0.1 and localhost only")
        if origin is not None:
            asking = _place(origin)
            if asking is None or asking[0] not in LOOPBACK or asking[1] not in (self._port, host[1]):
                raise HTTPError(403, reason="The playground answers to its own pages only")
        context = getattr(handler, "application_context", None)
        if context is not None and len(context.sessions) >= MOST_PAGES and not _known(request.headers, context):
            raise HTTPError(503, reason=f"{MOST_PAGES} pages of the playground are open: close some, and wait a little")
        return "somebody here"

    # ---- nobody logs in: there is nothing else to ask

    @property
    def endpoints(self) -> list[tuple[str, type[RequestHandler]]]:
        return []

    @property
    def get_user(self) -> None:
        return None

    @property
    def login_url(self) -> str:
        return "/"

    @property
    def get_login_url(self) -> None:
        return None

    @property
    def login_handler(self) -> None:
        return None

    @property
    def logout_url(self) -> None:
        return None

    @property
    def logout_handler(self) -> None:
        return None


def _place(address: str) -> tuple[str, int | None] | None:
    """(name, port) of an address, as far as it has them; None if it is none."""
    try:
        parts = urlsplit(address)
        return (parts.hostname, parts.port) if parts.hostname and parts.username is None else None
    except ValueError:
        return None


def _known(headers: Any, context: Any) -> bool:
    """Whether a connection is for a page that is open already, and makes no new one."""
    _, _, token = headers.get("Sec-WebSocket-Protocol", "").partition(",")
    try:
        return get_session_id(token.strip()) in {session.id for session in context.sessions}
    except Exception:  # no token of Bokeh's, whatever it may be
        return False
