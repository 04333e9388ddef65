"""Serve a run over HTTP: its address, its signals, its end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from kgmlm.core.errors import ConfigError, first_line
from kgmlm.core.options import described, takes
from kgmlm.core.progress import watcher_of
from kgmlm.runs.opened import open_folder
from kgmlm.runs.run import Run, open_run, path_of
from kgmlm.serving.app import PATIENCE
from kgmlm.serving.options import MountedOptions, ServeOptions, ServiceOptions
from kgmlm.sharing.info import info

LAST_PORT = 65_535
ANSWERING, LEAVING = 6, 9  # seconds that open requests, and then connections, have after SIGTERM
ENDING = (signal.SIGINT, signal.SIGTERM)
LOOKS = 2.0  # seconds between looks at the folder of a run that is watched
LONGEST_LOOK = 60.0  # the same, after failures
T = TypeVar("T")


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
    """Closes a connection on which the head of the next request does not arrive in time."""

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
    """Ends on SIGTERM or Ctrl-C, after requests in flight; that is not an error."""

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
    """Let SIGTERM and Ctrl-C end a server, if this thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        server.handle_exit(number, frame)

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def configured(app: FastAPI | Reloading, log_level: str, root_path: str = "") -> uvicorn.Config:
    """The settings of uvicorn for an application."""
    return uvicorn.Config(
        app,
        log_level=log_level,
        root_path=root_path,
        timeout_graceful_shutdown=LEAVING,
        http=_Patient,
        server_header=False,
        ws="none",
        access_log=log_level in ("info", "debug"),
    )


def run_server(
    app: FastAPI | Reloading,
    at: socket.socket,
    ready: Callable[[], None],
    log_level: str = "warning",
    root_path: str = "",
) -> None:
    """Serve until SIGTERM or Ctrl-C; in a notebook until its kernel is interrupted.

    Args:
        ready: called when requests are taken.
        root_path: of :func:`serve`.
    """
    server = Server(configured(app, log_level, root_path), ready)
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


class Reloading:
    """A service that opens its run again when that has changed on disk.

    The new model is opened beside the old one, so memory holds both for a while. Requests that have come are
    answered by the service that they came to.

    Args:
        first: the service of the run as it is.
        make: opens the run again, as another service.
        tell: called with a sentence when the run is open again, or cannot be opened.
        seconds: between two looks at the run's folder; after failures longer.
    """

    def __init__(
        self,
        first: FastAPI,
        make: Callable[[], FastAPI],
        tell: Callable[[str], None],
        seconds: float = LOOKS,
    ) -> None:
        self.app, self.make, self.tell, self.seconds = first, make, tell, seconds
        self._asked: Counter[int] = Counter()  # requests in flight, by service
        self._failures: list[str] = []  # why it could not be opened, since the last success

    @property
    def state(self) -> Any:
        """The state of the service that answers now."""
        return self.app.state

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request by the newest service, or begin and end with the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        app = self.app
        self._asked[id(app)] += 1
        try:
            await app(scope, receive, send)
        finally:
            self._asked[id(app)] -= 1

    async def _live(self, receive: Any, send: Any) -> None:
        """From the server's start to its end."""
        await receive()
        try:
            living = await _begun(self.app)
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": first_line(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        ending = asyncio.create_task(receive())
        while not ending.done():
            await asyncio.wait((ending,), timeout=min(LONGEST_LOOK, self.seconds * 2 ** len(self._failures)))
            if ending.done() or not await asyncio.to_thread(self.state.is_stale):
                continue
            reloading = asyncio.create_task(self._reloaded(living))
            await asyncio.wait((ending, reloading), return_when=asyncio.FIRST_COMPLETED)
            if reloading.done():
                living = reloading.result()
            else:  # the server ends; the thread that opens the run ends with the process
                reloading.cancel()
                await asyncio.gather(reloading, return_exceptions=True)
        await living.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})

    async def _reloaded(self, living: AbstractAsyncContextManager[Any]) -> AbstractAsyncContextManager[Any]:
        """Open the run again, and let the service before it end once it has answered."""
        before = self.app
        try:
            new = await _beside(self.make)
            next_living = await _begun(new)
        except Exception as error:  # for instance, memory cannot hold both
            if (failed := first_line(error)) not in self._failures:
                self.tell(f"the run has changed and cannot be opened, so the old one is served: {failed}")
            self._failures.append(failed)
            return living
        self.app, self._failures = new, []
        self.tell("the run has changed and is open again")
        while self._asked[id(before)]:
            await asyncio.sleep(self.seconds / 10)
        del self._asked[id(before)]
        await living.__aexit__(None, None, None)
        return next_living


async def _begun(app: FastAPI) -> AbstractAsyncContextManager[Any]:
    """Begin the work of a service that is served by another one."""
    living = app.router.lifespan_context(app)
    await living.__aenter__()
    return living


async def _beside(work: Callable[[], T]) -> T:
    """Work in a thread that nobody waits for when the process ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_(value)

    def run() -> None:
        try:
            outcome = future.set_result, work()
        except BaseException as error:
            outcome = future.set_exception, error  # type: ignore[assignment]
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await future


LONGEST = 1.0  # seconds that the first query of a batch may wait for others
EXTRA = ("fastapi", "fastapi_offline", "prometheus_client", "rapidfuzz", "uvicorn")
LOCAL = ("path", "bytes")  # of `info`: what concerns the machine, not the model
UNTOLD = ("command", "hardware", "earlier")  # of training, of the model and of every signal


@takes(MountedOptions)
def service(run: Run | str | Path, options: MountedOptions) -> FastAPI:
    """A run as an ASGI application, to be served by any server or mounted in another one.

    Args:
        run: a run, opened in the options in which it is to rank.

    Raises:
        ConfigError: when what `pip install 'kgmlm[serve]'` installs is not there.
        RunError: when the run cannot rank.
    """
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"serving needs {', '.join(missing)}; pip install 'kgmlm[serve]' installs all of it"
        )
    from kgmlm.serving.app import LOOPBACK, Options, create_app
    from kgmlm.serving.session import Session

    token = options.token
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError("a token is of printable ASCII characters without blanks")
    opened = run if isinstance(run, Run) else open_run(run)
    if opened.is_open and not opened.folder.is_current():  # it was trained further since
        opened.reopen()
    with watcher_of(options.progress) as watch:
        opened.open(watch)
        session = Session(opened, options.batch_size)
        if session.stands_for is None:
            how = (
                "pack PACK --calibrate --output NEW"
                if opened.folder.is_unpacked
                else f"calibrate {opened.path}"
            )
            watch.tell(f"/classify does not answer: the run has no probabilities; `kgmlm {how}` fits them")
    rules = Options(
        token,
        None if options.any_host or token is not None else LOOPBACK,
        options.writable,
        options.batch_size,
        options.window / 1000,
        options.queue,
        _feedback(opened, everybody=options.any_host and token is None and not options.writable),
        updates=options.writable or not options.any_host,
    )
    return create_app(session, rules, _information(opened))


@takes(ServeOptions)
def serve(run: Run | str | Path, options: ServeOptions) -> None:
    """Serve a run over HTTP until SIGTERM or Ctrl-C; then what is in flight is finished.

    Raises:
        ConfigError: for an address that is taken, or open to others without a token.
        RunError: when the run cannot rank.
    """
    path = path_of(run)
    if not re.fullmatch(r"(/[\w.~-]+)*/?", options.root_path, re.ASCII):
        raise ConfigError(f"the root path is a path such as /kg, not {options.root_path!r:.80}")
    if find_spec("uvicorn") is None or find_spec("fastapi") is None:
        raise ConfigError("serving needs fastapi and uvicorn; pip install 'kgmlm[serve]' installs them")
    from kgmlm.serving.app import is_loopback

    local = is_loopback(options.host)
    if not local and options.token is None and not options.no_token:
        raise ConfigError(
            f"at {options.host} others can ask {path}; give them a --token, or say --no-token to let "
            "everybody in"
        )
    asking = run.options if isinstance(run, Run) else None
    shared: dict[str, Any] = {x.name: getattr(options, x.name) for x in described(ServiceOptions)}
    quiet = shared | {"progress": False}

    def again() -> FastAPI:
        return service(Run(open_folder(path), asking), any_host=not local, **quiet)

    with bound(options.host, options.port) as at:
        made = service(run, any_host=not local, **shared)
        app = Reloading(made, again, watcher_of(options.progress).tell) if options.watch else made
        del run, made  # a run that is opened again takes the place of this one
        run_server(
            app, at, lambda: options.ready(address(at)), "info" if options.log else "warning",
            options.root_path.rstrip("/"),
        )  # fmt: skip


def _feedback(run: Run, everybody: bool) -> Path | None:
    """The file of judgments; None for packs, for folders that cannot be written, and for everybody."""
    from kgmlm.runs.feedback import FEEDBACK_FILE

    folder = run.folder.path
    if everybody or run.folder.is_unpacked or not os.access(folder, os.W_OK):
        return None
    return folder / FEEDBACK_FILE


def _information(run: Run) -> dict[str, Any]:
    """The answer of `kgmlm info`, without what concerns the machine alone."""
    about = {key: _public(value) for key, value in info(run).as_json().items() if key not in LOCAL}
    return {"run": run.path.resolve().name, **about}


def _public(value: Any) -> Any:
    """Leave out how and where something was made; name files by their names alone."""
    if isinstance(value, dict):
        return {key: _public(part) for key, part in value.items() if key not in UNTOLD}
    if isinstance(value, list):
        return [_public(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
