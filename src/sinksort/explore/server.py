"""The server: on this machine's loopback only, each page with a state of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import webbrowser
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import wait

import torch
from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.document import Document
from bokeh.server.server import Server

from .picture import solve
from .playground import Playground
from .state import DEFAULT
from .visitors import Visitors

HOST = "127.0.0.1"
PORT = 5006


def page(document: Document) -> None:
    """One playground for one open page, in the state that its URL says."""
    context = document.session_context
    request = None if context is None else context.request
    given = {} if request is None else request.arguments
    Playground(document, {key: words[-1].decode("utf-8", "replace") for key, words in given.items() if words})


def make_server(port: int = PORT) -> Server:
    """A server that listens on ``port`` of the loopback (0: any that is free) and answers only to pages from there."""
    if port == 0:
        port = _free_port()
    _require_free(port)
    # A plan of 200 values is too small to share between threads, and pages are answered one after the other.
    torch.set_num_threads(1)
    names = [f"{name}:{port}" for name in (HOST, "localhost")]
    return Server(
        {"/": Application(FunctionHandler(page))},
        address=HOST,
        port=port,
        allow_websocket_origin=names,
        auth_provider=Visitors(port),
        session_token_expiration=24 * 3600,  # a laptop that slept may come back
    )


def explore(port: int, open_browser: bool, say: Callable[[str], None]) -> None:
    """Serve until interrupted.

    The server has a thread of its own. This one only waits, so that it notices Ctrl+C at once, whatever is computed or
    compiled at that moment.
    """
    for name in ("bokeh", "tornado.access"):
        logging.getLogger(name).setLevel(logging.ERROR)  # their news are not for who plays
    serving = futures.Future[None]()

    def told(address: str) -> None:
        say(address)
        if open_browser:
            webbrowser.open(address)

    thread = threading.Thread(target=_serve, args=(port, told, serving), daemon=True)
    thread.start()
    with contextlib.suppress(KeyboardInterrupt):
        while not wait([serving], timeout=0.2).done:
            pass  # some systems interrupt no longer waits
        serving.result()


def _serve(port: int, say: Callable[[str], None], serving: futures.Future[None]) -> None:
    """Serve for ever. What goes wrong becomes the result of ``serving``."""
    try:
        asyncio.set_event_loop(asyncio.new_event_loop())
        server = make_server(port)
        solve(DEFAULT)  # what is loaded and compiled at a first call is not for who opens the page to wait for
        server.start()
        server.io_loop.add_callback(say, f"http://{HOST}:{server.port}/")
        server.io_loop.start()
        serving.set_result(None)
    except BaseException as error:
        serving.set_exception(error)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _require_free(port: int) -> None:
    if not 0 < port < 65536:
        raise ValueError(f"--port must be between 1 and 65535, or 0 for any that is free, got {port}.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise OSError(
                f"port {port} cannot be used ({error.strerror}): perhaps another playground is running there; "
                "use its page, or choose another port with --port."
            ) from error
