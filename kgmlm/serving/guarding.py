"""Who may ask, and what is counted: middleware around the service."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from kgmlm.serving.batching import Seen
from kgmlm.serving.models import MOST_BYTES

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PATIENCE = 30  # seconds until a request must be whole
ENDING = "the service is ending"
TOO_LARGE = f"a body has at most {MOST_BYTES:,} bytes"
OPEN = {"/", "/healthz", "/openapi.json", "/docs"}  # they tell nothing of the run
OPEN_BELOW = ("/page/", "/static-offline-docs/")
DATA = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
NOTHING = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
SWAGGER = (  # its page has a script and styles in it
    b"content-security-policy",
    b"default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; frame-ancestors 'none'",
)
PAGE = (
    b"content-security-policy",
    b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
)


def _policy(path: str) -> tuple[bytes, bytes]:
    """What a browser may load for an answer."""
    if path == "/" or path.startswith("/page/"):
        return PAGE
    return SWAGGER if path == "/docs" else NOTHING


def _path(scope: Scope) -> str:
    """What is asked for, below where the service is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def problem(status: int, sentence: str, **headers: str) -> Response:
    """An error as the service has it: one sentence."""
    return JSONResponse({"error": sentence}, status, headers)


class Metrics:
    """What Prometheus is told, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kept: dict[str, Any] = {"registry": self.registry, "namespace": "kgmlm"}
        seconds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self.requests = Counter("requests", "Requests answered.", ["path", "status"], **kept)
        self.seconds = Histogram(
            "request_seconds", "Seconds from request to answer.", ["path"], buckets=seconds, **kept
        )
        self.batches = Histogram("batch_queries", "Queries per batch.", buckets=sizes, **kept)
        self.working = Histogram("batch_seconds", "Seconds of work per batch.", buckets=seconds, **kept)
        self.dropped = Counter("dropped", "Requests whose client left before the answer.", **kept)
        self.refused = Counter("refused", "Requests refused since too many waited.", **kept)
        self.waiting = Gauge("waiting_queries", "Queries that wait.", **kept)

    @property
    def seen(self) -> Seen:
        """What a batcher tells."""
        return Seen(self._batch, self.dropped.inc, self.refused.inc)

    def _batch(self, size: int, seconds: float) -> None:
        self.batches.observe(size)
        self.working.observe(seconds)

    def text(self) -> bytes:
        """In the format that Prometheus reads."""
        return generate_latest(self.registry)


class Guard:
    """Lets in who may ask, counts, and marks what goes out as data.

    Args:
        token: what ``Authorization: Bearer`` must have; None lets everybody in.
        hosts: names that the Host header may have, beside addresses that only this machine reaches; None is
            any. A page of another site, whose name was made to lead to this machine, cannot ask then.
    """

    def __init__(
        self, app: Application, metrics: Metrics, token: str | None, hosts: frozenset[str] | None
    ) -> None:
        self.app, self.metrics, self.hosts = app, metrics, hosts
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *DATA, _policy(_path(scope))]
            await send(message)

        size, whole = 0, False
        until = asyncio.get_running_loop().time() + PATIENCE

        async def received() -> Message:
            nonlocal size, whole
            try:
                async with asyncio.timeout_at(None if whole else until):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408) from None
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > MOST_BYTES:  # of a body that did not tell its length
                raise HTTPException(413)
            return message

        try:
            refusal = self._refusal(scope)
            await (self.app if refusal is None else refusal)(scope, received, sent)
        except asyncio.CancelledError:  # the process ends, and this has taken too long
            if status == 500:
                await problem(503, ENDING)(scope, received, sent)
        finally:
            path = getattr(scope.get("route"), "path", None) or "other"
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(reversed(scope["headers"]))
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > MOST_BYTES:
            return problem(413, TOO_LARGE)
        host, path = _host(headers.get(b"host", b"")), _path(scope)
        if self.hosts is not None and host not in self.hosts and not is_loopback(host):
            return problem(
                400, "this service answers only to the name of its own machine, unless it has a --token"
            )
        if self.token is None or path in OPEN or path.startswith(OPEN_BELOW):
            return None
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if hmac.compare_digest(given.strip(), self.token) and kind.lower() == b"bearer":
            return None
        return problem(
            401, "this service needs its token, as the header 'Authorization: Bearer ...'",
            **{"WWW-Authenticate": "Bearer"},
        )  # fmt: skip


def _host(header: bytes) -> str:
    """The name of a Host header, without its port and the brackets of an address."""
    name = header.decode("latin-1").strip().lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
