"""Pack a run into one file, and make a run of one."""

from __future__ import annotations

from pathlib import Path

from kgmlm import runs
from kgmlm.chosen import fingerprints
from kgmlm.files import check_writable
from kgmlm.jobs.onnx import structure_of
from kgmlm.kg import ConfigError, ModelError, RunError
from kgmlm.packs import SUFFIX, find_pack, is_unpacked, write_pack
from kgmlm.packs import unpack as unpack_into
from kgmlm.run import Run, open_run, path_of
from kgmlm.watching import Advance, Watcher, watcher_of


def pack(
    run: Run | str | Path,
    output: str | Path | None = None,
    *,
    kge: bool = True,
    onnx: bool = True,
    progress: bool | Watcher | Advance = True,
) -> Path:
    """Pack a run into one file that every command opens like the run.

    Weights are int8 with a scale per row; what only training needs is left out.

    Args:
        output: the file to write, ending in .kgmlm; None names it after the run, beside it.
        kge: False leaves out graph embeddings. The weights of the other signals and the use of the reranker
            stay as they were chosen with them.
        onnx: False leaves out what ONNX Runtime needs to read texts without torch; it is left out, and said
            so, where it cannot be made.

    Returns:
        The file.

    Raises:
        RunError: when training has left no model yet, or weights do not fit the signals.
    """
    folder = runs.open_run(path_of(run))
    if is_unpacked(folder.path):
        raise RunError(f"{path_of(run)} is a pack already")
    target = Path(output) if output is not None else folder.path.with_name(folder.path.name + SUFFIX)
    if target.suffix != SUFFIX:
        raise RunError(f"a pack ends in {SUFFIX}, not as {target}")
    check_writable(target)
    folder.chosen.check(fingerprints(folder.path), folder.path, () if kge else ("kge",))
    with watcher_of(progress) as watch:
        if not kge and "kge" in folder.chosen.mixture.signals:
            watch.tell(
                "the other weights, of the reranker too, were chosen with KGE beside them; for weights "
                "that suit the pack, copy the run, `kgmlm tune COPY --drop kge` and pack the copy"
            )
        structure = _structure(folder.path, watch) if onnx else None
        card = {"dataset": folder.graph.name}
        write_pack(folder.path, target, kge=kge, structure=structure, card=card, advance=watch)
    return target


def _structure(run: Path, watch: Watcher) -> bytes | None:
    """What ONNX Runtime needs, where it can be made."""
    try:
        return structure_of(run)
    except (ConfigError, ModelError) as error:
        watch.tell(f"the pack will need torch: {error}")
        return None


def unpack(pack: str | Path, output: str | Path) -> Run:
    """Make a run folder of a pack, to tune it or to train beside it.

    Raises:
        RunError: when it is no pack, is damaged, or the folder is there.
    """
    found = find_pack(pack)
    if found is None:
        raise RunError(f"there is no pack {pack}; a pack is a file that ends in {SUFFIX}")
    return open_run(unpack_into(found, Path(output)))
