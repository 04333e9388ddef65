from __future__ import annotations

import csv
import io
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from conftest import TINY_SETTINGS, Cli, refused
from typer.testing import CliRunner

from kgmlm.signals import SIGNALS

DATA = Path(__file__).parent.parent.parent / "data"
HEAVY = ("torch", "transformers", "pykeen", "faiss", "pandas", "accelerate", "pyarrow", "numpy")


def loaded_by(commands: Sequence[Sequence[str]], modules: Sequence[str]) -> list[list[str]]:
    """Which of the modules a process has loaded after each command, one after the other."""
    script = f"""
import sys
from kgmlm.cli.app import app
for command in {[*map(list, commands)]!r}:
    try:
        app(command)
    except SystemExit:
        pass
    print("loaded:", *(m for m in {modules!r} if m in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("loaded:")]


def test_help_loads_nothing_heavy() -> None:
    commands = (["--help"], ["train", "--help"], ["data", "--help"], ["--version"])
    assert loaded_by(commands, HEAVY) == [[]] * 4


def options() -> Iterator[tuple[str, Any, Any]]:
    """Command, option and its type, of all that take a value."""
    import typer

    from kgmlm.cli.app import app

    def visit(command: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
        for name, sub in getattr(command, "commands", {}).items():
            yield from visit(sub, f"{path} {name}".strip())
        for option in command.params:
            if hasattr(option, "type_descriptor"):
                yield path, option, option.type_descriptor.annotation

    yield from visit(typer.main.get_command(app), "")


def test_choices_are_listed_in_the_help() -> None:
    choices = {(path, o.opts[0]): set(get_args(kind)) for path, o, kind in options() if get_args(kind)}
    assert {key: result for key, result in choices.items() if not {str, Path} & result} == {
        **{(name, "--runtime"): {"auto", "torch", "onnx"} for name in ("classify", "rank", "serve")},
        **{(name, "--side"): {"both", "tail", "head"} for name in ("evaluate", "train")},
        **{(name, "--of"): {"biencoder", "vector", "kge"} for name in ("embeddings", "similar")},
        ("train", "--preset"): {"quick", "balanced", "best", "zero-shot", "plain"},
        **{(c, "--precision"): {"fp32", "bf16"}
           for c in ("evaluate", "tune", "rank", "complete", "serve")},
    }  # fmt: skip


def test_numbers_have_an_end_that_no_help_speaks_of(cli: Cli, toy_run: Path) -> None:
    asked = ("rank", toy_run, "--head", "France", "--relation", "capital")
    for option in ("-k", "--batch-size", "--rerank"):
        refused(cli(*asked, option, str(2**32)), "is not a number up to 4,294,967,295")
    for path in {path for path, option, kind in options() if kind is int}:
        assert "4294967295" not in cli(*path.split(), "--help").stdout


def test_the_help_has_each_command_in_a_group() -> None:
    from kgmlm.cli.app import GROUPS, app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    grouped = [command.__name__ for group in GROUPS.values() for command in group]
    assert sorted([*grouped, "data", "config"]) == sorted(commands)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    for group in (*GROUPS, "Data"):
        assert f"\n{group}:\n" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "..." not in shown.partition("Make:")[2], "no sentence is cut"


def test_evaluate_reports_one_object(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "test.json"
    done = cli("evaluate", toy_run, "--json", "--output", out, "--ranks", tmp_path / "r.parquet")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads(out.read_text())
    assert report["dataset"] == "toy"
    assert report["metrics"]["both.realistic.count"] == 16
    assert report["metrics"]["mrr"] == report["metrics"]["both.realistic.inverse_harmonic_mean_rank"]
    assert report["breakdown"]["unseen_position"]["any"]["count"] == 8
    assert report["run"]["sources"]
    assert (tmp_path / "r.parquet").is_file()


def test_evaluate_prints_a_table_and_takes_a_protocol(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    protocol = tmp_path / "p.toml"
    protocol.write_text('split = "valid"\ncandidates = "train"\n')
    done = cli("evaluate", toy_run, "--protocol", protocol, "--ranks", tmp_path / "r.parquet")
    assert done.returncode == 0, done.stderr
    assert "toy valid" in done.stdout
    assert "training entities" in done.stdout
    for side in ("tail", "head", "both"):
        assert side in done.stdout


def test_rank_prints_one_object_a_line(cli: Cli, toy_run: Path) -> None:
    done = cli("rank", toy_run, "--head", "France", "--relation", "capital", "-k", "3", "--json", "--explain")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert list(rows[0]) == [
        *("rank", "entity", "name", "probability", "score", "known", "parts", "tokens"),
    ]
    assert list(rows[0]["parts"]["likelihood"]) == ["weight", "value", "adds"]
    assert list(rows[0]["tokens"][0]) == ["token", "text", "id", "position", "log_likelihood"]
    assert isinstance(rows[0]["known"], bool)


def test_rank_writes_csv_and_hides_the_known(cli: Cli, toy_run: Path) -> None:
    done = cli(
        "rank", toy_run, "--tail", "Europe", "--relation", "located_in", "--csv", "--novel", "-k", "99"
    )
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {row["known"] for row in rows} == {"false"}
    assert len(rows) == 31 - 7
    assert "france" not in {row["entity"] for row in rows}


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_rank_answers_a_file_of_queries(cli: Cli, toy_run: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"queries{suffix}"
    s = "\t" if suffix == ".tsv" else ","
    path.write_text(f"head{s}relation{s}tail\nfrance{s}capital{s}\n{s}capital{s}rome\n")
    done = cli("rank", toy_run, "--queries", path, "-k", "2", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row.get("head") for row in rows] == ["france", "france", None, None]
    assert [row.get("tail") for row in rows] == [None, None, "rome", "rome"]


def test_rank_prints_a_table_for_people(cli: Cli, toy_run: Path) -> None:
    done = cli("rank", toy_run, "--head", "france", "--relation", "has the capital", "-k", "2", "--explain")
    assert done.returncode == 0
    assert "(France, has the capital, ?)" in done.stdout


def test_linearize_shows_what_the_model_sees(cli: Cli, toy_run: Path) -> None:
    for source in (toy_run, "toy"):
        done = cli("linearize", source, "--head", "france", "--relation", "capital", "--json")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        span = shown["tokens"][shown["span_start"] : shown["span_start"] + shown["span_length"]]
        assert set(span) == {"[MASK]"}
        assert shown["tokens"].count("[MASK]") == shown["span_length"]
        masks = " ".join(["[MASK]"] * shown["span_length"])
        assert shown["text"] == f"France. country in western Europe | has the capital | {masks}"
        assert len(shown["tokens"]) == len(shown["input_ids"])
    other = cli("linearize", "toy", "--tail", "paris", "--relation", "capital", "--template", "natural")
    assert "Paris, namely" in other.stdout
    of_run = ("linearize", toy_run, "--head", "france", "--relation", "capital")
    refused(cli(*of_run, "--model", "scratch"), "--model is for datasets")


def own_folder(path: Path, triples: int = 30) -> Path:
    path.mkdir()
    rows = [f"e{i}\tr{(i + j) % 2}\te{j}\n" for i in range(8) for j in range(8) if i != j]
    (path / "train.tsv").write_text("".join(rows[:triples]))
    return path


@pytest.mark.slow
def test_own_data_from_files_to_ranks(cli: Cli, tmp_path: Path) -> None:
    folder = own_folder(tmp_path / "mine", 50)
    split = cli("data", "split", folder, "--random", "--output", tmp_path / "split")
    assert split.returncode == 0, split.stderr
    done = cli(
        "train", "--dataset", tmp_path / "split", "--model", "scratch", "--output", tmp_path / "run",
        "--max-steps", "3", *TINY_SETTINGS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "max steps at step 3" in done.stderr
    assert cli("evaluate", tmp_path / "run", "-q").returncode == 0
    ranked = cli("rank", tmp_path / "run", "--head", "e1", "--relation", "r0", "--csv")
    assert ranked.stdout.startswith("rank,entity,name,probability,score,known\n")


@pytest.mark.slow
def test_a_graph_without_validation_trains_and_names_the_missing_split(cli: Cli, tmp_path: Path) -> None:
    folder = own_folder(tmp_path / "mine")
    options = ("--model", "scratch", "--output", tmp_path / "run", "--max-steps", "2", *TINY_SETTINGS)
    done = cli("train", "--dataset", folder, *options)
    assert done.returncode == 0, done.stderr
    refused(cli("evaluate", tmp_path / "run"), "no split 'test'", "kgmlm data split --random")


BAD_TRAINING = {
    "no dataset": (["--dataset", "nope", "--model", "scratch"], "neither a folder nor a built-in dataset"),
    "no model folder": (["--dataset", "toy", "--model", "./nope"], "no masked language model can be loaded"),
    "unknown setting": (
        ["--dataset", "toy", "--model", "scratch", "--set", "training.epoch=3"],
        "unknown key 'training.epoch'",
    ),
    "bad value": (
        ["--dataset", "toy", "--model", "scratch", "--set", "training.epochs=x"],
        "training.epochs",
    ),
    "no template": (
        ["--dataset", "toy", "--model", "scratch", "--set", "text.template=x"],
        "no template 'x'",
    ),
    "no config": (["--dataset", "toy", "--model", "scratch", "--config", "none.toml"], "no settings file"),
    "dataset missing": (["--model", "scratch"], "--dataset is missing"),
    "model missing": (["--dataset", "toy"], "--model is missing"),
    "nothing to resume": (["--resume"], "does not exist"),
    "span zero": (
        ["--dataset", "toy", "--model", "scratch", "--set", "scoring.span_length=0"],
        "span_length",
    ),
}


@pytest.mark.parametrize("case", BAD_TRAINING)
def test_bad_training_is_refused_and_leaves_nothing(cli: Cli, tmp_path: Path, case: str) -> None:
    arguments, message = BAD_TRAINING[case]
    refused(cli("train", *arguments, "--output", tmp_path / "run", "-q", cwd=tmp_path), message)
    assert list(tmp_path.iterdir()) == []


BAD_DATA = {
    "malformed": (b"a\tr\tb\na\tr\n", "train.tsv:2"),
    "empty": (b"", "train.tsv is empty"),
    "latin-1": (b"a\tr\tb\xff\n", "train.tsv:1: not UTF-8"),
}


@pytest.mark.parametrize("case", BAD_DATA)
@pytest.mark.parametrize("command", ["check", "train"])
def test_bad_data_is_named_with_its_line(cli: Cli, tmp_path: Path, case: str, command: str) -> None:
    data, message = BAD_DATA[case]
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.tsv").write_bytes(data)
    if command == "check":
        refused(cli("data", "check", folder), message)
    else:
        refused(
            cli("train", "--dataset", folder, "--model", "scratch", "--output", tmp_path / "run"), message
        )
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


BAD_QUERIES = {
    "unknown entity": (["--head", "Frnace", "--relation", "capital"], "did you mean"),
    "ambiguous entity": (["--head", "Georgia", "--relation", "capital"], "georgia_state"),
    "unknown relation": (["--head", "France", "--relation", "capitol"], "did you mean"),
    "no relation": (["--head", "France"], "--relation is missing"),
    "no entity": (["--relation", "capital"], "either a head"),
    "both": (["--head", "France", "--tail", "Paris", "--relation", "capital"], "either a head"),
    "two formats": (["--head", "France", "--relation", "capital", "--json", "--csv"], "exclude each other"),
    "no device": (["--head", "France", "--relation", "capital", "--device", "abacus"], "abacus"),
}


@pytest.mark.parametrize("case", BAD_QUERIES)
def test_bad_queries_are_refused(cli: Cli, toy_run: Path, case: str) -> None:
    arguments, message = BAD_QUERIES[case]
    refused(cli("rank", toy_run, *arguments), message)


def test_a_bad_line_of_queries_is_named(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "q.tsv"
    path.write_text("head\trelation\nfrance\tcapital\nfrnace\tcapital\n")
    refused(cli("rank", toy_run, "--queries", path), "q.tsv:3")
    path.write_text("france\tcapital\n")
    refused(cli("rank", toy_run, "--queries", path), "first line must name the columns")


def test_what_is_no_run_is_refused(cli: Cli, tmp_path: Path) -> None:
    for command in (["evaluate", tmp_path], ["rank", tmp_path, "--head", "a", "--relation", "b"]):
        refused(cli(*command), "is not a run folder")
    refused(cli("evaluate", tmp_path / "none"), "does not exist")


def test_a_run_in_the_way_is_not_overwritten(cli: Cli, toy_run: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in toy_run.rglob("*")}
    refused(cli("train", "--dataset", "toy", "--model", "scratch", "--output", toy_run), "--overwrite")
    again = cli("train", "--output", toy_run, "--resume")
    assert again.returncode == 0
    assert "nothing to resume" in again.stderr
    assert {p: p.stat().st_mtime_ns for p in toy_run.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("size", [1_000, 40_000])
def test_a_full_disk_is_one_sentence(tmp_path: Path, size: int) -> None:
    """A limit on file size stands in for the disk: writing fails within the graph, or the weights."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = subprocess.run(
        [
            sys.executable, "-m", "kgmlm", "train", "--dataset", "toy", "--model", "scratch",
            "--output", str(tmp_path / "run"), "-q", "--max-steps", "2", *TINY_SETTINGS,
        ],
        capture_output=True, text=True, preexec_fn=limit, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("kgmlm: ")
    assert (tmp_path / "run").exists() == (size == 40_000)
    assert not (tmp_path / "run" / "model").exists()
    assert not list(tmp_path.rglob(".*")), "nothing half-written stays behind"


def test_new_entities_are_ranked_and_asked_about(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.tsv"
    new.write_text("label\tname\tdescription\natl\tAtlantis\tlost country in the ocean\nlem\t\t\n", "utf-8")
    base = ("rank", toy_run, "--relation", "located_in", "--entities", new, "--json", "-k", "99")
    rows = [json.loads(x) for x in cli(*base, "--head", "france").stdout.splitlines()]
    assert len(rows) == 33
    assert {"atl", "lem"} <= {row["entity"] for row in rows}
    # The others' scores are what they were.
    plain = cli("rank", toy_run, "--relation", "located_in", "--head", "france", "--json", "-k", "99")
    before = {row["entity"]: row["score"] for row in map(json.loads, plain.stdout.splitlines())}
    assert {r["entity"]: r["score"] for r in rows if r["entity"] in before} == pytest.approx(before, abs=1e-5)
    asked = [json.loads(x) for x in cli(*base, "--head", "Atlantis").stdout.splitlines()]
    assert len(asked) == 33
    assert not any(row["known"] for row in asked)
    pytest.importorskip("pyoxigraph")
    rdf = tmp_path / "new.nt"
    text = ('<http://x.org/atl> <http://www.w3.org/2000/01/rdf-schema#label> "Atlantis"@en .\n'
            '<http://x.org/atl> <http://x.org/in> <http://x.org/sea> .\n')  # fmt: skip
    rdf.write_text(text, "utf-8")
    done = cli("rank", toy_run, "--relation", "capital", "--entities", rdf, "--head", "Atlantis", "--json")
    assert len(done.stdout.splitlines()) == 10
    assert "not read: 1 triple of new.nt" in done.stderr


def test_bad_new_entities_are_refused(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.tsv"
    new.write_text("label\tname\nfrance\tFrance again\n")
    base = ("rank", toy_run, "--relation", "capital", "--entities", new)
    refused(cli(*base, "--head", "spain"), "new.tsv:2", "france")
    new.write_text("label\tname\nx\tX\nx\tY\n")
    refused(cli(*base, "--head", "x"), "new.tsv:3", "line 2")
    new.write_text("label\tname\nx\tX\n")
    refused(cli(*base, "--head", "nowhere land"), "nowhere land")
    refused(cli(*base[:-1], tmp_path / "absent.tsv", "--head", "spain"), "absent.tsv")


def test_evaluate_on_another_graph(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "moon"
    other.mkdir()
    (other / "train.tsv").write_text("crater\tlocated_in\tmoon\nbase\tlocated_in\tcrater\n")
    (other / "test.tsv").write_text("base\tlocated_in\tmoon\n")
    done = cli("evaluate", toy_run, "--graph", other, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["dataset"], report["trained_on"]) == ("moon", "toy")
    assert report["candidates"]["set"] == "graph"
    assert report["candidates"]["count"] == report["candidates"]["without_description"] == 3
    assert report["breakdown"]["unseen_position"]["both"]["count"] == 2
    assert (toy_run / "ranks" / "moon.test.parquet").is_file()
    table = cli("evaluate", toy_run, "--graph", other, "--candidates", "all")
    assert "both, unseen" in table.stdout, table.stderr
    expected = Path(__file__).parent.parent.parent / "eval" / "protocols" / "inductive-50-expected.toml"
    assert "49 expected negatives" in " ".join(
        cli("evaluate", toy_run, "--graph", other, "--protocol", expected).stdout.split()
    )
    refused(cli("evaluate", toy_run, "--graph", "toy"), "entities of 'toy'")
    refused(cli("evaluate", toy_run, "--graph", "toy", "--split", "train"), "train triples of 'toy'")
    refused(cli("evaluate", toy_run, "--graph", tmp_path / "none"), "none")
    (other / "test.tsv").write_text("base\torbits\tmoon\n")
    refused(cli("evaluate", toy_run, "--graph", other), "relation 'orbits'", "--allow-new-relations")
    assert cli("evaluate", toy_run, "--graph", other, "--allow-new-relations").returncode == 0
    refused(cli("evaluate", toy_run, "--allow-seen-entities"), "--graph")
    refused(cli("evaluate", toy_run, "--graph", other, "--retrieve", 5), "--retrieve", "--graph")
    for more in (("--graph", other), ("--retrieve", 5)):
        refused(cli("evaluate", toy_run, "--pykeen", *more), "--pykeen ranks all of the run's own graph")


def test_what_a_run_began_with_counts_as_training(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    moon = tmp_path / "moon"
    moon.mkdir()
    (moon / "train.tsv").write_text("crater\tlocated_in\tmoon\nbase\tlocated_in\tcrater\n")
    run, base = tmp_path / "run", tmp_path / "base"
    shutil.copytree(toy_run, base)
    done = cli(
        "train", "--dataset", moon, "--model", base / "model", "--output", run, "-q", *TINY_SETTINGS,
        "--set", "training.epochs=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    evaluate = ("evaluate", run, "--graph", "toy", "--allow-new-relations", "-q")
    refused(cli(*evaluate), "was trained on", "entities of 'toy'")
    known = cli(*evaluate, "--allow-seen-entities", "--split", "valid", "--json")
    report = json.loads(known.stdout)
    assert report["breakdown"]["unseen_position"]["any"]["count"] == 0, "what an earlier run saw was seen"
    shutil.rmtree(base)
    unchecked = cli(*evaluate, "--json")
    assert unchecked.returncode == 0, unchecked.stderr
    assert "began with models of toy that are gone" in " ".join(unchecked.stderr.split())
    assert (report["unchecked"], json.loads(unchecked.stdout)["unchecked"]) == ([], ["toy"])


def test_each_way_to_ask_has_ranks_of_its_own(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run, ignore=shutil.ignore_patterns("ranks"))
    protocol = tmp_path / "few.toml"
    protocol.write_text('candidates = "split"\n')
    asked = ("--protocol", protocol, "--max-triples", 5, "--scores", "likelihood", "--rerank", 0)
    for more in ((), asked, ("--split", "train", "--candidates", "train")):
        assert cli("evaluate", run, "-q", *more).returncode == 0
    names = {path.name for path in (run / "ranks").iterdir()}
    assert names == {
        "test.parquet", "test.few.5-triples.likelihood.rerank-0.parquet", "train.train.parquet",
    }  # fmt: skip
    done = cli("evaluate", run, "--split", "train", "--json")
    report = json.loads(done.stdout)
    assert report["triples_trained"] == report["triples"] > 0
    assert "are training triples, too" in done.stderr
    assert json.loads(cli("evaluate", run, "--json").stdout)["triples_trained"] == 0


def test_ranks_stay_in_the_run(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run, moon, victim = (tmp_path / name for name in ("run", "moon", "victim"))
    shutil.copytree(toy_run, run, ignore=shutil.ignore_patterns("ranks"))
    moon.mkdir()
    (moon / "train.tsv").write_text("crater\tlocated_in\tmoon\nbase\tlocated_in\tcrater\n")
    (moon / "test.tsv").write_text("base\tlocated_in\tmoon\n")
    (moon / "card.toml").write_text(
        (DATA / "toy" / "card.toml").read_text().replace('"toy"', f'"{victim}/x"')
    )
    victim.mkdir()
    done = cli("evaluate", run, "--graph", moon)
    assert done.returncode == 0, done.stderr
    (made,) = (run / "ranks").iterdir()
    assert made.name.endswith(".parquet")
    assert list(victim.iterdir()) == []
    (victim / "thesis").write_text("mine")
    (run / "ranks" / "test.parquet").symlink_to(victim / "thesis")
    assert cli("evaluate", run).returncode == 0
    assert (victim / "thesis").read_text() == "mine"
    assert not (run / "ranks" / "test.parquet").is_symlink()
    shutil.rmtree(run / "ranks")
    (run / "ranks").symlink_to(victim)
    refused(cli("evaluate", run), "ranks is a link")
    assert [p.name for p in victim.iterdir()] == ["thesis"]


def test_what_runs_in_one_process_is_refused_in_several(cli: Cli, toy_run: Path) -> None:
    for name, command in (("info", ("info", toy_run)), ("data list", ("data", "list"))):
        refused(cli(*command, WORLD_SIZE="2", RANK="0"), f"`kgmlm {name}` runs in one process")
        other = cli(*command, WORLD_SIZE="2", RANK="1")
        assert (other.returncode, other.stdout, other.stderr) == (0, "", "")


def test_a_run_with_entity_vectors_from_training_to_new_entities(
    cli: Cli, toy_vector_run: Path, toy_run: Path, tmp_path: Path
) -> None:
    reports = {}
    for scores in ("all", "likelihood", "vector"):
        ranks = tmp_path / f"{scores}.parquet"
        done = cli("evaluate", toy_vector_run, "--scores", scores, "--json", "--ranks", ranks)
        assert done.returncode == 0, done.stderr
        assert "reading entities" not in done.stderr, "their vectors are saved with the run"
        reports[scores] = json.loads(done.stdout)
    for name in ("likelihood", "vector"):
        assert reports[name]["scores"] == {signal: float(signal == name) for signal in SIGNALS}
    assert reports["likelihood"]["metrics"] != reports["vector"]["metrics"]
    rows = [json.loads(x) for x in (toy_vector_run / "metrics.jsonl").read_text().splitlines()]
    best = max((row for row in rows if "valid_mrr" in row), key=lambda row: row["valid_mrr"])
    chosen = reports["all"]["scores"]
    assert (best["valid_weight_likelihood"], best["valid_weight_vector"]) == tuple(chosen.values())[:2]
    assert not any(tuple(chosen.values())[2:])
    new = tmp_path / "new.tsv"
    new.write_text("label\tname\tdescription\natl\tAtlantis\tlost country in the ocean\n", "utf-8")
    base = ("rank", toy_vector_run, "--relation", "located_in", "--json", "-k", "99", "--head", "france")
    for scores in ("all", "vector"):
        before, after = (
            {row["entity"]: row["score"] for row in map(json.loads, cli(*base, *more).stdout.splitlines())}
            for more in (("--scores", scores), ("--scores", scores, "--entities", new))
        )
        assert after.keys() - before.keys() == {"atl"}
        assert {k: after[k] for k in before} == pytest.approx(before, rel=1e-6, abs=1e-5)
    refused(cli("rank", toy_run, *base[2:], "--scores", "vector"), "no entity vectors", "vector.enabled")


def test_an_index_is_built_and_used(cli: Cli, toy_vector_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    refused(
        cli("rank", run, "--relation", "capital", "--head", "france", "--retrieve", "5"),
        "no index",
        "kgmlm index",
    )
    done = cli("index", run, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["entities"], record["recall_at_10"]) == (31, 1)
    done = cli("index", run)
    assert "index of 31 entities" in done.stdout, done.stderr
    assert "all are searched" in done.stderr
    base = ("rank", run, "--relation", "capital", "--head", "france", "--json", "-k", "3")
    short, exact = (
        [json.loads(line) for line in cli(*base, *more).stdout.splitlines()]
        for more in (("--retrieve", "31"), ())
    )
    assert [row["entity"] for row in short] == [row["entity"] for row in exact]
    assert [row["score"] for row in short] == pytest.approx([row["score"] for row in exact], abs=1e-4)
    assert len(cli(*base, "--retrieve", "2", "--explain").stdout.splitlines()) == 2
    done = cli("evaluate", run, "--retrieve", "6")
    assert "shortlists of 6 by the index" in done.stdout, done.stderr


def test_two_evaluations_are_compared(cli: Cli, toy_vector_run: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{scores}.parquet" for scores in ("likelihood", "vector")]
    for path in paths:
        done = cli("evaluate", toy_vector_run, "--scores", path.stem, "--ranks", path, "-q")
        assert done.returncode == 0, done.stderr
    done = cli("compare", *paths, "--json", "--draws", "200")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["queries"] == 2 * 8
    assert {(d["side"], d["metric"]) for d in report["differences"]} >= {
        ("both", "mrr"),
        ("tail", "hits_at_10"),
    }
    assert "95 % interval" in cli("compare", *paths).stdout
    refused(cli("compare", paths[0], tmp_path / "absent"), "does not exist")
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    refused(cli("evaluate", run, "--output", tmp_path), "is a folder")
    assert cli("evaluate", run, "-q").returncode == 0
    assert "before" not in cli("compare", run, run).stderr
    assert cli("tune", run, "-q").returncode == 0
    assert "as it was before" in cli("compare", run, run).stderr.replace("\n", " ")


def test_what_needs_no_model_loads_none(cli: Cli, toy_run: Path) -> None:
    """The imports of a model take seconds."""
    run = str(toy_run)
    if not (toy_run / "ranks" / "test.parquet").is_file():
        assert cli("evaluate", run, "-q").returncode == 0
    commands = [
        ["linearize", run, "--head", "france", "--relation", "capital"],
        ["linearize", "toy", "--head", "france", "--relation", "capital"],
        ["rank", run, "--head", "frence", "--relation", "capital"],
        ["rank", run, "--head", "france", "--relation", "capitol"],
        ["data", "show", "toy", "--entity", "france"],
        ["data", "check", "toy"],
        ["compare", run, run],
        ["info", run],
    ]
    assert loaded_by(commands, ("torch", "transformers", "pykeen")) == [[]] * len(commands)


def test_a_choice_that_is_misspelled_is_refused_with_the_nearest(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", "--dataset", "toy", "--preset", "quik", "--output", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.endswith("'zero-shot', 'plain'; did you mean 'quick'?\n")
    assert "Value error" not in done.stderr
