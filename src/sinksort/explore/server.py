"""The server: on this machine's loopback only, each page with a state of its own."""

from __future__ import annotations

import logging
import socket
import threading
import webbrowser
from collections.abc import Callable

import torch
from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.document import Document
from bokeh.server.server import Server

from .picture import solve
from .playground import Playground
from .state import DEFAULT

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
        session_token_expiration=24 * 3600,  # a laptop that slept may come back
    )


def explore(port: int, open_browser: bool, say: Callable[[str], None]) -> None:
    """Serve until interrupted."""
    logging.getLogger("bokeh").setLevel(logging.ERROR)  # its news are not for who plays
    server = make_server(port)
    solve(DEFAULT)  # what is loaded and compiled at a first call is not for who opens the page to wait for
    server.start()
    address = f"http://{HOST}:{server.port}/"
    say(address)
    if open_browser:
        threading.Timer(0.3, webbrowser.open, [address]).start()
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()


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
