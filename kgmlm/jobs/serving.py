"""Serve a run over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgmlm.jobs.information import info
from kgmlm.kg import ConfigError, RunError, check_numbers
from kgmlm.packs import is_unpacked
from kgmlm.run import Run, open_run, path_of
from kgmlm.watching import Advance, Watcher, watcher_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from kgmlm.calibration import Calibration

LONGEST = 1.0  # seconds that the first query of a batch may wait for others
EXTRA = ("fastapi", "fastapi_offline", "prometheus_client", "rapidfuzz", "uvicorn")
LOCAL = ("path", "bytes")  # of `info`: what concerns the machine, not the model
UNTOLD = ("command", "hardware", "earlier")  # of training, of the model and of every signal


def service(
    run: Run | str | Path,
    *,
    token: str | None = None,
    any_host: bool = False,
    writable: bool = False,
    batch_size: int = 64,
    window: float = 0.005,
    queue: int = 1024,
    progress: bool | Watcher | Advance = False,
) -> FastAPI:
    """A run as an ASGI application, to be served by any server or mounted in another one.

    Args:
        run: a run, opened in the way in which it is to rank.
        token: what clients must send, as ``Authorization: Bearer``; None lets everybody in.
        any_host: answer under whatever name the machine is called by; False answers to its own name alone, so
            that no page of another site can ask.
        writable: whether entities may be added to the process, and whether everybody's judgments are kept
            where there is no token.
        batch_size: queries per batch.
        window: seconds that the first query of a batch waits for others.
        queue: queries that may wait; the next get 503.

    Raises:
        ConfigError: when what `pip install 'kgmlm[serve]'` installs is not there.
        RunError: when the run cannot rank.
    """
    check_numbers(batch_size=(batch_size, 1), queue=(queue, 1))
    if not (isinstance(window, int | float) and 0 <= window <= LONGEST):
        raise ConfigError(f"the window is a time from 0 to {LONGEST:g} second, not {window}")
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"serving needs {', '.join(missing)}; pip install 'kgmlm[serve]' installs all of it"
        )
    from kgmlm.serving.app import LOOPBACK, Options, create_app
    from kgmlm.serving.session import Session

    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError("a token is of printable ASCII characters without blanks")
    opened = run if isinstance(run, Run) else open_run(run)
    if opened.opened not in ("", opened.folder.made_by):  # it was trained further since
        opened.reopen()
    with watcher_of(progress) as watch:
        opened.open(watch)
        session = Session(opened, _calibration(opened, watch), batch_size)
        if session.origin.standing != "as opened":  # so nobody knows which model the rest was read for
            session.calibration = None
            watch.tell(f"{opened.path} has changed since it was opened: /classify does not answer")
    options = Options(
        token,
        None if any_host or token is not None else LOOPBACK,
        writable,
        batch_size,
        window,
        queue,
        _feedback(opened, everybody=any_host and token is None and not writable),
    )
    return create_app(session, options, _information(opened))


def serve(
    run: Run | str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    no_token: bool = False,
    writable: bool = False,
    batch_size: int = 64,
    window: float = 0.005,
    queue: int = 1024,
    log: bool = False,
    progress: bool | Watcher | Advance = True,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a run over HTTP until SIGTERM or Ctrl-C; then what is in flight is finished.

    Args:
        host: by default only this machine can ask; another one needs a token, or ``no_token``.
        port: 0 takes a free one.
        log: print each request.
        ready: called with the URL once requests are taken.

    Other arguments are those of :func:`service`.

    Raises:
        ConfigError: for an address that is taken, or open to others without a token.
        RunError: when the run cannot rank.
    """
    path = path_of(run)
    check_numbers(port=(port, 0))
    if find_spec("uvicorn") is None or find_spec("fastapi") is None:
        raise ConfigError("serving needs fastapi and uvicorn; pip install 'kgmlm[serve]' installs them")
    from kgmlm.serving.guarding import is_loopback
    from kgmlm.serving.process import address, bound, run_server

    local = is_loopback(host)
    if not local and token is None and not no_token:
        raise ConfigError(
            f"at {host} others can ask {path}; give them a --token, or say --no-token to let everybody in"
        )
    with bound(host, port) as at:
        app = service(
            run,
            token=token,
            any_host=not local,
            writable=writable,
            batch_size=batch_size,
            window=window,
            queue=queue,
            progress=progress,
        )
        run_server(app, at, lambda: ready(address(at)), "info" if log else "warning")


def _calibration(run: Run, watch: Watcher) -> Calibration | None:
    """What probabilities go by, where they were fitted to the run as it is; where not, that is told."""
    from kgmlm.probabilities import read

    how = "pack PACK --calibrate --output NEW" if is_unpacked(run.path) else f"calibrate {run.path}"
    why = f"{run.path} has no probabilities; `kgmlm {how}` fits them"
    try:
        found = read(run.folder)
    except RunError as error:
        found, why = None, str(error)
    if found is None:
        watch.tell(f"/classify does not answer: {why}")
    return found


def _feedback(run: Run, everybody: bool) -> Path | None:
    """Where judgments are written; None for packs, for folders that cannot be written, and for everybody."""
    from kgmlm.judgments import FILE
    from kgmlm.packs import is_unpacked

    folder = run.folder.path
    if everybody or is_unpacked(folder) or not os.access(folder, os.W_OK):
        return None
    return folder / FILE


def _information(run: Run) -> dict[str, Any]:
    """What `kgmlm info` says, without what concerns the machine alone."""
    told = {key: _told(value) for key, value in info(run).as_json().items() if key not in LOCAL}
    return {"run": run.path.resolve().name, **told}


def _told(value: Any) -> Any:
    """The same without what says how and where something was made; files by their names alone."""
    if isinstance(value, dict):
        return {key: _told(part) for key, part in value.items() if key not in UNTOLD}
    if isinstance(value, list):
        return [_told(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
