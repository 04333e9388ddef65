"""Make a run ready for ONNX Runtime."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from kgmlm import digests, runs
from kgmlm.arrays import numpy
from kgmlm.jobs.writing import writes_run
from kgmlm.kg import RunError
from kgmlm.onnx_model import FILE
from kgmlm.run import Run, path_of
from kgmlm.watching import quiet_transformers

CHECKED = 8  # queries that are ranked by both


@writes_run
def onnx(run: Run | str | Path) -> Path:
    """Write what ONNX Runtime needs to read texts for a run: then it ranks and is served without torch.

    It is the structure of the model alone, some 100 kB; weights stay where they are. It is kept when both
    give the same scores, to 1e-4. Training the run further removes it.

    Returns:
        The file.

    Raises:
        RunError: when training has left no model yet, or scores differ.
        ModelError: when the model is of a family that cannot be exported.
        ConfigError: when `pip install 'kgmlm[onnx-export]'` was not done.
    """
    folder = runs.open_run(path_of(run))
    model = folder.model_folder
    if not (model / "config.json").is_file():
        raise RunError(f"{folder.path} has no trained model yet")
    keep = partial(digests.write_manifest, model)
    with digests.replacing(model / FILE, digests.read_manifest(model), keep) as temporary:
        _write(model, temporary)
        _compare(folder, temporary)
    return model / FILE


def _write(folder: Path, path: Path) -> None:
    """The structure of a folder's model."""
    from kgmlm.modeling import load_model
    from kgmlm.onnx_export import export

    quiet_transformers()
    export(load_model(folder), folder, path)


def _compare(run: runs.RunFolder, file: Path) -> None:
    """See that torch and ONNX Runtime give the names of entities the same likelihoods.

    Raises:
        RunError: when they do not.
    """
    from kgmlm.onnx_export import TOLERANCE
    from kgmlm.onnx_model import OnnxModel
    from kgmlm.ranker import Ranker

    asked, _ = run.graph.queries("train")
    some = asked[np.linspace(0, len(asked) - 1, min(CHECKED, len(asked)), dtype=np.int64)]
    one = run.text_ranker("cpu").by("likelihood")
    reader = one.reader
    model = OnnxModel.open(run.model_folder, file)
    other = Ranker.fresh(reader.context, reader.tokenizer, model, reader.settings, reader.vocabulary)
    other.reader.adopt_names(reader.names)
    for (_, first_bN), (_, second_bN) in zip(one.rank(some), other.by("likelihood").rank(some), strict=True):
        difference = float(np.abs(numpy(first_bN) - second_bN).max())
        if not difference <= TOLERANCE:
            raise RunError(f"{run.path}: ONNX Runtime gives other scores than torch, by {difference:.2g}")


def structure_of(run: Path) -> bytes:
    """The structure of a run's model: the run's own, or a new one.

    Raises:
        ModelError: when the model is of a family that cannot be exported.
        ConfigError: when what the export needs is not installed.
    """
    model = run / "model"
    if (model / FILE).is_file():
        return (model / FILE).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        _write(model, path := Path(folder) / FILE)
        return path.read_bytes()
