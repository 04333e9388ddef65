"""The service: its paths, its page, who may ask, and how errors are reported."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import fastapi
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from kgmlm import __version__
from kgmlm.core.errors import KgmlmError, RunError, readable
from kgmlm.runs.feedback import Feedback, Judgment, add_judgments, read_judgments
from kgmlm.serving import schema
from kgmlm.serving.background import FactFinder, Updates, add_updates
from kgmlm.serving.batching import Batcher, ClosedError, FullError, Metrics
from kgmlm.serving.schema import MAX_BYTES
from kgmlm.serving.session import (
    AddTask,
    ClassifyTask,
    ExploreTask,
    MissingTask,
    Origin,
    Own,
    RankTask,
    Session,
    SimilarTask,
    Task,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
PATIENCE = 30  # seconds until a request must be whole
ENDING = "the service is ending"
TOO_LARGE = f"a body has at most {MAX_BYTES:,} bytes"
OPEN = {"/", "/healthz", "/openapi.json", "/docs"}  # these reveal nothing about the run
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
    """The content security policy of an answer."""
    if path == "/" or path.startswith("/page/"):
        return PAGE
    return SWAGGER if path == "/docs" else NOTHING


def _path(scope: Scope) -> str:
    """The path of a request, below where the service is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def problem(status: int, sentence: str, **headers: str) -> Response:
    """An error as the service has it: one sentence."""
    return JSONResponse({"error": sentence}, status, headers)


class Guard:
    """Lets in those who may ask, counts requests, and marks responses as data.

    Args:
        token: what ``Authorization: Bearer`` must have; None lets everybody in.
        hosts: names that the Host header may have, beside addresses that only this machine reaches; None is
            any. This keeps out pages of other sites whose names were made to resolve to this machine.
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
            if size > MAX_BYTES:  # of a body that did not tell its length
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
        if not length.isdigit() or len(length) > 18 or int(length) > MAX_BYTES:
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


FOLDER = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
REFUSED = "judgments are kept only where the run is a folder that this service may write"
MOVED = "the run's folder is no longer where this service has opened it, so judgments cannot be kept"
FAILED = "the run's folder cannot be written now, so the judgment is not kept"


class Judging:
    """The judgments of a run.

    Args:
        path: the file; None where nothing is written.
        origin: the run's folder.
    """

    def __init__(self, path: Path | None, origin: Origin) -> None:
        self.path, self.origin = path, origin
        self._lock = threading.Lock()
        judgments = Feedback([], 0) if path is None else read_judgments(path)
        self.latest = {judgment.triple: judgment for judgment in judgments.counting()}

    def add(self, judged: schema.Judged) -> Judgment:
        """Keep a judgment.

        Raises:
            RunError: when it cannot be written, or the folder is not the run's any more.
        """
        assert self.path is not None
        judgment = Judgment(**judged.model_dump(), fingerprint=self.origin.folder.scores_digest)
        with self._lock:
            if not self.origin.is_the_run:  # another run may be there, or nothing, which would be made
                raise RunError(MOVED)
            try:
                add_judgments(self.path, judgment)
            except RunError:  # its text has paths of this machine
                raise RunError(FAILED) from None
            self.latest.pop(judgment.triple, None)
            if judgment.label is not None:
                self.latest[judgment.triple] = judgment
        return judgment

    @property
    def possible(self) -> bool:
        """Whether judgments can be kept now."""
        return self.path is not None and self.origin.is_the_run

    def of(self, entity: str | None) -> list[Judgment]:
        """The judgments that count; of triples of one entity, where one is given."""
        with self._lock:
            return [
                judgment for (h, _, t), judgment in self.latest.items() if entity is None or entity in (h, t)
            ]


def add_page(app: FastAPI) -> None:
    """The page at ``/`` and what it loads."""
    kept = {
        path.name: (path.read_bytes(), KINDS[path.suffix])
        for path in FOLDER.iterdir()
        if path.suffix in KINDS
    }

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(kept["index.html"][0], media_type=kept["index.html"][1])

    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in kept:
            raise HTTPException(404)
        return Response(kept[name][0], media_type=kept[name][1])


def add_judging(app: FastAPI, session: Session, judging: Judging) -> None:
    """Add the paths that take and give judgments."""

    @app.post(
        "/feedback",
        status_code=201,
        response_model=schema.JudgmentRow,
        responses={
            403: {"model": schema.Problem, "description": REFUSED},
            409: {"model": schema.Problem, "description": MOVED},
        },
    )
    def judge(body: schema.Judged) -> Any:
        """Accept or reject an answer; it is written to the run's `feedback.jsonl`."""
        if judging.path is None:
            raise HTTPException(403, REFUSED)
        graph = session.graph  # with the entities that were added since
        for label in (body.head, body.tail):
            if graph.entities.find(label) is None:
                raise HTTPException(422, f"no entity of the run has the label '{label}'")
        if all(r.label != body.relation for r in graph.relations):
            raise HTTPException(422, f"no relation has the label '{body.relation}'")
        return judging.add(body).model_dump()

    @app.get("/feedback", response_model=schema.JudgmentsResponse)
    def judgments(
        entity: Annotated[
            str | None,
            Query(max_length=schema.LONGEST_NAME, description="Only for its triples; by its label."),
        ] = None,
    ) -> Any:
        """The judgments that count: the latest one of each triple."""
        return {"results": [judgment.model_dump() for judgment in judging.of(entity)]}


GONE = 499  # the client has left; nobody reads this
LOOPBACK = frozenset({"localhost"})  # beside its addresses


@dataclass(frozen=True)
class Options:
    """Options of a service.

    Attributes:
        token: what clients must know; None lets everybody in.
        hosts: names that clients may call the machine by; None is any.
        writable: whether entities may be added to the process.
        batch_size: queries per batch; those that candidates are asked count, too.
        window: seconds that the first query of a batch waits for others.
        bound: queries that may wait.
        feedback: where judgments are written; None takes none.
        updates: whether entities may be added to the run itself.
    """

    token: str | None = None
    hosts: frozenset[str] | None = LOOPBACK
    writable: bool = False
    batch_size: int = 64
    window: float = 0.005
    bound: int = 1024
    feedback: Path | None = None
    updates: bool = False


class _Gone(Exception):
    """The client has left."""


class Service:
    """A session behind its queue.

    Args:
        information: of ``kgmlm info``.
    """

    def __init__(self, session: Session, options: Options, information: Mapping[str, Any]) -> None:
        self.session, self.options, self.information = session, options, information
        self.metrics = Metrics()
        self.batcher: Batcher[Task, Any] = Batcher(
            session.work,
            most=options.batch_size,
            window=options.window,
            bound=options.bound,
            seen=self.metrics.seen,
        )
        self.metrics.waiting.set_function(lambda: self.batcher.size)

    async def ask(self, request: Request, task: Task) -> list[Any]:
        """The results of a task's parts, unless the client leaves before.

        Raises:
            QueryError: when it is more work than one request may ask.
            _Gone: when the client has left.
        """
        self.batcher.start()  # when this app is mounted in another, nothing else has started it
        asked = asyncio.create_task(self.batcher.ask_in_parts(self.session.parts(task)))
        left = asyncio.create_task(_left(request))
        try:
            await asyncio.wait((asked, left), return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise _Gone
            return await asked
        finally:
            asked.cancel()
            left.cancel()
            await asyncio.gather(asked, left, return_exceptions=True)

    async def ask_each(self, request: Request, task: Task) -> list[Any]:
        """A result for each query or triple of a task; errors as of :meth:`ask`."""
        return [row for part in await self.ask(request, task) for row in part]


async def _answer(model: type[BaseModel], value: Mapping[str, Any], *, unset: bool = False) -> Response:
    """A response with a model, perhaps of many megabytes, that is made outside the event loop.

    Args:
        unset: whether to write fields that the value does not have.
    """

    def written() -> str:
        return model.model_validate(value).model_dump_json(exclude_unset=not unset)

    return Response(await run_in_threadpool(written), media_type="application/json")


async def _left(request: Request) -> None:
    """Wait until the client has left; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _only_known(request: Request) -> None:
    """Refuse unknown query parameters, as bodies refuse unknown fields; the page has its own."""
    route = request.scope["route"]
    if not route.include_in_schema:
        return
    known = [str(parameter.alias) for parameter in route.dependant.query_params]
    for name in request.query_params:
        if name not in known:
            listed = f"it has {', '.join(known)}" if known else "it has none"
            raise HTTPException(422, f"{route.path} has no parameter '{name}'; {listed}")


def create_app(session: Session, options: Options, information: Mapping[str, Any]) -> FastAPI:
    """The service as an ASGI application.

    Args:
        information: of ``kgmlm info``.
    """
    service = Service(session, options, information)

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        await service.batcher.close()
        facts.close()
        updates.close()

    app = FastAPIOffline(
        docs_url="/docs",
        redoc_url=None,
        title="kgmlm",
        version=__version__,
        description="Link prediction on the graph of one run. Labels and names are data, never markup.",
        lifespan=working,
        dependencies=[
            Depends(_only_known),
            *([Depends(HTTPBearer(auto_error=False))] if options.token is not None else []),
        ],
        responses={
            code: {"model": schema.Problem, "description": text}
            for code, text in {
                401: "The token is missing or wrong.",
                413: "The body is too large.",
                422: "The request is wrong.",
                503: "Too many requests wait; Retry-After says when to come again.",
            }.items()
        },
    )
    _add_asking(app, service)
    keep = options.feedback is not None

    def is_current() -> bool:
        return session.origin.standing == "as opened"

    facts = FactFinder(session.run, keep, is_current)
    updates = Updates(session.run.folder.path if keep and options.updates else None, is_current)
    judging = Judging(options.feedback, session.origin)
    _add_exploring(app, service, facts)
    _add_reading(app, service, judging, updates)
    add_judging(app, session, judging)
    add_updates(app, session, updates)
    add_page(app)
    _add_errors(app)
    app.state.end = service.batcher.end
    app.state.is_stale = lambda: session.origin.is_stale
    app.add_middleware(Guard, metrics=service.metrics, token=options.token, hosts=options.hosts)
    return app


def _add_asking(app: FastAPI, service: Service) -> None:
    """Add the paths that the model answers, in batches."""

    @app.post("/rank", response_model=schema.RankResponse, response_model_exclude_unset=True)
    async def rank(request: Request, body: schema.RankRequest) -> Any:
        """The best answers of queries."""
        task = RankTask(body.queries, body.k, body.novel, own=Own(body.entities))
        return await _answer(schema.RankResponse, {"results": await service.ask_each(request, task)})

    @app.post("/explain", response_model=schema.ExplainResponse)
    async def explain(request: Request, body: schema.RankRequest) -> Any:
        """The best answers of queries, with what each score is made of."""
        task = RankTask(body.queries, body.k, body.novel, explain=True, own=Own(body.entities))
        results = await service.ask_each(request, task)
        return await _answer(schema.ExplainResponse, {"results": results}, unset=True)

    @app.post(
        "/classify",
        response_model=schema.ClassifyResponse,
        response_model_exclude_unset=True,
        responses={409: {"model": schema.Problem, "description": "The run is not calibrated."}},
    )
    async def classify(request: Request, body: schema.ClassifyRequest) -> Any:
        """Classify triples: how probable it is that they are true; of calibrated runs (`kgmlm calibrate`)."""
        own = Own(body.entities)
        task = ClassifyTask(body.triples, body.prior, body.explain, own)
        return await _answer(schema.ClassifyResponse, {"results": await service.ask_each(request, task)})

    @app.post(
        "/entities",
        status_code=201,
        response_model=schema.AddResponse,
        responses={403: {"model": schema.Problem, "description": "The service is not writable."}},
    )
    async def add(request: Request, body: schema.AddRequest) -> Any:
        """Add entities to this process, until it ends; the run on disk stays as it is."""
        if not service.options.writable:
            raise HTTPException(403, "entities are kept only by a service that was started with --writable")
        (labels,) = await service.ask(request, AddTask(body.entities))
        return {"labels": labels, "added": len(service.session.added)}


def _add_exploring(app: FastAPI, service: Service, facts: FactFinder) -> None:
    """Add the paths that the page asks."""
    session = service.session

    @app.post("/explore", response_model=schema.ExploreResponse)
    async def explore(request: Request, body: schema.ExploreRequest) -> Any:
        """All that the page shows of one query: its text, and explained answers with their probabilities."""
        (explored,) = await service.ask(request, ExploreTask(body, Own(body.entities)))
        return await _answer(schema.ExploreResponse, explored, unset=True)

    @app.get("/new-facts", response_model=schema.NewFactsResponse)
    def new_facts(
        relation: Annotated[
            str | None, Query(max_length=schema.LONGEST_NAME, description="Only facts with it; by its label.")
        ] = None,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> Any:
        """The triples that the graph probably lacks. The first request begins to look for them, as
        `kgmlm complete` does, in a process of its own."""
        page = facts.page(relation, offset, limit)
        return page | {"facts": [session.reasoned(fact) for fact in page["facts"]]}

    @app.get("/similar", response_model=schema.SimilarResponse)
    async def similar(
        request: Request,
        entity: Annotated[str, Query(max_length=schema.LONGEST_NAME, description="Its label.")],
        k: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> Any:
        """The entities that are most like one, by their embeddings; none where it has no embedding."""
        (answer,) = await service.ask(request, SimilarTask(entity, k))
        return {"results": answer}

    @app.get("/missing", response_model=schema.MissingResponse)
    async def missing(
        request: Request,
        entity: Annotated[str, Query(max_length=schema.LONGEST_NAME, description="Its label.")],
        k: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> Any:
        """The facts that an entity probably lacks, over all relations, the most probable first."""
        (answer,) = await service.ask(request, MissingTask(entity, k))
        return {"results": answer}

    @app.post("/near", response_model=schema.NearResponse)
    def near(body: schema.NearRequest) -> Any:
        """Training triples that are like an answer of a query; no model is asked."""
        return session.near(body, body.answer)


def _add_reading(app: FastAPI, service: Service, judging: Judging, updates: Updates) -> None:
    """Add the paths that need no model."""
    session = service.session

    @app.get("/entities", response_model=schema.EntitiesResponse)
    def entities(
        q: Annotated[str, Query(max_length=schema.LONGEST_NAME, description="What was typed.")] = "",
        k: Annotated[int, Query(ge=1, le=100)] = 10,
        relation: Annotated[
            str,
            Query(
                max_length=schema.LONGEST_NAME,
                description="If nothing was typed, only entities that have this relation; its label.",
            ),
        ] = "",
        side: Annotated[Literal["head", "tail"], Query(description="Their side of the relation.")] = "head",
    ) -> Any:
        """Entities whose label, name or alias is like what was typed; without it some examples."""
        hits = session.find(q, k) if q.strip() else session.examples(relation, side, k)
        graph = session.graph
        hits_shown = [
            (graph.entities[hit.entity], hit.match) for hit in hits if hit.entity < len(graph.entities)
        ]
        return {
            "results": [
                {"label": e.label, "name": e.surface, "description": e.description, "aliases": e.aliases}
                | {"match": match}
                for e, match in hits_shown
            ]
        }

    @app.get("/relations", response_model=schema.RelationsResponse, response_model_exclude_unset=True)
    def relations(
        entity: Annotated[
            str | None,
            Query(
                max_length=schema.LONGEST_NAME, description="Its label; relations usual for it come first."
            ),
        ] = None,
        side: Annotated[Literal["head", "tail"], Query(description="The entity's side of it.")] = "head",
    ) -> Any:
        """All relations."""
        rows = [{"label": r.label, "name": r.name} for r in session.graph.relations]
        for row, n in zip(rows, session.pages.counts_R.tolist(), strict=True):
            row["triples"] = n
        if entity is None:
            for r, head in session.explorer.heads_R.items():
                rows[r]["example"] = session.graph.entities[head].label
            return {"results": rows}
        usual = session.explorer.usual(session.graph.entities.find(entity), side)
        return {"results": [rows[r] | {"share": share, "own": own} for r, share, own in usual]}

    @app.get(
        "/entity/{label:path}",
        response_model=schema.EntityResponse,
        responses={404: {"model": schema.Problem, "description": "There is no such label."}},
    )
    def entity(
        label: Annotated[str, fastapi.Path(max_length=schema.LONGEST_NAME)],
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=schema.MAX_K)] = 50,
    ) -> Any:
        """An entity by its label, and its triples page by page."""
        page = session.pages.page(session.graph, label, offset, limit)
        if page is None:
            raise HTTPException(404, f"no entity has the label '{label}'")
        return page

    @app.get("/info", response_model=schema.InfoResponse)
    def info() -> Any:
        """The run that is served."""
        example = session.explorer.example
        return {
            **service.information,
            "version": __version__,
            "stands_for": session.stands_for,
            "writable": service.options.writable,
            "folder": session.origin.standing,
            "judging": judging.possible,
            "updating": updates.possible,
            "example": example and example._asdict(),
            "what_if": session.explorer.what_ifs,
            "types": session.explorer.frequent_types,
            "added": len(session.added),
            "limits": schema.Limits(),
        }

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", response_model=schema.Health)
    async def healthz() -> Any:
        """Return whether the process answers, whatever has become of the run's folder; needs no token."""
        return schema.Health()

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_errors(app: FastAPI) -> None:
    """One sentence each."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return problem(422, readable(f"the body is no JSON: {first.get('ctx', {}).get('error', '')}"))
        if first["loc"] == ("body",):
            return problem(422, "send a JSON object as the body, with Content-Type: application/json")
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        what = str(first["msg"]).removeprefix("Value error, ")
        return problem(422, readable(f"{where}: {what}" if where else what))

    @app.exception_handler(KgmlmError)
    async def mistaken(_: Request, error: KgmlmError) -> Response:
        return problem(409 if isinstance(error, RunError) else 422, str(error))

    @app.exception_handler(FullError)
    async def full(_: Request, error: FullError) -> Response:
        return problem(503, str(error), **{"Retry-After": str(error.after)})

    @app.exception_handler(ClosedError)
    async def closed(_: Request, __: ClosedError) -> Response:
        return problem(503, ENDING, **{"Retry-After": "1"})

    @app.exception_handler(_Gone)
    async def gone(_: Request, __: _Gone) -> Response:
        return Response(status_code=GONE)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        message = {
            408: f"the request was not whole after {PATIENCE} s",
            404: f"there is no path {request.url.path}; /openapi.json lists all paths",
            405: f"{request.url.path} does not take {request.method}",
            413: TOO_LARGE,
            400: "the body is not JSON that can be read",
        }
        if error.status_code == 408:
            error.headers = {"Connection": "close"}
        own = error.detail if error.detail[:1].islower() else message.get(error.status_code, error.detail)
        return problem(error.status_code, readable(own), **dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def broken(_: Request, __: Exception) -> Response:
        return problem(500, "something is wrong in the service; its log says what")
