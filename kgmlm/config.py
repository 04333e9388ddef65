"""Strict settings: TOML in, validated objects out; an unknown key is an error.

The expanded settings are saved with every run. Knows nothing of what the settings do.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, field_validator

from kgmlm.kg import ConfigError

_T = TypeVar("_T", bound=BaseModel)
CandidateSet = Literal["all", "graph", "split", "train"]


MOST, LARGEST = 2**32 - 1, 1e30  # of integers and floats: what 32 bits hold, with room to reckon

Seed = Annotated[int, Field(ge=0)]
Endless = Annotated[
    float,
    Field(gt=0, allow_inf_nan=True),
    PlainSerializer(lambda value: "inf" if value == math.inf else value, when_used="json"),  # JSON has none
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        """Refuse numbers that libraries below cannot hold; infinity is left to the fields that allow it."""
        if isinstance(value, int) and abs(value) > MOST:
            raise ValueError(f"at most {MOST:,}")
        if isinstance(value, float) and LARGEST < abs(value) < math.inf:
            raise ValueError(f"at most {LARGEST:g}")
        return value


class ScratchSettings(_Strict):
    """Shape of the small BERT that ``--model scratch`` trains; ``vocabulary`` caps its tokenizer."""

    hidden_size: int = Field(128, ge=8)
    layers: int = Field(2, ge=1)
    heads: int = Field(4, ge=1)
    vocabulary: int = Field(8000, ge=300)
    dropout: float = Field(0.1, ge=0, lt=1)


class TextSettings(_Strict):
    """How a query is written.

    Attributes:
        max_length: of all tokens, special ones and masks included.
        neighbors: how many training triples of the query's entity its text tells, those that answer the
            query withheld. They lengthen the text; give them room in ``max_length``.
        neighbor_dropout: in training, the chance that a neighbor is left out, and that all are, so that
            entities without neighbors stay familiar.
    """

    template: str = "plain"
    max_length: int = Field(64, ge=8)
    descriptions: bool = True
    neighbors: int = Field(0, ge=0)
    neighbor_dropout: float = Field(0.3, ge=0, lt=1)


class ScoringSettings(_Strict):
    """How a candidate is scored from the log-probabilities of its tokens.

    Attributes:
        span_length: masks in the hole, the end-of-name token counted; "auto" is the shortest that
            fits 99.5 % of the training entities, but at most half of text.max_length. Longer names are
            cut to it.
        end_of_name: append the separator token to each name, so that a name which is the beginning
            of another ("New York", "New York City") must also pay for stopping. Use it where names
            nest; the paper's plain mean is without.
        normalization: "mean" (the paper: no reward for short names) or "sum" (the joint
            log-likelihood; use it where length itself is informative).
        softmax: log-probabilities over the whole "vocabulary", or over the tokens that occur in
            training "entities" only (frozen with the run; cheaper to train on large vocabularies
            and mass is not spent on words that name nothing).
    """

    span_length: int | Literal["auto"] = "auto"
    end_of_name: bool = False
    normalization: Literal["mean", "sum"] = "mean"
    softmax: Literal["vocabulary", "entities"] = "vocabulary"


class VectorSettings(_Strict):
    """A vector an entity, read at one more mask, that tells apart what names cannot.

    The query's vector is the state at one mask behind the hole. An entity's is the state at a mask behind
    its own text, by the same model; so an entity never seen has one too, for one forward pass. Their cosine,
    weighted, is added to the likelihood; the weight is chosen on validation and saved with the model.

    Attributes:
        enabled: train and use the vectors.
        max_length: of an entity's text in tokens, special ones and the mask included.
        temperature: cosines are divided by it in training.
        memory: how many of the latest entity vectors join a batch's own as further candidates in training;
            the hard negatives are among them. As many as the graph has entities make it a softmax over all.
        loss_weight: of the vectors' loss beside the likelihood's.
        residual_rate: the peak learning rate of an offset for each entity seen in training, added to what is
            read from its text: it learns what the text does not say. 0 is without; entities never seen
            have none either way. It wants a ``memory`` as large as the graph, if that fits.
    """

    enabled: bool = False
    max_length: int = Field(48, ge=8)
    temperature: float = Field(0.05, gt=0)
    memory: int = Field(2048, ge=0)
    loss_weight: float = Field(1.0, gt=0)
    residual_rate: float = Field(0.0, ge=0)


class KGESettings(_Strict):
    """The KGE model: ComplEx with reciprocal relations.

    `kgmlm fuse` trains it beside the text, and `kgmlm train` before it where ``training.distillation`` asks.

    Attributes:
        dimension: complex numbers an embedding.
        learning_rate: of Adagrad.
        samples: what counts alike in the loss: "triples", as in evaluation; or distinct "queries", however
            many answers they have.
        regularization: weight of the penalty.
        penalty: third powers of the embeddings of "triples" (N3; Lacroix et al., 2018); or of queries and,
            all alike, of "entities", which holds small what has few triples and is worth a try beside a good
            text.
        precision: "bf16" multiplies in bf16 with fp32 sums; faster where the hardware has units for it.
    """

    dimension: int = Field(200, ge=1)
    epochs: int = Field(10, ge=1)
    batch_size: int = Field(256, ge=1)
    learning_rate: float = Field(0.1, gt=0)
    samples: Literal["triples", "queries"] = "triples"
    regularization: float = Field(0.1, ge=0)
    penalty: Literal["triples", "entities"] = "triples"
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: Seed = 0


class MaskingSettings(_Strict):
    """What the objective "masked" hides of the texts of training entities and of training triples.

    Attributes:
        policy: "random" tokens, "whole-word", "ngram" (one to four words), "similar" (n-grams replaced by
            similar words instead of masks, as in MacBERT), or "entity" (the whole answer of a triple).
        share: of a text's tokens; the policy "entity" hides whole answers however long.
    """

    policy: Literal["random", "whole-word", "ngram", "similar", "entity"] = "whole-word"
    share: float = Field(0.15, gt=0, lt=1)


class RerankingSettings(_Strict):
    """How `kgmlm rerank` reads the best candidates of a run again, each together with its query.

    Attributes:
        candidates: how many of the best are reranked at most; validation may choose fewer. Wrong answers to
            train on are drawn from as many.
        negatives: wrong answers beside a true one in training.
        neighbors: how many training triples of a candidate its text tells, those that would answer the query
            withheld.
        max_length: of what is told of a candidate in tokens; they come on top of ``text.max_length``.
    """

    candidates: int = Field(20, ge=1)
    negatives: int = Field(5, ge=1)
    neighbors: int = Field(4, ge=0)
    max_length: int = Field(48, ge=8)


class TrainingSettings(_Strict):
    """The training loop.

    Attributes:
        objective: "entity", softmax over the scores of all training entities with all true answers
            as targets; "token", the paper's cross-entropy on the gold span; "masked", which adapts a
            model to the graph's texts before another run begins with it; or "rerank", which
            `kgmlm rerank` trains (``reranking``).
        samples: what an epoch has, of both sides: "queries", each distinct query once; or "triples", each as
            often as it has answers, which is how evaluation asks. The latter learns better what hubs of the
            graph are asked for, and an epoch is longer.
        batch_size: texts a step, entities' aside: queries, or of the objective "rerank" pairs.
        temperature: the entity objective divides scores by it.
        own_entity: what a query's own entity is where it cannot answer (see ``constraints``): "negative", a
            wrong answer like any other; or "left out" of the softmax, as it is left out of ranking.
        distillation: weight of what a KGE model (``kge``), trained first on the same triples,
            teaches the entity objective: which of the entities that training does not name as answers are
            likely. 0 is without. Either way what is trained reads texts alone.
        epochs: passes over the samples; may be a fraction, and the learning rate falls to nothing by its end.
            ``max_steps`` cuts short.
        learning_rate: peak; "auto" is 2e-3 for scratch models and 3e-4 for pretrained ones.
        schedule: of the learning rate after its warm-up: "linear", down to nothing at the end of the epochs;
            or "constant", for long training that ``kgmlm train --resume --decay`` may end at any time.
        dropout: of the whole model in training; None leaves the model's own. Where an epoch is all that time
            allows, 0 learns faster.
        clip: gradients are scaled down to this norm; inf leaves them.
        eval_every: validate every so many epochs, or fractions of one, and at the end; inf is at the end
            only. ``eval_triples`` bounds the sample (0: all).
        patience: stop after so many validations without a better MRR (0: never).
        checkpoint_minutes: save a resumable checkpoint this often; inf only where validation does.
        precision: of products; weights, sums and losses stay fp32. "auto" is bf16 where the GPU or the CPU
            has units for it (1.6 times as fast and more), else fp32. In fp32 resuming is exact to the
            last bit.
    """

    objective: Literal["entity", "token", "masked", "rerank"] = "entity"
    samples: Literal["queries", "triples"] = "queries"
    temperature: float = Field(0.25, gt=0)
    own_entity: Literal["negative", "left out"] = "left out"
    distillation: float = Field(0.0, ge=0)
    batch_size: int = Field(128, ge=1)
    accumulation: int = Field(1, ge=1)
    epochs: float = Field(10, gt=0)
    max_steps: int | None = Field(None, ge=1)
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    weight_decay: float = Field(0.01, ge=0)
    warmup: float = Field(0.1, ge=0, le=1)
    schedule: Literal["linear", "constant"] = "linear"
    clip: Endless = 1.0
    dropout: float | None = Field(None, ge=0, lt=1)
    eval_every: Endless = 1
    eval_triples: int = Field(500, ge=0)
    patience: int = Field(0, ge=0)
    checkpoint_minutes: Endless = 5.0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    seed: Seed = 0


class Settings(_Strict):
    """Everything that decides what a run is, but for the dataset and the model's address."""

    scratch: ScratchSettings = ScratchSettings()
    text: TextSettings = TextSettings()
    scoring: ScoringSettings = ScoringSettings()
    vector: VectorSettings = VectorSettings()
    kge: KGESettings = KGESettings()
    masking: MaskingSettings = MaskingSettings()
    reranking: RerankingSettings = RerankingSettings()
    training: TrainingSettings = TrainingSettings()

    def for_reranking(self) -> Settings:
        """The settings of a run's reranker: another objective, and no entity vectors."""
        training = self.training.model_copy(update={"objective": "rerank", "distillation": 0.0})
        vector = self.vector.model_copy(update={"enabled": False})
        return self.model_copy(update={"training": training, "vector": vector})

    def without_max_steps(self) -> Settings:
        """The settings that a resumed run must share with its beginning."""
        return self.model_copy(update={"training": self.training.model_copy(update={"max_steps": None})})


def _known_splits(asked: str | None) -> tuple[str, ...]:
    """The splits that filter where nothing else is said; test knows nothing of what is asked before it."""
    return ("train", "valid", "test") if asked == "test" else ("train", "valid")


class Protocol(_Strict):
    """How a run is evaluated; ``Protocol(split="valid")`` is what everything is chosen by.

    Attributes:
        split: whose triples are asked.
        triples: "all" of them, or those with an entity that training has not ("unseen"), or the rest
            ("seen").
        candidates: "all" entities of all splits (and, where another graph than the run's own is evaluated,
            the run's entities too); those of the evaluated "graph" only; those of the evaluated "split"
            only; or those of the run's "train" triples only, as PyKEEN does. Triples with an entity
            outside the set are left out and counted.
        filter: splits whose triples are known answers. By default "train" and "valid", and "test" only where
            test is asked: what is chosen on validation must not depend on test triples.
        negatives: 0 ranks among the whole set; k ranks among k candidates of it.
        negatives_by: "drawing" k different ones that no filtering split knows as answers, seeded; "grail", k
            drawn with replacement from all but the query's own entity and the filter's answers, as GraIL does
            with k = 49 and training triples as the filter (the answer itself may be drawn, and then ties); or
            "expectation", the closed form of Hits@k over all draws with pessimistic ties (NBFNet). None of
            them compares with another.
        max_triples: a seeded sample of the triples; 0 is all of them.
        allow_self: let a query's own entity be its answer in every relation. Without it, it is none where
            the run's training has at least 20 triples of the relation and none links an entity to itself;
            it then ranks last.
    """

    split: str = "test"
    triples: Literal["all", "unseen", "seen"] = "all"
    candidates: CandidateSet = "all"
    filter: tuple[str, ...] = Field(default_factory=lambda asked: _known_splits(asked.get("split")))
    negatives: int = Field(0, ge=0, le=1_000_000)
    negatives_by: Literal["drawing", "grail", "expectation"] = "drawing"
    max_triples: int = Field(0, ge=0)
    seed: Seed = 0
    allow_self: bool = False


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
            raise ConfigError(f"{origin}: unknown key '{key}'") from None
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{origin}: '{key}' is {_shown(first['input'])}: {reason}") from None


def _override(values: dict[str, Any], assignment: str) -> None:
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


def load_settings(path: Path | None = None, overrides: Sequence[str] = ()) -> Settings:
    """Settings from a TOML file (or the defaults), then ``KEY=VALUE`` overrides on top.

    Raises:
        ConfigError: for an unknown key, a value out of range, or a file that is no TOML; it names the file or
            ``--set``, whichever has it.
    """
    values = _read(path) if path else {}
    settings = _validate(Settings, values, str(path or "settings"))
    for assignment in overrides:
        _override(values, assignment)
    return _validate(Settings, values, "--set") if overrides else settings


def load_protocol(path: Path | None = None, **overrides: Any) -> Protocol:
    """A protocol from a TOML file (or the default); overrides that are None are ignored.

    Raises:
        ConfigError: as :func:`load_settings`.
    """
    values = _read(path) if path else {}
    _validate(Protocol, values, str(path or "protocol"))
    given = {k: v for k, v in overrides.items() if v is not None}
    return _validate(Protocol, values | given, "the protocol asked for" if given else str(path or "protocol"))


def dump_settings(settings: Settings) -> str:
    """The expanded settings as TOML (keys that are None are left out)."""
    return tomli_w.dumps(settings.model_dump(exclude_none=True))
