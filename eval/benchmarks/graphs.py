"""A synthetic knowledge graph of any size: something to learn, and the same for every seed.

    python eval/benchmarks/graphs.py FOLDER --entities 200000 --triples 1000000 [--seed 0]

Entities are of kinds, which their names end with, and within kinds of groups, which their descriptions tell.
A relation joins two kinds, mostly a group of one to a group of the other, and few entities have most triples.
A fifth of the triples follow from two others, (x, r, y) and (y, s, z) giving (x, t, z).
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import typer


def _words(text: str) -> list[str]:
    return text.split()


KINDS = _words(
    "river lake mountain village city island forest bridge castle church museum school station road "
    "company painter writer singer player judge king film book song album poem ship engine bird fish "
    "flower stone"
)
WORDS = _words(
    "red blue green white black silver golden little great old new north south east west upper lower high "
    "deep long short wide broken hidden quiet bright dark cold warm early late first last royal holy "
    "common rare wild iron copper glass wooden salt sweet bitter winter summer spring autumn morning "
    "evening night sun moon star cloud rain snow wind storm fire water earth sand hill valley field "
    "garden meadow marsh shore harbor tower gate wall market mill farm well stone oak pine birch willow "
    "rose lily thorn apple cherry wolf bear fox deer hare eagle raven swan heron pike trout bell drum "
    "flute harp crown sword shield arrow wheel anchor lantern candle mirror ribbon button needle thread "
    "hammer barrel basket bottle kettle"
)
VERBS = _words(
    "part member neighbor maker owner keeper child teacher student rival friend source origin guest"
)
RELATIONS, DERIVED = 800, 0.2
SKEW = 3.0  # of degrees: the share of triples of the first x of the entities is x ** (1 / SKEW)
GROUPED = 0.7  # of the triples that join groups

IntArray = npt.NDArray[np.int64]


def names(count: int, rng: np.random.Generator) -> tuple[pa.Array, pa.Array, IntArray]:
    """Names and descriptions of entities, and where each kind of them begins."""
    words, kinds = pa.array(WORDS), pa.array(KINDS)
    shares = rng.dirichlet(np.full(len(KINDS), 5.0))
    starts = np.append(np.floor(np.concatenate([[0], np.cumsum(shares)[:-1]]) * count), count).astype(
        np.int64
    )
    kind = kinds.take(pa.array(np.repeat(np.arange(len(KINDS)), np.diff(starts))))
    group = np.arange(count) // group_size(count)
    told = rng.integers(len(WORDS), size=(3, int(group[-1]) + 1))
    first, second, *others = (words.take(pa.array(rng.integers(len(WORDS), size=count))) for _ in range(4))
    of = [words.take(pa.array(of_group[group])) for of_group in told]
    space = pa.scalar(" ")
    name = pc.binary_join_element_wise(first, second, kind, space)
    text = pc.binary_join_element_wise(
        "a", others[0], kind, "of the", *of, "with", others[1], "and", first, space
    )
    return name, text, starts


def group_size(entities: int) -> int:
    """How many entities a group has."""
    return max(5, min(50, entities // 1000))


def triples(starts: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Distinct triples ``(n, 3)`` in random order, nearly as many as asked for."""
    size = group_size(int(starts[-1]))
    pairs = rng.permutation(list(product(range(len(KINDS)), repeat=2)))[:RELATIONS]
    shift = rng.integers(1, 10_000, size=len(pairs))
    drawn = int(count * (1 - DERIVED) * 1.1)
    weights = 1.0 / np.arange(1, len(pairs) + 1) ** 0.9
    r = rng.choice(len(pairs), size=drawn, p=weights / weights.sum())
    begin, length = starts[pairs], np.diff(starts)[pairs]  # (relations, 2): of heads, of tails
    within = (length[r, 0] * rng.random(drawn) ** SKEW).astype(np.int64)
    groups = np.maximum(1, length[r, 1] // size)
    group = (within // size + shift[r]) % groups
    near = np.minimum(group * size + (size * rng.random(drawn) ** 2).astype(np.int64), length[r, 1] - 1)
    far = (length[r, 1] * rng.random(drawn) ** SKEW).astype(np.int64)
    t = begin[r, 1] + np.where(rng.random(drawn) < GROUPED, near, far)
    base = np.stack([begin[r, 0] + within, r, t], axis=1)
    found = np.unique(np.concatenate([base, derived(base, pairs, int(count * DERIVED * 1.2), rng)]), axis=0)
    return rng.permutation(found)[:count]


def derived(base: IntArray, pairs: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Triples that follow from two others by one relation for each two that meet."""
    by_head = base[np.argsort(base[:, 0], kind="stable")]
    heads = by_head[:, 0]
    one = base[rng.integers(len(base), size=2 * count)]
    first, end = (np.searchsorted(heads, one[:, 2], side) for side in ("left", "right"))
    one, first, end = (x[end > first] for x in (one, first, end))
    two = by_head[first + (rng.random(len(one)) * (end - first)).astype(np.int64)]
    of_kinds = np.full((len(KINDS), len(KINDS)), -1)
    of_kinds[tuple(pairs.T)] = np.arange(len(pairs))
    third = of_kinds[pairs[one[:, 1], 0], pairs[two[:, 1], 1]]
    found: IntArray = np.stack([one[:, 0], third, two[:, 2]], axis=1)[third >= 0][:count]
    return found


TOPICS = {
    "payments": "card payments and refunds", "search": "full-text search and ranking",
    "identity": "logins, tokens and permissions", "delivery": "parcels, routes and tracking",
    "media": "images, video and thumbnails", "insight": "reports, metrics and dashboards",
    "messaging": "mail, push and chat messages", "catalog": "products, prices and stock",
}  # fmt: skip
PEOPLE = _words("Ada Ben Cleo Dan Eva Finn Gita Hugo Ines Jon Kira Leo Mina Nils Ola Pia Raj Sara Tom Uma")
FAMILIES = _words("Abel Berg Costa Dietz Engel Fonseca Gray Holm Ito Jensen Kaya Lind")
LANGUAGES, OFFICES = _words("Go Python Rust Java"), _words("Lisbon Oslo Kyoto")
PARTS = ("gateway", "worker", "api", "store", "index")


def services(folder: Path, seed: int = 0) -> None:
    """Write a made-up graph of a company's services: 400 triples, with names, types and descriptions.

    Texts tell what triples do: a description names the topic of the team that owns a service, and the family
    of words that an incident is about. A tenth of the triples is for validation, a tenth for the test.
    """
    rng = np.random.default_rng(seed)
    texts: dict[str, tuple[str, str]] = {}
    found: list[tuple[str, str, str]] = []

    def add(label: str, name: str, text: str, kind: str) -> str:
        texts[label] = (name, text)
        texts.setdefault(f"kind_{kind}", (kind, ""))
        found.append((label, "type", f"kind_{kind}"))
        return label

    def pick(some: list[str]) -> str:
        return some[int(rng.integers(len(some)))]

    offices = [add(f"office_{x}", f"{x} office", f"Our office in {x}.", "office") for x in OFFICES]
    languages = [add(f"lang_{x}", x, "A programming language.", "language") for x in LANGUAGES]
    owned: dict[str, list[str]] = {}
    members: dict[str, list[str]] = {}
    people = [f"{first} {last}" for first, last in zip(PEOPLE * 2, FAMILIES * 4, strict=False)]
    for at, (topic, text) in enumerate(TOPICS.items()):
        team = add(f"team_{topic}", f"{topic} team", f"Builds everything about {text}.", "team")
        found.append((team, "located_in", offices[at % 3]))
        for name in people[4 * at : 4 * at + 4]:
            person = add(name.replace(" ", "_"), name, f"Engineer for {text.split(',')[0]}.", "person")
            members.setdefault(topic, []).append(person)
            found.append((person, "member_of", team))
        for part in PARTS:
            label = f"{topic}_{part}"
            owned.setdefault(topic, []).append(
                add(label, f"{topic} {part}", f"The {part} for {text}, run by {topic}.", "service")
            )
            found += [(label, "owned_by", team), (label, "written_in", languages[(at + part.count("e")) % 4])]
    every = [service for some in owned.values() for service in some]
    for service in every:
        topic = service.split("_")[0]
        found.append((service, "depends_on", pick([x for x in owned[topic] if x != service])))
        if rng.random() < 0.4:
            found.append((service, "depends_on", pick([x for x in every if x != service])))
    for at in range(45):
        topic = pick(list(TOPICS))
        service = pick(owned[topic])
        about = pick(_words("timeouts errors latency crashes leaks"))
        incident = add(f"incident_{at}", f"incident {at}", f"{about} in {TOPICS[topic]}", "incident")
        found += [(incident, "affected", service), (incident, "handled_by", pick(members[topic]))]
    triples = sorted(set(found))
    order = rng.permutation(len(triples))
    folder.mkdir(parents=True)
    labels = list(texts)
    write(folder / "entities.tsv", {
        "label": pa.array(labels), "name": pa.array([texts[x][0] for x in labels]),
        "description": pa.array([texts[x][1] for x in labels]),
    }, True)  # fmt: skip
    tenth = len(triples) // 10
    cut = {"valid": order[:tenth], "test": order[tenth : 2 * tenth], "train": order[2 * tenth :]}
    for split, part in cut.items():
        columns = zip(*(triples[i] for i in part.tolist()), strict=True)
        write(folder / f"{split}.tsv", {str(at): pa.array(x) for at, x in enumerate(columns)}, False)


def write(path: Path, columns: dict[str, pa.Array], header: bool) -> None:
    """A TSV file."""
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with path.open("wb") as file:
        file.write("\t".join(columns).encode() + b"\n" if header else b"")
        csv.write_csv(pa.table(columns), file, options)


def main(
    folder: Annotated[Path, typer.Argument(help="Where to write the dataset; a new folder.")],
    entities: Annotated[int, typer.Option(help="How many entities.")] = 200_000,
    triples_: Annotated[int, typer.Option("--triples", help="How many triples.")] = 1_000_000,
    held_out: Annotated[int, typer.Option(help="Triples of validation, and of test.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of all draws.")] = 0,
) -> None:
    """Write a synthetic dataset."""
    rng = np.random.default_rng(seed)
    name, text, starts = names(entities, rng)
    found = triples(starts, triples_, rng)
    folder.mkdir(parents=True)
    label = pc.binary_join_element_wise("Q", pa.array(rng.permutation(entities)).cast(pa.string()), "")
    write(folder / "entities.tsv", {"label": label, "name": name, "description": text}, True)
    relations = [f"{WORDS[i % 97]}_{VERBS[i % len(VERBS)]}_{i}" for i in range(RELATIONS)]
    asked = [x.rsplit("_", 1)[0].replace("_", " ") + " of" for x in relations]
    write(folder / "relations.tsv", {"label": pa.array(relations), "name": pa.array(asked)}, True)
    for split, part in (
        ("valid", found[:held_out]),
        ("test", found[held_out : 2 * held_out]),
        ("train", found[2 * held_out :]),
    ):
        h, r, t = part.T
        columns = [label.take(pa.array(h)), pa.array(relations).take(pa.array(r)), label.take(pa.array(t))]
        write(folder / f"{split}.tsv", dict(zip(("head", "relation", "tail"), columns, strict=True)), False)
    print(f"{entities:,} entities and {len(found):,} triples in {folder}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
