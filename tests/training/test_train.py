"""What the commands do, from Python; what they say on a terminal is for test_cli."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, refused
from trainings import arguments

import kgmlm
from kgmlm.cli.app import app
from kgmlm.core.errors import ConfigError, KgmlmError, RunError
from kgmlm.core.progress import Watcher
from kgmlm.evaluation.metrics import scores_digest
from kgmlm.graphs.entities import EntityTable
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.runs.run import Run
from kgmlm.runs.writing import drop_signal, save_tuned, write_record
from kgmlm.serving.serve import service
from kgmlm.text.torch_model import SpanModel, load_model
from kgmlm.training.loop import Interrupted
from kgmlm.training.recipes import as_assignments

TINY: dict[str, Any] = {
    "preset": "plain", "scratch": {"hidden_size": 16, "heads": 2, "vocabulary": 300},
    "batch_size": 16, "epochs": 2, "eval_every": 1, "precision": "fp32",
}  # fmt: skip


class Hears(Watcher):
    """Keeps what is told, and may do something at what is being done."""

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self.at: Callable[[str], None] = lambda what: None

    def __call__(self, what: str, n: int, total: int) -> None:
        self.at(what)

    def step(self, step: int, loss: float) -> None:
        self.at("training")

    def tell(self, message: str) -> None:
        self.told.append(message)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("jobs") / "run"
    return kgmlm.train("toy", "scratch", path, **arguments(vector={"enabled": True}, **TINY), progress=False)


def test_a_graph_is_split_checked_and_shown_like_its_folder(tmp_path: Path) -> None:
    graph = kgmlm.load_graph("toy")
    made = kgmlm.data.split(graph, tmp_path / "new", entities=0.1, progress=False)
    assert "toy" in str(kgmlm.data.show(made.path).card)
    assert {**kgmlm.data.check(graph).as_json(), "mismatches": {}} == kgmlm.data.check("toy").as_json()
    assert kgmlm.data.show(graph).triples == kgmlm.data.show("toy").triples


def test_every_command_is_a_function_of_the_package() -> None:
    import typer

    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    functions = {name for name in kgmlm.__all__ if callable(getattr(kgmlm, name))}
    assert commands - functions <= {"data", "rank", "rules", "config"}, "rank and rules are methods of a run"
    of_data = typer.main.get_command(app).commands["data"].commands  # type: ignore[attr-defined]
    of_data = of_data.keys() - {"import"}  # a word of Python's: kgmlm.import_graph
    assert all(callable(getattr(kgmlm.data, name)) for name in of_data)


def test_a_dataset_is_split_checked_and_shown(tmp_path: Path) -> None:
    heard: list[str] = []
    made = kgmlm.data.split("toy", tmp_path / "new", entities=0.1, progress=Hears(heard))
    assert made.path == tmp_path / "new"
    assert made.new["test"].entities > 0
    assert made.as_json()["test_new"] == made.new["test"]._asdict()
    assert any(line.startswith("test: ") for line in heard)
    checked = kgmlm.data.check(made.path)
    assert checked.mismatches == {}
    assert checked.values["unseen"] == made.counts.unseen > 0
    assert checked.lines()["against the card"] == ["as expected"]
    assert "<th>self-loops</th>" in checked._repr_html_()
    card = (made.path / "card.toml").read_text()
    (made.path / "card.toml").write_text(card.replace("entities = 31", "entities = 32"))
    assert kgmlm.data.check(made.path).mismatches == {"entities": {"card": 32, "found": 31}}
    shown = kgmlm.data.show("toy", entity="France")
    assert shown.entity is not None
    assert shown.entity.label == "france"
    assert shown.triples
    assert all("france" in (head, tail) for head, _, tail in shown.triples)
    whole = kgmlm.data.show("toy")
    assert whole.card is not None
    assert whole.as_json()["examples"] == [*whole.triples]
    bad: list[dict[str, Any]] = [{}, {"random": True, "entities": 0.1}]
    for wrong in (*bad, {"entities": 0.1, "valid": 0.1}):
        with pytest.raises(ConfigError):
            kgmlm.data.split("toy", tmp_path / "x", progress=False, **wrong)


def test_built_in_datasets_are_listed_and_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = kgmlm.data.list()
    assert listed.to_frame().loc["wn18rr", "entities"] == 40_943
    assert listed.cards["toy"].license
    assert "<table" in listed._repr_html_()
    assert "train.txt" in {path.name for path in kgmlm.data.prepare("umls", progress=False)["umls"]}
    assert kgmlm.data.prepare(str(tmp_path), progress=False) == {}, "a folder has nothing to fetch"
    assert capsys.readouterr() == ("", "")
    heard: list[tuple[str, int, int]] = []

    def download(url: str, known: str, name: str, folder: Path, progressbar: Any) -> str:
        """As pooch goes through a file of 5 bytes."""
        progressbar.total = 5
        for n in (4, 4):
            progressbar.update(n)
        progressbar.reset()
        progressbar.update(5)
        progressbar.close()
        return str(folder / name)

    monkeypatch.setattr("pooch.retrieve", download)
    monkeypatch.delenv("KGMLM_MIRROR", raising=False)
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path))
    kgmlm.data.prepare("wn18rr", progress=lambda *n: heard.append(n))
    of_one = [(n, total) for what, n, total in heard if "WN18RR.tar.gz" in what]
    assert of_one == [(4, 5), (1, 5)]


def test_settings_are_given_by_name(trained: Run) -> None:
    assert trained.settings.training.epochs == 2
    assert trained.settings.vector.enabled
    assert as_assignments({"training.dropout": 0.5, "text": {"template": "natural"}}) == [
        "training.dropout=0.5", 'text.template="natural"',
    ]  # fmt: skip
    both = as_assignments({"training": {"epochs": np.float32(5), "batch_size": 4, "dropout": None}})
    assert both == ["training.epochs=5.0", "training.batch_size=4"]
    assert as_assignments("kge.epochs=3") == ["kge.epochs=3"]
    other = trained.path.parent / "other"
    for settings, meant in (
        ({"epochs": 5}, "unknown key 'epochs'; did you mean 'training.epochs'?"),
        ({"training.epoch": 5}, "unknown key 'training.epoch'; did you mean 'training.epochs'?"),
        ({"vector": True}, "'vector' is True"),
    ):
        with pytest.raises(ConfigError, match=re.escape(meant)):
            kgmlm.train("toy", "scratch", other, progress=False, settings=settings)
    with pytest.raises(TypeError, match="unexpected keyword argument 'outptu'; did you mean 'output'"):
        kgmlm.train("toy", "scratch", outptu=other)  # type: ignore[call-arg]


@pytest.mark.slow
def test_a_preset_trains_in_stages_and_each_is_done_once(tmp_path: Path) -> None:
    path = tmp_path / "run"
    small = {k: v for k, v in TINY.items() if k not in ("preset", "epochs", "eval_every")} | {"epochs": 3}
    run = kgmlm.train("toy", "scratch", path, max_steps=3, progress=False, **arguments(**small))
    recipe = run.folder.record["recipe"]
    assert (recipe["preset"], recipe["stages"]) == (
        "balanced",
        ["types", "rules", "linked", "mentions", "unseen", "kge", "text", "calibration"],
    )
    assert set(run.folder.tuned.of) == {"likelihood", "kge", "rules", "types", "linked", "mentions", "unseen"}
    assert run.settings.kge.max_steps is None, "of this call alone"
    assert run.folder.record["signals"]["rules"]["settings"]["constants"] is False, "as short as it gets"
    assert 0 < run.settings.training.eval_every <= 1
    config = (path / "config.toml").read_text()
    assert config.startswith(
        "# preset balanced: types, then rules, then linked, then mentions, then unseen, then kge, "
        "then text, then calibration\n"
        "# training.samples: "
    )
    assert run.settings.training.batch_size == 16, "what is given goes before the recipe"
    kge = (path / "signals" / "kge.safetensors").stat().st_mtime_ns
    write_record(run.folder, recipe={**recipe, "stages": [*recipe["stages"], "reverse"]})
    done = kgmlm.train(output=path, resume=True, max_steps=6, progress=False)
    assert done.folder.record["status"] == "max steps"
    assert "reverse" in done.folder.tuned.stage_weights
    assert {"types", "reverse"} <= done.folder.tuned.by["valid"].keys()
    assert (path / "signals" / "kge.safetensors").stat().st_mtime_ns == kge
    own = {"length": 2, "constants": False}
    kgmlm.tune(path, add="rules", settings={"rules": own}, overwrite=True, progress=False)
    kgmlm.tune(path, drop=("types", "reverse"), progress=False)
    whole = kgmlm.train(output=path, resume=True, progress=False)
    assert whole.folder.record["status"] == "finished"
    made = whole.folder.record["signals"]["kge"]["settings"]
    assert made["max_steps"] is None, "what was cut is trained again"
    rules = whole.folder.record["signals"]["rules"]["settings"]
    assert {key: rules[key] for key in own} == own, "what the user trained since stays"
    assert "types" not in whole.folder.tuned.of, "what the user dropped stays away"
    assert "reverse" not in whole.folder.tuned.stage_weights
    with pytest.raises(RunError, match="begun with the preset 'balanced', not 'quick'"):
        kgmlm.train(output=path, resume=True, preset="quick", progress=False)


@pytest.mark.slow
def test_second_stages_are_chosen_again_beside_other_weights(tmp_path: Path) -> None:
    path, heard = tmp_path / "run", list[str]()
    small = {k: v for k, v in TINY.items() if k not in ("preset", "epochs", "eval_every")} | {"epochs": 3}
    run = kgmlm.train("toy", "scratch", path, max_steps=3, progress=False, **arguments(**small))
    recipe = run.folder.record["recipe"]
    write_record(run.folder, recipe={**recipe, "stages": [*recipe["stages"], "reverse"]})
    kgmlm.train(output=path, resume=True, max_steps=6, progress=False)
    whole = kgmlm.train(output=path, resume=True, progress=Hears(heard))
    assert whole.folder.record["status"] == "finished"
    assert "reverse" in whole.folder.tuned.stage_weights
    assert sum(line.startswith("reverse scoring ") for line in heard) == 1


@pytest.mark.slow
def test_a_stage_that_was_interrupted_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "run"
    small = {**TINY, "preset": "balanced"}
    kgmlm.train("toy", "scratch", path, progress=False, **arguments(**small))
    folder = kgmlm.open_run(path).folder
    folder = drop_signal(folder, "kge")  # as if it had been killed after the text model
    run = kgmlm.train(output=path, resume=True, progress=False)
    assert "kge" in run.folder.tuned.of
    heard = Hears([])
    kgmlm.train(output=path, resume=True, progress=heard)
    assert heard.told[-1].endswith("nothing to resume")


@pytest.mark.slow
def test_a_kge_model_that_was_interrupted_is_trained_further(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.signals.kge_training.KEPT_EVERY", 0.0)
    monkeypatch.setattr("kgmlm.signals.kge_training.KEPT_SHARE", 0.0)
    small = {"dimension": 8, "epochs": 5, "batch_size": 16}
    runs = [tmp_path / name for name in ("whole", "cut")]
    for path in runs:
        shutil.copytree(trained.path, path)
    kgmlm.tune(runs[0], add="kge", settings={"kge": small}, progress=False)
    steps: list[int] = []

    class Hurried(Hears):
        def __call__(self, what: str, n: int, total: int) -> None:
            steps.append(n)
            if what == "training kge" and len(steps) == 10:
                raise KeyboardInterrupt

    rows: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        kgmlm.tune(runs[1], add="kge", settings={"kge": small}, progress=Hurried(rows))
    kept = tmp_path / ".cut.kge-unfinished"
    assert rows == [f"the training of kge is kept in {kept}, and the next one continues from there"]
    (tmp_path / "..cut.kge-unfinished.0123.kgmlm-part").mkdir()  # as a kill leaves it
    heard: list[int] = []
    kgmlm.tune(runs[1], add="kge", settings={"kge": small}, progress=lambda what, n, total: heard.append(n))
    assert heard[0] == 9
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut", "whole"]
    files = [(path / "signals" / "kge.safetensors").read_bytes() for path in runs]
    assert files[0] == files[1]


def test_a_kill_right_after_the_run_was_laid_loses_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kgmlm.training.train._tell_unknown", killed)
    with pytest.raises(KeyboardInterrupt):
        kgmlm.train("toy", "scratch", tmp_path / "run", onnx=False, progress=False, **arguments(**TINY))
    assert open_folder(tmp_path / "run").record["onnx"] is False


@pytest.mark.slow
def test_a_graph_without_rules_has_no_stage_for_them(tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "train.tsv").write_text("".join(f"a{i}\tin\tb{i}\n" for i in range(9)))
    (folder / "valid.tsv").write_text("a1\tin\tb2\n")
    small = {k: v for k, v in TINY.items() if k not in ("preset", "epochs", "eval_every")} | {"epochs": 1}
    run = kgmlm.train(folder, "scratch", tmp_path / "run", progress=False, **arguments(**small))
    assert set(run.folder.tuned.of) == {"likelihood", "kge", "types", "linked", "unseen"}
    assert run.folder.record["recipe"]["stages"] == ["types", "linked", "unseen", "kge", "text"]
    heard = Hears([])
    kgmlm.train(output=tmp_path / "run", resume=True, progress=heard)
    assert heard.told[-1].endswith("nothing to resume")


@pytest.mark.slow
def test_validation_of_false_triples_alone_chooses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "train.tsv").write_text("".join(f"a{i}\tin\tb{i}\n" for i in range(9)))
    (folder / "valid.tsv").write_text("a1\tin\tb2\t-1\na2\tin\tb1\t-1\n")
    small = {k: v for k, v in TINY.items() if k not in ("preset", "epochs", "eval_every")} | {"epochs": 1}
    run = kgmlm.train(folder, "scratch", tmp_path / "run", progress=False, **arguments(**small))
    assert run.folder.record["status"] == "finished"
    assert run.folder.record["recipe"]["stages"] == ["text"]
    assert len(run.rank(head="a1", relation="in", k=3)) == 3


@pytest.mark.slow
def test_a_large_graph_is_asked_through_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgmlm.training.recipes.LARGE", 5)
    monkeypatch.setattr("kgmlm.runs.index.SHORTLIST", 4)
    monkeypatch.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # the toy graph has few
    small = {k: v for k, v in TINY.items() if k not in ("preset", "epochs", "eval_every")} | {"epochs": 1}
    vector = {"enabled": True, "max_length": 24}
    kgmlm.train(
        "toy",
        "scratch",
        tmp_path / "run",
        preset="quick",
        progress=False,
        **arguments(**small, vector=vector),
    )
    run = kgmlm.open_run(tmp_path / "run")
    assert run.folder.record["shortlist"]["entities"] == 4
    assert len(run.rank(head="France", relation="has the capital", k=20)) == 4
    probable = run.rank([("France", "capital", None), (None, "located_in", "europe")], k=20)
    assert probable["probability"].notna().any()
    numbers = run.rank(head="France", relation="capital", k=4).set_index("tail_label")["probability"]
    for retrieve in (0, 3):
        other = kgmlm.open_run(tmp_path / "run", retrieve=retrieve)
        asked = other.rank(head="France", relation="capital", k=20).set_index("tail_label")["probability"]
        both = numbers.index.intersection(asked.index)
        assert asked[both].to_numpy() == pytest.approx(numbers[both].to_numpy(), abs=1e-5, nan_ok=True)
    whole = kgmlm.open_run(tmp_path / "run", retrieve=0)
    assert len(whole.rank(head="France", relation="has the capital", k=20)) == 20
    assert "retrieval" not in kgmlm.evaluate(run, progress=False).values, "all compete, unless asked"
    write_record(run.folder, shortlist={"entities": 4, "of": "another model"})
    again = kgmlm.open_run(tmp_path / "run")
    assert len(again.rank(head="France", relation="has the capital", k=20)) == 20


def test_what_stages_need_is_seen_before_the_text_model_is_trained(tmp_path: Path) -> None:
    small = {k: v for k, v in TINY.items() if k != "preset"}
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"types": {"relation": "is_a"}}, "has no relation 'is_a'"),
        ({"rules": {"file": str(tmp_path / "none.txt")}}, "cannot be read as rules"),
    ]
    for wrong, message in wrongs:
        with pytest.raises(KgmlmError, match=message):
            kgmlm.train(
                "toy",
                "scratch",
                tmp_path / "run",
                preset="quick",
                progress=False,
                **arguments(**small, **wrong),
            )
        assert not (tmp_path / "run").exists()


def test_training_stops_and_continues(tmp_path: Path) -> None:
    heard: list[str] = []
    run = kgmlm.train(
        "toy",
        "scratch",
        tmp_path / "run",
        max_steps=3,
        progress=lambda what, *n: heard.append(what),
        **arguments(**TINY),
    )
    assert run.folder.record["status"] == "max steps"
    assert "training" in heard
    done = kgmlm.train(output=tmp_path / "run", resume=True, progress=False)
    assert done.folder.record["status"] == "finished"
    with pytest.raises(RunError, match="is a run already"):
        kgmlm.train("toy", "scratch", tmp_path / "run", progress=False, **arguments(**TINY))


def test_a_decay_goes_on_where_a_setting_bounded_the_steps(tmp_path: Path) -> None:
    bounded = TINY | {"schedule": "constant", "epochs": 9}
    run = kgmlm.train(
        "toy", "scratch", tmp_path / "run", progress=False,
        **arguments(**bounded | {"training.max_steps": 3}),
    )  # fmt: skip
    assert (run.folder.record["status"], run.folder.record["step"]) == ("max steps", 3)
    for wrong in (-3.0, 1e308, float("nan"), "x"):
        with pytest.raises(ConfigError, match="--decay is a number from 0 to"):
            kgmlm.train(output=tmp_path / "run", resume=True, decay=wrong, progress=False)  # type: ignore[arg-type]
    ended = kgmlm.train(output=tmp_path / "run", resume=True, decay=1.0, progress=False)
    assert ended.folder.record["status"] == "finished"
    assert ended.folder.record["step"] > 3


def test_what_is_damaged_is_no_information(trained: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(trained.path, tmp_path / "copy")
    whole = (copy / "model" / "mixture.json").read_bytes()
    (copy / "model" / "mixture.json").write_bytes(whole[:100])
    with pytest.raises(RunError, match="is damaged"):
        kgmlm.info(copy)


def test_candidates_of_a_stage_that_is_not_there_are_refused(trained: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(trained.path, tmp_path / "copy")
    with pytest.raises(RunError, match="--candidates is of second stages"):
        kgmlm.tune(copy, candidates=3, progress=False)


def test_an_interruption_can_be_caught(tmp_path: Path) -> None:
    def interrupt(what: str, n: int, total: int) -> None:
        if what == "training" and n:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted) as caught:
        kgmlm.train("toy", "scratch", tmp_path / "run", progress=interrupt, **arguments(**TINY))
    assert caught.value.signal == 15
    assert isinstance(caught.value, KeyboardInterrupt)
    run = kgmlm.train(output=tmp_path / "run", resume=True, progress=False)
    assert run.folder.record["status"] == "finished"


def test_a_report_is_typed_shown_and_saved(trained: Run, tmp_path: Path) -> None:
    report = kgmlm.evaluate(trained, output=tmp_path / "a.json", progress=False)
    assert 0 < report.metrics["mrr"] < 1
    table = report.to_frame()
    assert list(table.index) == ["tail", "head", "both"]
    assert table.loc["both", "MRR"] == report.metrics["mrr"]
    report.save(tmp_path / "b.json")
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads((tmp_path / "b.json").read_text())
    assert report.to_pykeen().get_metric("both.realistic.mrr") == pytest.approx(report.metrics["mrr"])
    assert f"{report.metrics['mrr']:.4f}" in report._repr_html_()
    assert "toy test" in repr(report)
    assert "relations" not in report.values
    assert "relations" in kgmlm.evaluate(trained, by_relation=True, progress=False).values


def test_a_model_that_is_loaded_is_not_loaded_again(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copytree(trained.path, tmp_path / "run")
    loads: list[Path] = []

    def load(folder: Path) -> SpanModel:
        loads.append(folder)
        return load_model(folder)

    monkeypatch.setattr("kgmlm.text.torch_model.load_model", load)
    run = kgmlm.open_run(path, device="cpu", runtime="torch")
    expected = kgmlm.evaluate(run, progress=False)
    run.rank(head="France", relation="capital", k=1)
    assert kgmlm.evaluate(run, split="valid", progress=False).metrics
    other = tmp_path / "moon"
    other.mkdir()
    for split in ("train", "test"):
        (other / f"{split}.tsv").write_text(f"crater {split}\tlocated_in\tmoon\n")
    inductive = kgmlm.evaluate(run, graph=other, progress=False)
    assert len(loads) == 1
    afresh = kgmlm.evaluate(path, graph=other, device="cpu", progress=False)
    assert inductive.metrics == afresh.metrics
    assert kgmlm.evaluate(path, device="cpu", progress=False).metrics == expected.metrics
    loads.clear()
    kgmlm.tune(path, progress=False)  # by its path: the run that is open does not hear of it
    loads.clear()
    kgmlm.evaluate(run, progress=False)
    assert len(loads) == 1, "what was tuned meanwhile is read again"
    assert scores_digest(path / "ranks" / "test.parquet") == run.folder.scores_digest


def test_a_run_is_evaluated_as_it_was_opened(trained: Run) -> None:
    opened = kgmlm.open_run(trained.path, scores="likelihood")
    by_name = kgmlm.evaluate(trained.path, scores="likelihood", progress=False)
    assert kgmlm.evaluate(opened, progress=False).metrics == by_name.metrics
    everything = kgmlm.evaluate(opened, scores="all", progress=False)
    assert everything.values["scores"]["vector"] > 0


def test_two_runs_are_compared(trained: Run, tmp_path: Path) -> None:
    other = shutil.copytree(trained.path, tmp_path / "other")
    kgmlm.evaluate(trained, progress=False)
    kgmlm.evaluate(other, progress=False)
    comparison = kgmlm.compare(trained, other, draws=100)
    assert comparison.to_frame()["difference"].eq(0).all()
    assert comparison.queries == comparison.as_json()["queries"] > 0
    assert "<table" in comparison._repr_html_()


def test_numbers_that_the_command_line_refuses_are_refused(trained: Run, tmp_path: Path) -> None:
    new, quiet = tmp_path / "new", dict[str, Any](progress=False)
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: kgmlm.evaluate(trained, batch_size=0, **quiet), "--batch-size"),
        (lambda: kgmlm.evaluate(trained, max_triples=0, **quiet), "--max-triples"),
        (lambda: kgmlm.calibrate(trained, seed=-1, **quiet), "--seed"),
        (lambda: kgmlm.compare(trained, trained, draws=3, **quiet), "--draws"),
        (lambda: kgmlm.tune(trained, max_triples=-1, **quiet), "--max-triples"),
        (lambda: kgmlm.tune(trained, candidates=0, **quiet), "--candidates"),
        (lambda: kgmlm.report(trained, new, max_triples=0, **quiet), "--max-triples"),
        (lambda: kgmlm.data.split("toy", new, random=True, seed=-1, **quiet), "--seed"),
        (lambda: service(trained, queue=0), "--queue"),
    ]
    for call, option in refused:
        with pytest.raises(ConfigError, match=f"{option} is a whole number"):
            call()
    assert not list(tmp_path.iterdir())


def test_no_output_replaces_a_runs_own_files(trained: Run, tmp_path: Path, cli: Cli) -> None:
    run = shutil.copytree(trained.path, tmp_path / "run")
    files = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    weights, record = run / "model" / "model.safetensors", run / "run.json"
    writing: list[Callable[[], Any]] = [
        lambda: kgmlm.evaluate(run, output=record, progress=False),
        lambda: kgmlm.evaluate(run, ranks=weights, progress=False),
        lambda: kgmlm.report(run, run / "config.toml", progress=False),
        lambda: kgmlm.feedback(run, weights),
        lambda: kgmlm.complete(run, weights, progress=False),
        lambda: kgmlm.export(tmp_path / "new.parquet", record, format="csv"),
    ]
    for write in writing:
        with pytest.raises(RunError, match="belongs to the run"):
            write()
    refused(cli("rules", run, "--output", weights), "belongs to the run")
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == files


def test_damaged_ranks_are_told_and_made_again(trained: Run, tmp_path: Path) -> None:
    run, messages = shutil.copytree(trained.path, tmp_path / "run"), list[str]()
    kgmlm.evaluate(run, progress=False)
    kept = run / "ranks" / "test.parquet"
    kept.write_bytes(b"garbage")
    information = kgmlm.info(run)
    assert information.ranks["test"] == {}
    assert "test: damaged" in information.lines()["ranks"]
    kgmlm.report(run, tmp_path / "report.html", progress=Hears(messages))
    assert any("cannot be read as Parquet" in line and "made again" in line for line in messages), messages


def test_a_record_without_steps_is_shown(trained: Run, tmp_path: Path) -> None:
    run = shutil.copytree(trained.path, tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    del record["step"], record["minutes"]
    (run / "run.json").write_text(json.dumps(record))
    assert " minutes, 0 steps of the masked LM" in kgmlm.info(run).lines()["trained"][0]
    (run / "run.json").write_text(json.dumps(record | {"best_valid_mrr": "x"}))
    with pytest.raises(RunError, match="best_valid_mrr"):
        kgmlm.info(run)


@pytest.mark.slow
def test_signals_are_trained_beside_a_run(trained: Run, tmp_path: Path) -> None:
    run = shutil.copytree(trained.path, tmp_path / "run")
    figures = kgmlm.tune(run, add="kge", settings={"kge": {"dimension": 4, "epochs": 2}}, progress=False)
    assert list(figures) == ["text", "kge"]
    about = kgmlm.info(run)
    assert set(about.signals) == {"likelihood", "vector", "kge"}
    assert about.signals["kge"]["made"]["settings"]["dimension"] == 4
    with pytest.raises(RunError, match="say how to --add"):
        kgmlm.tune(run, settings={"kge": {"dimension": 4}}, progress=False)
    folder = kgmlm.open_run(run).folder
    folder = save_tuned(folder, replace(folder.tuned, mixture=folder.tuned.mixture.evenly("kge", 3.0)))
    assert list(kgmlm.tune(run, add="reverse", progress=False)) == ["reverse"]
    chosen = kgmlm.open_run(run).folder.tuned
    assert chosen.mixture.averages["kge"] == 3.0, "weights of signals stay"
    assert list(chosen.by["valid"]) == ["text", "kge", "reverse"]
    assert list(kgmlm.tune(run, drop="reverse", progress=False)) == ["text", "kge"], "of the signals"


def test_further_entities_compete_in_an_evaluation(trained: Run) -> None:
    wider = trained.with_entities(EntityTable(["atl"], ["Atlantis"], ["a lost island"]))
    count = kgmlm.evaluate(wider, progress=False).values["candidates"]["count"]
    assert count == len(trained.graph.entities) + 1


def test_nothing_is_dropped_when_what_is_added_is_refused(trained: Run, tmp_path: Path) -> None:
    run = shutil.copytree(trained.path, tmp_path / "run")
    kgmlm.tune(run, add="kge", settings={"kge": {"dimension": 4, "epochs": 1}}, progress=False)
    wrongs: list[dict[str, Any]] = [
        {"add": "bogus"},
        {"add": "kge", "source": trained},
        {"add": "types", "settings": {"types": {"nope": 3}}},
        {"add": "kge", "source": run},
        {"add": "types", "settings": {"kge": {"dimension": 4}}},
    ]
    for wrong in wrongs:
        with pytest.raises((RunError, ConfigError)):
            kgmlm.tune(run, drop="kge", progress=False, **wrong)
        assert "kge" in tuned_ranker(kgmlm.open_run(run).folder, "cpu").signals


def test_a_run_that_is_open_follows_what_is_done_to_it(trained: Run, tmp_path: Path) -> None:
    run = kgmlm.open_run(shutil.copytree(trained.path, tmp_path / "run"))
    run.rank(head="France", relation="capital", k=1)
    kgmlm.tune(run, add="kge", settings={"kge": {"dimension": 4, "epochs": 2}}, progress=False)
    assert "kge" in run.explain(head="France", relation="capital", k=1).columns
    assert "kge" in run.folder.record["signals"]
    assert run.graph is run.folder.graph, "else it would have further entities"
    wider = run.with_entities(EntityTable(["atl"], ["Atlantis"]))
    wider.reopen()
    assert "atl" in wider.graph.entities.index


def test_what_a_run_is_fits_a_screen(trained: Run) -> None:
    kgmlm.evaluate(trained, progress=False)
    about = kgmlm.info(trained)
    lines = about.lines()
    assert lines["graph"][0].startswith("toy: 31 entities" if len(trained.graph.entities) == 31 else "toy: ")
    assert "finished" in lines["trained"][0]
    assert any(line.startswith("test: MRR") for line in lines["ranks"])
    assert sum(map(len, lines.values())) < 24
    assert json.loads(json.dumps(about.as_json()))["graph"]["name"] == "toy"
    assert "<table>" in about._repr_html_()
    assert about.bytes > 1000


def test_what_the_model_sees_is_shown(trained: Run) -> None:
    shown = kgmlm.linearize(trained, "capital", head="France")
    assert len(shown.tokens) == len(shown.input_ids)
    assert shown.vector
    assert "France" in shown.text
    assert kgmlm.linearize("toy", "capital", head="France", template="natural").text != shown.text


def test_an_index_is_built_and_used(trained: Run, tmp_path: Path) -> None:
    run = shutil.copytree(trained.path, tmp_path / "run")
    record = kgmlm.index(run, progress=False)
    assert record["entities"] == len(trained.graph.entities)
    best = kgmlm.open_run(run, retrieve=5).rank(head="France", relation="capital", k=9)
    assert 0 < len(best) <= 5
