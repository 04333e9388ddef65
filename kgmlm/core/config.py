"""Strict settings: each key with its meaning, default and bounds; an unknown key is an error.

TOML is read into validated objects, and the expanded settings are saved with every run. This module does not
know what the settings do.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, field_validator

from kgmlm.core.errors import ConfigError

MAX_INTEGER, MAX_FLOAT = 2**32 - 1, 1e30  # the largest integer and float of a setting: both fit in 32 bits
Seed = Annotated[int, Field(ge=0)]
Side = Literal["both", "tail", "head"]  # of a triple that is asked for
Endless = Annotated[
    float,
    Field(gt=0, allow_inf_nan=True),
    PlainSerializer(lambda value: "inf" if value == math.inf else value, when_used="json"),  # JSON has none
]


class Strict(BaseModel):
    """Settings that refuse unknown keys, and numbers too large for the libraries that use them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        """Refuse numbers that libraries below cannot hold; infinity is left to the fields that allow it."""
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise ValueError(f"at most {MAX_INTEGER:,}")
        if isinstance(value, float) and MAX_FLOAT < abs(value) < math.inf:
            raise ValueError(f"at most {MAX_FLOAT:g}")
        return value


class ScratchSettings(Strict):
    """The small BERT that `--model scratch` trains."""

    hidden_size: int = Field(128, ge=8, description="Width of the model; a multiple of `heads`.")
    layers: int = Field(2, ge=1, description="Transformer layers.")
    heads: int = Field(4, ge=1, description="Attention heads per layer.")
    vocabulary: int = Field(8000, ge=300, description="Largest number of tokens of the trained tokenizer.")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="Dropout of the model; lower it where the training loss stays high."
    )


class TextSettings(Strict):
    """The text of a query."""

    template: str = Field(
        "plain",
        description="How a query is written: `plain` or `natural`; "
        "`kgmlm linearize DATASET --template natural` shows it.",
    )
    max_length: int = Field(
        64,
        ge=8,
        description="Tokens per query text, special tokens and masks included. Descriptions and neighbors "
        "are cut to fit, never the relation or the hole. Raise it for long descriptions.",
    )
    neighbors: int = Field(
        0,
        ge=0,
        description="Add this many training triples of the query's entity to its text, never those that "
        "answer the query. Try 4; raise `max_length` to make room.",
    )


class ScoringSettings(Strict):
    """The score of a candidate from the log-probabilities of its tokens."""

    span_length: int | Literal["auto"] = Field(
        "auto",
        description="Mask tokens in the hole, the end-of-name token included; longer names are cut to it. "
        "`auto`: enough for 99.5 % of the training entities, at most half of `text.max_length`.",
    )
    end_of_name: bool = Field(
        False,
        description="End each name with a separator token that is scored, too. Turn it on where one name "
        "begins another (New York, New York City).",
    )
    softmax: Literal["vocabulary", "entities"] = Field(
        "vocabulary",
        description="Tokens that share the probability: the whole `vocabulary`, or only tokens in names of "
        "training `entities` (cheaper to train with large vocabularies; fixed when the run is made).",
    )


class VectorSettings(Strict):
    """A vector per entity, read from its text, that tells apart entities where names cannot.

    The query's vector is the state at one more mask after the hole; an entity's is the state at a mask
    after its own text, by the same model. So unseen entities have one, too.
    """

    enabled: bool = Field(
        False,
        description="Train entity vectors and add the cosine of query and entity to the likelihood. Turn it "
        "on where entities have descriptions or names collide.",
    )
    max_length: int = Field(
        48, ge=8, description="Tokens per entity text, special tokens and the mask included."
    )
    temperature: float = Field(0.05, gt=0, description="Training divides cosines by this.")
    memory: int = Field(
        2048,
        ge=0,
        description="How many of the latest entity vectors are negatives in addition to those of the batch. "
        "If this is the graph's number of entities, the loss is a softmax over all of them.",
    )
    residual_rate: float = Field(
        0.0,
        ge=0,
        description="Peak learning rate of a residual per seen entity, for what its text does not say. 0: no "
        "residual. Works best with `memory` as large as the graph; unseen entities have no residual. Needs "
        "validation among all entities: above 50,000, set `training.eval_candidates` to 0.",
    )


class KGESettings(Strict):
    """The KGE model of `kgmlm tune --add kge`: ComplEx with reciprocal relations."""

    dimension: int = Field(200, ge=1, description="Complex numbers per embedding.")
    epochs: int = Field(10, ge=1, description="Passes over the training triples.")
    batch_size: int = Field(256, ge=1, description="Distinct queries per step.")
    learning_rate: float = Field(0.1, gt=0, description="Learning rate of Adagrad.")
    regularization: float = Field(0.1, ge=0, description="Weight of the penalty on large embeddings.")
    penalty: Literal["triples", "entities"] = Field(
        "triples",
        description="What the penalty counts: the embeddings of each of the `triples` (N3), or all "
        "`entities` equally: try it where most entities have few triples, as in WN18RR.",
    )
    relation_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of predicting the relation from both entities, beside predicting entities.",
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="Precision of products in training; embeddings and sums stay fp32. `auto`: bf16 where "
        "the GPU or CPU is faster with it, else fp32.",
    )
    candidates: int = Field(
        0,
        ge=0,
        description="Entities in the random sample that each step scores beside the answers; 0: all. With "
        "only minutes for a large graph, 4096 allows several times as many steps.",
    )
    max_steps: int | None = Field(None, ge=1, description="Stop after this many steps; for smoke tests.")
    seconds: float | None = Field(None, gt=0, description="Stop after this time, as `--minutes` does.")
    seed: Seed = Field(0, description="Seed of the initial embeddings and of the order of the queries.")


class RuleSettings(Strict):
    """The rules of `kgmlm tune --add rules`, mined from training triples."""

    length: Annotated[int, Field(ge=1, le=3)] | Literal["auto"] = Field(
        "auto",
        description="Longest body of a path rule, in atoms. `auto`: 3, but 2 on dense graphs such as "
        "FB15k-237, which have very many paths of 3, of little use.",
    )
    support: int = Field(
        2,
        ge=1,
        description="Number of correct predictions that a rule with constants needs. A higher number means "
        "fewer rules, a smaller file and a lower MRR.",
    )
    constants: bool = Field(
        True, description="Mine rules about single entities, such as `speaks(X,german) <= lives_in(X,bonn)`."
    )
    seconds: float = Field(
        120.0, gt=0, description="CPU seconds after which the search for rules of three atoms stops."
    )
    file: str = Field(
        "", description="Take the rules of this file in AnyBURL's format instead of mining any."
    )
    seed: Seed = Field(0, description="Seed of what is sampled.")


class TypeSettings(Strict):
    """Types of entities, for `kgmlm tune --add types` and `--typed`; counted on training triples."""

    relation: str = Field(
        "",
        description="Label of a relation whose tails are the types of its heads, such as `rdf:type`. Types "
        "can also be given in the column `types` of a dataset's `entities`.",
    )


HEAD_CANDIDATES = 4096  # entities that a step of the bi-encoder scores, where there are over 8,192


class BiencoderSettings(Strict):
    """The bi-encoder of `kgmlm tune --add biencoder`: a head on texts that a frozen encoder reads once."""

    encoder: str = Field(
        "",
        description="The text encoder, by folder or Hugging Face name: any that transformers loads, or a "
        "folder of sentence-transformers, with its own pooling. Empty: the model that the run began with.",
    )
    max_length: int = Field(64, ge=8, description="Tokens of an entity's text that the encoder reads.")
    dimension: int = Field(256, ge=1, description="Width of the vectors that are compared.")
    steps: int = Field(
        300,
        ge=1,
        description="Steps of training. Fewer on graphs of some hundred triples, thousands on large ones.",
    )
    seconds: float | None = Field(
        None,
        gt=0,
        description="Train for this time after the texts are read, but for no more than `steps`, as with "
        "`--minutes`; the learning rate follows the time.",
    )
    batch_size: int = Field(512, ge=1, description="Distinct queries per step.")
    learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate of AdamW.")
    dropout: float = Field(0.4, ge=0, lt=1, description="Dropout of text vectors and of the hidden layer.")
    candidates: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="Entities in the random sample that each step scores beside the answers; 0: all. "
        "`auto`: all up to 8,192, else 4,096.",
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="Precision of products in training. `auto`: bf16 where the GPU or CPU is faster with it, "
        "else fp32.",
    )
    seed: Seed = Field(0, description="Seed of the initial head, of the order of the queries and of dropout.")

    def sampled(self, seen: int) -> int:
        """Return how many of some training entities a step scores; 0 is all of them."""
        return _fewer(self.candidates, HEAD_CANDIDATES, seen, 2 * HEAD_CANDIDATES)


class ReverseSettings(Strict):
    """Reverse scoring: a second stage that validation chooses the use of."""

    candidates: int = Field(
        20,
        ge=1,
        description="Candidates to score at most; validation may choose fewer. In reverse scoring, each "
        "costs as much as a query.",
    )


ALL = 50_000  # entities up to which `auto` scores all
SAMPLED, VALIDATED = 2**15, 10_000  # on larger graphs: candidates of a training step, and of validation


class TrainingSettings(Strict):
    """The training loop."""

    objective: Literal["entity", "token"] = Field(
        "entity",
        description="`entity`: softmax over training entities, every true answer a target. `token`: the "
        "paper's cross-entropy on the answer's tokens.",
    )
    samples: Literal["queries", "triples"] = Field(
        "queries",
        description="An epoch asks each distinct query once (`queries`), or once per answer (`triples`), as "
        "evaluation does. Try `triples` on graphs with hubs, such as FB15k-237; epochs are longer.",
    )
    temperature: float = Field(0.25, gt=0, description="The objective `entity` divides scores by this.")
    candidates: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="Entities that a step of the objective `entity` scores beside the answers and entities "
        "of its own queries: half of them recent answers, the others drawn and weighted to stand for those "
        "not drawn. 0: all training entities. `auto`: all up to 50,000, else 32768.",
    )
    batch_size: int = Field(
        128,
        ge=1,
        description="Queries per batch. Lower it when memory runs out.",
    )
    accumulation: int = Field(
        1, ge=1, description="Batches per step; raise it when lowering `batch_size`, to keep their product."
    )
    epochs: float = Field(
        10,
        ge=0,
        description="Passes over the samples; may be a fraction. The first setting to raise. 0: the masked "
        "LM is not trained and scores nothing; other signals do.",
    )
    max_steps: int | None = Field(
        None, ge=1, description="Stop after this many steps; the learning rate still follows `epochs`."
    )
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        "auto",
        description="Peak learning rate of AdamW. `auto`: 2e-3 for scratch models, 3e-4 for pretrained "
        "ones. Lower it when the loss jumps or is not finite.",
    )
    weight_decay: float = Field(0.01, ge=0, description="Weight decay of AdamW.")
    warmup: float = Field(0.1, ge=0, le=1, description="Share of the steps in which the learning rate rises.")
    schedule: Literal["linear", "constant"] = Field(
        "linear",
        description="The learning rate after warm-up: `linear` down to 0 at the end, or `constant`, for "
        "long training that `kgmlm train --resume --decay` ends at any time.",
    )
    dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Dropout of the whole model in training; not set: the model's own. 0 learns faster in "
        "the first epochs.",
    )
    eval_every: Endless = Field(
        1, description="Epochs between validations; may be a fraction. `inf`: only at the end."
    )
    eval_triples: int = Field(
        500, ge=0, description="Validation triples to sample each time; 0: all of them."
    )
    side: Side = Field(
        "both",
        description="Which questions decide weights, second stages and the end of training, and are asked by "
        "`kgmlm evaluate` by default: for the `tail` of triples, for the `head`, or `both`. Training asks "
        "both.",
    )
    eval_candidates: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="Entities, drawn once, among which validation during training ranks, in addition to the "
        "answers of its triples; its MRR is then higher than among all. 0: all entities. `auto`: all up to "
        "50,000, else 10,000.",
    )
    patience: int = Field(
        0, ge=0, description="Stop after this many validations without a better MRR; 0: never."
    )
    checkpoint_minutes: Endless = Field(
        5.0, description="Minutes between resumable checkpoints; `inf`: only at validations."
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="Precision of matrix products; weights, sums and losses stay fp32. `auto`: bf16 where "
        "the GPU or CPU is faster with it, else fp32. Resuming is bit-exact in fp32.",
    )
    seed: Seed = Field(0, description="Seed of initial weights, batches, samples and dropout.")

    def sampled(self, seen: int) -> int:
        """Return how many of some training entities a step scores beside those of its queries; 0 is all."""
        return _fewer(self.candidates, SAMPLED, seen, ALL)

    def validated(self, entities: int) -> int:
        """Return how many of so many entities validation in training ranks among; 0 is all."""
        return _fewer(self.eval_candidates, VALIDATED, entities, ALL)


def _fewer(chosen: int | Literal["auto"], usual: int, among: int, most: int) -> int:
    """Return how many of ``among`` entities to sample, 0 for all; `auto` samples from more than ``most``."""
    count = (usual if among > most else 0) if chosen == "auto" else chosen
    return count if count < among else 0


__all__ = [
    "BiencoderSettings",
    "KGESettings",
    "ReverseSettings",
    "RuleSettings",
    "ScoringSettings",
    "ScratchSettings",
    "TextSettings",
    "TrainingSettings",
    "TypeSettings",
    "VectorSettings",
]
_T = TypeVar("_T", bound=BaseModel)
CandidateSet = Literal["all", "graph", "split", "train"]
# The stages of a training by a preset.
Stage = Literal[
    "text", "kge", "rules", "types", "biencoder", "linked", "mentions",
    "similar_entities", "similar_answers", "unseen", "reverse", "trees", "index", "calibration",
]  # fmt: skip


class Settings(Strict):
    """Everything that determines a run, except for the dataset and the model's path or name."""

    scratch: ScratchSettings = ScratchSettings()
    text: TextSettings = TextSettings()
    scoring: ScoringSettings = ScoringSettings()
    vector: VectorSettings = VectorSettings()
    kge: KGESettings = KGESettings()
    rules: RuleSettings = RuleSettings()
    types: TypeSettings = TypeSettings()
    biencoder: BiencoderSettings = BiencoderSettings()
    reverse: ReverseSettings = ReverseSettings()
    training: TrainingSettings = TrainingSettings()

    @property
    def trains_text(self) -> bool:
        """Whether the masked LM is trained: one that is not scores nothing."""
        return self.training.epochs > 0


def _known_splits(asked: str | None) -> tuple[str, ...]:
    """The default filter: train and valid, and test only where test itself is asked."""
    return ("train", "valid", "test") if asked == "test" else ("train", "valid")


class Protocol(Strict):
    """The protocol of `kgmlm evaluate --protocol FILE`; by default all test triples, among all entities."""

    split: str = Field("test", description="The split whose triples are asked.")
    triples: Literal["all", "unseen", "seen"] = Field(
        "all",
        description="`all` triples of the split, only those with an entity that training does not have "
        "(`unseen`), or only the others (`seen`).",
    )
    candidates: CandidateSet = Field(
        "all",
        description="Who competes: `all` entities (with --graph, those of the run and of the graph), the "
        "entities of the evaluated `graph`, of the evaluated `split`, or of the run's `train` triples, as "
        "in PyKEEN. Triples with an entity outside the set are left out and counted.",
    )
    filter: tuple[str, ...] = Field(
        default_factory=lambda asked: _known_splits(asked.get("split")),
        description="Splits whose triples are known answers. By default `train` and `valid`, and `test` "
        "only where test is asked: what is chosen on validation must not depend on test triples.",
    )
    negatives: int = Field(
        0, ge=0, le=1_000_000, description="0: rank among the whole set; k: rank among k candidates of it."
    )
    negatives_by: Literal["drawing", "grail", "expectation"] = Field(
        "drawing",
        description="How the k negatives are chosen: `drawing` k different non-answers; `grail`, with "
        "replacement, never the query's own entity, as GraIL does (k = 49, filter train; the answer may be "
        "drawn and ties); or `expectation`, Hits@k in closed form over all draws, ties pessimistic, as "
        "NBFNet does. Figures by different choices are not comparable.",
    )
    side: Side = Field(
        "both", description="Ask for the `tail` of each triple, for its `head`, or, as papers do, for `both`."
    )
    max_triples: int = Field(0, ge=0, description="Ask a seeded sample of this many triples; 0: all.")
    seed: Seed = Field(0, description="Seed of the sample and of the negatives.")
    allow_self: bool = Field(
        False,
        description="Let a query's own entity be its answer in every relation. By default it ranks last "
        "where the run's training has 20 triples or more of the relation and none links an entity to itself.",
    )
    pykeen: bool = Field(
        False,
        description="Rank a second time the way PyKEEN does: only triples whose entities and relation are in "
        "training, with duplicates asked once, among training entities, with no constraint on answers.",
    )


def _parse(text: str) -> dict[str, Any]:
    """TOML.

    Raises:
        ValueError: for what is none, or is nested too deeply to read.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no settings file {path}") from None
    except (OSError, ValueError) as error:  # what is no UTF-8 or no TOML is a ValueError, too
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None


def _shown(value: Any) -> str:
    """A value for a sentence."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of thousands of digits
        return "a value that cannot be shown"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _validate(kind: type[_T], values: dict[str, Any], origin: str) -> _T:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        members = re.compile("int|float|literal.*|constrained-.*")  # of a union; no part of the name
        key = ".".join(str(x) for x in first["loc"] if not members.fullmatch(str(x)))
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"{origin}: unknown key '{key}'{_meant(kind, key)}") from None
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{origin}: '{key}' is {_shown(first['input'])}: {reason}") from None


def _meant(kind: type[BaseModel], key: str) -> str:
    """A question that suggests the known key most similar to an unknown one; empty if there is none."""
    section, _, name = key.rpartition(".")
    known = _keys(kind)
    same = [k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == section]
    alike = get_close_matches(name, same, 1, 0.6) or [k for k in same if k in name.split("_")]
    if alike:
        return f"; did you mean '{section}.{alike[0]}'?" if section else f"; did you mean '{alike[0]}'?"
    elsewhere = sorted((k for k in known if k.rpartition(".")[2] == name), key=lambda k: "training" not in k)
    return f"; did you mean '{elsewhere[0]}'?" if elsewhere else ""


def _keys(kind: type[BaseModel], of: str = "") -> list[str]:
    """All keys of settings, with their sections."""
    keys = []
    for name, field in kind.model_fields.items():
        keys.append(f"{of}{name}")
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys += _keys(section, f"{of}{name}.")
    return keys


def override(values: dict[str, Any], assignment: str) -> None:
    """Put a ``KEY=VALUE`` setting into values by section."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes KEY=VALUE, such as training.epochs=5; got '{assignment}'")
    try:
        value = _parse(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    except ValueError as error:
        raise ConfigError(f"--set {assignment[:40]}…: {error}") from None
    *path, last = key.strip().split(".")
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {assignment}: '{part}' is not a table of settings")
    values[last] = value


# Settings that older runs have in their `config.toml`. They were ways to train, or had this one value.
RETIRED = (
    "masking", "reranking", "text.neighbor_dropout", "text.descriptions", "scoring.normalization",
    "vector.loss_weight", "kge.samples", "rules.aggregation", "types.missed", "types.neighbors",
    "biencoder.relation_dimension", "biencoder.weight_decay", "biencoder.neighbor_dropout",
    "biencoder.structure_dropout", "training.distillation", "training.own_entity", "training.clip",
    "training.autoregressive",
)  # fmt: skip


def load_settings(
    path: Path | None = None, overrides: Sequence[str] = (), *, of_run: bool = False
) -> Settings:
    """Settings from a TOML file (or the defaults), then ``KEY=VALUE`` overrides on top.

    Args:
        of_run: the file is a run's own, of which retired settings are dropped.

    Raises:
        ConfigError: for an unknown key, a value out of range, or a file that is no TOML; it names the file or
            ``--set``, whichever has it.
    """
    values = _read(path) if path else {}
    for *section, key in (name.split(".") for name in RETIRED if of_run):
        of = values.get(section[0]) if section else values
        if isinstance(of, dict):
            of.pop(key, None)
    settings = _validate(Settings, values, str(path or "settings"))
    for assignment in overrides:
        override(values, assignment)
    return _validate(Settings, values, "--set") if overrides else settings


def as_settings(values: dict[str, Any], origin: str = "settings") -> Settings:
    """Settings from plain values, by section; raises as :func:`load_settings`."""
    return _validate(Settings, values, origin)


def load_protocol(path: Path | None = None, **overrides: Any) -> Protocol:
    """A protocol from a TOML file (or the default); overrides that are None are ignored.

    Raises:
        ConfigError: as :func:`load_settings`.
    """
    values = _read(path) if path else {}
    _validate(Protocol, values, str(path or "protocol"))
    given = {k: v for k, v in overrides.items() if v is not None}
    return _validate(Protocol, values | given, "the protocol asked for" if given else str(path or "protocol"))


def dump_settings(settings: Settings, notes: Sequence[str] = ()) -> str:
    """The expanded settings as TOML (keys that are None are left out), below notes as comments."""
    comments = "".join(f"# {line}\n" for note in notes for line in note.splitlines())
    return comments + tomli_w.dumps(settings.model_dump(exclude_none=True))


def is_expected(protocol: Protocol) -> bool:
    """Return whether a protocol's negatives are not drawn: hits are what they are expected to be."""
    return bool(protocol.negatives) and protocol.negatives_by == "expectation"
