"""Write what people said of a run's answers as triples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from kgmlm import files, judgments
from kgmlm.columns import ENDS, LABEL
from kgmlm.files import as_path
from kgmlm.kg import DataError, RunError
from kgmlm.run import Run, path_of
from kgmlm.tables import write_tsv
from kgmlm.upkeep import check_result


def feedback(run: Run | str | Path, output: str | Path) -> dict[str, Any]:
    """Write the judgments that the service's page took as a file of triples with labels.

    Args:
        output: a TSV file, or ``.parquet``, which can hold labels with tabs: head, relation, tail, and 1
            for accepted or 0 for rejected. It can be classified, or be a dataset's ``valid`` or ``test``.

    Returns:
        What was written: ``output``, ``accepted``, ``rejected``, and ``damaged``: lines that are none.

    Raises:
        RunError: when there is no such run.
        DataError: when there are no judgments, or TSV cannot hold them.
    """
    path, target = path_of(run), as_path(output, "the output")
    if not (path / "run.json").is_file():
        raise RunError(f"{path} is not a run folder, and only these keep judgments")
    check_result(target)
    said = judgments.read(path / judgments.FILE)
    counting = list(said.latest().values())
    if not counting:
        raise DataError(f"{path} has no judgments; the page of `kgmlm serve {path}` takes them")
    rows = [(*judgment.triple, str(judgment.label)) for judgment in counting]
    if target.suffix == ".parquet":
        columns = zip((*ENDS, LABEL), zip(*rows, strict=True), strict=True)
        files.write_parquet(target, pa.table({name: pa.array(of) for name, of in columns}), follow=True)
    else:
        write_tsv(target, rows)
    accepted = sum(judgment.label == 1 for judgment in counting)
    return {
        "output": str(target),
        "accepted": accepted,
        "rejected": len(counting) - accepted,
        "damaged": said.damaged,
    }
