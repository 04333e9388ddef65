"""Numbers and dates in texts: what do they gain where they matter?

    python eval/attributes.py --model MODEL [--seeds 3] --output eval/attributes.json

The graph is made up: companies with a year and a number of employees, what follows from these (the era, the
size class) and what does not (the city). Each seed draws another graph. It is trained with its table of
attributes and without by `--preset quick`; rows have validation and test MRR, and the test MRR of tails by
relation. Rows are added to the JSON; rows that are there are not made again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import store
import typer

import kgmlm
from kgmlm.core.tables import write_tsv
from kgmlm.runs import provenance

COMPANIES = 400
ERAS = {
    "e1": (1900, 1949, "first half of the 20th century"),
    "e2": (1950, 1979, "the decades after the war"),
    "e3": (1980, 1999, "end of the 20th century"),
    "e4": (2000, 2024, "21st century"),
}
SIZES = {
    "s1": (2, 9, "micro company"),
    "s2": (10, 49, "small company"),
    "s3": (50, 249, "medium-sized company"),
    "s4": (250, 9999, "large company"),
}
CITIES = ["Lisbon", "Oslo", "Kyoto", "Quito", "Accra", "Perth", "Turin", "Lyon"]
FIRST = ["Nor", "Vel", "Quan", "Tri", "Bel", "Sol", "Mer", "Kor", "Lum", "Zen", "Ari", "Dal"]
SECOND = ["da", "tek", "via", "nex", "lio", "ran", "dor", "mus", "tis", "gen"]
THIRD = ["Systems", "Foods", "Textiles", "Logistics", "Paper", "Optics"]


def companies(folder: Path, seed: int, attributes: bool) -> Path:
    """Write the dataset of a seed, with its attributes or without."""
    rng = np.random.default_rng(seed)
    names = [f"{a}{b} {c}" for a in FIRST for b in SECOND for c in THIRD]
    names = [names[i] for i in rng.permutation(len(names))[:COMPANIES]]
    triples, told, entities = [], [], [("label", "name")]
    for number, name in enumerate(names):
        label = f"c{number}"
        entities.append((label, name))
        era, size = rng.choice(list(ERAS)), rng.choice(list(SIZES))
        year, people = (int(rng.integers(*of[:2], endpoint=True)) for of in (ERAS[era], SIZES[size]))
        told += [(label, "founded", str(year)), (label, "employees", str(people))]
        triples += [
            (label, "era", era),
            (label, "size", size),
            (label, "city", f"t{rng.integers(len(CITIES))}"),
        ]
    entities += [(label, of[2]) for classes in (ERAS, SIZES) for label, of in classes.items()]
    entities += [(f"t{i}", name) for i, name in enumerate(CITIES)]
    triples = [triples[i] for i in rng.permutation(len(triples))]
    tenth = len(triples) // 10
    folder.mkdir()
    for split, rows in (("test", triples[: 2 * tenth]), ("valid", triples[2 * tenth : 4 * tenth])):
        write_tsv(folder / f"{split}.tsv", rows)
    write_tsv(folder / "train.tsv", triples[4 * tenth :])
    write_tsv(folder / "entities.tsv", entities)
    relations = {"era": "was founded in the", "size": "is a", "city": "is based in"}
    write_tsv(folder / "relations.tsv", [("label", "name"), *relations.items()])
    if attributes:
        write_tsv(folder / "attributes.tsv", [("entity", "attribute", "value"), *told])
    return folder


def measured(seed: int, model: str, attributes: bool) -> dict[str, Any]:
    """A row of the record."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = companies(Path(temporary) / "companies", seed, attributes)
        run = kgmlm.train(folder, model, Path(temporary) / "run", preset="quick", progress=False)
        report = kgmlm.evaluate(run, by_relation=True, progress=False)
        *_, valid = run.folder.tuned.by["valid"].values()
        relations = report.values["relations"]
        return {
            "seed": seed,
            "attributes": attributes,
            "model": store.short_name(model),
            "valid": round(valid["mrr"], 5),
            "test": round(report.metrics["both.realistic.inverse_harmonic_mean_rank"], 5),
            "tails": {name: round(of["tail"]["mrr"], 5) for name, of in relations.items()},
            "versions": provenance.versions(),
            "hardware": provenance.hardware(),
        }


def main(
    model: str = "minilm",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    output: Path | None = None,
) -> None:
    """Train and measure, and print a line each."""
    rows = store.rows(output)
    there = {(row["seed"], row["attributes"]) for row in rows}
    for seed in range(seeds):
        for attributes in (False, True):
            if (seed, attributes) not in there:
                row = measured(seed, model, attributes)
                print({k: v for k, v in row.items() if k not in ("versions", "hardware")}, flush=True)
                rows.append(row)
                if output is not None:
                    store.write_rows(output, rows)


if __name__ == "__main__":
    typer.run(main)
