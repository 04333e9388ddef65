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
        "The token that clients must send ('Authorization: Bearer TOKEN'); better set as KGMLM_TOKEN.",
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
    queue: int = option(1024, "How many queries may wait; any more get a 503.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class MountedOptions(ServiceOptions):
    """Options of :func:`kgmlm.serving.serve.service`."""

    any_host: bool = option(
        False,
        "Answer requests for any host name; otherwise only for the machine's own, so that pages of other "
        "sites cannot ask.",
        command=None,
    )
    progress: bool | Watcher | Advance = option(False, "Show progress bars on stderr.", command=None)


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ServiceOptions):
    """Options of :func:`kgmlm.serve`."""

    port: int = option(8000, "The port to listen on; 0 picks a free one.", at_least=0, at_most=65535)
    host: str = option(
        "127.0.0.1",
        "The address to listen on. By default only this machine can connect; any other address needs "
        "--token or --no-token.",
    )
    no_token: bool = option(False, "Let in everybody who can reach the address.")
    watch: bool = option(False, "Reopen the run when it changes, without dropping requests.")
    log: bool = option(False, "Print each request.")
    root_path: str = option(
        "", "The path prefix, such as /kg, under which a proxy serves it and which the proxy strips."
    )
    ready: Callable[[str], None] = option(
        lambda url: None, "Called with the URL once requests are taken.", command=None
    )
