from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import without_digests
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kgmlm.config import load_settings
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ModelError, RunError
from kgmlm.modeling import load_model
from kgmlm.ranker import Ranker
from kgmlm.records import read_graph, write_graph
from kgmlm.runs import (
    NAMES,
    VECTORS,
    began_from,
    check_output,
    model_address,
    open_run,
    save_model,
)
from kgmlm.starting import start_run
from kgmlm.tokenization import SpanTokenizer
from kgmlm.tokenizer_sources import load_tokenizer


def test_a_graph_survives_the_run_folder(toy: KnowledgeGraph, tmp_path: Path) -> None:
    write_graph(toy, tmp_path / "graph")
    copy = read_graph(tmp_path / "graph", "toy", {})
    assert list(copy.splits) == list(toy.splits)
    for split in toy.splits:
        assert np.array_equal(copy.splits[split], toy.splits[split])
        assert copy.labeled(copy.splits[split]) == toy.labeled(toy.splits[split])
    assert copy.entities.table.equals(toy.entities.table)


def test_a_moved_run_works(toy_run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "copy"
    shutil.copytree(toy_run, moved)
    run = open_run(moved)
    text = "".join(p.read_text("utf-8", "ignore") for p in moved.rglob("*") if p.suffix in (".json", ".toml"))
    assert run.record["command"].count(str(toy_run)) == text.count(str(toy_run)) == 1, (
        "a record, not a path to use"
    )
    assert len(run.ranker("cpu").reader.names) == len(run.graph.entities)


def test_a_new_model_leaves_out_a_rescoring_chosen_for_the_old_one(toy_run: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_run, tmp_path / "run")
    run = open_run(tmp_path / "run").update(rescoring={"k": 3, "weight": 1.0})
    run.save_model(run.ranker("cpu", rescorer=False))
    assert open_run(tmp_path / "run").record["rescoring"] is None


def test_the_past_of_a_run_is_read_where_it_still_is(
    toy_run: Path, toy_vector_run: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(toy_run, base)
    shutil.copytree(toy_run, tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert run.past(rescored=True) == ([], [])
    run.update(
        rescoring={
            "k": 1,
            "weight": 1.0,
            "model": str(run.model_folder),
            "began_from": began_from(str(run.model_folder)),
        }
    )
    shutil.move(run.path, tmp_path / "moved")
    run = open_run(tmp_path / "moved")
    assert run.past(rescored=True) == ([], []), "its rescorer began with the run itself, wherever it is"
    run = run.update(command="another", rescoring=None)
    model = str(base / "model")
    run = run.update(
        model=model,
        began_from=began_from(model),
        rescoring={"k": 1, "weight": 1.0, "model": model, "began_from": None},
    )
    for rescored in (False, True):
        (graph,), gone = run.past(rescored)
        assert graph.same(run.graph)
        assert gone == []
    run = run.update(rescoring={"k": 1, "weight": 1.0, "model": model, "began_from": began_from(model)})
    assert len(run.past(rescored=True)[0]) == 1, "the same run is read once"
    shutil.rmtree(base)
    shutil.copytree(toy_vector_run, base)
    assert run.past(rescored=True) == ([], ["toy"]), "another run is there now"
    shutil.rmtree(base)
    shutil.copytree(toy_run, base)
    assert len(run.past(rescored=True)[0]) == 1
    (base / "graph" / "triples.parquet").write_bytes(b"PAR1")
    assert run.past(rescored=True) == ([], ["toy"]), "what cannot be read cannot be checked"


def test_a_model_is_recorded_by_a_path_that_holds_anywhere(
    toy: KnowledgeGraph, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base").symlink_to(toy_run)
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, ["training.epochs=1"])
    run, _ = start_run(tmp_path / "run", toy, "base/model", settings)
    assert run.record["model"] == str(toy_run / "model")
    run = run.update(command="another")
    monkeypatch.chdir("/")
    (graph,), gone = run.past(rescored=False)
    assert graph.same(toy)
    assert gone == []
    assert [model_address(x) for x in ("scratch", "bert-base-uncased")] == ["scratch", "bert-base-uncased"]


def test_what_a_run_began_from_is_its_own_past_alone(
    toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    shutil.copytree(toy_run, base)
    checkpoint = base / "checkpoints" / "step-00000001" / "model"
    shutil.copytree(base / "model", checkpoint)
    expected = began_from(str(base / "model"))
    assert expected is not None
    assert began_from(str(checkpoint)) == expected
    monkeypatch.chdir(base)
    assert began_from("model") == expected
    assert began_from("scratch") is began_from("bert-base-uncased") is None, "the folder here is no ancestor"


def test_what_a_model_needs_is_missed(toy_vector_run: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_vector_run, tmp_path / "run")
    run = open_run(tmp_path / "run")
    with pytest.raises(ModelError, match="is a run; its model is"):
        load_tokenizer(run.path)
    with pytest.raises(ModelError, match="is a run; its model is"):
        load_model(run.path)
    vectors = run.model_folder / VECTORS
    vectors.rename(tmp_path / "vectors")
    with pytest.raises(RunError, match=r"vectors.*is missing"):
        run.ranker("cpu")
    (tmp_path / "vectors").rename(vectors)
    run.ranker("cpu")
    for path in run.model_folder.glob("*token*"):
        path.unlink()
    with pytest.raises(RunError, match=r"token.* is missing; restore it"):
        run.ranker("cpu")
    run = open_run(without_digests(run.path))
    with pytest.raises(ModelError, match="has no tokenizer"):
        run.ranker("cpu")


def test_what_was_chosen_for_other_scores_is_marked(toy_vector_run: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_vector_run, tmp_path / "run")
    early = open_run(tmp_path / "run")  # as a training that goes on beside what follows
    ranker = early.ranker("cpu")
    early.update(structure={"minutes": 1}, rescoring={"k": 1, "weight": 1.0}, weighing={"valid": {}})
    early.save_model(ranker)
    record = open_run(tmp_path / "run").record
    assert record["rescoring"] is record["weighing"] is None
    assert record["structure"] == {"minutes": 1, "outdated": True}
    early.update(structure={"minutes": 1}, rescoring={"k": 1, "weight": 1.0})
    record = early.save_weights(ranker, command="weigh").record
    assert (record["rescoring"], record["weighing"]) == (None, {"command": "weigh"})
    assert record["structure"]["outdated"]


def test_a_run_records_what_it_needs_to_be_repeated(toy_run: Path) -> None:
    record = json.loads((toy_run / "run.json").read_text())
    assert record["dataset"] == "toy"
    assert all(len(v) == 64 for v in record["sources"].values())
    assert {"torch", "transformers", "kgmlm", "python"} <= record["versions"].keys()
    assert record["status"] == "finished"
    assert record["span_length"] >= 1
    assert "train --dataset toy --model scratch" in record["command"]
    assert record["hardware"]["threads"] >= 1
    assert (toy_run / "config.toml").read_text().count("[") >= 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: shutil.rmtree(p), "does not exist"),
        (lambda p: (p / "run.json").unlink(), "is not a run folder"),
        (lambda p: (p / "run.json").write_text("{"), "is damaged"),
        (lambda p: (p / "run.json").write_text("{}"), "is damaged"),
        (lambda p: (p / "graph" / "triples.parquet").unlink(), r"triples\.parquet is missing"),
        (
            lambda p: (p / "graph" / "entities.parquet").write_bytes(b"x"),
            r"has 1 byte instead of the [\d,]+ ",
        ),
    ],
)
def test_a_damaged_run_is_one_sentence(toy_run: Path, tmp_path: Path, damage: object, message: str) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_run, copy)
    damage(copy)  # type: ignore[operator]
    with pytest.raises(RunError, match=message) as caught:
        open_run(copy)
    assert "\n" not in str(caught.value)


def test_a_newer_format_is_refused(toy_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_run, copy)
    record = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(RunError, match="newer kgmlm"):
        open_run(copy)


def test_a_run_without_a_model_says_how_to_go_on(toy_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_run, copy, ignore=shutil.ignore_patterns("model"))
    with pytest.raises(RunError, match="--resume"):
        open_run(copy).ranker()


def test_nothing_is_overwritten_unasked(toy_run: Path, tmp_path: Path) -> None:
    check_output(tmp_path, overwrite=False)
    with pytest.raises(RunError, match="--overwrite"):
        check_output(toy_run, overwrite=False)
    check_output(toy_run, overwrite=True)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match="is not a run"):
        check_output(tmp_path, overwrite=True)


@pytest.mark.parametrize("vectors", [b"x", None])
def test_damaged_entity_vectors_are_one_sentence(
    toy_vector_run: Path, tmp_path: Path, vectors: bytes | None
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_vector_run, copy)
    without_digests(copy)
    path = copy / "model" / "entity_vectors.safetensors"
    if vectors is None:
        save_file({"vectors": torch.zeros(3, 32)}, path, metadata={"likelihood": "1.0", "vector": "5.0"})
    else:
        path.write_bytes(vectors)
    message = "cannot be read" if vectors else r"shape \(3, 32\)"
    with pytest.raises(RunError, match=message) as caught:
        open_run(copy).ranker("cpu")
    assert "\n" not in str(caught.value)


def test_vectors_of_another_type_or_against_the_settings_are_refused(
    toy_vector_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    without_digests(run)
    path = run / "model" / VECTORS
    whole = path.read_bytes()
    with safe_open(path, "pt") as opened:
        tensors, weights = {k: opened.get_tensor(k) for k in opened.keys()}, opened.metadata()  # noqa: SIM118
    save_file({**tensors, "vectors": tensors["vectors"].double()}, path, metadata=weights)
    with pytest.raises(RunError, match=r"cannot be read: its vectors or weights are not float32"):
        open_run(run).ranker("cpu")
    path.write_bytes(whole)
    config = run / "config.toml"
    config.write_text(config.read_text().replace("enabled = true", "enabled = false"))
    with pytest.raises(RunError, match=r"config\.toml is damaged: 'vector\.enabled' is false"):
        open_run(run).ranker("cpu")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    without_digests(run)
    path = run / "model" / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.__getitem__)] = 100_000
    path.write_text(json.dumps(tokenizer), "utf-8")
    with pytest.raises(ModelError, match="has a token 100000, its model 400"):
        open_run(run).ranker("cpu")


def test_a_device_that_holds_no_data_is_refused(toy_run: Path) -> None:
    with pytest.raises(RunError, match="the device 'meta' cannot be used"):
        open_run(toy_run).ranker("meta")


def test_a_tokenizer_that_cannot_be_written_is_an_os_error(
    make_ranker: Callable[..., Ranker], tmp_path: Path
) -> None:
    """Its library has an error of its own for a full disk, and for a folder in the way."""
    (tmp_path / "model" / "tokenizer.json").mkdir(parents=True)
    ranker = make_ranker()
    with pytest.raises(OSError, match="the tokenizer cannot be written"):
        save_model(ranker.reader.model, ranker.reader.tokenizer, tmp_path / "model")


def test_a_run_keeps_the_tokens_of_its_names(
    toy: KnowledgeGraph, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = open_run(toy_run).ranker()
    made = expected.reader.tokenizer.candidates(
        toy.entities.column("surface"), expected.reader.vocabulary.span_length, False
    )
    monkeypatch.setattr(SpanTokenizer, "candidates", lambda *args: pytest.fail("tokenized again"))
    found = open_run(toy_run).ranker().reader.names
    for name in ("token_ids", "offsets", "truncated_N"):
        assert np.array_equal(getattr(found, name), getattr(made, name))
    monkeypatch.undo()
    older = tmp_path / "older"  # an older version kept none
    shutil.copytree(toy_run, older)
    without_digests(older)
    (older / NAMES).unlink()
    assert np.array_equal(open_run(older).ranker().reader.names.token_ids, made.token_ids)


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t | {"tokens": t["tokens"] + 10**6},
        lambda t: t | {"tokens": t["tokens"] - 10**6},
        lambda t: t | {"offsets": t["offsets"][:-1]},
        lambda t: t | {"offsets": t["offsets"].flip(0)},
        lambda t: {"tokens": t["tokens"]},
    ],
)
def test_damaged_tokens_of_names_are_a_sentence(
    toy_run: Path, tmp_path: Path, damage: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    without_digests(run)
    save_file(damage(load_file(run / NAMES)), run / NAMES)
    with pytest.raises(RunError, match="name_tokens"):
        open_run(run).ranker()
