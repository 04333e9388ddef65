"""Runs that are updated: what is new is answered, what was there is as before, whatever interrupts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Cli

import kgmlm
import kgmlm.training.update as updating
from kgmlm.core.config import KGESettings, Settings
from kgmlm.core.errors import DataError, RunError
from kgmlm.graphs.changes import changed
from kgmlm.graphs.given import GivenTriples
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.runs.feedback import Judgment, add_judgments
from kgmlm.runs.opened import open_folder
from kgmlm.runs.writing import save_signal, save_tuned, write_record
from kgmlm.signals import beside
from kgmlm.signals.base import Pool
from kgmlm.signals.kge import KGE
from kgmlm.signals.rules import Rules
from kgmlm.training.weights import Refit

NEW = [
    ("iceland", "located_in", "europe"),
    ("reykjavik", "located_in", "iceland"),
    ("iceland", "capital", "reykjavik"),
]


@pytest.fixture(scope="module")
def whole(toy_vector_run: Path, tiny_encoder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all signals that can be counted or fitted beside the model, an index and probabilities."""
    run = shutil.copytree(toy_vector_run, tmp_path_factory.mktemp("runs") / "whole")
    settings: dict[str, Any] = {
        "kge": {"dimension": 8, "epochs": 20},
        "biencoder": {"encoder": tiny_encoder, "steps": 20, "dimension": 16},
    }
    kgmlm.tune(
        run,
        add=["kge", "rules", "types", "linked", "biencoder", "reverse"],
        progress=False,
        settings=settings,
    )
    kgmlm.index(run, progress=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # the toy graph has few
        kgmlm.calibrate(run, progress=False)
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)
    return shutil.copytree(whole, tmp_path / "run")


def answers(path: Path, head: str, relation: str, **options: Any) -> pd.DataFrame:
    return kgmlm.open_run(path, **options).rank([(head, relation, None)], k=50)


def test_what_is_new_is_answered(run: Path) -> None:
    result = kgmlm.update(run, NEW, progress=False)
    assert (result["entities"], result["added"], result["removed"]) == (2, 3, 0)
    assert 0 <= result["mrr"] <= 1
    known = answers(run, "iceland", "capital")
    assert known.set_index("entity").loc["reykjavik", "known"]
    assert "iceland" in set(answers(run, "france", "borders")["entity"])
    assert kgmlm.evaluate(run, progress=False).metrics["both.realistic.inverse_harmonic_mean_rank"] > 0


def test_an_updated_run_is_whole(run: Path) -> None:
    kgmlm.update(run, NEW, progress=False)
    folder = open_folder(run, verify=True)
    assert len(folder.graph.entities) == len(open_folder(run).graph.entities)
    (update,) = kgmlm.info(run).updates
    assert update["added"] == 3
    assert "2 entities, 0 relations and 3 triples added" in "\n".join(kgmlm.info(run).lines()["updates"])
    probabilities = kgmlm.info(run).probabilities
    assert probabilities is not None
    assert "refused" not in probabilities
    packed = kgmlm.pack(run, run.parent / "updated.kgmlm", progress=False)
    assert "reykjavik" in kgmlm.open_run(packed).graph.entities.column("label")


def test_the_index_finds_what_is_new(run: Path) -> None:
    kgmlm.update(run, NEW, progress=False)
    result = answers(run, "france", "borders", retrieve=50)
    assert {"iceland", "reykjavik"} <= set(result["entity"])


def test_an_entity_without_triples_changes_no_other_score(run: Path) -> None:
    before = answers(run, "france", "capital", rerank=0).set_index("entity")["score"]
    entities = pd.DataFrame({"label": ["x"], "name": ["Xanadu"], "description": ["a city of dreams"]})
    result = kgmlm.update(run, entities=entities, progress=False)
    assert (result["entities"], result["added"], result["chosen"]) == (1, 0, [])
    after = answers(run, "france", "capital", rerank=0).set_index("entity")["score"]
    assert "x" in after.index
    left = [entity for entity in before.index if entity not in result["moved"]]
    assert np.allclose(before[left], after[left], atol=1e-5)


def test_what_is_added_and_removed_again_leaves_no_trace_in_counts(run: Path) -> None:
    row = ("france", "borders", "japan")
    asked = {"rerank": 0}
    by = {
        name: answers(run, "italy", "borders", scores=name, **asked) for name in ("rules", "types", "linked")
    }
    kgmlm.update(run, [row], progress=False)
    kgmlm.update(run, remove=[row], progress=False)
    for name, before in by.items():
        after = answers(run, "italy", "borders", scores=name, **asked)
        pd.testing.assert_frame_equal(before, after, check_exact=False, atol=1e-6)


def test_ten_updates_pass_every_check(run: Path) -> None:
    for n in range(10):
        kgmlm.update(run, [(f"town {n}", "located_in", "france")], progress=False)
    folder = open_folder(run, verify=True)
    assert len(folder.record["updates"]) == 10
    assert folder.graph.entities.column("label")[-1] == "town 9"
    towns = {f"town {n}" for n in range(10)}
    assert towns <= set(answers(run, "france", "borders", retrieve=50)["entity"]), "the index has them"
    assert set(answers(run, "town 3", "located_in").query("known")["entity"]) == {"france"}
    once = kgmlm.update(run, [("town", "located_in", "spain")], output=run.parent / "more", progress=False)
    assert once["entities"] == 1
    report = kgmlm.evaluate(run, progress=False)
    assert report.metrics["both.realistic.inverse_harmonic_mean_rank"] > 0
    calibration = folder.calibration
    assert calibration is not None
    assert calibration.chosen_for == folder.scored_by
    completion = kgmlm.complete(
        run, run.parent / "new.parquet", relations=["located_in"], min_probability=0, progress=False
    )
    assert completion["listed"] > 0
    packed = kgmlm.open_run(kgmlm.pack(run, run.parent / "ten.kgmlm", progress=False))
    assert set(packed.graph.entities.column("label")) == set(folder.graph.entities.column("label"))
    kgmlm.report(run, run.parent / "report.html", progress=False)


def test_the_old_run_stays_beside_an_output(run: Path, tmp_path: Path) -> None:
    before = (run / "run.json").read_bytes()
    kgmlm.update(run, NEW, output=tmp_path / "new", progress=False)
    assert (run / "run.json").read_bytes() == before
    assert len(kgmlm.open_run(tmp_path / "new").graph.entities) == len(kgmlm.open_run(run).graph.entities) + 2
    with pytest.raises(DataError, match="exists and is not empty"):
        kgmlm.update(run, NEW, output=tmp_path / "new", progress=False)


def test_an_interrupted_update_leaves_the_run_as_it_was(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kgmlm.training.update._checked", interrupted)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    with pytest.raises(KeyboardInterrupt):
        kgmlm.update(run, NEW, progress=False)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before
    assert [path.name for path in run.parent.iterdir() if path.is_dir()] == [run.name]
    open_folder(run, verify=True)


def test_a_held_run_sees_its_update(run: Path) -> None:
    held = kgmlm.open_run(run)
    held.rank("France", "capital", k=1)
    held.update(NEW, progress=False)
    assert len(held.rank("iceland", "capital", k=1)) == 1


def test_weights_that_do_not_suit_any_more_are_chosen_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(run)
    tuned = folder.tuned
    folder = save_tuned(folder, replace(tuned, mixture=tuned.mixture.evenly("likelihood", 50.0)))
    monkeypatch.setattr("kgmlm.training.update.refit", lambda *_: Refit(0.1, 0.01, 0.3, 0.2))
    result = kgmlm.update(run, NEW, progress=False)
    assert result["chosen"] == ["weights"]  # the probabilities were of other weights, so there were none
    assert open_folder(run).tuned.mixture.averages["likelihood"] != 50.0
    kgmlm.calibrate(run, progress=False)
    assert kgmlm.update(run, [NEW[0][::-1]], progress=False)["chosen"] == ["weights", "probabilities"]
    monkeypatch.setattr("kgmlm.training.update.refit", lambda *_: Refit(0.1, 0.01, 0.1, 0.2))
    assert kgmlm.update(run, remove=[NEW[0]], progress=False)["chosen"] == []


def test_new_relations_are_answered(run: Path) -> None:
    result = kgmlm.update(run, [("france", "exports", "wine"), ("italy", "exports", "wine")], progress=False)
    assert (result["relations"], result["entities"]) == (1, 1)
    assert "probabilities" in result["chosen"]
    assert answers(run, "germany", "exports").iloc[0]["entity"] in open_folder(run).graph.entities.column(
        "label"
    )


def test_signals_keep_the_settings_that_they_were_trained_with(run: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text("10\t9\t0.9\tborders(X,Y) <= borders(Y,X)\n")
    kgmlm.tune(run, add="rules", overwrite=True, settings={"rules": {"file": str(rules)}}, progress=False)
    kgmlm.update(run, NEW, progress=False)
    result = Rules.open(run / Rules.file, open_folder(run).graph).applied.rules.paths
    assert (result.predicted.tolist(), result.correct.tolist()) == ([10], [9])


def test_judgments_of_the_meantime_are_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judgments = run / "feedback.jsonl"
    judgments.write_text("first\n")
    checked = updating._checked

    def judged(*given: Any) -> dict[str, Any]:
        judgments.write_text("first\nsecond\n")
        result: dict[str, Any] = checked(*given)
        return result

    monkeypatch.setattr("kgmlm.training.update._checked", judged)
    kgmlm.update(run, NEW, progress=False)
    assert judgments.read_text() == "first\nsecond\n"


def test_a_run_that_another_process_has_updated_is_opened_anew(run: Path) -> None:
    held = kgmlm.open_run(run)
    kgmlm.update(run, NEW, progress=False)
    best = held.rank([("france", "capital", None)], k=50)
    assert "reykjavik" in set(best["entity"])


def test_an_output_is_written_though_nothing_is_new(run: Path, tmp_path: Path) -> None:
    assert kgmlm.update(run, [("france", "capital", "paris")], progress=False)["seconds"] == 0
    kgmlm.update(run, [("france", "capital", "paris")], output=tmp_path / "same", progress=False)
    assert len(answers(tmp_path / "same", "france", "capital")) == len(answers(run, "france", "capital"))


def test_probabilities_that_cannot_be_fitted_again_are_left_out(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 20)
    kgmlm.update(run, [("france", "exports", "wine")], progress=False)
    assert kgmlm.info(run).probabilities is None
    open_folder(run, verify=True)
    assert len(answers(run, "france", "exports"))


def test_an_index_of_the_biencoder_finds_what_has_new_triples(
    toy_run: Path, tiny_encoder: str, tmp_path: Path
) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run")
    settings = {"encoder": tiny_encoder, "steps": 20, "dimension": 16}
    kgmlm.tune(run, add="biencoder", settings={"biencoder": settings}, progress=False)
    kgmlm.index(run, progress=False)
    kgmlm.update(run, [("xanadu", "located_in", "france")], progress=False)
    kgmlm.update(run, [("xanadu", "borders", "germany")], progress=False)
    result, every = (answers(run, "france", "borders", retrieve=k) for k in (50, 0))
    assert set(result["entity"]) == set(every["entity"])


def test_an_index_of_another_model_is_left_out(run: Path) -> None:
    record = json.loads((run / "index" / "entity" / "index.json").read_text())
    folder = run / "index" / "entity"
    (folder / "index.json").write_text(json.dumps({**record, "fingerprint": "0" * 64}))
    (folder / "kgmlm.json").unlink()
    kgmlm.update(run, NEW, progress=False)
    assert not folder.exists()


def test_wrong_places_are_refused(run: Path) -> None:
    with pytest.raises(RunError, match="is within the run"):
        kgmlm.update(run, NEW, output=run / "new", progress=False)
    more = kgmlm.open_run(run).with_entities(pd.DataFrame({"label": ["x"]}))
    with pytest.raises(RunError, match="has entities from with_entities"):
        more.update(NEW, progress=False)


def test_weights_that_were_not_chosen_are_refused(run: Path) -> None:
    folder = open_folder(run)
    kind = beside()["kge"]
    folder = save_signal(folder, kind.fit(folder.graph, KGESettings(dimension=4, epochs=1)))
    with pytest.raises(RunError, match="were not chosen for the kge"):
        kgmlm.update(run, NEW, progress=False)


def test_untrained_runs_and_packs_are_refused(run: Path, tmp_path: Path) -> None:
    pack = kgmlm.pack(run, tmp_path / "packed.kgmlm", progress=False)
    with pytest.raises(RunError, match="is a pack"):
        kgmlm.update(pack, NEW)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "status": "max steps"}))
    kgmlm.update(run, NEW, progress=False)
    assert open_folder(run).record["status"] == "stopped early"
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "status": "interrupted"}))
    with pytest.raises(RunError, match="is not trained to the end"):
        kgmlm.update(run, NEW)


def test_a_run_that_ranks_by_its_index_does_so_after_an_update(run: Path) -> None:
    folder = open_folder(run)
    folder = write_record(folder, shortlist={"entities": 20, "of": folder.text_fingerprint})
    kgmlm.calibrate(run, progress=False)
    kgmlm.update(run, NEW, progress=False)
    folder = open_folder(run)
    assert folder.shortlist
    assert folder.calibration is not None
    assert answers(run, "france", "borders")["probability"].notna().any()


def test_what_was_judged_becomes_part_of_the_graph(run: Path) -> None:
    with pytest.raises(DataError, match="has no judgments"):
        kgmlm.apply_feedback(run)
    for tail, label in (("rome", 0), ("berlin", 1), ("nowhere", 1)):
        results = {"head": "france", "relation": "borders", "tail": tail, "label": label}
        add_judgments(run / "feedback.jsonl", Judgment.model_validate(results))
    result = kgmlm.apply_feedback(run, progress=False)
    assert (result["accepted"], result["rejected"], result["passed"]) == (1, 1, 1)
    assert (result["added"], result["false"], result["entities"]) == (1, 1, 0)
    graph = open_folder(run).graph
    assert graph.labeled(graph.negatives["train"]) == [("france", "borders", "rome")]
    assert "rome" not in set(answers(run, "france", "borders")["entity"])
    assert "rome" not in set(answers(run, "france", "borders", retrieve=50)["entity"])
    both = kgmlm.evaluate(run, progress=False).metrics["both.realistic.count"]
    assert both == 2 * len(graph.triples("test")), "evaluation asks as before"
    again = kgmlm.apply_feedback(run, progress=False)
    assert (again["added"], again["false"], again["seconds"]) == (0, 0, 0.0)


def test_an_applied_judgment_can_be_taken_back(run: Path) -> None:
    before = open_folder(run).graph
    valid, train = (before.labeled(before.triples(split)[:1])[0] for split in ("valid", "train"))
    judged = {("france", "borders", "rome"): 0, ("france", "borders", "berlin"): 1, valid: 0, train: 0}

    def judge(labels: dict[tuple[str, str, str], int | None]) -> None:
        for (head, relation, tail), label in labels.items():
            row = {"head": head, "relation": relation, "tail": tail, "label": label}
            add_judgments(run / "feedback.jsonl", Judgment.model_validate(row))

    judge(dict(judged))
    kgmlm.apply_feedback(run, progress=False)
    assert "rome" not in set(answers(run, "france", "borders")["entity"])
    judge({("france", "borders", "rome"): 1})  # another opinion, which was not applied
    judge(dict.fromkeys(judged))
    result = kgmlm.apply_feedback(run, progress=False)
    assert (result["accepted"], result["rejected"], result["taken_back"]) == (0, 0, 4)
    graph = open_folder(run).graph
    for split in before.splits:
        assert sorted(graph.labeled(graph.triples(split))) == sorted(before.labeled(before.triples(split)))
    assert not graph.negatives
    assert "rome" in set(answers(run, "france", "borders")["entity"])
    with pytest.raises(DataError, match="has no judgments"):
        kgmlm.apply_feedback(run, progress=False)


def test_a_judgment_that_an_update_has_overruled_is_not_undone(run: Path) -> None:
    row = ("france", "borders", "rome")
    for label in (0, None):
        results = {"head": row[0], "relation": row[1], "tail": row[2], "label": label}
        add_judgments(run / "feedback.jsonl", Judgment.model_validate(results))
        if label == 0:
            kgmlm.apply_feedback(run, progress=False)
            kgmlm.update(run, [row], progress=False)
    with pytest.raises(DataError, match="has no judgments"):
        kgmlm.apply_feedback(run, progress=False)
    assert row in (graph := open_folder(run).graph).labeled(graph.triples("train"))


def test_new_labels_that_are_nearly_alike_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame(
        [("FRANCE", "borders", "spain", 1, "x"), ("france", "borders", "japan", 0, "x")],
        columns=["head", "relation", "tail", "label", "source"],
    )
    outcome = kgmlm.update(run, frame)
    assert (outcome["entities"], outcome["added"], outcome["false"]) == (1, 1, 1)
    assert outcome["alike"] == [{"what": "entity", "new": "FRANCE", "known": "france"}]
    err = capsys.readouterr().err
    assert "entity 'FRANCE' is new; 'france' is another" in err
    assert err.count("'source'") == 1
    again = kgmlm.update(run, [("FRANCE ", "borders", "spain")], match_names=True, progress=False)
    assert again["entities"] == 0


def test_the_command(run: Path, cli: Cli, tmp_path: Path) -> None:
    triples, texts = tmp_path / "new.tsv", tmp_path / "entities.tsv"
    triples.write_text("iceland\tlocated_in\teurope\nfrance\tcapital\tparis\n")
    texts.write_text("label\tname\ndescription\niceland\tIceland\n".replace("\ndescription", "", 1))
    done = cli("update", run, "--triples", triples, "--entities", texts, "-q")
    assert done.returncode == 0, done.stderr
    assert "new: 1 entity, 0 relations, 1 triple; removed: 0 triples" in done.stdout
    assert "1 triple in training already" in done.stdout
    done = cli("update", run, "--remove", triples, "-q", "--json")
    assert json.loads(done.stdout)["removed"] == 2
    triples.write_text("france\tborders\trome\n")
    done = cli("update", run, "--false", triples, "-q")
    assert "1 triple known to be false" in done.stdout
    assert cli("update", run).returncode == 2


def by_rule(rules: Any, keys: tuple[str, ...]) -> dict[tuple[int, ...], tuple[int, int]]:
    """Map each rule to its numbers of predictions and of right predictions."""
    columns = np.column_stack([np.reshape(getattr(rules, key), (len(rules), -1)) for key in keys])
    counts = zip(rules.predicted.tolist(), rules.correct.tolist(), strict=True)
    return dict(zip(map(tuple, columns.tolist()), counts, strict=True))


def test_rules_counted_again_are_as_if_mined_today(real: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, settings = real("umls"), Settings()
    triples = graph.triples("train")
    young = kgmlm.KnowledgeGraph(graph.name, graph.entities, graph.relations, {"train": triples[::2]}, {})
    old = Rules.fit(young, settings.rules)
    rows = np.arange(len(graph.entities)), np.arange(len(graph.relations))

    class Over:
        context = graph.context

    today = Rules.fit(graph, settings.rules).applied.rules
    mined = old.for_graph(Over, *rows).updated(graph, settings).applied.rules  # type: ignore[arg-type]
    assert np.array_equal(mined.paths.body, today.paths.body)
    monkeypatch.setattr("kgmlm.signals.rules.QUICK", 0)
    grown = old.for_graph(Over, *rows).updated(graph, settings).applied.rules  # type: ignore[arg-type]
    for mine, theirs, keys in (
        (grown.paths, today.paths, ("relation", "body")),
        (grown.constants, today.constants, ("asked", "answer", "relation", "value")),
    ):
        before, after = by_rule(mine, keys), by_rule(theirs, keys)
        shared = before.keys() & after.keys()
        assert len(shared) > 100
        assert all(before[rule] == after[rule] for rule in shared)


def test_embeddings_are_fitted_where_every_entity_is_an_answer() -> None:
    rng = np.random.default_rng(0)
    triples = [(f"e{h}", "r", f"e{t}") for h, t in rng.integers(0, 8, (80, 2)).tolist()]
    graph = KnowledgeGraph.from_triples(triples)
    new = changed(graph, GivenTriples([("new", "r", "e1"), ("e2", "r", "new")])).graph
    settings = Settings(kge=KGESettings(dimension=4, epochs=2))
    old = KGE.fit(graph, settings.kge)
    rows = np.append(np.arange(len(graph.entities)), -1)
    values = old.for_graph(None, rows, np.arange(1)).updated(new, settings)
    assert np.isfinite(np.asarray(values.entities_SD)).all()
    assert int(values.rows_N[-1]) == len(old.entities_SD)


def test_embeddings_of_what_is_new_are_fitted_and_the_others_stay(real: Any) -> None:
    graph = real("umls")
    train = graph.triples("train")
    held = int(np.bincount(train[:, 0]).argsort()[-10])
    of = (train[:, 0] == held) | (train[:, 2] == held)
    mine = train[of]
    given, asked = mine[::2], mine[1::2]
    before = KnowledgeGraph("before", graph.entities, graph.relations, {"train": train[~of]}, {})
    after = changed(before, GivenTriples(graph.labeled(given))).graph
    settings = Settings(kge=KGESettings(dimension=32, epochs=30))
    old = KGE.fit(before, settings.kge)
    assert int(old.rows_N[held]) < 0
    new = old.updated(after, settings)
    assert np.array_equal(new.entities_SD[: len(old.entities_SD)], old.entities_SD)
    assert int(new.rows_N[held]) == len(old.entities_SD)

    class Asked:
        queries = Queries(asked[:, 0], asked[:, 1], np.ones(len(asked), np.bool_))

    scores_BN = np.asarray(new.score(Asked, Pool(len(graph.entities))))  # type: ignore[arg-type]
    right = scores_BN[np.arange(len(asked)), asked[:, 2]]
    assert (scores_BN > right[:, None]).mean() < 0.25  # by chance it would be a half
