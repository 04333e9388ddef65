"""One process that serves: its address, its signals."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

import uvicorn
from fastapi import FastAPI

from kgmlm.kg import ConfigError

LAST_PORT = 65_535
ENDING = 30  # seconds that open requests have after SIGTERM
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address, on which nobody listens yet.

    Raises:
        ConfigError: when the address is taken, or is not this machine's.
    """
    if port > LAST_PORT:
        raise ConfigError(f"a port is a number up to {LAST_PORT:,}, not {port:,}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise ConfigError(f"there is no address {host}: {why}") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot serve at {host}:{port}: {why}; --port names another port") from None
    return made


def address(of: socket.socket) -> str:
    """The address of a socket as a URL."""
    host, port = of.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Ends by SIGTERM or Ctrl-C, after what is in flight; that is no error."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to :func:`run`."""
        return nullcontext()


@contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end a server, where this thread is told of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        server.handle_exit(number, frame)

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(app: FastAPI, at: socket.socket, ready: Callable[[], None], log_level: str = "warning") -> None:
    """Serve until SIGTERM or Ctrl-C; in a notebook until its kernel is interrupted.

    Args:
        ready: called when requests are taken.
    """
    config = uvicorn.Config(
        app,
        log_level=log_level,
        timeout_graceful_shutdown=ENDING,
        server_header=False,
        ws="none",
        access_log=log_level in ("info", "debug"),
    )
    server = _Server(config, ready)
    with _ended_by_signals(server):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            server.run(sockets=[at])
            return
        # A notebook runs its cells in a loop of its own, which this cell keeps busy.
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(server.run, sockets=[at])
            try:
                served.result()
            except BaseException:
                server.should_exit = True
                raise
