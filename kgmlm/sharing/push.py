"""Push a run to a Hugging Face Hub: its pack, its masked LM as a plain model, and a model card."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jinja2 import Template

from kgmlm.core import files
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.core.options import takes
from kgmlm.core.progress import watcher_of
from kgmlm.core.results import Outcome
from kgmlm.graphs.cards import card_names, read_card
from kgmlm.runs.hub import PACK, HubName, hub, hub_error
from kgmlm.runs.opened import open_folder
from kgmlm.runs.packs import find_pack, unpack
from kgmlm.runs.run import Run, path_of
from kgmlm.sharing.info import Info, info
from kgmlm.sharing.options import PushOptions
from kgmlm.sharing.pack import pack as pack_run

MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
CARD = Path(__file__).with_name("card.md.j2")
FIGURES = {
    "MRR": "inverse_harmonic_mean_rank",
    "Hits@1": "hits_at_1",
    "Hits@3": "hits_at_3",
    "Hits@10": "hits_at_10",
}


@takes(PushOptions)
def push(run: Run | str | Path, options: PushOptions) -> Outcome:
    """Push a run to a Hugging Face Hub, where ``kgmlm.open_run("hf://USER/NAME")`` opens it.

    The repository gets the run's pack; the masked LM, if the run trained one, so that transformers loads it
    by the repository's name; and a model card. It is created if it does not exist. Your access token is
    read from HF_TOKEN or from where `hf auth login` keeps it; HF_ENDPOINT names another Hub.

    Args:
        run: a run, or a pack, which goes as it is: with its probabilities.

    Returns:
        ``repository``, its ``url``, the ``commit``, the ``name`` that opens exactly this, and the ``bytes``
        of the pack.

    Raises:
        ConfigError: when ``to`` is no name of a repository.
        DataError: when the evaluation cannot be read or is of another graph.
        RunError: when the run cannot be packed, or the Hub refuses it.

    Example:
        >>> kgmlm.push("runs/demo", "ada/world")  # doctest: +SKIP
    """
    name = HubName.of(options.to if options.to.startswith("hf:") else f"hf://{options.to}")
    if name is None or name.revision:
        raise ConfigError(f"a run is pushed to USER/NAME, not to '{options.to}'")
    library, watch = hub(), watcher_of(options.progress)
    path = path_of(run)
    source = find_pack(path)
    folder = open_folder(path)
    report = None if options.evaluation is None else _read_report(Path(options.evaluation), folder.graph.name)
    with TemporaryDirectory() as scratch:
        packed = source or pack_run(path, Path(scratch) / PACK, progress=watch)
        described = info(unpack(packed, Path(scratch) / "run"))  # as it will be opened
        (example,) = folder.graph.named(folder.graph.triples("train")[:1])
        card = model_card(described, name.repository, example[:2], license=options.license, report=report)
        model_files = (
            [folder.model_folder / file for file in MODEL_FILES] if folder.settings.trains_text else []
        )
        sent = {PACK: packed, **{x.name: x for x in model_files if x.is_file()}}
        added = [library.CommitOperationAdd(at, str(file)) for at, file in sent.items()]
        added.append(library.CommitOperationAdd("README.md", card.encode()))
        size = packed.stat().st_size
        total = sum(file.stat().st_size for file in sent.values())
        watch.tell(f"pushing {total / 2**20:.1f} MiB to {name}")
        try:
            api = library.HfApi()
            url = api.create_repo(name.repository, private=options.private or None, exist_ok=True)
            commit = api.create_commit(name.repository, added, commit_message=options.message)
        except (OSError, ValueError, RuntimeError, library.errors.HTTPError) as error:
            raise hub_error(name, error) from None
    return Outcome(
        {
            "repository": name.repository,
            "url": str(url),
            "commit": commit.oid,
            "name": str(name._replace(revision=commit.oid)),
            "bytes": size,
        }
    )


def _read_report(path: Path, graph: str) -> Mapping[str, Any]:
    """Read the report of an evaluation.

    Raises:
        DataError: when it is none, or of another graph.
    """
    try:
        report = files.parse_json(files.read_bytes(path))
        _ = report["metrics"], report["protocol"], report["split"], report["triples"]
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"{path} is no report of an evaluation; `kgmlm evaluate --output` writes one"
        ) from None
    if report.get("dataset") != graph:
        raise DataError(f"{path} is of the graph {report.get('dataset')}, and the run is of {graph}")
    return dict(report)


def model_card(
    run: Info,
    repository: str,
    example: Sequence[str],
    *,
    license: str | None = None,
    report: Mapping[str, Any] | None = None,
) -> str:
    """The README of a repository: what the run is of, how well it ranks, how to use it, and its limits.

    Args:
        example: names of an entity and a relation, by which the card shows a question.
        license: of the graph's texts and triples.
        report: of an evaluation of it.
    """
    graph, base = run.graph, run.model["began_with"]
    known = read_card(graph["name"]) if graph["name"] in card_names() else None
    head: dict[str, Any] = {"library_name": "kgmlm", "tags": ["kgmlm", "knowledge-graph", "link-prediction"]}
    if license and re.fullmatch(r"[a-z0-9.-]+", license):  # as the Hub names licenses
        head["license"] = license
    if re.fullmatch(r"[\w.-]+/[\w.-]+", base):
        head["base_model"] = base
    if report is not None:
        head["model-index"] = _model_index(repository, graph["name"], report)
    card = Template(CARD.read_text("utf-8"), keep_trailing_newline=True, trim_blocks=True)
    whole: str = card.render(
        head={key: json.dumps(value) for key, value in head.items()},
        repository=repository,
        example=example,
        title=known.title if known else graph["name"],
        license=license or (known.license if known else "not stated"),
        run=run,
        hardware=_hardware(run.trained["hardware"]),
        commands=[x["command"] for x in (run.trained, *run.trained["earlier"]) if x["command"]],
        stages={stage: of for stage, of in run.validation["chosen"].items() if of},
        report=report,
        figures=FIGURES,
    )
    return whole


def _hardware(hardware: Mapping[str, Any] | None) -> str:
    """The hardware of a training, in words."""
    if not hardware:
        return "unknown hardware"
    return str(
        hardware.get("gpu") or f"{hardware.get('threads', '?')} threads of {hardware.get('machine', 'a CPU')}"
    )


def _model_index(repository: str, graph: str, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures of an evaluation, as the Hub reads them."""
    metrics = [
        {"type": name, "value": round(report["metrics"][key], 5)}
        for name, key in ((x, f"both.realistic.{y}") for x, y in FIGURES.items())
        if key in report["metrics"]
    ]
    result = {
        "task": {"type": "link-prediction", "name": "Link prediction"},
        "dataset": {"type": graph, "name": graph, "split": report["split"]},
        "metrics": metrics,
    }
    return [{"name": repository.split("/")[1], "results": [result]}]
