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

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from kgmlm.kg import ConfigError
from kgmlm.serving.guarding import PATIENCE

LAST_PORT = 65_535
ANSWERING, LEAVING = 6, 9  # seconds that open requests, and then connections, have after SIGTERM
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


class _Patient(H11Protocol):
    """Closes a connection whose next request does not begin as a whole in time."""

    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.late is not None:
            self.late.cancel()

    def _watch(self) -> None:
        """Begin to wait for the head of a request, or stop since it is there."""
        waits = self.conn.their_state is h11.IDLE
        if waits and self.late is None:
            self.late = self.loop.call_later(PATIENCE, self.transport.close)
        elif not waits and self.late is not None:
            self.late.cancel()
            self.late = None


class Server(uvicorn.Server):
    """Ends by SIGTERM or Ctrl-C, after what is in flight; that is no error."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take requests, and say so."""
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is open, in time."""
        self.config.app.state.end(ANSWERING)  # type: ignore[union-attr]
        await super().shutdown(sockets)

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


def configured(app: FastAPI, log_level: str) -> uvicorn.Config:
    """The settings of uvicorn for an application."""
    return uvicorn.Config(
        app,
        log_level=log_level,
        timeout_graceful_shutdown=LEAVING,
        http=_Patient,
        server_header=False,
        ws="none",
        access_log=log_level in ("info", "debug"),
    )


def run_server(
    app: FastAPI, at: socket.socket, ready: Callable[[], None], log_level: str = "warning"
) -> None:
    """Serve until SIGTERM or Ctrl-C; in a notebook until its kernel is interrupted.

    Args:
        ready: called when requests are taken.
    """
    server = Server(configured(app, log_level), ready)
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
