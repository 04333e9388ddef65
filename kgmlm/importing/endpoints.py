"""SPARQL endpoints: all that a query finds, page by page, as files of N-Triples to import.

Pages are kept beside the output folder, so that an interrupted import resumes where it stopped.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from kgmlm import __version__
from kgmlm.core import files
from kgmlm.core.errors import ConfigError, DataError, first_line

ALL = "SELECT ?head ?relation ?tail WHERE { ?head ?relation ?tail }"
PAGE, MIN_PAGE = 10_000, 100  # solutions of a page: at first, and after failures
TRIES = 8  # of a page, half as large each time
WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds before the second try, doubled for each further try; at most
SECONDS = 120  # an endpoint may take this long to answer
SHIFT = 3  # solutions by which two answers about blank nodes differ
_AGAIN = (408, 429, 500, 502, 503, 504)  # answers after which it is asked again
_SELECT = re.compile(
    r"\A((?:\s|\#[^\n]*\n|PREFIX\s+\S*:\s*<[^>]*>|BASE\s+<[^>]*>)*)(SELECT\b.*)\Z", re.IGNORECASE | re.DOTALL
)
_STATE = "state.json"


def endpoint_of(given: object) -> str | None:
    """The address of an endpoint that is given as ``sparql+http://...``; None for anything else.

    >>> endpoint_of("sparql+https://example.org/sparql"), endpoint_of("graph.nt")
    ('https://example.org/sparql', None)
    """
    address = re.fullmatch(r"sparql\+(https?):/+(.+)", str(given))  # a path has lost a slash
    return f"{address[1]}://{address[2]}" if address else None


class SelectQuery(NamedTuple):
    """A query for triples: its prefixes, the rest, and the three variables that it selects."""

    prologue: str
    select: str
    variables: tuple[str, str, str]

    @classmethod
    def of(cls, query: str) -> SelectQuery:
        """Take a query apart.

        Raises:
            ConfigError: when it does not select three variables.
        """
        match = _SELECT.match(query.strip())
        head = (
            "" if match is None else re.split(r"\{|\bWHERE\b|\bFROM\b", match[2], maxsplit=1, flags=re.I)[0]
        )
        head = re.sub(r"\([^()]*\bAS\s+([?$]\w+)\s*\)", r" \1 ", head, flags=re.I)
        variables = re.findall(r"[?$](\w+)", head)
        if match is None or len(variables) != 3:
            raise ConfigError(
                "the query selects three variables, as SELECT ?head ?relation ?tail WHERE { ... } does"
            )
        return cls(match[1], match[2], (variables[0], variables[1], variables[2]))

    def page(self, size: int, offset: int) -> str:
        """The query of a page; it sorts, since endpoints need not return results in a fixed order."""
        names = " ".join(f"?{name}" for name in self.variables)
        inner = f"SELECT {names} WHERE {{ {{ {self.select} }} }}"
        return f"{self.prologue} {inner} ORDER BY {names} LIMIT {size} OFFSET {offset}"

    def blanks(self, offset: int) -> str:
        """The query of some solutions whose heads are blank nodes."""
        names = " ".join(f"?{name}" for name in self.variables)
        inner = f"{{ {self.select} }} FILTER(isBlank(?{self.variables[0]}))"
        return (
            f"{self.prologue} SELECT {names} WHERE {{ {inner} }} ORDER BY {names} LIMIT 100 OFFSET {offset}"
        )

    def counted(self) -> str:
        """The query that counts the solutions."""
        return f"{self.prologue} SELECT (COUNT(*) AS ?solutions) WHERE {{ {{ {self.select} }} }}"


class _Refused(Exception):
    """An endpoint has not answered; ``after`` are seconds that it asks to wait."""

    def __init__(self, why: str, again: bool, after: float = 0.0) -> None:
        super().__init__(why)
        self.again, self.after = again, after


def _answer(url: str, query: str) -> Any:
    """The solutions of a query, as pyoxigraph has them.

    Raises:
        _Refused: when there are none.
    """
    import pyoxigraph

    headers = {"Accept": "application/sparql-results+json", "User-Agent": f"kgmlm/{__version__}"}
    request = Request(url, urlencode({"query": query}).encode(), headers)
    try:
        with urlopen(request, timeout=SECONDS) as response:
            data = response.read()
        return pyoxigraph.parse_query_results(data, pyoxigraph.QueryResultsFormat.JSON)
    except HTTPError as error:
        body = error.read(2000).decode("utf-8", "replace").strip()
        after = error.headers.get("Retry-After", "")
        why = f"{error.code} {error.reason}" + (f": {body.splitlines()[0][:200]}" if body else "")
        raise _Refused(why, error.code in _AGAIN, float(after) if after.isdecimal() else 0.0) from None
    except (URLError, HTTPException, OSError) as error:
        raise _Refused(first_line(getattr(error, "reason", error)), True) from None
    except (SyntaxError, ValueError) as error:
        raise _Refused(f"it does not answer with JSON of SPARQL ({first_line(error)})", False) from None


class _State(NamedTuple):
    """The solutions that are fetched, their pages, and those that are no triple."""

    url: str
    query: str
    offset: int = 0
    pages: int = 0
    left_out: int = 0


def fetch(
    url: str, query: str, folder: Path, advance: Callable[[int, int], None] = lambda n, total: None
) -> list[Path]:
    """Fetch all triples that a query finds into files of N-Triples.

    A page that fails is asked for again, after a while and smaller.

    Args:
        folder: of the files; results of the same query that it has already are kept and continued.
        advance: called with (solutions that were fetched, all).

    Raises:
        ConfigError: when the query does not select three variables.
        DataError: when the endpoint does not answer.
    """
    try:
        import pyoxigraph
    except ImportError as error:
        raise DataError(f"reading RDF needs pyoxigraph ({error}): pip install 'kgmlm[rdf]'") from None
    asked, state = SelectQuery.of(query), _kept(folder, url, query)
    total = _count(url, asked)
    advance(state.offset, total)
    size, failed = PAGE, 0
    while True:
        try:
            solutions = list(_answer(url, asked.page(size, state.offset)))
        except _Refused as error:
            failed += 1
            if not error.again or failed == TRIES:
                raise DataError(f"{url} has not answered: {error}{_going_on(state)}") from None
            size = size if error.after else max(MIN_PAGE, size // 2)
            time.sleep(min(LONGEST_WAIT, max(error.after, WAIT * 2 ** (failed - 1))))
            continue
        failed = 0
        if not solutions:
            pages = [_page(folder, number) for number in range(1, state.pages + 1)]
            return [_joined(pages)] if len(pages) > 1 and _keeps_blanks(url, asked) else pages
        triples = []
        for solution in solutions:
            head, relation, tail = (solution[name] for name in asked.variables)
            fits = isinstance(head, pyoxigraph.NamedNode | pyoxigraph.BlankNode) and tail is not None
            if fits and isinstance(relation, pyoxigraph.NamedNode):
                triples.append(pyoxigraph.Triple(head, relation, tail))
        state = state._replace(
            offset=state.offset + len(solutions),
            pages=state.pages + 1,
            left_out=state.left_out + len(solutions) - len(triples),
        )
        data = pyoxigraph.serialize(triples, format=pyoxigraph.RdfFormat.N_TRIPLES)
        folder.mkdir(exist_ok=True)
        files.write_atomic(_page(folder, state.pages), data or b"")
        files.write_json(folder / _STATE, state._asdict())
        advance(len(solutions), total)


def _keeps_blanks(url: str, asked: SelectQuery) -> bool:
    """Return whether blank nodes have the same names in each answer: then they are the same in all pages.

    Many endpoints number them in each answer, from the first, so two overlapping answers are compared.
    """
    try:
        first, again = (list(_answer(url, asked.blanks(offset))) for offset in (0, SHIFT))
    except _Refused:
        return False
    heads, same = (
        [str(solution[asked.variables[0]]) for solution in solutions] for solutions in (first, again)
    )
    return len(set(heads[SHIFT:])) > 1 and heads[SHIFT:] == same[: len(heads) - SHIFT]


def _joined(pages: list[Path]) -> Path:
    """One file of all pages."""
    path = pages[0].with_name("all.nt")
    with path.open("wb") as file:
        for page in pages:
            file.write(page.read_bytes())
    return path


def _page(folder: Path, number: int) -> Path:
    return folder / f"page-{number:06}.nt"


def _going_on(state: _State) -> str:
    return f"; the same command resumes after {state.offset:,} fetched triples" if state.offset else ""


def _kept(folder: Path, url: str, query: str) -> _State:
    """The state of a folder, which is emptied if it belongs to another query."""
    fresh = _State(url, query)
    try:
        state = _State(**files.parse_json((folder / _STATE).read_bytes()))
    except (OSError, TypeError, ValueError):
        state = fresh
    if (state.url, state.query) != (url, query):
        state = fresh
    if not state.pages:
        shutil.rmtree(folder, ignore_errors=True)
    return state


def _count(url: str, asked: SelectQuery) -> int:
    """Count the solutions; 0 where the endpoint does not say.

    Raises:
        DataError: when there is no endpoint.
    """
    try:
        return int(next(iter(_answer(url, asked.counted())))["solutions"].value)
    except _Refused as error:
        if error.again:
            return 0
        raise DataError(f"{url} has not answered: {error}") from None
    except (StopIteration, KeyError, TypeError, ValueError):
        return 0
