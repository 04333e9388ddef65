"""Damaged inputs and what is fair to happen to them: each loads right, or is refused in one sentence.

An input is its kind and a number, and of the same run always the same bytes. It is loaded as the commands
load it. `make test` tries a few of each kind (``test_fuzz.py``), `make soak` thousands (``soak/soak.py``).
"""

from __future__ import annotations

import gzip
import io
import json
import math
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pyarrow as pa
import tomli_w
from damaging import (
    ODD,
    changed_array,
    changed_arrow,
    changed_json,
    changed_parquet,
    changed_rows,
    changed_tensors,
    changed_toml,
    damaged,
    encoded,
    odd_value,
    parquet,
    table_of,
)

from kgmlm.core import tables
from kgmlm.core.config import KGESettings, dump_settings, load_protocol, load_settings
from kgmlm.core.digests import Digest
from kgmlm.core.errors import LONGEST, KgmlmError, readable
from kgmlm.evaluation import compare, metrics
from kgmlm.graphs.datasets import load_graph, read_entities, write_folder
from kgmlm.graphs.entities import TEXT_COLUMNS
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.names import Resolver, read_queries
from kgmlm.graphs.queries import Query
from kgmlm.importing.import_graph import import_graph
from kgmlm.prediction.calibration import fit, save_calibration
from kgmlm.prediction.complete import complete
from kgmlm.prediction.drawing import Sample
from kgmlm.prediction.export import FORMATS, write_export
from kgmlm.prediction.listing import read_list
from kgmlm.ranking.predictor import Predictor
from kgmlm.ranking.probability import FEATURES, SIDES, AskedTriples
from kgmlm.ranking.retrieval import FOLDER
from kgmlm.runs.folder import PROBABILITIES
from kgmlm.runs.index import build_index
from kgmlm.runs.opened import classifier_by, open_folder, open_retrieval, open_run_model, tuned_ranker
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.packs import CONTENTS, unpack
from kgmlm.runs.tuned import MIXTURE, TunedWeights
from kgmlm.runs.writing import checkpoints, save_signal, save_tuned
from kgmlm.sharing.info import info
from kgmlm.sharing.pack import pack
from kgmlm.signals.kge import KGE
from kgmlm.signals.rule_set import RuleFile
from kgmlm.signals.vector import Vector
from kgmlm.training.loop import train
from kgmlm.training.start import resume_run, start_run


class Unfair(AssertionError):
    """An input was neither loaded right nor refused in one sentence."""


def sentence(message: str) -> None:
    """What a user may be told."""
    if (
        not message
        or len(message.splitlines()) > 1
        or len(message) > LONGEST + 1
        or not message.isprintable()
    ):
        raise Unfair(f"no single readable sentence ({len(message):,} characters): {message[:300]!r}")


class Fuzzer:
    """Tries inputs on copies of runs.

    Args:
        plain: a run on the toy graph.
        vectors: one with entity vectors; it gets a KGE model and indexes.
        folder: for all that is written.
    """

    def __init__(self, plain: Path, vectors: Path, folder: Path) -> None:
        self.folder = folder
        self.toy = load_graph("toy")
        shutil.copytree(vectors, folder / "signed")
        self._complete(folder / "signed")
        shutil.copytree(folder / "signed", folder / "unsigned")
        shutil.copytree(plain, folder / "bare")
        for name in ("unsigned", "bare"):
            _forget_digests(folder / name)
        settings = open_folder(vectors).settings
        started = start_run(folder / "training", self.toy, str(vectors / "model"), settings)
        train(*started, max_steps=1)
        (folder / "ranks.parquet").write_bytes(parquet(self._ranks()))
        pack(folder / "unsigned", folder / "whole.kgmlm", progress=False)
        complete(
            folder / "unsigned", folder / "new.parquet", known=["valid"], min_probability=0.0, progress=False
        )

    def attempt(self, kind: str, seed: int) -> bool:
        """Try one input; whether it loaded.

        Raises:
            Exception: whatever came that is neither right nor one sentence.
        """
        random = Random(f"{kind} {seed}")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="(pykeen|torch|faiss).*")
            try:
                KINDS[kind](self, random)
            except KgmlmError as error:
                sentence(str(error))
                return False
            except OSError as error:
                sentence(readable(f"{error.filename}: {error.strerror or error}"))
                return False
        return True

    def _complete(self, run: Path) -> None:
        opened = open_folder(run)
        kge = KGE.fit(opened.graph, KGESettings(dimension=4, epochs=1))
        opened = save_signal(opened, kge)
        opened = save_tuned(opened, TunedWeights(opened.tuned.mixture.evenly("kge", 1.0)))
        rng = np.random.default_rng(0)
        count, relations = 200, len(opened.graph.relations)
        labels = np.arange(count) % 2 == 0
        features = rng.normal(size=(count, len(SIDES), len(FEATURES))) + labels[:, None, None]
        of_relation = rng.integers(0, relations, count)
        triples = np.stack([np.arange(count), of_relation, np.arange(count)[::-1]], 1)
        asked = AskedTriples(features, rng.integers(0, 2, (count, 2)), of_relation)
        chances, typed = np.full(count, 0.5), np.ones(count, np.bool_)
        sample = Sample(triples, asked, labels, chances, chances, typed, 1.0, rng.normal(size=(relations, 3)))
        made, figures = fit(sample, relations, 100, 1.0)
        by = {"at": "2026-11-23T12:00:00+00:00", "valid": figures}
        values = {"chosen_for": opened.scored_by, "chosen_by": by}
        save_calibration(opened, made.model_copy(update=values))
        ranker = tuned_ranker(open_folder(run), "cpu")
        build_index(ranker, opened.graph).save(opened.path / FOLDER)

    def _ranks(self) -> pa.Table:
        rows = [
            (*triple, target, i % 5 + 1, i % 5 + 2, 31)
            for i, triple in enumerate(self.toy.labeled(self.toy.triples("test")))
            for target in ("head", "tail")
        ]
        return pa.Table.from_pandas(pd.DataFrame(rows, columns=metrics.COLUMNS), preserve_index=False)

    @contextmanager
    def _dataset(self) -> Iterator[Path]:
        folder = self.folder / "dataset"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
            shutil.rmtree(self.folder / "again", ignore_errors=True)

    def _write(
        self, random: Random, stem: Path, rows: list[list[str]], columns: list[str], header: bool
    ) -> Path:
        """Rows as a file of some format, damaged now and then."""
        suffix = random.choice(tables.SUFFIXES)
        rows = changed_rows(random, rows)
        if suffix == ".parquet":
            data = parquet(table_of(rows, columns))
            if random.random() < 0.4:
                data = changed_parquet(random, data)
        else:
            lines = [columns, *rows] if header else rows
            lines = changed_rows(random, lines) if random.random() < 0.2 else lines
            separator = "," if ".csv" in suffix else "\t"
            data = encoded("".join(separator.join(row) + "\n" for row in lines))
            if random.random() < 0.4:
                data = damaged(random, data)
            if suffix.endswith(".gz"):
                data = gzip.compress(data, mtime=0)
                data = damaged(random, data) if random.random() < 0.3 else data
        path = stem.with_name(f"{stem.name}{suffix}")
        path.write_bytes(data)
        return path

    def _folder_loads(self, folder: Path) -> None:
        """A folder that loads is written and read back as the same graph."""
        graph = load_graph(folder)
        write_folder(graph, self.folder / "again")
        again = load_graph(self.folder / "again")
        if not (graph.same(again) and graph.entities.table.equals(again.entities.table)):
            raise Unfair("written and read again it is another graph")
        if [r.name for r in graph.relations] != [r.name for r in again.relations]:
            raise Unfair("written and read again its relations have other names")

    def _triples(self, random: Random) -> None:
        with self._dataset() as folder:
            for split in ("train", *random.sample(("valid", "test"), random.randint(0, 1))):
                rows = [list(row) for row in self.toy.labeled(self.toy.triples(split))]
                self._write(random, folder / split, rows, ["head", "relation", "tail"], False)
            self._folder_loads(folder)

    def _entity_rows(self, graph: KnowledgeGraph) -> list[list[str]]:
        return [list(row) for row in zip(*(graph.entities.column(c) for c in TEXT_COLUMNS), strict=True)]

    def _texts(self, random: Random) -> None:
        with self._dataset() as folder:
            tables.write_tsv(folder / "train.tsv", self.toy.labeled(self.toy.triples("train")))
            if random.random() < 0.7:
                self._write(
                    random, folder / "entities", self._entity_rows(self.toy), list(TEXT_COLUMNS), True
                )
            else:
                rows = [[r.label, r.name] for r in self.toy.relations]
                self._write(random, folder / "relations", rows, ["label", "name"], True)
            self._folder_loads(folder)

    def _new_entities(self, random: Random) -> None:
        rows = [[f"new_{row[0]}", *row[1:]] for row in self._entity_rows(self.toy)[:9]]
        with self._dataset() as folder:
            path = self._write(random, folder / "new", rows, list(TEXT_COLUMNS), True)
            graph = self.toy.extended(read_entities(path, self.toy))
        if not all(graph.entities.column("surface")):
            raise Unfair("an entity has no text")

    def _card(self, random: Random) -> None:
        card = {
            "name": "mine", "title": "Mine", "description": "A graph.", "license": "CC0", "citation": "",
            "counts": {"entities": 31, "relations": 5, "train": 45, "valid": 8, "test": 8, "unseen": 0},
        }  # fmt: skip
        with self._dataset() as folder:
            (folder / "card.toml").write_bytes(changed_toml(random, tomli_w.dumps(card).encode()))
            tables.write_tsv(folder / "train.tsv", self.toy.labeled(self.toy.triples("train")))
            self._folder_loads(folder)

    def _queries(self, random: Random) -> None:
        rows = [[h, r, ""] for h, r, _ in self.toy.labeled(self.toy.triples("test"))]
        with self._dataset() as folder:
            path = self._write(random, folder / "queries", rows, ["head", "relation", "tail"], True)
            read_queries(path, Resolver(self.toy))

    def _config(self, random: Random) -> None:
        path = self.folder / "config.toml"
        path.write_bytes(changed_toml(random, dump_settings(load_settings()).encode()))
        self._settings_stay(path, [])

    def _settings_stay(self, path: Path | None, overrides: list[str]) -> None:
        settings = load_settings(path, overrides)
        (self.folder / "dumped.toml").write_text(dump_settings(settings), "utf-8")
        if load_settings(self.folder / "dumped.toml") != settings:
            raise Unfair("settings are others when written and read again")

    def _set(self, random: Random) -> None:
        values = load_settings().model_dump()
        section = random.choice(list(values))
        key = random.choice(list(values[section]))
        plain = [x for of in values.values() for x in of.values()]
        value = random.choice((odd_value(random), values[section][key], *plain))
        if random.random() < 0.2:
            section, key = random.choice(((random.choice(ODD), key), (section, random.choice(ODD))))
        assignment = f"{section}.{key}={value}"
        if random.random() < 0.3:
            # An argument of a command has no NUL; what is no UTF-8 comes as lone surrogates.
            changed = damaged(random, encoded(assignment)).replace(b"\x00", b"")
            assignment = changed.decode("utf-8", "surrogateescape")
        self._settings_stay(None, [assignment])

    def _protocol(self, random: Random) -> None:
        path = self.folder / "protocol.toml"
        path.write_bytes(changed_toml(random, tomli_w.dumps(load_protocol().model_dump()).encode()))
        load_protocol(path)

    def _compare(self, random: Random) -> None:
        good, bad = self.folder / "ranks.parquet", self.folder / "bad.parquet"
        bad.write_bytes(changed_parquet(random, good.read_bytes()))
        one, other = (metrics.read_ranks(path) for path in random.sample((good, bad), 2))
        metrics.scores_digest(bad)
        for match in compare.compare_ranks(one, other, sides=("tail", "head", "both"), draws=100):
            if not (0 <= match.a <= 1 and 0 <= match.b <= 1 and match.low <= match.high):
                raise Unfair(f"{match} is no difference of ranks")

    def _in_run(
        self,
        random: Random,
        *names: str,
        change: Callable[[Random, bytes], bytes],
        stage_weight: Callable[[Path], None] | None = None,
    ) -> None:
        """A run with one file changed. Where it has digests, verifying finds every change of what has one."""
        name = random.choice(names)
        runs = [self.folder / run for run in ("signed", "unsigned", "unsigned", "bare")]
        run = random.choice([run for run in runs if (run / name).exists()])
        path = run / name
        before = path.read_bytes()
        after = change(random, before)
        path.write_bytes(after)
        try:
            covered = name != "run.json" and path.name != "kgmlm.json" and run.name == "signed"
            if covered and after != before and self._verifies(run):
                raise Unfair(f"{name} was changed, and the run verifies")
            (stage_weight or self._use)(run)
        finally:
            path.write_bytes(before)

    def _verifies(self, run: Path) -> bool:
        try:
            open_folder(run, verify=True)
        except KgmlmError as error:
            sentence(str(error))
            return False
        return True

    def _use(self, run: Path, index: bool = False) -> None:
        opened = open_folder(run)
        ranker = tuned_ranker(opened, "cpu")
        predictor = Predictor(opened.graph, ranker)
        if index:
            predictor.retrieval = open_retrieval(opened, ranker, 10)
        queries = [Query(len(opened.graph.entities) // 2, 0, "tail"), Query(0, 0, "head")]
        for _, predictions in predictor.predict(queries, 5, explain=True):
            if not (predictions and all(math.isfinite(p.score) for p in predictions)):
                raise Unfair(f"the run answers {[p.score for p in predictions]}")

    def _index(self, random: Random) -> None:
        changes = {".json": changed_json, ".npy": changed_array, ".faiss": damaged}
        suffix = random.choice(list(changes))
        names = sorted(f"{FOLDER}/{p.name}" for p in (self.folder / "signed" / FOLDER).glob(f"*{suffix}"))
        names = [name for name in names if not name.endswith("kgmlm.json")]
        self._in_run(random, *names, change=changes[suffix], stage_weight=partial(self._use, index=True))

    def _probabilities(self, random: Random) -> None:
        self._in_run(random, PROBABILITIES, change=changed_json, stage_weight=self._judge)

    def _judge(self, run: Path) -> None:
        for lines in info(run).lines().values():
            for line in lines:
                sentence(line)
        folder = open_folder(run)
        if folder.calibration is None:
            raise Unfair("there are no probabilities")
        opened = open_run_model(folder, RankingOptions(device="cpu").plain(), folder.graph)
        classifier = classifier_by(opened, folder.calibration)
        probabilities = classifier.probabilities(classifier.ask(folder.graph.splits["train"][:5]))
        if not ((probabilities >= 0) & (probabilities <= 1)).all():
            raise Unfair(f"the run says {probabilities.tolist()}")

    def _pack(self, random: Random) -> None:
        """A pack with one of its files changed, with a right checksum or not; or cut, or with other bytes."""
        data = (self.folder / "whole.kgmlm").read_bytes()
        path = self.folder / "damaged.kgmlm"
        if random.random() < 0.3:
            path.write_bytes(damaged(random, data))
        else:
            path.write_bytes(self._repacked(random, data))
        with self._dataset() as folder:
            run = unpack(path, folder / "run")
            self._use(run)

    def _repacked(self, random: Random, data: bytes) -> bytes:
        changes = {
            ".json": changed_json, ".toml": changed_toml, ".parquet": changed_parquet,
            ".safetensors": changed_tensors,
        }  # fmt: skip
        with zipfile.ZipFile(io.BytesIO(data)) as pack:
            files = {name: pack.read(name) for name in pack.namelist()}
        name = random.choice([name for name in files if Path(name).suffix in changes])
        files[name] = changes[Path(name).suffix](random, files[name])
        if name != CONTENTS and random.random() < 0.8:  # else its checksum tells
            contents = json.loads(files[CONTENTS])
            contents["files"][name] = Digest.of_bytes(files[name]).model_dump()
            files[CONTENTS] = json.dumps(contents).encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as pack:
            for name, content in files.items():
                pack.writestr(name, content)
        return buffer.getvalue()

    def _list(self, random: Random) -> None:
        """A list of new triples, which is exported in every format once it is read."""
        path = self.folder / "damaged.parquet"
        path.write_bytes(changed_parquet(random, (self.folder / "new.parquet").read_bytes()))
        table, _ = read_list(path)
        for name in FORMATS:
            write_export(table, self.folder / "exported", name)

    def _statements(self, random: Random) -> None:
        """RDF, or a dump of Wikidata, which becomes a dataset folder."""
        suffix, text = random.choice(list(STATEMENTS.items()))
        data = encoded(text)
        data = changed_json(random, data) if suffix == ".json" else damaged(random, data)
        if random.random() < 0.2:
            suffix, data = f"{suffix}.gz", damaged(random, gzip.compress(data, mtime=0))
        with self._dataset() as folder:
            (folder / f"graph{suffix}").write_bytes(data)
            kind = "wikidata" if suffix.startswith(".json") else None
            import_graph(folder / f"graph{suffix}", folder / "made", format=kind, progress=False)
            self._folder_loads(folder / "made")

    def _tables(self, random: Random) -> None:
        """Tables of edges and of nodes, which become a dataset folder."""
        suffix, edges, nodes = random.choice(TABLES)
        with self._dataset() as folder:
            tables = [folder / f"edges{suffix}", folder / f"nodes{suffix}"]
            for path, text in zip(tables, (edges, nodes), strict=True):
                path.write_bytes(damaged(random, encoded(text)) if random.random() < 0.7 else encoded(text))
            import_graph(
                tables[0], folder / "made", columns=["from", "kind", "to"], nodes=[tables[1]], progress=False
            )
            self._folder_loads(folder / "made")

    def _rules(self, random: Random) -> None:
        """Rules as AnyBURL writes them."""
        path = self.folder / "rules.tsv"
        path.write_bytes(damaged(random, encoded(RULES)))
        rules, _ = RuleFile(self.toy.entities, self.toy.relations).read(path)
        for kind in rules:
            if not (kind.correct <= kind.predicted).all():
                raise Unfair("a rule is right more often than it predicts")

    def _checkpoint(self, random: Random) -> None:
        with self._dataset() as folder:
            run = shutil.copytree(self.folder / "training", folder / "run")
            unsigned = random.random() < 0.8
            if unsigned:
                _forget_digests(run)
            (checkpoint,) = checkpoints(run)
            changes = {
                "state.json": changed_json, "state.safetensors": changed_tensors, "kgmlm.json": changed_json,
                "model/model.safetensors": changed_tensors, "model/config.json": changed_json,
                "../../metrics.jsonl": changed_json,
            }  # fmt: skip
            name = random.choice([name for name in changes if (checkpoint / name).exists()])
            path = checkpoint / name
            if name.endswith("jsonl"):
                lines = path.read_bytes().splitlines(keepends=True)
                lines[-1] = changed_json(random, lines[-1])
                path.write_bytes(damaged(random, b"".join(lines)))
            else:
                path.write_bytes(changes[name](random, path.read_bytes()))
            outcome = train(*resume_run(run, "cpu"), max_steps=2, resume=True)
            if outcome.step != 2:
                raise Unfair(f"resumed, training is at step {outcome.step}")
            self._use(run)


def _forget_digests(run: Path) -> None:
    record = json.loads((run / "run.json").read_text("utf-8"))
    record.pop("files", None)
    (run / "run.json").write_text(json.dumps(record), "utf-8")
    for manifest in run.rglob("kgmlm.json"):
        manifest.unlink()


def _of_run(*names: str, change: Callable[[Random, bytes], bytes]) -> Callable[[Fuzzer, Random], None]:
    return lambda fuzzer, random: fuzzer._in_run(random, *names, change=change)


# France and Spain, in the formats that `kgmlm data import` reads.
TABLES = (
    (
        ".csv",
        'from,kind,to\nfr,borders,es\n"es",borders,"fr"\nfr,in,"the, EU"\n',
        'id,name,description\nfr,France,"A country, ""west"""\nes,Spain,\n',
    ),
    (
        ".tsv",
        "from\tkind\tto\nfr\tborders\tes\nes\tin\teu\n",
        "id\tlabel\nfr\tFrance\nes\tSpain\neu\tEU\n",
    ),
    (
        ".jsonl",
        '{"from": "fr", "kind": "borders", "to": "es"}\n{"from": "es", "kind": "in", "to": 7}\n',
        '{"id": "fr", "name": "France"}\n{"id": 7, "name": "EU"}\n',
    ),
)
STATEMENTS = {
    ".nt": "<http://e/fr> <http://p/borders> <http://e/es> .\n<http://e/fr> "
    '<http://www.w3.org/2000/01/rdf-schema#label> "France"@en .\n_:b <http://p/in> <http://e/eu> .\n',
    ".ttl": "@prefix e: <http://e/> .\n@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .\n"
    'e:fr e:borders e:es , [ e:in e:eu ] ; rdfs:label "France"@en , "Frankreich"@de ;\n'
    'rdfs:comment """a\nb""" .\n',
    ".trig": "@prefix e: <http://e/> .\n"
    "e:g { e:fr e:borders e:es . << e:fr e:borders e:es >> e:says 0.5 . }\n",
    ".rdf": '<?xml version="1.0" encoding="UTF-8"?>\n<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-'
    'ns#" xmlns:e="http://e/">\n<rdf:Description rdf:about="http://e/fr"><e:borders rdf:resource="http://e/es"/>'
    "<e:name>France</e:name></rdf:Description></rdf:RDF>\n",
    ".json": json.dumps(
        {
            "id": "Q142",
            "labels": {"en": {"language": "en", "value": "France"}},
            "aliases": {"en": [{"language": "en", "value": "FR"}]},
            "claims": {
                "P47": [
                    {
                        "rank": "normal",
                        "mainsnak": {
                            "snaktype": "value",
                            "datavalue": {
                                "type": "wikibase-entityid",
                                "value": {"entity-type": "item", "id": "Q29", "numeric-id": 29},
                            },
                        },
                    }
                ]
            },
        }
    ),
}
RULES = (
    "12\t6\t0.5\tborders(X,Y) <= borders(Y,X)\n9\t3\t0.33\tlocated_in(X,Y) <= capital(A,X), located_in(A,Y)\n"
    "5\t4\t0.8\tlocated_in(X,europe) <= borders(X,france)\n7\t1\t0.1\tlocated_in(X,europe) <= \n"
)
GRAPH = ("graph/entities.arrow", "graph/relations.arrow", "graph/triples.arrow")


def kinds() -> dict[str, Callable[[Fuzzer, Random], None]]:
    """What is tried, by kind of input."""
    return {
        "triples": Fuzzer._triples,
        "texts": Fuzzer._texts,
        "new entities": Fuzzer._new_entities,
        "card": Fuzzer._card,
        "queries": Fuzzer._queries,
        "config": Fuzzer._config,
        "set": Fuzzer._set,
        "protocol": Fuzzer._protocol,
        "ranks": Fuzzer._compare,
        "run.json": _of_run("run.json", change=changed_json),
        "config.toml": _of_run("config.toml", change=changed_toml),
        "graph": _of_run(*GRAPH, change=changed_arrow),
        "weights": _of_run("model/model.safetensors", change=changed_tensors),
        "vectors": _of_run(Vector.file, change=changed_tensors),
        "kge": _of_run(KGE.file, change=changed_tensors),
        "mixture": _of_run(MIXTURE, change=changed_json),
        "model": _of_run("model/config.json", change=changed_json),
        "tokenizer": _of_run("model/tokenizer.json", "model/tokenizer_config.json", change=changed_json),
        "manifest": _of_run("model/kgmlm.json", change=changed_json),
        "index": Fuzzer._index,
        "probabilities": Fuzzer._probabilities,
        "checkpoint": Fuzzer._checkpoint,
        "pack": Fuzzer._pack,
        "list": Fuzzer._list,
        "statements": Fuzzer._statements,
        "tables": Fuzzer._tables,
        "rules": Fuzzer._rules,
    }


KINDS = kinds()
