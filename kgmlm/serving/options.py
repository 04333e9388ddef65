"""The options of serving a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgmlm.core.options import ProgressOptions, option
from kgmlm.runs.options import BatchOptions

if TYPE_CHECKING:
    from kgmlm.core.progress import Advance, Watcher


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(BatchOptions, ProgressOptions):
    """Options of a service, in this process or another one."""

    token: str | None = option(
        None,
        "What clients must send ('Authorization: Bearer TOKEN'); better set as KGMLM_TOKEN.",
        environment="KGMLM_TOKEN",
    )
    writable: bool = option(
        False,
        "Let clients add entities, which are kept until the process ends; with --no-token, write everybody's "
        "judgments to the run, too.",
    )
    window: float = option(
        5.0, "Milliseconds that the first query of a batch waits for others.", at_least=0, at_most=1000
    )
    queue: int = option(1024, "Queries that may wait; more are answered 503.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class MountedOptions(ServiceOptions):
    """Options of :func:`kgmlm.serving.serve.service`."""

    any_host: bool = option(
        False,
        "Answer under whatever name the machine is called by; else under its own name alone, so that no page "
        "of another site can ask.",
        command=None,
    )
    progress: bool | Watcher | Advance = option(False, "Show progress bars on stderr.", command=None)


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ServiceOptions):
    """Options of :func:`kgmlm.serve`."""

    port: int = option(8000, "Where it listens; 0 takes a free port.", at_least=0, at_most=65535)
    host: str = option(
        "127.0.0.1", "By default only this machine can ask; others need --token or --no-token."
    )
    no_token: bool = option(False, "Let everybody in who reaches the address.")
    watch: bool = option(False, "Open the run again when it has changed; no request is dropped.")
    log: bool = option(False, "Print each request.")
    root_path: str = option(
        "", "The path below which a proxy has the service, such as /kg, and which it takes off."
    )
    ready: Callable[[str], None] = option(
        lambda url: None, "Called with the URL once requests are taken.", command=None
    )
