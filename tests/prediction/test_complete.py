from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Cli, refused
from raying import sent_here

import kgmlm
from kgmlm.core import files, workers
from kgmlm.core.errors import ConfigError, DataError, KgmlmError, RunError
from kgmlm.core.progress import Watcher
from kgmlm.core.results import Outcome
from kgmlm.graphs.queries import triple_keys
from kgmlm.prediction import candidates, complete
from kgmlm.prediction.calibration import drop_calibration
from kgmlm.prediction.listing import read_list
from kgmlm.runs.opened import open_folder
from kgmlm.runs.options import RankingOptions

SMALL: dict[str, Any] = {
    "part_size": 10, "min_probability": 0.0, "progress": False, "known": ["valid"], "typed": False,
    "functional": False,
}  # fmt: skip
TIMES = ("seconds", "queries_scored", "output", "best")  # that are no part of the manifest


def completed(run: Path, output: Path, **options: Any) -> Outcome:
    return kgmlm.complete(run, output, **{**SMALL, **options})


@pytest.fixture(scope="module")
def whole(calibrated_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A list that was made in one go."""
    path = tmp_path_factory.mktemp("whole") / "new.parquet"
    return path, completed(calibrated_run, path)


def test_everything_is_asked_and_nothing_known_is_listed(
    calibrated_run: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    path, made = whole
    graph = open_folder(calibrated_run).graph
    table, manifest = read_list(path)
    assert manifest == {k: v for k, v in made.items() if k not in TIMES}
    n, r = len(graph.entities), len(graph.relations)
    index = graph.entities.index
    triples = np.array(
        [
            (index[row["head"]], graph.relations.index[row["relation"]], index[row["tail"]])
            for row in table.select(["head", "relation", "tail"]).to_pylist()
        ]
    )
    keys = triple_keys(triples, n, r)
    assert len(set(keys.tolist())) == len(keys) == made["listed"] > 100
    for split in ("train", "valid"):
        assert not np.isin(triple_keys(graph.splits[split], n, r), keys).any()
    assert np.isin(triple_keys(graph.splits["test"], n, r), keys).any()
    probability = table.column("probability").to_numpy()
    assert (np.diff(probability) <= 0).all()
    assert ((probability > 0) & (probability < 1)).all()
    # The same triples as by asking the run itself.
    run = kgmlm.open_run(calibrated_run, rerank=0)
    row = next(x for x in table.to_pylist() if x["tail_score"] is not None)
    ranked = run.rank(head=row["head"], relation=row["relation"], k=100)
    (result,) = ranked[ranked["tail_label"] == row["tail"]].to_dict("records")
    assert result["score"] == pytest.approx(row["tail_score"], abs=1e-4)


@pytest.mark.parametrize("after", [0, 1, 3, 7])
def test_a_list_cut_short_goes_on_to_the_same_bytes(
    calibrated_run: Path,
    whole: tuple[Path, dict[str, Any]],
    after: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, made = whole
    new, write = tmp_path / "new.parquet", candidates.Parts.write
    written: list[int] = []

    def killed(self: candidates.Parts, number: int, table: pa.Table) -> None:
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(number)
        write(self, number, table)

    monkeypatch.setattr(candidates.Parts, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        completed(calibrated_run, new)
    monkeypatch.undo()
    assert not new.exists()
    again = completed(calibrated_run, new)
    assert again["queries_scored"] == made["queries"] - 10 * after
    assert new.read_bytes() == path.read_bytes()


def test_shards_joined_are_the_whole(
    calibrated_run: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path, made = whole
    missing = -(-made["queries"] // 10)
    for shard in ("2/3", "1/3", "2/3"):
        completion = completed(calibrated_run, tmp_path / "new.parquet", shard=shard)
        assert completion["parts"] == -(-made["queries"] // 10)
        assert completion["missing"] < missing or shard == "2/3"
        missing = completion["missing"]
        assert not (tmp_path / "new.parquet").exists()
    elsewhere = tmp_path / "elsewhere" / "new.parquet"  # as on a machine without a shared disk
    elsewhere.parent.mkdir()
    completed(calibrated_run, elsewhere, shard="3/3")
    shutil.copytree(f"{elsewhere}.parts", tmp_path / "new.parquet.parts", dirs_exist_ok=True)
    assert completed(calibrated_run, tmp_path / "new.parquet")["queries_scored"] == 0
    assert (tmp_path / "new.parquet").read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_a_killed_process_leaves_whole_parts(
    calibrated_run: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    new = tmp_path / "new.parquet"
    arguments = [
        "complete",
        str(calibrated_run),
        "--output",
        str(new),
        "--part-size",
        "10",
        "--known",
        "valid",
        "-q",
        "--no-typed",
        "--no-functional",
    ]
    arguments += ["--min-probability", "0"]
    process = subprocess.Popen([sys.executable, "-m", "kgmlm", *arguments], env={**os.environ})
    while not list(tmp_path.glob("new.parquet.parts/part-*")) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    completed(calibrated_run, new)
    assert new.read_bytes() == whole[0].read_bytes()


def test_another_probability_scores_nothing_again(calibrated_run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.parquet"
    first = completed(calibrated_run, new)
    least = read_list(new)[0].column("probability")[20].as_py()
    fewer = completed(calibrated_run, new, min_probability=least)
    assert fewer["queries_scored"] == 0
    assert 20 < fewer["listed"] < first["listed"]
    assert fewer["probabilities"] == first["probabilities"]


def test_types_and_relations_say_what_is_asked(calibrated_run: Path, tmp_path: Path) -> None:
    graph = open_folder(calibrated_run).graph
    relation = graph.relations[int(graph.splits["valid"][0, 1])]
    completed(calibrated_run, tmp_path / "some", relations=[relation.name])
    table, manifest = read_list(tmp_path / "some")
    assert set(table.column("relation").to_pylist()) == {relation.label}
    assert manifest["relations"] == [relation.label]
    # So few triples forbid nothing: with types, everybody is asked about everything.
    for options in ({"typed": True}, {"typed": True, "functional": True}):
        made = completed(calibrated_run, tmp_path / "-".join(options), **options)
        assert made["queries"] == len(graph.entities) * len(graph.relations) * 2 > 76
        assert made["listed"] > 0


def test_a_hidden_split_is_reported(calibrated_run: Path, tmp_path: Path) -> None:
    made = completed(calibrated_run, tmp_path / "new", report="test", top=40)
    graph = open_folder(calibrated_run).graph
    listed = read_list(tmp_path / "new")[0].select(["head", "relation", "tail"]).to_pylist()
    hidden = set(graph.labeled(graph.splits["test"]))
    rows = [tuple(row.values()) in hidden for row in listed]
    report = made["report"]
    assert report["found"] == sum(rows) > 0
    row = report["best"][1]
    assert (row["listed"], row["true"]) == (100, sum(rows[:100]))
    assert row["precision"] == sum(rows[:100]) / 100
    assert row["recall"] == sum(rows[:100]) / len(hidden)


def test_what_does_not_go_is_refused_before_anything_is_made(calibrated_run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.parquet"
    refusals: list[tuple[dict[str, Any], type[KgmlmError], str]] = [
        ({"report": "test", "known": None}, ConfigError, "--known train,valid"),
        ({"report": "valid"}, ConfigError, "leave it out"),
        ({"known": ["dev"]}, DataError, "no split 'dev'"),
        ({"known": "dev"}, DataError, "no split 'dev'"),
        ({"sample": -5}, ConfigError, "--sample"),
        ({"part_size": 0}, ConfigError, "--part-size"),
        ({"shard": "4/3"}, ConfigError, "3/16"),
        ({"relations": ["loves"]}, KgmlmError, "loves"),
        ({"min_probability": 2.0}, ConfigError, "from 0 to 1"),
        ({"scores": "kge"}, ConfigError, "no KGE"),
    ]
    for options, kind, words in refusals:
        with pytest.raises(kind, match=words):
            completed(calibrated_run, new, **options)
        assert not new.exists()
        shutil.rmtree(f"{new}.parts", ignore_errors=True)
    with pytest.raises(DataError, match="is a folder"):
        completed(calibrated_run, tmp_path)
    with pytest.raises(ConfigError, match=r"new.nt does not end in .parquet, .csv or .tsv; `kgmlm export`"):
        completed(calibrated_run, tmp_path / "new.nt")


def test_only_a_list_is_replaced(
    calibrated_run: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(RunError, match="exists and is no list of new triples; choose another --output"):
        completed(calibrated_run, notes)
    assert notes.read_text() == "mine"
    new = tmp_path / "new.parquet"
    shutil.copy(whole[0], new)
    with pytest.raises(DataError, match="is the list itself"):
        kgmlm.export(new, tmp_path / "." / "new.parquet", format="csv")
    with pytest.raises(DataError, match="`complete` wrote is a path, not a DataFrame"):
        kgmlm.export(read_list(new)[0].to_pandas(), tmp_path / "new.csv")
    assert len(read_list(new)[0]) == len(read_list(whole[0])[0])


def test_one_relation_may_be_named_alone(calibrated_run: Path, tmp_path: Path) -> None:
    graph = open_folder(calibrated_run).graph
    name = graph.relations[int(graph.triples("valid")[0, 1])].name
    one, listed = (
        completed(calibrated_run, tmp_path / f"{n}.parquet", relations=relations)
        for n, relations in enumerate((name, [name]))
    )
    assert one["listed"] == listed["listed"] > 0


def test_the_parts_of_another_run_are_refused(calibrated_run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.parquet"
    completed(calibrated_run, new, shard="1/8")
    before = sorted((p.name, p.read_bytes()) for p in Path(f"{new}.parts").iterdir())
    other = tmp_path / "other"
    shutil.copytree(calibrated_run, other)
    weights = json.loads((other / "model" / "mixture.json").read_text())
    weights["signals"]["likelihood"]["average"] = 0.5
    (other / "model" / "mixture.json").write_text(json.dumps(weights))
    for run, options, words in (
        (other, {}, r"\(run\)"),
        (calibrated_run, {"top": 3}, r"\(top\)"),
        (calibrated_run, {"functional": True, "batch_size": 5}, r"\(batch_size, functional\)"),
    ):
        with pytest.raises(RunError, match=words):
            completed(run, new, **options)
    assert sorted((p.name, p.read_bytes()) for p in Path(f"{new}.parts").iterdir()) == before


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    calibrated_run: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new.parquet"
    write = files.write_parquet

    def full(path: Path, table: pa.Table, **options: Any) -> None:
        if path.name == "part-0000004.parquet":
            raise OSError(28, "No space left on device", str(path))
        write(path, table, **options)

    monkeypatch.setattr(files, "write_parquet", full)
    with pytest.raises(OSError, match="No space left") as error:
        completed(calibrated_run, new)
    assert error.value.filename.endswith("part-0000004.parquet")
    names = sorted(p.name for p in Path(f"{new}.parts").iterdir())
    assert names == ["manifest.json", *(f"part-000000{i}.parquet" for i in range(4))]
    monkeypatch.undo()
    completed(calibrated_run, new)
    assert new.read_bytes() == whole[0].read_bytes()


def test_a_worker_that_does_not_see_the_parts_says_so(calibrated_run: Path, tmp_path: Path) -> None:
    """As on a machine without the shared disk; it makes no folder of its own there."""
    way = RankingOptions(device="cpu")
    plan = complete.Plan(calibrated_run, tmp_path / "new.parts", way, 10, ("train", "valid"), None, 64, 10)
    with pytest.raises(RunError, match=r"is not seen on .* storage that all machines share"):
        plan.sent().begin(Watcher())
    assert not plan.folder.exists()
    assert plan.parts.count == 8
    make = plan.sent().begin(Watcher())
    assert make(3, lambda n: None) == 10
    before = plan.parts.path(3).stat().st_mtime_ns
    assert make(3, lambda n: None) == 10
    assert plan.parts.path(3).stat().st_mtime_ns == before, "it is there already"


def test_the_run_of_a_pack_is_what_workers_open(
    calibrated_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path / "cache"))
    file = kgmlm.pack(calibrated_run, tmp_path / "toy.kgmlm", progress=False)
    monkeypatch.setattr(workers, "made_on_ray", sent_here)
    monkeypatch.setattr(workers, "find_spec", lambda name: object())
    made = completed(file, tmp_path / "new", ray="local", workers=2)
    assert made["made_by"] == str(file)
    assert made["listed"] > 10


def test_a_graph_without_validation_is_refused(
    calibrated_run: Path, tmp_path: Path, toy: kgmlm.KnowledgeGraph
) -> None:
    bare = replace(toy, splits={"train": toy.splits["train"]})
    with pytest.raises(DataError, match="no split 'valid'"):
        complete._known(bare, None, None)


def test_the_command(
    cli: Cli,
    calibrated_run: Path,
    whole: tuple[Path, dict[str, Any]],
    tmp_path: Path,
) -> None:
    new = tmp_path / "new.parquet"
    options = ("--known", "valid", "--min-probability", "0", "--part-size", "10", "--report", "test")
    plain = ("--no-typed", "--no-functional")
    arguments = ("complete", calibrated_run, "--output", new, *options, *plain)
    done = cli(*arguments, "--shard", "1/2", "-q")
    assert done.returncode == 0, done.stderr
    assert "4 of 8 parts are missing" in done.stdout
    done = cli(*arguments, "--json", "-q")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["report"]["split"] == "test"
    assert "4 of 8 parts are there" in done.stderr
    done = cli(*arguments, "-q")
    assert f"best {made['report']['best'][0]['listed']:,} " in done.stdout
    assert f"{made['listed']} triples" in done.stdout
    a, b = (read_list(path)[0] for path in (new, whole[0]))
    assert a.to_pylist() == b.to_pylist()
    done = cli("export", new, "--output", tmp_path / "new.csv", "--min-probability", "0")
    assert f"{made['listed']} triples as csv" in done.stdout
    assert len((tmp_path / "new.csv").read_text("utf-8").splitlines()) == made["listed"] + 1
    done = cli("export", new, "--output", tmp_path / "neo", "--format", "neo4j", "--json")
    assert json.loads(done.stdout)["triples"] == made["listed"]
    refused(cli("export", new, "--output", tmp_path / "x"), "--format names one of")
    refused(
        cli("export", calibrated_run / "run.json", "--output", tmp_path / "x.nt"), "cannot be read as Parquet"
    )
    refused(cli(*arguments, "--top", "3", "-q"), "another run or of other settings (top)")
    refused(cli(*arguments[:-2], "--report", "valid", "-q"), "valid is known")


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_list_is_a_table_where_its_name_says_so(calibrated_run: Path, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"new{suffix}"
    made = completed(calibrated_run, target)
    completed(calibrated_run, tmp_path / "new.parquet")
    expected, _ = read_list(tmp_path / "new.parquet")
    table = pd.read_csv(target, sep="\t" if suffix == ".tsv" else ",", keep_default_na=False)
    assert list(table.columns) == expected.column_names
    assert table["head"].tolist() == expected.column("head").to_pylist()
    assert table["probability"].to_numpy() == pytest.approx(expected.column("probability").to_numpy())
    assert made["listed"] == len(table)
    assert completed(calibrated_run, target)["listed"] == len(table), "it replaces its own list"
    other = tmp_path / f"other{suffix}"
    other.write_text("head,relation\n")
    with pytest.raises(RunError, match="is no list of new triples"):
        completed(calibrated_run, other)


def test_the_best_triples_come_with_names_and_the_highest_probability(
    calibrated_run: Path, tmp_path: Path
) -> None:
    made = completed(calibrated_run, tmp_path / "new.parquet")
    table, manifest = read_list(tmp_path / "new.parquet")
    assert [row["probability"] for row in made["best"]] == table.column("probability").to_pylist()[:10]
    assert made["best"][0]["head_name"] == table.column("head_name")[0].as_py()
    assert all("because" in row for row in made["best"])
    assert "best" not in manifest
    assert made["highest"] == manifest["highest"] == made["best"][0]["probability"]
    none = completed(calibrated_run, tmp_path / "new.parquet", min_probability=1.0)
    assert none["listed"] == 0
    assert none["best"] == []
    assert none["highest"] == made["highest"]


def test_one_relation_has_the_probabilities_of_all(
    calibrated_run: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    graph = open_folder(calibrated_run).graph
    every = read_list(whole[0])[0].to_pylist()
    validated = graph.splits["valid"][:, 1]
    rare = next(r.label for i, r in enumerate(graph.relations) if i not in validated)
    for label in (rare, graph.relations[int(validated[0])].label):
        completed(calibrated_run, tmp_path / label, relations=[label])
        own = read_list(tmp_path / label)[0].to_pylist()
        expected = [row for row in every if row["relation"] == label]
        assert own != []
        for row, other in zip(own, expected, strict=True):
            assert (row["head"], row["tail"]) == (other["head"], other["tail"])
            assert row["probability"] == pytest.approx(other["probability"], abs=1e-5)


def test_too_few_for_probabilities_list_the_clearest_answer_of_each_question(
    calibrated_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrated_run = shutil.copytree(calibrated_run, tmp_path / "run")
    drop_calibration(open_folder(calibrated_run))
    made = kgmlm.complete(calibrated_run, tmp_path / "new.parquet", known=["valid"], report="test")
    assert "probabilities need at least 20 validation triples" in capsys.readouterr().err
    table, manifest = read_list(tmp_path / "new.parquet")
    assert (manifest["probabilities"]["fitted"], made["best"][0]["probability"]) == (False, None)
    assert 0 < len(table) <= made["queries"]
    assert table.column("probability").null_count == len(table)
    rows = table.to_pylist()
    assert all(1 in (row["tail_rank"], row["head_rank"]) for row in rows), "the best answer of a question"
    asked = [(row["head"], row["relation"]) for row in rows if row["tail_rank"] == 1]
    assert len(asked) == len(set(asked)), "one answer of each question"
    for name in ("new.nt", "new.trig", "new.csv", "new.jsonl"):
        kgmlm.export(
            tmp_path / "new.parquet", tmp_path / name, format="rdf-star" if name == "new.nt" else None
        )
    assert "None" not in (tmp_path / "new.trig").read_text()
    assert len(read_list(tmp_path / "new.csv")[0]) == len(table)
    kgmlm.complete(calibrated_run, tmp_path / "tail.csv", known=["valid"], progress=False)
    kgmlm.export(tmp_path / "tail.csv", tmp_path / "tail.nt")
    assert (tmp_path / "tail.nt").stat().st_size > 0


def test_a_reason_is_written_with_each_triple(calibrated_run: Path, tmp_path: Path) -> None:
    made = completed(calibrated_run, tmp_path / "new.csv", explain=True)
    table, _ = read_list(tmp_path / "new.csv")
    reasons = table.column("because").to_pylist()
    assert [row["because"] for row in made["best"]] == reasons[:10]
    assert any(reasons)
    kgmlm.export(tmp_path / "new.csv", tmp_path / "new.nt")


def test_a_diverse_list_has_the_same_triples(
    calibrated_run: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    made = completed(calibrated_run, tmp_path / "new.parquet", diverse=True)
    assert made["diverse"]
    rows, every = (read_list(path)[0].to_pylist() for path in (tmp_path / "new.parquet", whole[0]))
    assert rows != every
    assert sorted(map(repr, rows)) == sorted(map(repr, every))


def test_a_list_is_never_empty_by_default(calibrated_run: Path, tmp_path: Path) -> None:
    every = completed(calibrated_run, tmp_path / "every")["listed"]
    made = completed(calibrated_run, tmp_path / "new", min_probability=None)
    assert 10 <= made["listed"] < every
    assert completed(calibrated_run, tmp_path / "new", min_probability=0.99)["listed"] == 0


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_list_shows_its_facts_and_has_all_of_them(
    calibrated_run: Path, tmp_path: Path, suffix: str
) -> None:
    made = completed(calibrated_run, tmp_path / f"new{suffix}")
    first, *facts = repr(made).splitlines()
    assert first == f"<{made['listed']} new triples in {made['output']}>"
    assert len(facts) == 10
    best = made["best"][0]
    assert facts[0].endswith(f"{best['head_name']} | {best['relation_name']} | {best['tail_name']}")
    frame = made.to_frame()
    assert len(frame) == made["listed"] > 10
    assert list(frame)[:4] == ["head_name", "relation_name", "tail_name", "probability"]
    assert best["head_name"] in made._repr_html_()
    Path(made["output"]).unlink()
    with pytest.raises(DataError, match="there is no file"):
        made.to_frame()


def test_many_queries_come_with_ways_to_ask_fewer(
    calibrated_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.prediction.complete.MANY_QUERIES", 10)
    kgmlm.complete(calibrated_run, tmp_path / "typed.csv", known=["valid"])
    assert "`--no-typed` asks only those that training has" in capsys.readouterr().err
    kgmlm.complete(calibrated_run, tmp_path / "plain.csv", known=["valid"], typed=False)
    assert "--no-typed" not in capsys.readouterr().err


def test_what_was_rejected_is_never_listed_again(calibrated_run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(calibrated_run, tmp_path / "copy")
    row = completed(copy, tmp_path / "first.parquet", min_probability=0)["best"][0]
    triple = (row["head"], row["relation"], row["tail"])
    kgmlm.update(copy, false=[triple], progress=False)
    completed(copy, tmp_path / "all.parquet", min_probability=0)
    table, _ = read_list(tmp_path / "all.parquet")
    assert triple not in set(
        zip(*(table.column(end).to_pylist() for end in ("head", "relation", "tail")), strict=True)
    )


def test_a_list_since_another_has_only_what_is_new(
    calibrated_run: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    table = read_list(whole[0])[0].to_pandas()
    (tmp_path / "lists").mkdir()
    old = tmp_path / "lists" / "old.csv"
    before = table.iloc[5:].copy()
    before.loc[before.index[0], "probability"] = 1e-9  # less than is asked for now: it is new
    before.loc[before.index[1], "head"] = "no entity of the graph"
    graph = open_folder(calibrated_run).graph
    (known,) = graph.labeled(graph.splits["train"][:1])
    before.loc[before.index[2], ["head", "relation", "tail"]] = known
    before.to_csv(old, index=False)
    least = float(table["probability"].iloc[20])
    options: dict[str, Any] = {"min_probability": least, "explain": True}
    expected = table[table["probability"] >= least]
    missing = [*range(5), *before.index[:3]]
    for since in (old, [str(old)], tmp_path / "lists"):
        output = tmp_path / "lists" / "new.parquet"
        made = completed(calibrated_run, output, since=since, **options)
        listed, manifest = read_list(output)
        columns = ["head", "relation", "tail", "probability"]
        pd.testing.assert_frame_equal(
            listed.to_pandas()[columns], expected.loc[missing][columns].reset_index(drop=True)
        )
        assert made["listed"] == len(missing) == manifest["listed"]
        # Of those with a probability that is too low now none counts as listed before.
        assert made["since"] == {
            "listed": len(expected) - 6,
            "known": 1,
            "less_probable": 0,
            "removed": 1,
        }
        assert all("because" in row for row in made["best"])
    nothing = completed(calibrated_run, tmp_path / "n.csv", since=[old, output], **options)
    assert nothing["listed"] == 0
    assert nothing["best"] == []
    with pytest.raises(DataError, match="there is no file"):
        completed(calibrated_run, tmp_path / "x.csv", since=tmp_path / "no.csv", **options)


def test_the_exit_code_says_whether_anything_is_new(calibrated_run: Path, cli: Cli, tmp_path: Path) -> None:
    first, again = tmp_path / "first.tsv", tmp_path / "again.tsv"
    command = ("complete", calibrated_run, "--known", "valid", "--min-probability", "0", "-q")
    assert cli(*command, "--output", first).returncode == 0
    result = cli(*command, "--output", again, "--since", first)
    assert result.returncode == 1
    assert "0 new triples" in result.stdout
    assert ", 0 are known now, 0 are less probable, and 0 lost an entity or a relation" in result.stdout
    few = tmp_path / "few.tsv"
    few.write_text("".join(first.read_text("utf-8").splitlines(keepends=True)[:-1]), "utf-8")
    result = cli(*command, "--output", again, "--since", few, "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["listed"] == 1
