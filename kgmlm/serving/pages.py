"""The page in the browser: its files, as they lie in the package, and the judgments that it takes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from starlette.exceptions import HTTPException

from kgmlm.judgments import Feedback, Judgment, add, read
from kgmlm.kg import RunError
from kgmlm.serving import models
from kgmlm.serving.origin import Origin
from kgmlm.serving.session import Session

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
        found = Feedback([], 0) if path is None else read(path)
        self.latest = found.latest()

    def add(self, judged: models.Judged) -> Judgment:
        """Keep a judgment.

        Raises:
            RunError: when it cannot be written, or the folder is not the run's any more.
        """
        assert self.path is not None
        said = Judgment(**judged.model_dump(), fingerprint=self.origin.made_by)
        with self._lock:
            if not self.origin.is_the_run:  # another run may be there, or nothing, which would be made
                raise RunError(MOVED)
            try:
                add(self.path, said)
            except RunError:  # it names paths of this machine
                raise RunError(FAILED) from None
            self.latest.pop(said.triple, None)
            if said.label is not None:
                self.latest[said.triple] = said
        return said

    @property
    def possible(self) -> bool:
        """Whether judgments can be kept now."""
        return self.path is not None and self.origin.is_the_run

    def of(self, entity: str) -> list[Judgment]:
        """The judgments that count of triples of one entity."""
        with self._lock:
            return [said for (h, _, t), said in self.latest.items() if entity in (h, t)]


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
    """What people say of answers."""

    @app.post(
        "/feedback",
        status_code=201,
        response_model=models.JudgmentRow,
        responses={
            403: {"model": models.Problem, "description": REFUSED},
            409: {"model": models.Problem, "description": MOVED},
        },
    )
    def judge(body: models.Judged) -> Any:
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

    @app.get("/feedback", response_model=models.JudgmentsResponse)
    def judgments(
        entity: Annotated[str, Query(min_length=1, max_length=models.LONGEST_NAME)],
    ) -> Any:
        """What was said of triples of an entity, by its label."""
        return {"results": [said.model_dump() for said in judging.of(entity)]}
