from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY_SETTINGS, Cli, refused, without_digests

from kgmlm import rescoring
from kgmlm.config import Protocol, RescoringSettings, Settings, TextSettings, VectorSettings
from kgmlm.evaluation import evaluate
from kgmlm.graph import KnowledgeGraph
from kgmlm.indexing import build_index
from kgmlm.kg import ConfigError, EntityTable, IntArray, ModelError, Queries, Query
from kgmlm.objectives import RescoringStream
from kgmlm.ranker import MISSED, Ranker, Retrieval
from kgmlm.rescoring import Best, Rescorer, Use, pair_loss
from kgmlm.runs import RESCORER, open_run
from kgmlm.tokenization import Encoded, MaskedBatch
from kgmlm.tuning import choose_rescoring

TEXT = TextSettings(max_length=40, neighbors=3)
SMALL = RescoringSettings(candidates=10, negatives=3, max_length=24, neighbors=2)


@pytest.fixture
def ranker(make_ranker: Callable[..., Ranker]) -> Ranker:
    """A random first stage with a random rescorer: the same model, read in another way."""
    made = make_ranker(TEXT, VectorSettings(enabled=True))
    settings = made.settings.model_copy(update={"rescoring": SMALL}).for_rescoring()
    made.rescorer = Rescorer(made.context, made.tokenizer, made.model, settings, Use(5, 2.0))
    return made


def test_a_pair_is_the_query_with_the_candidate_in_its_hole(ranker: Ranker, toy: KnowledgeGraph) -> None:
    assert ranker.rescorer is not None
    index = toy.entities.index
    query = Query(index["france"], toy.relations.index["capital"], "tail")
    ((encoded,),) = ranker.rescorer.encode(Queries.of([query]), [np.array([index["paris"]])])
    ids = encoded.input_ids
    text = ranker.tokenizer.tokenizer.decode(ids)
    (told,) = ranker.linearize(Queries.of([query]))
    asked = told.before[-1].text
    assert text.index(told.before[0].text) < text.index(asked) < text.index("answer: Paris.")
    assert ids[encoded.span_start] == ranker.tokenizer.mask_id
    assert ids.count(ranker.tokenizer.mask_id) == 1
    assert ids[encoded.span_start + 1 :] == ranker.tokenizer.suffix
    assert len(ids) <= TEXT.max_length + SMALL.max_length


def test_the_asked_for_triple_is_told_by_neither_side(ranker: Ranker, toy: KnowledgeGraph) -> None:
    """The pair's text with the triple in training is the text without; mirrored, it is told."""
    made = ranker.rescorer
    assert made is not None
    h, r, t = toy.splits["train"][0].tolist()

    def text(query: Query, answer: int, *train: tuple[int, int, int]) -> list[int]:
        triples = np.array(train, np.int64).reshape(-1, 3)
        context = replace(toy, splits={"train": triples}).context
        over = made.over(context)
        ((pair,),) = over.encode(Queries.of([query]), [np.array([answer])])
        return pair.input_ids

    for query, answer in ((Query(h, r, "tail"), t), (Query(t, r, "head"), h)):
        assert text(query, answer, (h, r, t)) == text(query, answer)
        assert len(text(query, answer, (t, r, h))) > len(text(query, answer))


def test_scores_are_the_log_odds_of_two_words(ranker: Ranker, toy: KnowledgeGraph) -> None:
    assert ranker.rescorer is not None
    queries = toy.queries("test")[0][np.arange(4)]
    ids_BK = np.array([[0, 3], [5, -1], [7, 8], [-1, -1]])
    found = ranker.rescorer.score(queries, ids_BK, batch_size=2)
    assert (found[torch.from_numpy(ids_BK < 0)] == 0).all()
    yes, no = (x[-1] for x in ranker.tokenizer.encode_words(["yes", "no"]))
    for b, k in ((0, 0), (0, 1), (1, 0), (2, 1)):
        query = queries[np.array([b])]
        ((pair,),) = ranker.rescorer.encode(query, [ids_BK[b, k : k + 1]])
        with torch.inference_mode():
            logits = ranker.model.mlm(torch.tensor([pair.input_ids])).logits[0, pair.span_start]
        torch.testing.assert_close(found[b, k], logits[yes] - logits[no], atol=1e-5, rtol=1e-4)


def test_a_tokenizer_that_cannot_say_no_is_refused(ranker: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescoring, "WORDS", ("yes", "yes"))
    with pytest.raises(ModelError, match="cannot tell 'yes' from 'no'"):
        Rescorer(ranker.context, ranker.tokenizer, ranker.model, ranker.settings)


def test_only_the_best_gain_and_stay_ahead(ranker: Ranker, toy: KnowledgeGraph) -> None:
    assert ranker.rescorer is not None
    queries, _ = toy.queries("test")
    known = 0
    for rows, parts in ranker.parts(queries):
        before = parts.score(ranker.weights)
        after = ranker.rescored(queries[rows], before)
        for b, query in enumerate(queries[rows]):
            answered = torch.from_numpy(np.isin(np.arange(len(toy.entities)), list(answers(toy, query))))
            leading = before[b].masked_fill(answered, -torch.inf).topk(5).indices
            gained = (after[b] != before[b]) & ~answered
            assert set(gained.nonzero()[:, 0].tolist()) <= set(leading.tolist())
            assert int(gained.sum()) >= 4, "the worst read gains nothing"
            ahead = before[b] >= before[b, leading].min()
            assert after[b, ahead].min() > after[b, ~ahead].max()
            read = ranker.rescorer.score(queries[rows][np.array([b])], leading.numpy()[None])[0]
            gain = 2 * (read - read.min())
            close = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
            close(after[b, leading], before[b, leading] + gain)
            ahead &= answered
            close(after[b, ahead], before[b, ahead] + gain.max())
            known += int(ahead.sum())
    assert known > 0, "training answers were among the best"


def test_no_more_is_read_at_once_than_asked(
    ranker: Ranker, toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ranker.rescorer is not None
    queries = toy.queries("test")[0][np.arange(8)]
    whole = dict(_rows(ranker, queries))
    sizes: list[int] = []
    collate = ranker.tokenizer.collate

    def counted(encoded: list[Encoded]) -> MaskedBatch:
        sizes.append(len(encoded))
        return collate(encoded)

    monkeypatch.setattr(ranker.tokenizer, "collate", counted)
    for row, scores_N in _rows(ranker, queries, batch_size=3):
        torch.testing.assert_close(scores_N, whole[row], atol=1e-4, rtol=1e-4)
    assert max(sizes) == 3


def _rows(ranker: Ranker, queries: Queries, **options: int) -> Iterator[tuple[int, torch.Tensor]]:
    for rows, scores_BN in ranker.rank(queries, **options):  # type: ignore[arg-type]
        yield from zip(rows.tolist(), scores_BN, strict=True)


def answers(toy: KnowledgeGraph, query: Query) -> set[int]:
    """What training triples answer, by a plain walk."""
    known, asked = (2, 0) if query.target == "head" else (0, 2)
    return {
        int(triple[asked])
        for triple in toy.splits["train"]
        if (triple[known], triple[1]) == (query.entity, query.relation)
    }


def test_what_training_answers_already_is_passed_over(ranker: Ranker, toy: KnowledgeGraph) -> None:
    queries, _ = toy.queries("train")
    ((rows, scores),) = ranker.rank(queries[np.arange(40)])
    everyone = np.arange(len(toy.entities))
    some = np.random.default_rng(0).permutation(everyone)[: len(everyone) // 2]
    own = np.stack([np.random.default_rng(b).permutation(everyone)[:9] for b in range(len(rows))])
    own[:, -1] = -1
    passed = 0
    for among, of_query in (
        (None, scores),
        (some, scores[:, torch.from_numpy(some)]),
        (own, scores.gather(1, torch.from_numpy(np.maximum(own, 0)))),
    ):
        if among is own:
            of_query[:, -1] = MISSED
        best, ids_BK = ranker.best(queries[rows], of_query, 5, among)
        for b, query in enumerate(queries[rows]):
            candidates = everyone if among is None else among if among.ndim == 1 else among[b]
            fresh = [
                (-score, int(i))
                for i, score in zip(candidates, of_query[b].tolist(), strict=True)
                if i >= 0 and i not in answers(toy, query)
            ]
            passed += len(candidates) - len(fresh)
            expected = [i for _, i in sorted(fresh)][:5]
            assert ids_BK[b].tolist() == expected + [-1] * (5 - len(expected))
            assert best.scores_BK[b, : len(expected)].tolist() == [-s for s, _ in sorted(fresh)][:5]
    assert passed > len(own), "some are passed over, not only what the shortlist lacks"


def test_ties_at_the_edge_are_left_alone() -> None:
    scores_BN = torch.tensor(
        [[4.0, 3.0, 3.0, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0], [5.0, 4.0, 3.0, 2.0, 1.0]]
    )
    none = torch.zeros_like(scores_BN, dtype=torch.bool)
    for best in (Best.of(scores_BN, k, none).first(2) for k in (2, 4, 9)):
        assert best.chosen_BK.tolist() == [[True, False], [False, False], [True, True]]
        assert best.columns_BK[2].tolist() == [0, 1]
    whole = Best.of(scores_BN, 9, none)
    assert whole.chosen_BK.all()
    assert whole.first(5).chosen_BK.all()
    read = torch.tensor([[2.0, 9.0], [1.0, 2.0], [3.0, 1.0]])
    gain = best.rescored(scores_BN, read, 0.5) - scores_BN
    assert gain.tolist() == [[0.0] * 5, [0.0] * 5, [1.0, 0, 0, 0, 0]]


def test_a_constant_scorer_stays_at_chance(ranker: Ranker, toy: KnowledgeGraph) -> None:
    queries, _ = toy.queries("test")
    flat = torch.full((len(queries), len(toy.entities)), -3.0)
    assert torch.equal(ranker.rescored(queries, flat), flat)


def test_what_a_shortlist_lacks_is_never_rescored(ranker: Ranker, toy: KnowledgeGraph) -> None:
    queries = toy.queries("test")[0][np.arange(2)]
    scores = torch.full((2, 6), MISSED)
    scores[:, :3] = torch.tensor([3.0, 2.0, 1.0])
    ids = np.array([[4, 5, 6, -1, -1, -1]] * 2)
    after = ranker.rescored(queries, scores, ids)
    assert (after[:, 3:] == MISSED).all()
    assert (after[:, :3] > MISSED).all()
    assert (after[:, :3] != scores[:, :3]).any()


def test_a_shortlist_of_all_is_exact(ranker: Ranker, toy: KnowledgeGraph) -> None:
    pytest.importorskip("faiss")
    index = build_index(ranker, toy, "likelihood")
    queries, _ = toy.queries("test")
    for _, shortlisted, exact in ranker.retrieve_and_rank(queries, Retrieval(index, 99)):
        torch.testing.assert_close(shortlisted, exact, atol=1e-3, rtol=1e-4)


def test_new_entities_are_read_like_others(ranker: Ranker, toy: KnowledgeGraph) -> None:
    assert ranker.rescorer is not None
    wider = toy.extended(EntityTable(["q1"], ["Atlantis"], ["a lost city"]))
    twin = ranker.over(wider.context)
    assert twin.rescorer is not None
    assert twin.rescorer.use == ranker.rescorer.use
    queries = toy.queries("test")[0][np.arange(3)]
    ids = np.array([[0, 1]] * 3)
    torch.testing.assert_close(twin.rescorer.score(queries, ids), ranker.rescorer.score(queries, ids))
    new = twin.rescorer.score(queries, np.full((3, 1), len(toy.entities)))
    assert new.isfinite().all()


class Oracle(Rescorer):
    """Knows the answers of a split, or the opposite of them."""

    graph: KnowledgeGraph
    sign: float

    def score(self, queries, ids_BK, batch_size=64, advance=lambda n: None):  # type: ignore[no-untyped-def]
        found = torch.zeros(ids_BK.shape)
        h, r, t = self.graph.splits["valid"].T
        for b, query in enumerate(queries):
            known, answers = (h, t) if query.target == "tail" else (t, h)
            mine = answers[(known == query.entity) & (r == query.relation)]
            found[b] = torch.from_numpy(self.sign * np.isin(ids_BK[b], mine))
        return found


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_validation_chooses_how_many_and_how_much(ranker: Ranker, toy: KnowledgeGraph, sign: float) -> None:
    protocol = Protocol(split="valid")
    made = ranker.rescorer
    assert made is not None
    ranker.rescorer = None
    before = evaluate(ranker, toy, protocol).report["metrics"]["mrr"]
    with pytest.raises(ConfigError, match="no rescorer"):
        choose_rescoring(ranker, toy, protocol)
    oracle = Oracle(made.context, made.tokenizer, made.model, made.settings)
    oracle.graph, oracle.sign = toy, sign
    ranker.rescorer = oracle
    found = choose_rescoring(ranker, toy, protocol)
    assert found["mrr_first"] == pytest.approx(before)
    after = evaluate(ranker, toy, protocol).report["metrics"]
    assert after["mrr"] == pytest.approx(found["mrr"])
    assert after["both.realistic.hits_at_10"] == pytest.approx(found["hits_at_10"])
    if sign < 0:
        assert (oracle.use.k, found["mrr"]) == (0, found["mrr_first"])
    else:
        assert oracle.use.k == SMALL.candidates
        assert found["mrr"] > before
        assert found["hits_at_1"] <= found["held"], "what the first stage misses stays missed"
    ranker.use("likelihood")
    assert ranker.rescorer is None


def stream(ranker: Ranker, graph: KnowledgeGraph, seed: int = 0) -> RescoringStream:
    assert ranker.rescorer is not None
    settings = ranker.rescorer.settings
    training = settings.training.model_copy(update={"batch_size": 16, "epochs": 2, "seed": seed})
    reader = Ranker(ranker.context, ranker.tokenizer, ranker.model, settings, ranker.vocabulary)
    ranker.rescorer = None
    return RescoringStream(reader, graph, training, (0, 1), ranker)


def test_wrong_answers_are_wrong_seen_and_hard(ranker: Ranker, toy: KnowledgeGraph) -> None:
    made = stream(ranker, toy)
    rows = np.arange(len(made.queries))
    drawn = made._wrong(rows, np.random.default_rng(0))
    scores = dict[int, torch.Tensor]()
    for at, scores_bS in ranker.rank(made.queries, made.entities):
        scores |= {int(i): s for i, s in zip(at, scores_bS, strict=True)}
    for row, wrong in zip(rows, drawn, strict=True):
        true = made.answers.take(np.array([row]))[1]
        assert len(wrong) == len(set(wrong.tolist())) == SMALL.negatives
        assert toy.seen_N[wrong].all()
        assert not np.isin(wrong, true).any()
        order = made.entities[scores[int(row)].argsort(descending=True, stable=True).numpy()]
        leading = order[~np.isin(order, true)][: SMALL.candidates]
        assert np.isin(wrong, leading).all()


def test_the_stream_is_a_function_of_seed_and_position(ranker: Ranker, toy: KnowledgeGraph) -> None:
    made = stream(ranker, toy)
    whole = list(made.from_position(0))
    assert len(whole) == 2 * made.per_epoch
    assert whole[0].counts_B.tolist() == [1 + SMALL.negatives] * 4
    again = list(made.from_position(3))
    for a, b in zip(whole[3:], again, strict=True):
        assert torch.equal(a.pairs.input_ids_BT, b.pairs.input_ids_BT)
    other = next(stream_of_seed(made, 1))
    assert not torch.equal(other.pairs.input_ids_BT, whole[0].pairs.input_ids_BT)


def stream_of_seed(made: RescoringStream, seed: int) -> Iterator[Any]:
    made.settings = made.settings.model_copy(update={"seed": seed})
    return made.from_position(0)


def test_the_loss_is_a_softmax_over_each_querys_candidates() -> None:
    scores = torch.tensor([2.0, 1.0, 0.5, 3.0, 0.0, 7.0], requires_grad=True)
    counts: IntArray = np.array([3, 2, 1])
    expected = -(scores[:3].log_softmax(0)[0] + scores[3:5].log_softmax(0)[0] + 0) / 3
    loss = pair_loss(scores, counts)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[5] == 0


def test_settings_of_a_rescorer_have_no_vectors() -> None:
    settings = Settings(vector=VectorSettings(enabled=True)).for_rescoring()
    assert settings.training.objective == "rescore"
    assert not settings.vector.enabled


def test_a_run_is_rescored_by_the_command(
    cli: Cli, toy_vector_run: Path, toy_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    without_digests(run)
    lines = (run / "config.toml").read_text("utf-8")  # a run that was trained for a step
    (run / "config.toml").write_text(lines.replace("[training]", "[training]\nmax_steps = 1"), "utf-8")
    refused(cli("evaluate", run, "--rescore", 5), "no rescorer", "kgmlm rescore")
    refused(cli("rescore", run, "--from", run), "no trained rescorer")
    before = (run / "run.json").read_text("utf-8")
    long = cli("rescore", run, "--set", "text.max_length=100")
    refused(long, "rescoring.max_length together", "positions")
    assert not (run / RESCORER).exists()
    assert (run / "run.json").read_text("utf-8") == before
    settings = (
        "--set", "training.batch_size=24", "--set", "training.epochs=2",
        "--set", "rescoring.candidates=8", "--set", "training.eval_every=1",
    )  # fmt: skip
    done = cli("rescore", run, *settings, "--json", "-q")
    assert done.returncode == 0, done.stderr
    valid = json.loads(done.stdout)
    record = json.loads((run / "run.json").read_text("utf-8"))["rescoring"]
    assert record["valid"] == valid
    assert (record["status"], record["began_from"]["dataset"]) == ("finished", "toy")
    refused(cli("rescore", run), "has a rescorer already", "--overwrite")
    base = ("evaluate", run, "--split", "valid", "--json", "-q")
    reports = {k: json.loads(cli(*base, *k).stdout) for k in ((), ("--rescore", 0), ("--rescore", 4))}
    assert reports[()]["metrics"]["mrr"] == pytest.approx(valid["mrr"])
    assert reports["--rescore", 0]["metrics"]["mrr"] == pytest.approx(valid["mrr_first"])
    assert reports["--rescore", 0]["rescoring"] is None
    assert reports["--rescore", 4]["rescoring"]["k"] == 4
    refused(cli("evaluate", run, "--rescore", 4, "--scores", "vector"), "--rescore goes with")
    asked = ("rank", run, "--relation", "capital", "--head", "france", "--rescore", 4)
    (row, *_) = [json.loads(x) for x in cli(*asked, "--json", "--explain").stdout.splitlines()]
    assert "rescoring" in row["parts"]
    assert "; rescoring " in cli(*asked, "--explain").stdout
    assert "; rescoring " not in cli(*asked[:-1], 0, "--explain").stdout
    other = tmp_path / "other"
    shutil.copytree(toy_run, other)
    refused(cli("rescore", other, "--from", run, "--max-steps", 3), "--from trains nothing")
    done = cli("rescore", other, "--from", run, "--candidates", 3)
    assert "before rescoring" in done.stdout, done.stderr
    refused(cli("rescore", other, "--from", run), "has a rescorer already", "--overwrite")
    taken = open_run(other).record["rescoring"]
    assert taken["settings"] == record["settings"]
    assert taken["k"] in (0, 3)
    fused = cli("fuse", other, "--set", "structure.dimension=4", "--set", "structure.epochs=2")
    assert f"kgmlm rescore {other} --from {other}" in fused.stderr.replace("\n", " "), fused.stderr
    assert open_run(other).record["rescoring"] is None
    assert cli("rescore", other, "--from", other, "--candidates", 3, "-q").returncode == 0
    assert open_run(other).record["rescoring"]["settings"] == record["settings"]
    shutil.rmtree(other / RESCORER / "model")
    refused(cli("evaluate", other), "no trained rescorer", "kgmlm rescore")
    assert cli("evaluate", other, "--rescore", 0, "-q").returncode == 0
    refused(cli("rescore", other, "--from", other), "no trained rescorer", "--resume")
    open_run(other).update(rescoring=None)
    left_out = cli("evaluate", other, "-q")
    assert f"kgmlm rescore {other} --resume" in left_out.stderr.replace("\n", " ")
    mended = cli("rescore", other, *settings, "--overwrite", "-q")
    assert mended.returncode == 0, mended.stderr
    open_run(other).update(rescoring={"k": 0, "weight": 0.0})
    refused(cli("evaluate", other, "--rescore", 4), "chose not to rescore", f"--from {other}")


def test_interrupted_training_goes_on_to_the_same_losses(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "whole", tmp_path / "parted"]
    settings = ("--set", "training.batch_size=24", "--set", "training.epochs=2", "-q")
    for run in runs:
        shutil.copytree(toy_run, run)
    assert cli("rescore", runs[0], *settings).returncode == 0
    assert cli("rescore", runs[1], *settings, "--max-steps", 5).returncode == 0
    done = cli("rescore", runs[1], "--resume", *settings)
    assert done.returncode == 0, done.stderr

    def losses(run: Path) -> dict[int, float]:
        lines = (run / RESCORER / "metrics.jsonl").read_text("utf-8").splitlines()
        return {row["step"]: row["loss"] for row in map(json.loads, lines) if "loss" in row}

    assert losses(runs[1]) == losses(runs[0])
    assert len(losses(runs[0])) > 5
    refused(cli("rescore", runs[0], "--resume"), "nothing to resume")
    other = ("--set", "training.batch_size=30")
    refused(cli("rescore", runs[0], "--resume", *other), "begun with other settings")
    refused(cli("rescore", runs[0], "--resume", "--overwrite"), "exclude each other")


def test_the_objective_belongs_to_a_run(cli: Cli, tmp_path: Path) -> None:
    refused(
        cli(
            "train", "--dataset", "toy", "--model", "scratch", "--output", tmp_path / "run", *TINY_SETTINGS,
            "--set", "training.objective=rescore",
        ),
        "kgmlm rescore RUN",
    )  # fmt: skip
    assert not (tmp_path / "run").exists()
