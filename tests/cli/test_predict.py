"""`kgmlm classify`, `calibrate`, and relations ranked by probability, on a run of few triples."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_SETTINGS, Cli, refused

import kgmlm
from kgmlm.core.digests import Digest
from kgmlm.graphs.datasets import load_graph
from kgmlm.runs.folder import PROBABILITIES as FILE
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.runs.writing import save_model, save_tuned


@pytest.fixture(scope="module")
def run(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with enough validation triples to be calibrated, and known negatives there."""
    folder = tmp_path_factory.mktemp("classifying")
    toy = load_graph("toy")
    triples = [triple for split in toy.splits.values() for triple in toy.labeled(split)]
    data = folder / "data"
    data.mkdir()
    for split, part in (("train", triples[::2]), ("valid", triples[1::2])):
        (data / f"{split}.tsv").write_text("".join("\t".join(triple) + "\n" for triple in part))
    done = cli(
        "train", "--dataset", data, "--model", "scratch", "--output", folder / "run", "-q",
        *TINY_SETTINGS, "--set", "training.epochs=10", "--set", "training.eval_every=10",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run"


def copied(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def table(path: Path, *rows: tuple[str, ...]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def known(run: Path) -> tuple[str, str, str]:
    graph = open_folder(run).graph
    return graph.labeled(graph.splits["train"][:1])[0]


def new(run: Path, count: int = 3) -> list[tuple[str, str, str]]:
    graph = open_folder(run).graph
    return graph.labeled(graph.splits["valid"][:count])


def test_triples_get_probabilities_which_are_fitted_when_first_asked(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    run = copied(run, tmp_path)
    asked = table(tmp_path / "asked.tsv", known(run), *new(run))
    done = cli("classify", run, asked, "--json", "--explain", "-q")
    assert done.returncode == 0, done.stderr
    assert "no probabilities yet" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["known"] for row in rows] == [True, False, False, False]
    assert rows[0]["probability"] is None
    assert any(row["probability"] for row in rows), "new entities have none here"
    assert rows[0]["true"]
    assert "parts" not in rows[0], "what training has is not evidence"
    for row in rows[1:]:
        assert row["probability"] is None or 0 < row["probability"] < 1
        assert row["true"] == (row["probability_if_half_true"] >= 0.5)
        parts = row["parts"]
        keys = {"score", "rank", "margin", "softmax", "state", "adds"}
        assert parts["tail"].keys() == parts["head"].keys() == keys
    assert (run / FILE).is_file()
    again = cli("classify", run, asked, "--json", "--prior", "0.01", "-q")
    assert "no probabilities yet" not in again.stderr
    for row, rare in zip(rows[1:], map(json.loads, again.stdout.splitlines()[1:]), strict=True):
        assert rare["probability"] == row["probability"]
        assert rare["probability_if_half_true"] < row["probability_if_half_true"]
    assert "known" in cli("classify", run, asked, "--explain").stdout
    csv = cli("classify", run, asked, "--csv").stdout.splitlines()
    numbers = "probability,probability_if_half_true"
    assert csv[0] == f"head,relation,tail,{numbers},true,known,head_name,relation_name,tail_name"
    assert len(csv) == 5
    open_folder(run, verify=True)


def test_a_triples_label_and_company_change_nothing(cli: Cli, run: Path, tmp_path: Path) -> None:
    run = copied(run, tmp_path)
    assert cli("calibrate", run, "-q").returncode == 0
    (one, other, third) = new(run)
    rows = {}
    for label in ("1", "-1"):
        asked = table(tmp_path / "asked.tsv", (*one, label), (*third, "1"), (*other, "-1"))
        done = cli("classify", run, asked, "--json", "-q")
        rows[label] = [json.loads(line) for line in done.stdout.splitlines()]
        assert "against the labels: accuracy" in done.stderr
    first = [(row.pop("label"), row) for row in (rows["1"][0], rows["-1"][0])]
    assert [label for label, _ in first] == [True, False]
    assert first[0][1] == first[1][1]
    alone = kgmlm.classify(run, [one], progress=False).as_json()
    assert alone[0]["probability"] == pytest.approx(rows["1"][0]["probability"], rel=1e-4)


def test_new_entities_and_relations_are_read_by_their_text(cli: Cli, run: Path, tmp_path: Path) -> None:
    run = copied(run, tmp_path)
    assert cli("calibrate", run, "-q").returncode == 0
    head, relation, tail = new(run)[0]
    entities = table(tmp_path / "new.tsv", ("label", "name"), ("atl", "Atlantis"))
    asked = table(tmp_path / "asked.tsv", (head, relation, "atl"), ("Atlantis", "sank near", tail))
    refused(cli("classify", run, asked), "asked.tsv:1", "no entity has the label or name 'atl'")
    refused(cli("classify", run, asked, "--entities", entities), "asked.tsv:2", "--allow-new-relations")
    done = cli("classify", run, asked, "--entities", entities, "--allow-new-relations", "--json", "-q")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["head"], row["relation"], row["tail"]) for row in rows] == [
        (head, relation, "atl"), ("atl", "sank near", tail),
    ]  # fmt: skip
    assert [row["probability"] for row in rows] == [None, None], "validation has no new entities"
    assert all(0 < row["probability_if_half_true"] < 1 for row in rows)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The toy graph's triples about other entities: no run has seen them."""
    toy = load_graph("toy")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for split, triples in toy.splits.items():
        rows = [(f"new {h}", r, f"new {t}") for h, r, t in toy.labeled(triples)]
        table(folder / f"{split}.tsv", *rows)
    return folder


def test_triples_of_another_graph_are_asked_there(
    cli: Cli, run: Path, elsewhere: Path, tmp_path: Path
) -> None:
    run = copied(run, tmp_path)
    assert cli("calibrate", run, "-q").returncode == 0
    other = load_graph(str(elsewhere))
    there = other.labeled(other.splits["train"])[0]
    asked = other.labeled(other.splits["test"])
    file = table(tmp_path / "asked.tsv", there, *asked)
    refused(cli("classify", run, file), "asked.tsv:1", "no entity has the label or name")
    done = cli("classify", run, file, "--graph", elsewhere, "--json", "-q")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["known"] for row in rows] == [True] + [False] * len(asked)
    assert all(0 < row["probability_if_half_true"] < 1 for row in rows[1:])
    # Relations have other numbers in the other graph, and the same offsets.
    turned = tmp_path / "turned"
    shutil.copytree(elsewhere, turned)
    with (turned / "train.tsv").open("a") as more:
        more.write("new france\tadjoins\tnew paris\n")
    assert load_graph(str(turned)).relations.index["capital"] != other.relations.index["capital"]
    classified = kgmlm.classify(run, asked, graph=turned, progress=False).if_half_true
    assert classified == pytest.approx([row["probability_if_half_true"] for row in rows[1:]], rel=1e-3)
    # A first line of names is left out of all files.
    headed = shutil.copytree(elsewhere, tmp_path / "headed")
    for name in ("train.tsv", "valid.tsv", "test.tsv"):
        text = (headed / name).read_text()
        (headed / name).write_text("head\trelation\ttail\n" + text)
    also = table(tmp_path / "headed.tsv", ("head", "relation", "tail"), *asked)
    refused(cli("classify", run, file, "--graph", headed), "--skip-header")
    done = cli("classify", run, also, "--graph", headed, "--skip-header", "--json", "-q")
    assert len(done.stdout.splitlines()) == len(asked), done.stderr
    # What the run has learned is known there, too.
    shared = tmp_path / "shared"
    shutil.copytree(elsewhere, shared)
    learned = known(run)
    with (shared / "test.tsv").open("a") as more:
        more.write("\t".join(learned) + "\n")
    assert kgmlm.classify(run, [learned], graph=shared, progress=False).known.all()
    with (shared / "train.tsv").open("a") as more:
        more.write("new france\torbits\tnew paris\n")
    strange = table(tmp_path / "strange.tsv", ("new paris", "orbits", "new france"))
    refused(cli("classify", run, strange, "--graph", shared), "strange.tsv:1", "was not trained on", "orbits")
    done = cli("classify", run, strange, "--graph", shared, "--allow-new-relations", "--json", "-q")
    assert 0 < json.loads(done.stdout)["probability_if_half_true"] < 1


def test_relations_of_a_pair_are_ranked(cli: Cli, run: Path, tmp_path: Path) -> None:
    run = copied(run, tmp_path)
    assert cli("calibrate", run, "-q").returncode == 0
    head, relation, tail = known(run)
    pair = ("rank", run, "--head", head, "--tail", tail, "--json", "-q")
    rows = [json.loads(line) for line in cli(*pair, "-k", "100").stdout.splitlines()]
    assert len(rows) == len(open_folder(run).graph.relations)
    assert (rows[0]["relation"], rows[0]["known"]) == (relation, True)
    probabilities = [row["probability"] for row in rows if row["probability"] is not None]
    assert probabilities == sorted(probabilities, reverse=True)
    novel = [json.loads(line) for line in cli(*pair, "--novel", "-k", "2").stdout.splitlines()]
    assert len(novel) == 2
    assert relation not in [row["relation"] for row in novel]
    refused(cli(*pair, "--scores", "likelihood"), "relations are ranked by probability")
    refused(cli(*pair, "--typed"), "--typed, --functional")
    refused(cli("rank", run, "--head", head), "--relation is missing")
    one = ("rank", run, "--head", head, "--relation", relation)
    refused(cli(*one, "--prior", "0.2"), "--prior is for relations")


def test_probabilities_of_another_run_are_refused(cli: Cli, run: Path, tmp_path: Path) -> None:
    run = copied(run, tmp_path)
    asked = table(tmp_path / "asked.tsv", *new(run))
    done = cli("calibrate", run, "--json", "-q")
    figures = json.loads(done.stdout)
    assert 0 <= figures["half"]["ece_95"][0] <= figures["half"]["ece_95"][1]
    kept = json.loads((run / FILE).read_text())
    assert kept["chosen_by"]["valid"] == figures
    opened = open_folder(run)
    opened = save_tuned(opened, opened.tuned)
    assert cli("classify", run, asked, "-q").returncode == 0, "the same weights again are the same"
    chosen = opened.tuned
    opened = save_tuned(opened, type(chosen)(chosen.mixture.evenly("likelihood", 2.0)))
    printed = cli("rank", run, "--head", new(run)[0][0], "--relation", new(run)[0][1], "-q").stderr
    assert "not fitted for the weights that it has now; `kgmlm calibrate" in printed
    assert "validation triples" in cli("calibrate", run).stdout
    assert cli("classify", run, asked, "-q").returncode == 0
    opened = save_model(opened, tuned_ranker(opened, "cpu"))
    assert not (run / FILE).exists(), "another model, other probabilities"
    done = cli("calibrate", run, "-q")
    (run / FILE).write_text((run / FILE).read_text().replace('"lacking"', '"lacKing"'))
    refused(cli("classify", run, asked), "probabilities.json")


def test_a_pack_has_the_probabilities_of_its_own_scores_or_none(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path / "cache"))
    run = copied(run, tmp_path)
    asked = table(tmp_path / "asked.tsv", *new(run))
    plain, whole, again = (tmp_path / f"{name}.kgmlm" for name in ("plain", "whole", "again"))
    assert cli("calibrate", run, "-q").returncode == 0
    assert kgmlm.info(run).probabilities is not None
    assert cli("pack", run, "--output", plain, "-q").returncode == 0
    assert kgmlm.info(plain).probabilities is None, "those of the run are of other scores"
    now = cli("classify", plain, asked, "--json", "-q")
    assert "fitted now and not kept" in now.stderr
    assert cli("pack", run, "--calibrate", "--output", whole, "-q").returncode == 0
    kept = cli("classify", whole, asked, "--json", "-q")
    assert "not kept" not in kept.stderr
    assert kept.stdout == now.stdout != cli("classify", run, asked, "--json", "-q").stdout
    about = kgmlm.info(whole)
    assert about.probabilities is not None
    assert about.probabilities["command"] == f"kgmlm pack {run} --calibrate --output {whole} -q"
    assert "triples of validation; with 25% or more" in about.lines()["probabilities"][0]
    assert about.signals == kgmlm.info(plain).signals
    assert open_folder(whole, verify=True).tuned.of == open_folder(plain).tuned.of
    # A pack is calibrated as its run is, and keeps its files as they are.
    assert cli("pack", plain, "--calibrate", "--output", again, "-q").returncode == 0
    names = [{i.filename: i.CRC for i in zipfile.ZipFile(path).infolist()} for path in (whole, again)]
    assert names[0].keys() == names[1].keys()
    assert {k for k in names[0] if names[0][k] != names[1][k]} == {FILE, "pack.json"}, "the command differs"
    assert cli("classify", again, asked, "--json", "-q").stdout == kept.stdout
    assert cli("pack", again, "--calibrate", "--output", again, "-q").returncode == 0, "in its own place"
    assert (
        cli("classify", kgmlm.unpack(again, tmp_path / "new").path, asked, "-q", "--json").stdout
        == kept.stdout
    )


def test_what_a_pack_cannot_be_calibrated_with_is_one_sentence(
    cli: Cli, run: Path, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path / "cache"))
    plain, other = tmp_path / "plain.kgmlm", tmp_path / "other.kgmlm"
    assert cli("pack", run, "--output", plain, "-q").returncode == 0
    before = plain.read_bytes()
    refused(cli("calibrate", plain), "is a pack", f"kgmlm pack {plain} --calibrate --output NEW.kgmlm")
    refused(cli("pack", plain, "--output", other), "--calibrate adds probabilities")
    refused(cli("pack", plain, "--calibrate"), "--output names the file")
    refused(cli("pack", plain, "--calibrate", "--no-kge", "--output", other), "--no-kge is for runs")
    refused(cli("pack", plain, "--calibrate", "--no-onnx", "--output", other), "--no-onnx is for runs")
    refused(cli("pack", toy_run, "--calibrate", "--output", other, "-q"), "at least 20 validation triples")
    refused(cli("pack", kgmlm.open_run(plain).path, "--calibrate", "--output", other), "is a pack already")
    plain.write_bytes(before[:-100])
    refused(cli("pack", plain, "--calibrate", "--output", other), "is damaged")
    assert not other.exists()


def test_probabilities_of_other_files_than_the_packs_are_left_out(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a pack that somebody has put together."""
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path / "cache"))
    file = kgmlm.pack(run, tmp_path / "a.kgmlm", calibrate=True, progress=False)

    def changed(contents: dict[str, Any], name: str) -> bytes:
        parsed = json.loads(zipfile.ZipFile(file).read(FILE))
        parsed["chosen_for"] = contents | {"weights": parsed["chosen_for"]["weights"]}
        with zipfile.ZipFile(file) as archive:
            entries = {i.filename: archive.read(i) for i in archive.infolist()}
        entries[FILE] = json.dumps(parsed).encode()
        about = json.loads(entries["pack.json"])
        about["files"][FILE] = Digest.of_bytes(entries[FILE]).model_dump()
        entries["pack.json"] = json.dumps(about).encode()
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for key, data in entries.items():
                archive.writestr(key, data)
        return entries["model/model.safetensors"]

    right = hashlib.sha256(changed({}, "none.kgmlm")).hexdigest()
    changed({"likelihood": "0" * 64}, "other.kgmlm")
    changed({"likelihood": right}, "same.kgmlm")
    parsed = [kgmlm.info(tmp_path / f"{name}.kgmlm").probabilities for name in ("none", "other", "same")]
    assert parsed[:2] == [None, None]
    assert parsed[2] is not None
    assert parsed[2]["half"]["ece"] is not None


def test_what_a_run_is_says_what_probabilities_it_has(cli: Cli, run: Path, tmp_path: Path) -> None:
    run = copied(run, tmp_path)
    assert kgmlm.info(run).lines()["probabilities"] == ["none; `kgmlm calibrate` fits them"]
    figures = kgmlm.calibrate(run, progress=False)
    answer = json.loads(cli("info", run, "--json").stdout)["probabilities"]
    assert answer["half"]["auc"] == figures["half"]["auc"]
    assert answer["triples"] == figures["triples"]
    assert datetime.fromisoformat(answer["fitted"]).tzinfo is not None
    line, meaning = kgmlm.info(run).lines()["probabilities"]
    assert f"to {figures['triples']} triples of validation" in line
    assert meaning == answer["stands_for"]
    # A file that says nothing sensible of itself is shown as far as it goes.
    parsed = json.loads((run / FILE).read_bytes())
    odd = {"at": 5, "command": [], "valid": {"half": {"ece": "x"}, "held_out": [3, {}], "triples": True}}
    for by in ({}, {"valid": 3}, odd):
        (run / FILE).write_text(json.dumps({**parsed, "chosen_by": by}))
        assert kgmlm.info(run).lines()["probabilities"][0].startswith("to 0 triples")
    (run / FILE).write_text("{")
    assert "refused: " in cli("info", run).stdout


def test_known_negatives_are_read_used_and_kept(cli: Cli, run: Path, tmp_path: Path) -> None:
    graph = open_folder(run).graph
    data = tmp_path / "data"
    data.mkdir()
    train_rows = graph.labeled(graph.splits["train"])
    valid = [*graph.labeled(graph.splits["valid"]), *train_rows[:12]]  # so that both halves have some
    false = [(h, r, valid[i - 7][2]) for i, (h, r, _) in enumerate(valid)]
    true = set(valid) | set(train_rows)
    false = [triple for triple in false if triple not in true]
    table(data / "train.tsv", *train_rows[12:])
    table(data / "valid.tsv", *((*x, "1") for x in valid), *((*x, "-1") for x in false))
    train = ("train", "--dataset", data, "--model", "scratch", "--output", tmp_path / "run", "-q",
             *TINY_SETTINGS, "--max-steps", "4")  # fmt: skip
    done = cli(*train)
    assert done.returncode == 0, done.stderr
    opened = open_folder(tmp_path / "run", verify=True)
    assert opened.graph.labeled(opened.graph.negatives["valid"]) == false
    assert len(opened.graph.splits["valid"]) == len(valid), "negatives are nobody's answers"
    done = cli("calibrate", tmp_path / "run", "--json", "-q", "--max-triples", "0")
    figures = json.loads(done.stdout)
    half = figures["half"]
    assert (half["positives"], half["negatives"]) == (len(set(valid)), len(set(false)))
    done = cli("classify", tmp_path / "run", data / "valid.tsv", "--json", "-q")
    assert done.returncode == 0, done.stderr
    assert "against the labels: accuracy" in done.stderr
    table(data / "valid.tsv", (*valid[0], "1"), (*valid[1], "2"))
    refused(cli(*train[:6], tmp_path / "other"), "valid.tsv:2", "the label is '2'", "1 (true), or -1 or 0")


def test_bad_input_is_one_sentence(cli: Cli, run: Path, tmp_path: Path) -> None:
    refused(cli("calibrate", run, "--lacking", 0), "--lacking is a number above 0")
    (head, relation, tail), *_ = new(run)
    asked = tmp_path / "asked.tsv"
    for row, *message in (
        ((head, relation, "nowhere"), "asked.tsv:1", "no entity has the label or name 'nowhere'"),
        ((head, "no such", tail), "asked.tsv:1", "no relation has the label or name 'no such'"),
        ((head, relation, tail, "maybe"), "asked.tsv:1", "the label is 'maybe'"),
        ((head, relation), "expected 3 tab-separated columns, found 2"),
    ):
        refused(cli("classify", run, table(asked, row)), *message)
    table(asked, (head, relation, tail, "0"), (head, relation, tail, "-1"))
    refused(cli("classify", run, asked), "asked.tsv:2", "0 stood for false before")
    table(asked, ("head", "relation", "tail"), (head, relation, tail))
    refused(cli("classify", run, asked), "is a header", "--skip-header")
    for prior in ("0", "1", "nan"):
        refused(cli("classify", run, table(asked, (head, relation, tail)), "--prior", prior), "--prior is a")
    refused(cli("classify", run, tmp_path / "none.tsv"), "there is no file")
    refused(cli("classify", run, asked, "--csv", "--json"), "--csv goes without")
    assert not (run / FILE).exists(), "nothing is fitted before the input is read"
