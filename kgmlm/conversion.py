"""A run folder of format 1 made one of today's: the only place that knows how runs were written before."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from kgmlm import digests, files
from kgmlm.chosen import Chosen, fingerprints
from kgmlm.config import Settings, dump_settings
from kgmlm.kg import RunError, first_line
from kgmlm.mixture import Mixture, Use
from kgmlm.records import FORMAT, read_record
from kgmlm.runs import HOW, MIXTURE, TEACHER
from kgmlm.saving import NAMES, save_names
from kgmlm.signals.kge import KGE
from kgmlm.signals.vector import Vector
from kgmlm.tokenizer_sources import load_tokenizer
from kgmlm.upkeep import RERANKER, checkpoints

# What files, keys and settings were called.
_KGE, _RERANKER = "structure.safetensors", "rescorer"
_SECTIONS = {"structure": "kge", "rescoring": "reranking"}
_KEYS = {("training", "teaching"): "distillation", ("vector", "offset_rate"): "residual_rate"}


def is_old(run: Path) -> bool:
    """Whether a folder is a run of format 1."""
    try:
        record = json.loads((run / "run.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("format") == 1


def convert_run(run: Path) -> None:
    """Convert a run folder in its place, whole or not at all, with its reranker and checkpoints.

    It ranks as before; what was marked as chosen for other scores is left for `kgmlm tune`.

    Raises:
        RunError: when it is no run of format 1, or is damaged.
    """
    if not is_old(run):
        there = (run / "run.json").is_file()
        raise RunError(f"{run} is {'not a run of an older format' if there else 'no run folder'}")
    try:
        with files.atomic_folder(run, follow=True) as folder:
            shutil.copytree(run, folder, dirs_exist_ok=True, symlinks=True)
            _convert(folder)
    except RunError:
        raise
    except Exception as error:
        why = first_line(error)
        raise RunError(f"{run} cannot be converted: {why}") from error


def _convert(run: Path) -> None:
    """Convert a copy of a run."""
    record = json.loads((run / "run.json").read_bytes())
    if (run / _RERANKER).is_dir():
        (run / _RERANKER).rename(run / RERANKER)
        if is_old(run / RERANKER):
            _convert(run / RERANKER)
    settings = _settings(tomllib.loads((run / "config.toml").read_text("utf-8")))
    files.write_atomic(run / "config.toml", dump_settings(settings))
    for checkpoint in checkpoints(run):
        _convert_checkpoint(checkpoint)
    signals = {}
    if (run / TEACHER).is_file():
        _convert_kge(run / TEACHER, run / TEACHER)
    tables: dict[str, tuple[torch.Tensor, float]] = {}
    if (run / _KGE).is_file():
        weights_R2 = _convert_kge(run / _KGE, run / KGE.file)
        (run / _KGE).unlink()
        how = record.get("structure") or {}
        signals["kge"] = {key: how.get(key) for key in HOW}
        if not how.get("outdated"):
            tables["kge"] = (weights_R2, float(weights_R2.mean()))
    if not (run / NAMES).is_file() and (run / "model" / "tokenizer.json").is_file():
        _write_names(run, int(record["span_length"]), settings)
    teacher = record.get("teacher")
    dropped = ("structure", "weighing", "rescoring", "files")
    new = {k: v for k, v in record.items() if k not in dropped} | {
        "format": FORMAT,
        "signals": signals,
        "teacher": None if teacher is None else dict(teacher),
    }
    new["files"] = digests.as_json(_of_run(run))
    files.write_json(run / "run.json", new)
    if (run / "model" / "config.json").is_file():
        _write_chosen(run, record, tables)


def _settings(old: dict[str, Any]) -> Settings:
    """Settings under their names of today."""
    new = {_SECTIONS.get(name, name): dict(values) for name, values in old.items()}
    for (section, key), name in _KEYS.items():
        if key in new.get(section, {}):
            new[section][name] = new[section].pop(key)
    if new.get("training", {}).get("objective") == "rescore":
        new["training"]["objective"] = "rerank"
    return Settings.model_validate(new)


def _convert_kge(old: Path, new: Path) -> torch.Tensor:
    """Embeddings without their weights ``(R, 2)``, which are returned."""
    tensors = load_file(old)
    weights_R2 = tensors.pop("weights")
    files.write_tensors(new, tensors)
    return weights_R2


def _convert_checkpoint(folder: Path) -> None:
    """The state of a training, whose learned residuals were called offsets."""
    path = folder / "state.safetensors"
    tensors = load_file(path)
    alone = not any(name.startswith("0.") for name in tensors)  # by one process, before there were several
    renamed = {}
    for name, tensor in tensors.items():
        own = f"0.{name}" if alone and not name.startswith("optimizer.") else name
        renamed[own.removesuffix("offsets") + "residuals" if own.endswith(".offsets") else own] = tensor
    files.write_tensors(path, renamed)
    state = (folder / "state.json").read_bytes()
    (folder / "state.json").unlink()  # written again at each validation, so no digest is kept
    digests.write_manifest(folder / "model")
    digests.write_manifest(folder)
    (folder / "state.json").write_bytes(state)


def _write_names(run: Path, span: int, settings: Settings) -> None:
    """The tokens of the entities' names, which early runs did not keep."""
    from kgmlm.graph_files import read_graph

    graph = read_graph(run / "graph", "", {})
    tokenizer = load_tokenizer(run / "model")
    names = tokenizer.candidates(graph.entities.column("surface"), span, settings.scoring.end_of_name)
    save_names(names, run / NAMES)


def _of_run(run: Path) -> digests.Accepted:
    """Digests of what a run keeps beside its model."""
    paths = [run / "config.toml", run / TEACHER, run / KGE.file, *(run / "graph").iterdir()]
    there = sorted(path for path in paths if path.is_file())
    return {path.relative_to(run).as_posix(): [digests.Digest.of(path)] for path in there}


def _write_chosen(
    run: Path, record: Mapping[str, Any], tables: Mapping[str, tuple[torch.Tensor, float]]
) -> None:
    """What was chosen for the run, in the one file that has it now."""
    path = run / Vector.file
    relations = len(_relations(run))
    mixture = Mixture.even({"likelihood": 1.0}, relations)
    if path.is_file():
        tensors = load_file(path)
        with safe_open(path, "pt") as opened:
            weights = {k: float(v) for k, v in (opened.metadata() or {}).items()}
        averages = {name: weights.get(name, 0.0) for name in ("likelihood", "vector")}
        mixture = Mixture.even(averages, relations)
        if "factors" in tensors:
            average = averages["vector"]
            mixture = mixture.weighed("vector", average * tensors["factors"], average)
        files.write_tensors(path, {"vectors": tensors["vectors"]})
    for name, (table_R2, average) in tables.items():
        mixture = mixture.weighed(name, table_R2, average)
    digests.write_manifest(run / "model")
    reranking = record.get("rescoring")
    use = None if not reranking else Use(int(reranking["k"]), float(reranking["weight"]))
    figures = {
        "text": (record.get("weighing") or {}).get("valid"),
        "kge": (record.get("structure") or {}).get("valid"),
        "reranking": (reranking or {}).get("valid"),
    }
    by = {"command": record.get("command"), "valid": {k: v for k, v in figures.items() if v}}
    of = {k: v for k, v in fingerprints(run).items() if k in mixture.tables or (k == RERANKER and use)}
    (run / MIXTURE).unlink(missing_ok=True)
    Chosen(mixture, use, of, by).save(run / MIXTURE)
    digests.write_manifest(run / "model")


def _relations(run: Path) -> list[str]:
    from kgmlm.graph_files import read_graph

    return [r.label for r in read_graph(run / "graph", "", {}).relations]


def converted(run: Path) -> str:
    """What a converted run is, in a sentence."""
    record = read_record(run)
    return f"{run} is of format {record['format']} now ({record['status']}, step {record['step']:,})"
