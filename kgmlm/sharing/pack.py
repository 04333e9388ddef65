"""Pack a run into one file, and unpack such a file into a run."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kgmlm.core.errors import ConfigError, RunError
from kgmlm.core.files import as_path, check_writable
from kgmlm.core.options import takes
from kgmlm.core.progress import Watcher, watcher_of
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.onnx import structures_of
from kgmlm.runs.opened import open_folder
from kgmlm.runs.options import BATCH_SIZE
from kgmlm.runs.packs import SUFFIX, find_pack, write_calibrated, write_pack
from kgmlm.runs.packs import unpack as unpack_into
from kgmlm.runs.run import Run, open_run, path_of
from kgmlm.sharing.options import PackOptions


@takes(PackOptions)
def pack(run: Run | str | Path, options: PackOptions) -> Path:
    """Pack a run into one file that every command opens like the run.

    Weights are int8 with a scale per row; what only training needs is left out. So are the run's
    probabilities, since rounding moves scores.

    Args:
        run: a run, or with ``calibrate`` a pack to be written again with probabilities.

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
        beside = named.with_name(named.name + SUFFIX)
        target = beside if options.output is None else as_path(options.output, "the output")
    else:
        if not options.calibrate:
            raise RunError(f"{path} is a pack already; --calibrate adds probabilities to it")
        if not options.kge or not options.onnx:
            option = "--no-onnx" if options.kge else "--no-kge"
            raise ConfigError(f"{option} is for runs; {path} is a pack, which keeps what it has")
        if options.output is None:
            raise ConfigError(f"{path} is a pack; --output names the file to write")
        target = as_path(options.output, "the output")
    if target.suffix != SUFFIX:
        raise RunError(f"a pack ends in {SUFFIX}, not as {target}")
    check_writable(target)
    watch = watcher_of(options.progress)
    with TemporaryDirectory() as scratch:
        if source is None:
            source = Path(scratch) / target.name if options.calibrate else target
            _pack(folder, source, options.kge, options.onnx, watch)
        if options.calibrate:
            batch_size, device = BATCH_SIZE, options.device
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
    file = find_pack(pack)
    if file is None:
        raise RunError(f"there is no pack {pack}; a pack is a file that ends in {SUFFIX}")
    return open_run(unpack_into(file, as_path(output, "the output")))
