"""Suggest which questions people should judge: those whose answer would teach a run most."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import entr

from kgmlm.core.arrays import FloatArray, IntArray
from kgmlm.core.errors import DataError, check_numbers
from kgmlm.core.files import as_path
from kgmlm.core.progress import Advance, Watcher, watcher_of
from kgmlm.core.tables import ENDS, write_tsv
from kgmlm.graphs.names import Resolver
from kgmlm.prediction.new_facts import FILE, NewFacts
from kgmlm.runs.feedback import FEEDBACK_FILE, Labels, read_judgments
from kgmlm.runs.packs import is_unpacked
from kgmlm.runs.record import check_result
from kgmlm.runs.run import Run, open_run

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (*ENDS, "head_name", "relation_name", "tail_name", "probability")


def teaching(facts: pa.Table, most: int, judged: Collection[Labels] = ()) -> IntArray:
    """Choose the questions whose answers would teach most, one after the other.

    A question is worth the entropy of its answer in bits, times the square root of the entropy of all
    questions of its relation, which are like it; divided by one more than the number of questions that were
    chosen before of its relation, and likewise of its head and of its tail.

    Args:
        facts: a list of new facts (:class:`~kgmlm.prediction.new_facts.NewFacts`).
        most: how many are chosen at most.
        judged: triples that are not asked again.

    Returns:
        Rows of ``facts``, the best first.
    """
    probability = np.nan_to_num(facts.column("probability").to_numpy().astype(np.float64), nan=0.5)
    bits: FloatArray = (entr(probability) + entr(1 - probability)) / np.log(2)
    codes = [facts.column(end).combine_chunks().dictionary_encode().indices.to_numpy() for end in ENDS]
    alike = np.bincount(codes[1], bits)
    worth = bits * np.sqrt(alike[codes[1]])
    if judged:
        triples = zip(*(facts.column(end).to_pylist() for end in ENDS), strict=True)
        worth[[triple in judged for triple in triples]] = -np.inf
    divisor, chosen = [np.ones(len(worth)) for _ in ENDS], list[int]()
    while len(chosen) < most:
        row = int((worth / np.prod(divisor, axis=0)).argmax())
        if worth[row] == -np.inf:
            break
        chosen.append(row)
        worth[row] = -np.inf
        for of, code in zip(divisor, codes, strict=True):
            of[code == code[row]] += 1
    return np.array(chosen, np.int64)


def suggest(
    run: Run | str | Path,
    k: int = 20,
    *,
    relations: Sequence[str] | str | None = None,
    output: str | Path | None = None,
    progress: bool | Watcher | Advance = True,
) -> pd.DataFrame:
    """Suggest the questions whose answers would teach a run most: uncertain ones, and many like them.

    They are chosen of the new facts that the run's page lists, which the first call looks for. What was
    judged before is not suggested again.

    Args:
        k: how many at most.
        relations: labels or names of those that are asked about; None is all.
        output: a TSV file of head, relation and tail to write, too.

    Returns:
        The columns head, relation and tail (labels), their names, and the probability of each.

    Raises:
        DataError: when the graph has no validation triples, or nothing is probable enough.

    Example:
        >>> kgmlm.suggest("runs/demo", 5)  # doctest: +SKIP
    """
    check_numbers(k=(k, 1))
    opened = run if isinstance(run, Run) else open_run(run)
    target = None if output is None else as_path(output, "the output")
    if target is not None:
        check_result(target)
    folder = opened.folder
    keep = not is_unpacked(folder.path) and os.access(folder.path, os.W_OK)
    with watcher_of(progress) as watch, TemporaryDirectory() as spare:
        found = NewFacts.of(opened, (folder.path if keep else Path(spare)) / FILE, watch)
    facts = pa.table({}) if found is None else found.table
    if relations is not None and len(facts):
        find = Resolver(opened.graph)
        names = [relations] if isinstance(relations, str) else relations
        labels = [opened.graph.relations[find.relation(name)].label for name in names]
        facts = facts.filter(pc.is_in(facts.column("relation"), pa.array(labels, pa.large_string())))
    judged = {x.triple for x in read_judgments(folder.path / FEEDBACK_FILE).counting()} if keep else set()
    rows = teaching(facts, k, judged) if len(facts) else np.zeros(0, np.int64)
    if not len(rows):
        raise DataError(f"no new fact of {folder.path} is probable enough to ask about")
    table = facts.select(COLUMNS).take(rows)
    if target is not None:
        write_tsv(target, [tuple(row[end] for end in ENDS) for row in table.to_pylist()])
    frame: pd.DataFrame = table.to_pandas()
    return frame
