"""Requests and responses of the service as Pydantic models, and the limits that they hold requests to.

Names and labels are data: they come back as they are, in JSON and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

MAX_QUERIES = 256  # queries, or triples, of one request
MAX_WORK = 8192  # of one request, in texts that the model reads
MAX_K = 1000  # candidates of a query, and rows of a page
MAX_NEW = 100  # new entities of one request
MAX_GIVEN = 100  # triples of a new entity
MAX_TYPES = 20  # of a new entity
MAX_KEPT = 10_000  # new entities that a process keeps
MAX_KEPT_TRIPLES = 100_000  # and their triples
LONGEST_NAME = 1000  # characters
LONGEST_DESCRIPTION = 10_000
MAX_BYTES = 2**20  # of a request's body
MAX_ALSO = 10  # further candidates that are explained
Name = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_NAME)]
K = Annotated[int, Field(strict=True, ge=1, le=MAX_K, description="The most candidates per query.")]


class Body(BaseModel):
    """A request body: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid")


class OneSide(Body):
    """A relation, and a head or a tail, as labels or names."""

    head: Name | None = None
    relation: Name
    tail: Name | None = None

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.head is None) == (self.tail is None):
            raise ValueError(self._one())
        return self

    def _one(self) -> str:
        return "give either a head (to rank tails) or a tail (to rank heads)"


class RankQuery(OneSide):
    """One query: a relation, and a head (to rank tails) or a tail (to rank heads), as labels or names."""


class NewTriple(OneSide):
    """A triple of a new entity: its relation, and the other entity as its head or as its tail."""

    def _one(self) -> str:
        return "give the other entity, as head or as tail; the new entity is the other side"


def _one_line(text: str) -> str:
    if text.splitlines() != [text] or not text.strip():
        raise ValueError("it must be one line, and not blank")
    return text


NewName = Annotated[Name, AfterValidator(_one_line)]


def _no_bar(text: str) -> str:
    if "|" in text:
        raise ValueError("a type has no '|', which separates types")
    return _one_line(text)


NewType = Annotated[Name, AfterValidator(_no_bar)]


class NewEntity(Body):
    """An entity that the graph lacks; the model reads its text and the triples that are given for it."""

    name: NewName = Field(description="What people call it.")
    description: str = Field("", max_length=LONGEST_DESCRIPTION)
    types: list[NewType] = Field([], max_length=MAX_TYPES, description="Types such as other entities have.")
    label: NewName | None = Field(None, description="Its identifier; by default its name.")
    triples: list[NewTriple] = Field(
        [],
        max_length=MAX_GIVEN,
        description="What is known about it. They count as training triples: neighbors in the text, evidence "
        "for rules and types, known answers. The other entity may be new, too.",
    )


NewEntities = Annotated[
    list[NewEntity],
    Field(
        max_length=MAX_NEW,
        description="Entities for this request alone; they are candidates, and queries may name them.",
    ),
]


class RankRequest(Body):
    """Queries whose best answers are asked for."""

    queries: list[RankQuery] = Field(min_length=1, max_length=MAX_QUERIES)
    k: K = 10
    novel: bool = Field(False, description="Leave out triples that the graph has.")
    entities: NewEntities = []


class ExploreRequest(RankQuery):
    """One query, for all that the page shows of it."""

    k: K = 10
    novel: bool = Field(False, description="Leave out triples that the graph has.")
    entities: NewEntities = []
    also: list[Name] = Field(
        [], max_length=MAX_ALSO, description="Candidates to explain wherever they rank, by label or name."
    )


class NearRequest(RankQuery):
    """An answer of a query."""

    answer: Name = Field(description="Its label or name.")


class Judged(Body):
    """A judgment of a triple, by labels."""

    head: Name
    relation: Name
    tail: Name
    label: Literal[0, 1] | None = Field(description="1 accepts it, 0 rejects it, null takes that back.")


class Triple(Body):
    """A triple by labels or names."""

    head: Name
    relation: Name
    tail: Name


class ClassifyRequest(Body):
    """Triples whose probability is asked for."""

    triples: list[Triple] = Field(min_length=1, max_length=MAX_QUERIES)
    prior: float = Field(
        0.5, gt=0, lt=1, description="The share of true triples in the list, for `probability_if_half_true`."
    )
    explain: bool = Field(False, description="Say what each probability is made of.")
    entities: NewEntities = []


class AddRequest(Body):
    """Entities that this process is to know from now on."""

    entities: list[NewEntity] = Field(min_length=1, max_length=MAX_NEW)


class UpdateRequest(AddRequest):
    """Entities that are to be added to the run itself."""

    match_names: bool = Field(
        False,
        description="Take a name that differs from a known one by case, Unicode form, blanks or underscores "
        "alone, or is an alias, for the same.",
    )


class AlikeLabels(BaseModel):
    """A new label, and a known one that it is nearly alike to."""

    new: str
    known: str


class UpdateResponse(BaseModel):
    """The state of an update of the run."""

    status: Literal["none", "updating", "updated", "failed"] = Field(
        description="none: this process has begun no update."
    )
    why: str = Field(description="Why it has failed.")
    labels: list[str] = Field(description="Of the entities that it adds.")
    alike: list[AlikeLabels] = Field(description="New labels that are nearly alike to known ones.")


class Ranked(BaseModel):
    """A candidate of a query, as `kgmlm rank --json` has it."""

    rank: int
    entity: str = Field(description="Its label.")
    name: str
    probability: float | None = Field(
        description="The share of such triples in a further hidden set; null where training or validation "
        "has it, or nothing is fitted."
    )
    score: float
    known: bool = Field(description="Whether the graph has the triple, in any split.")
    checked: bool = Field(
        True,
        description="False if training lacks an entity of the triple, and validation has too few such "
        "entities to give a probability.",
    )


class Answer(BaseModel):
    """The best answers of one query, best first; the query has labels, and null for what is asked."""

    head: str | None
    relation: str
    tail: str | None
    predictions: list[Ranked]


class RankResponse(BaseModel):
    """The answers of queries, in their order."""

    results: list[Answer]


class Part(BaseModel):
    """A signal's part of a score: ``adds = weight * value``."""

    weight: float
    value: float
    adds: float


class Token(BaseModel):
    """A token of a candidate's name."""

    token: str
    text: str
    id: int
    position: int
    log_likelihood: float


class Explained(Ranked):
    """A candidate with what its score is made of."""

    parts: dict[str, Part]
    tokens: list[Token]
    because: list[str] = Field([], description="What rules say for it, the best first.")


class ExplainedAnswer(Answer):
    """The best answers of one query, explained."""

    predictions: list[Explained]  # type: ignore[assignment]  # a list of what is more


class ExplainResponse(BaseModel):
    """The explained answers of queries, in their order."""

    results: list[ExplainedAnswer]


class Named(BaseModel):
    """A label and a name."""

    label: str
    name: str


class Told(BaseModel):
    """A triple as one of its entities has it: ``entity`` is the other one, the relation's ``target``."""

    relation: Named
    target: Literal["head", "tail"]
    entity: Named


class Described(Named):
    """An entity with its texts and types; ``of_graph`` where the graph has it."""

    description: str
    types: list[str]
    of_graph: bool = True
    given: list[Told] = Field([], description="The triples that it has from the request.")


class ReadText(BaseModel):
    """The text that the model reads of a query."""

    before: str = Field(description="The text before the hole.")
    after: str
    hole: int = Field(description="How many mask tokens stand in the hole.")
    neighbors: list[Told] = Field(description="Training triples that the text tells.")
    cut: int = Field(description="Tokens that did not fit.")


class Explored(Explained):
    """An explained candidate with its texts and types."""

    description: str
    types: list[str]
    possible: bool = Field(description="Whether it can answer at all, as training has it.")
    in_test: bool = Field(description="Whether it is known from the test split alone.")


class ExploreResponse(BaseModel):
    """All that the page shows of a query."""

    entity: Described
    relation: Named
    target: Literal["head", "tail"]
    reading: ReadText | None = Field(description="The text of the masked LM; null where none was trained.")
    usual: dict[str, float] = Field(description="What each signal adds to an average entity's score.")
    entities: int = Field(description="How many candidates there are.")
    predictions: list[Explored]
    also: list[Explored]


class NearRow(Named):
    """An entity that is like another one: it has ``shared`` of that one's ``of`` facts, too."""

    shared: int
    of: int


class NearResponse(BaseModel):
    """Training triples that are like an answer, those first that share most facts."""

    same_answer: list[NearRow] = Field(description="Other entities that have the same answer.")
    same_question: list[NearRow] = Field(description="Other answers of the same query.")


class SimilarRow(Named):
    """An entity that is like another one, by the cosine of their embeddings."""

    cosine: float


class SimilarResponse(BaseModel):
    """Entities like one, the nearest first."""

    results: list[SimilarRow]


class JudgmentRow(BaseModel):
    """The latest judgment of a triple."""

    head: str
    relation: str
    tail: str
    label: Literal[0, 1] | None
    time: str


class JudgmentsResponse(BaseModel):
    """The latest judgments of triples."""

    results: list[JudgmentRow]


class Classified(BaseModel):
    """A triple, as `kgmlm classify --json` has it."""

    head: str
    relation: str
    tail: str
    probability: float | None = Field(
        description="As of /rank; null where training has the triple, or nothing is fitted to such entities."
    )
    probability_if_half_true: float | None = Field(
        description="The same in a list of which half, or `prior`, is true."
    )
    true: bool = Field(description="Known, or .5 or more in such a list.")
    known: bool = Field(description="Whether training has the triple.")
    parts: dict[str, Any] | None = None


class ClassifyResponse(BaseModel):
    """Triples, in their order."""

    results: list[Classified]


class FoundEntity(BaseModel):
    """An entity that a search has found."""

    label: str
    name: str
    description: str
    aliases: list[str]
    match: float = Field(description="From 0 to 100; 100 where the text, or its beginning, is there.")


class EntitiesResponse(BaseModel):
    """The results of a search, the best first."""

    results: list[FoundEntity]


class AddResponse(BaseModel):
    """The entities that were added, and how many entities in all are not part of the run."""

    labels: list[str]
    added: int


class RelationRow(BaseModel):
    """A relation and how many triples it has, in all splits."""

    label: str
    name: str
    triples: int
    share: float | None = Field(
        None, description="Its share of what entities like the given one have on the given side."
    )
    own: int | None = Field(None, description="How many training triples the given entity has there.")
    example: str | None = Field(None, description="The label of a head to begin with.")


class RelationsResponse(BaseModel):
    """All relations, in the order of the graph; with an entity those first that entities like it have."""

    results: list[RelationRow]


class TripleRow(BaseModel):
    """A triple of the graph, and the split that has it."""

    head: Named
    relation: Named
    tail: Named
    split: str = Field(description='"added" for what came with entities that were added to this process.')


class EntityResponse(BaseModel):
    """An entity and a page of its triples; ``total`` is how many it has."""

    label: str
    name: str
    description: str
    types: list[str]
    aliases: list[str]
    total: int
    offset: int
    triples: list[TripleRow]


class NewFact(BaseModel):
    """A triple that the graph lacks."""

    head: str
    relation: str
    tail: str
    head_name: str
    relation_name: str
    tail_name: str
    probability: float | None = Field(description="As of /rank; null where validation has too little to say.")
    because: str = Field(
        description="Why: a rule, a training triple that is like it, or a description; may be empty."
    )
    in_test: bool = Field(description="Whether the test split, of which the list knows nothing, has it.")


class MissingResponse(BaseModel):
    """The facts that an entity probably lacks, the most probable first."""

    results: list[NewFact]


class CameTrue(BaseModel):
    """New facts with at least a probability, and those of them that the test split has; ``expected`` is the
    share that it should have.
    """

    probability: float
    listed: int
    true: int
    precision: float
    expected: float


class FactsOf(BaseModel):
    """The number of facts of a relation, by its label."""

    label: str
    facts: int


class NewFactsResponse(BaseModel):
    """The facts that the graph probably lacks, the most probable first."""

    status: Literal["ready", "looking", "none"] = Field(
        description="looking: a process is at work, ask again in seconds; facts are those of a first sample, "
        "where there are any; none: there will be no list."
    )
    progress: float = Field(description="The share of the queries that are asked; 1 when it has ended.")
    why: str = Field(description="Why there will be none.")
    asked: int = Field(description="How many queries the facts are the answers of; of large graphs a sample.")
    hidden: CameTrue | None = Field(description="A check on the test split; null where there is none.")
    total: int
    relations: list[FactsOf]
    facts: list[NewFact]


class Limits(BaseModel):
    """The most that requests may ask for."""

    queries: int = MAX_QUERIES
    work: int = Field(
        MAX_WORK,
        description="Texts to read: a query is one, and one for each candidate that is scored in "
        "reverse; ten explained answers are one; a triple is two, a new entity is one.",
    )
    k: int = MAX_K
    entities: int = MAX_NEW
    triples: int = MAX_GIVEN
    name_characters: int = LONGEST_NAME
    description_characters: int = LONGEST_DESCRIPTION
    body_bytes: int = MAX_BYTES


class ExampleQuery(BaseModel):
    """The tails of a head, by labels."""

    head: str
    relation: str


class WhatIf(BaseModel):
    """An entity that the graph does not have, and the relation whose tails are asked for, by label."""

    name: str
    description: str
    types: list[str]
    relation: str
    triples: list[dict[str, str]] = Field(description="As of a new entity in /rank.")


class InfoResponse(BaseModel):
    """The run that is served, as `kgmlm info --json` has it, without what concerns the machine alone."""

    run: str
    version: str
    graph: dict[str, Any]
    model: dict[str, Any]
    signals: dict[str, Any]
    reverse: dict[str, Any] | None
    trees: dict[str, Any] | None
    trained: dict[str, Any]
    validation: dict[str, Any]
    ranks: dict[str, Any]
    stands_for: str | None = Field(
        description="What a probability stands for, as a sentence; null where there are none, and /classify "
        "does not answer."
    )
    writable: bool = Field(description="Whether POST /entities is allowed.")
    judging: bool = Field(description="Whether POST /feedback is allowed.")
    updating: bool = Field(description="Whether POST /update is allowed.")
    folder: Literal["as opened", "changed", "gone"] = Field(
        description="What has become of the run's folder since it was opened; answers stay as they were."
    )
    example: ExampleQuery | None = Field(description="A query to begin with.")
    what_if: list[WhatIf] = Field(description="New entities to begin with.")
    types: list[str] = Field(description="The most frequent types that entities are given.")
    added: int = Field(description="How many entities were added to this process.")
    limits: Limits


class Health(BaseModel):
    """The process answers, and its model is loaded."""

    status: Literal["ok"] = "ok"


class Problem(BaseModel):
    """The fault of a request, in one sentence."""

    error: str
