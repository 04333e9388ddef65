"""Write what people said of a run's answers as triples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgmlm import judgments
from kgmlm.kg import DataError, RunError
from kgmlm.run import Run, path_of
from kgmlm.tables import write_tsv
from kgmlm.upkeep import check_result


def feedback(run: Run | str | Path, output: str | Path) -> dict[str, Any]:
    """Write the judgments that the service's page took as a file of triples with labels.

    Args:
        output: a TSV file: head, relation, tail, and 1 for accepted or 0 for rejected. It can be classified,
            or be the ``valid`` or ``test`` file of a dataset.

    Returns:
        What was written: ``output``, ``accepted``, ``rejected``, and ``damaged``: lines that are none.

    Raises:
        RunError: when there is no such run.
        DataError: when there are no judgments.
    """
    path, target = path_of(run), Path(output)
    if not (path / "run.json").is_file():
        raise RunError(f"{path} is not a run folder, and only these keep judgments")
    check_result(target)
    said = judgments.read(path / judgments.FILE)
    counting = list(said.latest().values())
    if not counting:
        raise DataError(f"{path} has no judgments; the page of `kgmlm serve {path}` takes them")
    write_tsv(target, [(*judgment.triple, str(judgment.label)) for judgment in counting])
    accepted = sum(judgment.label == 1 for judgment in counting)
    return {
        "output": str(target),
        "accepted": accepted,
        "rejected": len(counting) - accepted,
        "damaged": said.damaged,
    }
