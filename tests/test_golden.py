"""What a run ranked and reported when it was written, it ranks and reports today.

``golden/run`` was trained on the toy graph: likelihood, vectors with offsets and weights by relation and
side, ComplEx, reverse scoring, both indexes. ``golden/answers.json`` is what commands then printed about it;
KGMLM_UPDATE_GOLDEN=1 writes that file.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kgmlm.cli.app import app

HERE = Path(__file__).parent / "golden"
ANSWERS = HERE / "answers.json"
QUERIES = "head,relation,tail\naustria,capital,\n,capital,vienna\nitaly,borders,\n,located_in,europe\n"
ASK = ("rank", "RUN", "--queries", "QUERIES", "--json", "-q")
ELSEWHERE = ("evaluate", "RUN", "--json", "-q", "--by-relation", "--graph", "OTHER")
REPORT = ("evaluate", "RUN", "--json", "-q", "--by-relation", "--pykeen")
CASES: dict[str, tuple[str, ...]] = {
    "all": (*ASK, "-k", "40"),
    "explained": (*ASK, "-k", "6", "--explain"),
    "explained, first stage": (*ASK, "-k", "4", "--explain", "--rerank", "0"),
    "novel": (*ASK, "-k", "5", "--novel"),
    "allow self": (*ASK, "-k", "40", "--allow-self"),
    "text": (*ASK, "-k", "40", "--scores", "text"),
    "text, first stage": (*ASK, "-k", "40", "--scores", "text", "--rerank", "0"),
    "likelihood": (*ASK, "-k", "6", "--scores", "likelihood", "--explain"),
    "vector": (*ASK, "-k", "40", "--scores", "vector"),
    "kge": (*ASK, "-k", "40", "--scores", "kge"),
    "entity index": (*ASK, "-k", "8", "--retrieve", "8"),
    "new entities": (*ASK, "-k", "40", "--entities", "NEW"),
    "new entities, index": (*ASK, "-k", "8", "--entities", "NEW", "--retrieve", "8"),
    "report": REPORT,
    "report, valid": (*REPORT, "--split", "valid"),
    "report, allow self": (*REPORT, "--allow-self"),
    "report, first stage": (*REPORT, "--rerank", "0"),
    "report, text": (*REPORT, "--scores", "text"),
    "report, likelihood": (*REPORT, "--scores", "likelihood"),
    "report, vector": (*REPORT, "--scores", "vector"),
    "report, kge": (*REPORT, "--scores", "kge"),
    "report, another graph": ELSEWHERE,
    "report, another graph, all": (*ELSEWHERE, "--candidates", "all"),
}  # fmt: skip
# Of a report what says how the answers ranked; the rest tells of machines, times and versions.
KEPT = ("dataset", "split", "triples", "triples_left_out", "queries", "candidates", "own_entity", "metrics",
        "breakdown", "pykeen_comparable", "retrieval", "relations")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, the queries, new entities and another graph."""
    path = tmp_path_factory.mktemp("golden")
    shutil.copytree(HERE / "run", path / "RUN")
    shutil.copy(HERE / "new.tsv", path / "NEW.tsv")
    (path / "QUERIES.csv").write_text(QUERIES)
    (path / "OTHER").mkdir()
    known = "peru\tcapital\tlima\nlima\tlocated_in\tperu\npuno\tlocated_in\tperu\n"
    (path / "OTHER/train.tsv").write_text(known)
    (path / "OTHER/test.tsv").write_text("cusco\tlocated_in\tperu\nperu\tborders\tecuador\n")
    return path


def answer(folder: Path, case: str) -> Any:
    """What a command prints, as objects."""
    places = {"RUN": "RUN", "NEW": "NEW.tsv", "QUERIES": "QUERIES.csv", "OTHER": "OTHER"}
    arguments = [str(folder / places[word]) if word in places else word for word in CASES[case]]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    if arguments[0] == "evaluate":
        report = json.loads(done.stdout)
        return {key: report[key] for key in KEPT if key in report}
    # By entity: among nearly equal scores another processor may put another first.
    answers: dict[str, Any] = {}
    for row in map(json.loads, done.stdout.splitlines()):
        asked = ", ".join(str(row.pop(name, None)) for name in ("head", "relation", "tail"))
        answers.setdefault(asked, {})[row.pop("entity")] = {k: v for k, v in row.items() if k != "rank"}
    return answers


def rounded(found: Any) -> Any:
    """The same with numbers of six digits behind the point."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return round(found, 6) if isinstance(found, float) else found


def assert_alike(found: Any, expected: Any, at: str = "") -> None:
    """The same but for the last digits of numbers."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, abs=5e-5, rel=1e-5), at
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), at
        for key, value in expected.items():
            assert_alike(found[key], value, f"{at}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), at
        for i, value in enumerate(expected):
            assert_alike(found[i], value, f"{at}[{i}]")
    else:
        assert found == expected, at


@pytest.mark.skipif("KGMLM_UPDATE_GOLDEN" not in os.environ, reason="writes golden/answers.json")
def test_update(folder: Path) -> None:
    lines = [f"{json.dumps(case)}: {json.dumps(rounded(answer(folder, case)))}" for case in CASES]
    ANSWERS.write_text("{" + ",\n".join(lines) + "}\n")


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_before(case: str, folder: Path) -> None:
    assert_alike(answer(folder, case), json.loads(ANSWERS.read_text())[case])
