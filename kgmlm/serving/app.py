"""The service: its paths, what they answer, and how mistakes are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
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

from kgmlm import __version__
from kgmlm.kg import KgmlmError, RunError, readable
from kgmlm.serving import models
from kgmlm.serving.batching import Batcher, ClosedError, FullError
from kgmlm.serving.guarding import ENDING, PATIENCE, TOO_LARGE, Guard, Metrics, problem
from kgmlm.serving.pages import Judging, add_judging, add_page
from kgmlm.serving.session import AddTask, ClassifyTask, ExploreTask, Own, RankTask, Session, Task

GONE = 499  # the client has left; nobody reads this
LOOPBACK = frozenset({"localhost"})  # beside its addresses


@dataclass(frozen=True)
class Options:
    """How a run is served.

    Attributes:
        token: what clients must know; None lets everybody in.
        hosts: names that clients may call the machine by; None is any.
        writable: whether entities may be added to the process.
        batch_size: queries per batch; those that candidates are asked count, too.
        window: seconds that the first query of a batch waits for others.
        bound: queries that may wait.
        feedback: where judgments are written; None takes none.
    """

    token: str | None = None
    hosts: frozenset[str] | None = LOOPBACK
    writable: bool = False
    batch_size: int = 64
    window: float = 0.005
    bound: int = 1024
    feedback: Path | None = None


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
        self.batcher.start()  # an application that this one is mounted in has not told it to
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
    """A response of a model, which may be of many megabytes, made beside the event loop.

    Args:
        unset: whether to write what the value does not have.
    """

    def written() -> str:
        return model.model_validate(value).model_dump_json(exclude_unset=not unset)

    return Response(await run_in_threadpool(written), media_type="application/json")


async def _left(request: Request) -> None:
    """Wait until the client has left; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _only_known(request: Request) -> None:
    """Refuse parameters that an address has not, as bodies refuse fields; the page has its own."""
    route = request.scope["route"]
    if not route.include_in_schema:
        return
    known = [str(parameter.alias) for parameter in route.dependant.query_params]
    for name in request.query_params:
        if name not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            raise HTTPException(422, f"{route.path} has no parameter '{name}'; {there}")


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
            code: {"model": models.Problem, "description": text}
            for code, text in {
                401: "The token is missing or wrong.",
                413: "The body is too large.",
                422: "The request is wrong.",
                503: "Too many requests wait; Retry-After says when to come again.",
            }.items()
        },
    )
    _add_asking(app, service)
    _add_exploring(app, service)
    judging = Judging(options.feedback, session.origin)
    _add_reading(app, service, judging)
    add_judging(app, session, judging)
    add_page(app)
    _add_errors(app)
    app.state.end = service.batcher.end
    app.add_middleware(Guard, metrics=service.metrics, token=options.token, hosts=options.hosts)
    return app


def _add_asking(app: FastAPI, service: Service) -> None:
    """What the model answers, in batches."""

    @app.post("/rank", response_model=models.RankResponse, response_model_exclude_unset=True)
    async def rank(request: Request, body: models.RankRequest) -> Any:
        """The best answers of queries."""
        task = RankTask(body.queries, body.k, body.novel, own=Own(body.entities))
        return await _answer(models.RankResponse, {"results": await service.ask_each(request, task)})

    @app.post("/explain", response_model=models.ExplainResponse)
    async def explain(request: Request, body: models.RankRequest) -> Any:
        """The best answers of queries, with what each score is made of."""
        task = RankTask(body.queries, body.k, body.novel, explain=True, own=Own(body.entities))
        results = await service.ask_each(request, task)
        return await _answer(models.ExplainResponse, {"results": results}, unset=True)

    @app.post(
        "/classify",
        response_model=models.ClassifyResponse,
        response_model_exclude_unset=True,
        responses={409: {"model": models.Problem, "description": "The run is not calibrated."}},
    )
    async def classify(request: Request, body: models.ClassifyRequest) -> Any:
        """How probable it is that triples are true; of calibrated runs (`kgmlm calibrate`)."""
        own = Own(body.entities)
        task = ClassifyTask(body.triples, body.prior, body.relation_thresholds, body.explain, own)
        return await _answer(models.ClassifyResponse, {"results": await service.ask_each(request, task)})

    @app.post(
        "/entities",
        status_code=201,
        response_model=models.AddResponse,
        responses={403: {"model": models.Problem, "description": "The service is not writable."}},
    )
    async def add(request: Request, body: models.AddRequest) -> Any:
        """Add entities to this process, until it ends; the run on disk stays as it is."""
        if not service.options.writable:
            raise HTTPException(403, "entities are kept only by a service that was started with --writable")
        (labels,) = await service.ask(request, AddTask(body.entities))
        return {"labels": labels, "added": len(service.session.added)}


def _add_exploring(app: FastAPI, service: Service) -> None:
    """What the page asks."""
    session = service.session

    @app.post("/explore", response_model=models.ExploreResponse)
    async def explore(request: Request, body: models.ExploreRequest) -> Any:
        """All that the page shows of one query: its text, and explained answers with their probabilities."""
        own = Own(body.entities)
        (found,) = await service.ask(request, ExploreTask(body, own))
        judging = session.to_judge(found, own)
        if judging is not None:
            said = await service.ask_each(request, judging)
            for row, judged in zip([*found["predictions"], *found["also"]], said, strict=True):
                row["probability"] = judged["probability"]
        return await _answer(models.ExploreResponse, found, unset=True)

    @app.post("/near", response_model=models.NearResponse)
    def near(body: models.NearRequest) -> Any:
        """Training triples that are like an answer of a query; no model is asked."""
        return session.near(body, body.answer)


def _add_reading(app: FastAPI, service: Service, judging: Judging) -> None:
    """What needs no model."""
    session = service.session

    @app.get("/entities", response_model=models.EntitiesResponse)
    def entities(
        q: Annotated[str, Query(min_length=1, max_length=models.LONGEST_NAME, description="What was typed.")],
        k: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> Any:
        """Entities whose label or name is like what was typed, as far as it was."""
        graph, hits = session.graph, session.find(q, k)
        found = [(graph.entities[hit.entity], hit.match) for hit in hits if hit.entity < len(graph.entities)]
        return {
            "results": [
                {"label": e.label, "name": e.surface, "description": e.description, "match": match}
                for e, match in found
            ]
        }

    @app.get("/relations", response_model=models.RelationsResponse, response_model_exclude_unset=True)
    def relations(
        entity: Annotated[
            str | None,
            Query(
                max_length=models.LONGEST_NAME, description="Those first that it usually has; by its label."
            ),
        ] = None,
        side: Annotated[Literal["head", "tail"], Query(description="What the entity is there.")] = "head",
    ) -> Any:
        """All relations."""
        rows = [{"label": r.label, "name": r.name} for r in session.graph.relations]
        for row, n in zip(rows, session.pages.counts_R.tolist(), strict=True):
            row["triples"] = n
        if entity is None:
            return {"results": rows}
        usual = session.explorer.usual(session.graph.entities.find(entity), side)
        return {"results": [rows[r] | {"share": share, "own": own} for r, share, own in usual]}

    @app.get(
        "/entity/{label:path}",
        response_model=models.EntityResponse,
        responses={404: {"model": models.Problem, "description": "There is no such label."}},
    )
    def entity(
        label: Annotated[str, fastapi.Path(max_length=models.LONGEST_NAME)],
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=models.MOST_K)] = 50,
    ) -> Any:
        """An entity by its label, and its triples page by page."""
        found = session.pages.page(session.graph, label, offset, limit)
        if found is None:
            raise HTTPException(404, f"no entity has the label '{label}'")
        return found

    @app.get("/info", response_model=models.InfoResponse)
    def info() -> Any:
        """What is served."""
        example = session.explorer.example
        return {
            **service.information,
            "version": __version__,
            "calibrated": session.calibration is not None,
            "writable": service.options.writable,
            "folder": session.origin.standing,
            "judging": judging.possible,
            "example": example and example._asdict(),
            "added": len(session.added),
            "limits": models.Limits(),
        }

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", response_model=models.Health)
    async def healthz() -> Any:
        """Whether the process answers, whatever has become of the run's folder; needs no token."""
        return models.Health()

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """What Prometheus reads."""
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
        said = {
            408: f"the request was not whole after {PATIENCE} s",
            404: f"there is no path {request.url.path}; /openapi.json lists all paths",
            405: f"{request.url.path} does not take {request.method}",
            413: TOO_LARGE,
            400: "the body is not JSON that can be read",
        }
        if error.status_code == 408:
            error.headers = {"Connection": "close"}
        own = error.detail if error.detail[:1].islower() else said.get(error.status_code, error.detail)
        return problem(error.status_code, readable(own), **dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def broken(_: Request, __: Exception) -> Response:
        return problem(500, "something is wrong in the service; its log says what")
