"""Pack a run into one file, and make a run of one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kgmlm.core.errors import ConfigError, RunError, check_numbers
from kgmlm.core.files import as_path, check_writable
from kgmlm.core.progress import Advance, Watcher, watcher_of
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.onnx import structures_of
from kgmlm.runs.opened import open_folder
from kgmlm.runs.packs import SUFFIX, find_pack, write_calibrated, write_pack
from kgmlm.runs.packs import unpack as unpack_into
from kgmlm.runs.run import Run, open_run, path_of


def pack(
    run: Run | str | Path,
    output: str | Path | None = None,
    *,
    kge: bool = True,
    onnx: bool = True,
    calibrate: bool = False,
    batch_size: int = 64,
    device: str | None = None,
    progress: bool | Watcher | Advance = True,
) -> Path:
    """Pack a run into one file that every command opens like the run.

    Weights are int8 with a scale per row; what only training needs is left out. So are the run's
    probabilities, since rounding moves scores.

    Args:
        run: a run, or with ``calibrate`` a pack to be written again with probabilities.
        output: the file to write, ending in .kgmlm; None names it after the run, beside it.
        kge: False leaves out graph embeddings, and trees, which were fitted with them. The weights of
            the other signals stay as they were chosen with them.
        onnx: False leaves out what ONNX Runtime needs to read texts without torch; it is left out, and said
            so, where it cannot be made.
        calibrate: fit probabilities to what the pack scores, as :func:`kgmlm.calibrate` does, and keep them
            in it.
        batch_size, device: of the calibration.

    Returns:
        The file.

    Raises:
        RunError: when training has left no model yet, weights do not fit the signals, or there are too few
            validation triples to calibrate.
    """
    path = path_of(run)
    source = find_pack(path)
    if source is None:
        folder = open_folder(path)
        if folder.is_unpacked:
            raise RunError(f"{path} is a pack already; give the file that it is in")
        named = folder.path.resolve()
        target = as_path(output, "the output") if output is not None else named.with_name(named.name + SUFFIX)
    else:
        if not calibrate:
            raise RunError(f"{path} is a pack already; --calibrate adds probabilities to it")
        if not kge or not onnx:
            option = "--no-onnx" if kge else "--no-kge"
            raise ConfigError(f"{option} is for runs; {path} is a pack, which keeps what it has")
        if output is None:
            raise ConfigError(f"{path} is a pack; --output names the file to write")
        target = as_path(output, "the output")
    if target.suffix != SUFFIX:
        raise RunError(f"a pack ends in {SUFFIX}, not as {target}")
    check_numbers(batch_size=(batch_size, 1))
    check_writable(target)
    watch = watcher_of(progress)
    with TemporaryDirectory() as scratch:
        if source is None:
            source = Path(scratch) / target.name if calibrate else target
            _pack(folder, source, kge, onnx, watch)
        if calibrate:
            write_calibrated(source, target, lambda run: _probabilities(run, batch_size, device, watch))
    return target


def _pack(folder: RunFolder, target: Path, kge: bool, onnx: bool, watch: Watcher) -> None:
    """Pack a run as it is."""

    def check(now: RunFolder) -> None:
        now.tuned.check(now.fingerprints, now.path, () if kge else ("kge", "trees"))

    check(folder)
    with watch:
        if not kge and "kge" in folder.tuned.mixture.signals:
            watch.tell(
                "the other weights were chosen with KGE beside them; for weights that suit the pack, copy "
                "the run, `kgmlm tune COPY --drop kge` and pack the copy"
            )
        structures = structures_of(folder.path, watch.tell) if onnx else {}
        card = {"dataset": folder.graph.name}
        write_pack(folder, target, kge=kge, structures=structures, card=card, check=check, advance=watch)


def _probabilities(run: Path, batch_size: int, device: str | None, watch: Watcher) -> dict[str, Any]:
    """The probabilities fitted to the run in a folder, as JSON."""
    from kgmlm.prediction.calibration import fitted

    made = fitted(open_folder(run), batch_size=batch_size, device=device, watch=watch)
    return made.model_dump(mode="json")


def unpack(pack: str | Path, output: str | Path) -> Run:
    """Make a run folder of a pack, to tune it or to train beside it.

    Raises:
        RunError: when it is no pack, is damaged, or the folder is there.
    """
    found = find_pack(pack)
    if found is None:
        raise RunError(f"there is no pack {pack}; a pack is a file that ends in {SUFFIX}")
    return open_run(unpack_into(found, as_path(output, "the output")))
