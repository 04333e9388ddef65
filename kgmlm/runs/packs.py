"""A run in one file: ``kgmlm pack`` writes it, and wherever a command expects a run, it may be a pack.

A pack is a zip of a run folder without what only training needs. Matrices are int8 with a scale per row, the
rest of the weights float16; texts and triples are Parquet. It is opened by unpacking it once into the cache,
where it is a run folder like any other. Every file has a checksum; nothing in it is code.

Rounding moves scores, so a run's probabilities are not kept. Those of a pack are fitted to what the pack
itself scores, and say so by the digests of its files.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pydantic import Field, ValidationError

from kgmlm import __version__
from kgmlm.core import digests, files
from kgmlm.core.errors import RunError, first_line
from kgmlm.core.files import locked
from kgmlm.graphs.storage import portable, read_graph
from kgmlm.runs.folder import RunFolder, fingerprints, read_as_one
from kgmlm.runs.hub import HubName, fetched
from kgmlm.runs.tuned import TREES, TREES_FILE, WEIGHTS
from kgmlm.signals import SIGNALS, is_beside, kinds_in
from kgmlm.signals.biencoder import CANDIDATES, Biencoder
from kgmlm.signals.kge import KGE

SUFFIX = ".kgmlm"
FORMAT = 1
CONTENTS = "pack.json"
_SCALE = ":scale"  # behind the name of a quantized matrix
_ROWS = 1 << 16  # rows that are made int8 at a time

_MODEL = "model/model.safetensors"
_TENSORS = (_MODEL, "model/entity_vectors.safetensors")
_NAMES = "graph/name_tokens.safetensors"
_CHOSEN = "model/mixture.json"
_PROBABILITIES = "model/probabilities.json"
_WHOLE = ("run.json", "config.toml", _CHOSEN, TREES_FILE, "model/config.json", "model/tokenizer.json",
          "model/tokenizer_config.json", "model/special_tokens_map.json", "model/vocab.txt")  # fmt: skip

# The files that a pack may have, and what they unpack to at most; real packs take less than twice their size.
_PLACE = re.compile(r"(run\.json|config\.toml|(graph|model|signals)/[A-Za-z0-9_.-]*[A-Za-z0-9])")
_RATIO, _SMALL, _CONTENTS_SIZE = 100, 2**24, 2**22  # times; bytes; bytes


class _Contents(digests.StrictModel):
    format: int
    kgmlm: str
    name: str
    card: dict[str, Any]
    files: dict[str, digests.Digest] = Field(min_length=1)


def is_pack(path: Path) -> bool:
    """Return whether a path is that of a pack."""
    return path.suffix == SUFFIX and path.is_file()


def find_pack(name: str | Path) -> Path | None:
    """The pack that is meant: a file, one in ``models/`` by its name, or ``hf://USER/NAME`` on a Hub.

    ``models/`` is ``$KGMLM_MODELS``, ``models`` in this folder, or that of the repository kgmlm is used from.

    Raises:
        RunError: when the pack on a Hub cannot be fetched.
    """
    path = Path(name)
    if (on_hub := HubName.of(name)) is not None and not path.exists():
        return fetched(on_hub)
    if is_pack(path):
        return path
    if path.exists() or len(path.parts) != 1:
        return None
    given = os.environ.get("KGMLM_MODELS")
    roots = [Path(given)] if given else [Path("models"), Path(__file__).parents[2] / "models"]
    packs = (root / f"{path.name}{SUFFIX}" for root in roots)
    return next(filter(is_pack, packs), None)


def write_pack(
    run: RunFolder,
    output: Path,
    *,
    kge: bool = True,
    structures: Mapping[str, bytes] | None = None,
    card: dict[str, Any] | None = None,
    check: Callable[[RunFolder], None] = lambda now: None,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
) -> int:
    """Write a run as one file without probabilities, whole or not at all; returns its bytes.

    A run that is written meanwhile is read again, so that all of the pack is of one time.

    Args:
        kge: False leaves out graph embeddings and their weight, and trees.
        structures: of its text models, for ONNX Runtime, by file.
        card: what to say of it: how it was trained, metrics, licenses.
        check: called with the run as it is now; raises where that is not to be packed.

    Raises:
        RunError: when training has left no model yet.
    """
    if not (run.model_folder / "config.json").is_file():
        raise RunError(f"{run.path} has no trained model to pack")

    def read(now: RunFolder) -> dict[str, bytes]:
        check(now)
        return _entries(now, kge, advance)

    entries = read_as_one(run, read)
    return _write(output, entries | dict(structures or {}), card or {})


def _entries(folder: RunFolder, kge: bool, advance: Callable[[str, int, int], None]) -> dict[str, bytes]:
    """The contents of a run's pack, by the names of its files."""
    run = folder.path
    signals = [kind.file for name, kind in kinds_in(run).items() if is_beside(name)]
    tensors = [name for name in (*_TENSORS, *signals) if (run / name).is_file() and (kge or name != KGE.file)]
    entries: dict[str, bytes] = {}
    for name in _WHOLE:
        if (run / name).is_file() and (kge or name != TREES_FILE):
            data = (run / name).read_bytes()
            entries[name] = _portable(data) if name == "run.json" else data
    for name, table in portable(folder.graph).items():
        entries[f"graph/{name}.parquet"] = _compressed(table)
    entries[_NAMES] = (run / _NAMES).read_bytes()
    for name in tensors:
        entries[name] = _quantized(run / name, (CANDIDATES,) if name == Biencoder.file else ())
        advance("packing", 1, len(tensors))
    if not kge:
        entries[_CHOSEN] = _without_kge(entries[_CHOSEN])
    return entries


def write_calibrated(pack: Path, output: Path, fit: Callable[[Path], dict[str, Any]]) -> int:
    """Write a pack again, with probabilities in it; returns its bytes.

    Args:
        output: may be the pack itself.
        fit: from the folder of the run that the pack holds to its probabilities, as JSON.

    Raises:
        RunError: when the pack is damaged.
    """
    with TemporaryDirectory() as scratch:
        probabilities = fit(unpack(pack, Path(scratch) / "run"))
    with _opened(pack) as archive:
        contents = _contents(pack, archive)
        names = [name for name in contents.files if name != _PROBABILITIES]
        entries = {name: b"".join(_read(pack, archive, name)) for name in names}
    probabilities["chosen_for"] |= _own_signals(contents)
    entries[_PROBABILITIES] = json.dumps(probabilities, indent=1).encode()
    return _write(output, entries, contents.card)


def _own_signals(contents: _Contents) -> dict[str, str]:
    """SHA-256 of the files of a pack that are signals, by name, as they are in the pack."""
    signals = {name: contents.files.get(kind.file) for name, kind in SIGNALS.items()}
    signals[TREES] = contents.files.get(TREES_FILE)
    return {name: digest.sha256 for name, digest in signals.items() if digest is not None}


def _write(output: Path, entries: Mapping[str, bytes], card: Mapping[str, Any]) -> int:
    """Write a pack of files and the list of them."""
    with files.atomic_file(output, follow=True) as temporary:
        known = {}
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, data in entries.items():
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_LZMA)
                known[name] = digests.Digest.of_bytes(data).model_dump()
            contents = {"format": FORMAT, "kgmlm": __version__, "name": output.stem, "card": dict(card)}
            whole = json.dumps(contents | {"files": known}, indent=1)
            archive.writestr(zipfile.ZipInfo(CONTENTS), whole, zipfile.ZIP_DEFLATED)
    return output.stat().st_size


def read_card(pack: Path) -> dict[str, Any]:
    """Read the card of a pack.

    Raises:
        RunError: when it is no pack, or damaged.
    """
    with _opened(pack) as archive:
        return _contents(pack, archive).card


def unpack(pack: Path, output: Path | None = None) -> Path:
    """The run folder of a pack: a new one, or the one in the cache, made when the pack is first opened.

    Raises:
        RunError: when the pack is damaged, of another format, or the folder is there.
    """
    if output is None:
        return _cached(pack)
    if output.exists():
        raise RunError(f"{output} exists; choose another --output")
    _write_run(pack, output, cached=False)
    return output


def _cached(pack: Path) -> Path:
    """The run folder in the cache; of several processes that open a pack first, one makes it."""
    cache = files.cache_folder() / "packs"
    output = cache / f"{pack.stem}-{digests.sha256(pack)[:16]}"
    if (output / "run.json").is_file():
        return output
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"{cache} cannot be written: {error.strerror}; KGMLM_CACHE names another folder"
        ) from None
    with locked(output, "unpack", waiting=True):
        if not (output / "run.json").is_file():
            _write_run(pack, output, cached=True)
    return output


def _write_run(pack: Path, output: Path, *, cached: bool) -> None:
    """Write what a pack holds as a run folder."""
    with _opened(pack) as archive:
        contents = _contents(pack, archive)
        with files.atomic_folder(output) if cached else files.new_folder(output) as folder:
            for name, digest in contents.files.items():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as written:
                    written.writelines(_read(pack, archive, name))
                if digests.Digest.of(target) != digest:
                    raise _damaged(pack, f"'{name}' is not as it was written")
                if name.endswith(".safetensors") and name != _NAMES:
                    _dequantize(pack, target)
            try:
                _settle(folder, contents, cached)
            except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
                raise _damaged(pack, f"{type(error).__name__}: {error}") from None


def _settle(folder: Path, contents: _Contents, cached: bool) -> None:
    """Make what was unpacked a run: digests, and what the weights were chosen for."""
    biencoder = folder / Biencoder.file
    if biencoder.is_file():  # its candidates, which a pack has not, are computed once
        Biencoder.open(biencoder, read_graph(folder / "graph", "", {})).save(biencoder)
    record = files.parse_json((folder / "run.json").read_bytes())
    kept = [
        p
        for p in folder.rglob("*")
        if p.is_file() and p.parts[len(folder.parts)] in ("graph", "signals", "config.toml")
    ]
    record["files"] = {
        p.relative_to(folder).as_posix(): [digests.Digest.of(p).model_dump()] for p in sorted(kept)
    }
    record["signals"] = {
        name: how for name, how in (record.get("signals") or {}).items() if name in kinds_in(folder)
    }
    record["recipe"] = None
    record["unpacked"] = cached  # a pack in the cache, which is not written to
    files.write_json(folder / "run.json", record)
    digests.write_manifest(folder / "model")
    now = fingerprints(folder, digests.read_manifest(folder / "model"), digests.of_json(record["files"]))
    if (folder / _CHOSEN).is_file():
        chosen = files.parse_json((folder / _CHOSEN).read_bytes())
        chosen["chosen_for"] = {k: now[k] for k in chosen["chosen_for"] if k in now}
        files.write_json(folder / _CHOSEN, chosen)
    _settle_probabilities(folder / _PROBABILITIES, _own_signals(contents), now)
    digests.write_manifest(folder / "model")


def _settle_probabilities(file: Path, packed: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Record which unpacked signals probabilities are for; leave out those fitted to other scores."""
    if not file.is_file():
        return
    probabilities = files.parse_json(file.read_bytes())
    fitted = {name: sha for name, sha in probabilities["chosen_for"].items() if name != WEIGHTS}
    if fitted != packed:
        file.unlink()
        return
    probabilities["chosen_for"] |= {name: now[name] for name in fitted}
    files.write_json(file, probabilities)


def _portable(record: bytes) -> bytes:
    """``run.json`` with models by their names instead of by paths of one machine."""

    def named(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        values = {key: named(part) for key, part in value.items()}
        model = values.get("model")
        if isinstance(model, str) and Path(model).is_absolute():
            values["model"] = Path(model).name
        return values

    return json.dumps(named(files.parse_json(record)), indent=2).encode()


def _without_kge(mixture: bytes) -> bytes:
    """The tuned weights without graph embeddings; their figures on validation are not those of the pack.

    Trees, which were fitted to the embeddings' scores, too, are left out.
    """
    chosen = files.parse_json(mixture)
    for name in (KGE.name, TREES):
        chosen["chosen_for"].pop(name, None)
    chosen[TREES] = None
    if chosen["signals"].pop("kge", None) is not None:
        figures = chosen.get("chosen_by", {}).get("valid", {})
        chosen["chosen_by"] = chosen.get("chosen_by", {}) | {
            "valid": {stage: of for stage, of in figures.items() if stage == "text"}
        }
    return json.dumps(chosen).encode()


def _quantized(path: Path, but: Collection[str] = ()) -> bytes:
    """A file of tensors, matrices of floats as int8 with a scale per row, other float32 as float16.

    Args:
        but: tensors that are left out.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save

    packed: dict[str, torch.Tensor] = {}
    with safe_open(path, "pt") as file:  # mapped: what is packed is all that memory holds
        for name in file.keys():  # noqa: SIM118, it is no dictionary
            if name in but:
                continue
            tensor = file.get_tensor(name)
            if tensor.dtype in (torch.float32, torch.float16) and tensor.ndim == 2 and tensor.shape[1] >= 16:
                rows, scale_R = torch.empty(tensor.shape, dtype=torch.int8), torch.empty(len(tensor))
                for start in range(0, len(tensor), _ROWS):
                    at = slice(start, start + _ROWS)
                    part = tensor[at].float()
                    scale_R[at] = part.abs().amax(1).clamp_min(1e-12) / 127
                    rows[at] = (part / scale_R[at, None]).round().to(torch.int8)
                packed |= {name: rows, name + _SCALE: scale_R}
            else:
                packed[name] = tensor.half() if tensor.dtype == torch.float32 else tensor
        return bytes(save(packed))


def _dequantize(pack: Path, path: Path) -> None:
    """Make what :func:`_quantized` packed float32 again, some rows in memory at a time."""
    from safetensors import SafetensorError, safe_open

    try:
        with files.atomic_file(path) as temporary, safe_open(path, "numpy") as file:
            packed = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, it is no dictionary
            kinds = {n: tensor.get_dtype() for n, tensor in packed.items() if not n.endswith(_SCALE)}
            wider = {"I8": "F32", "F16": "F32"}
            tensors = {n: (wider.get(kind, kind), packed[n].get_shape()) for n, kind in kinds.items()}
            with temporary.open("wb") as output:
                output.write(files.tensors_header(tensors))
                for name, (_, shape) in tensors.items():
                    if kinds[name] == "I8":
                        scale_R = _scale(pack, file, name, shape)
                        for start in range(0, len(scale_R), _ROWS):
                            at = slice(start, min(start + _ROWS, len(scale_R)))
                            output.write((packed[name][at] * scale_R[at, None]).tobytes())
                    else:
                        tensor = file.get_tensor(name)
                        output.write((tensor.astype("float32") if kinds[name] == "F16" else tensor).tobytes())
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise _damaged(pack, first_line(error)) from None


def _scale(pack: Path, file: Any, name: str, shape: Sequence[int]) -> Any:
    """The scale of each row of a quantized matrix."""
    import numpy as np

    if name + _SCALE not in file.keys():  # noqa: SIM118, it is no dictionary
        raise _damaged(pack, f"'{name}' has no scale")
    scale_R = file.get_tensor(name + _SCALE)
    fits = len(shape) == 2 and scale_R.dtype == np.float32 and scale_R.shape == (shape[0],)
    if not (fits and (np.isfinite(scale_R) & (scale_R > 0)).all()):
        raise _damaged(pack, f"'{name}' has no scale that fits")
    return scale_R


def _compressed(table: pa.Table) -> bytes:
    """A table as a Parquet file as small as it gets."""
    import io

    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=19)
    return buffer.getvalue()


def _opened(pack: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(pack)
    except (OSError, zipfile.BadZipFile) as error:
        raise _damaged(pack, str(error)) from None


def _read(pack: Path, archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    """A file of a pack, a part at a time."""
    try:
        with archive.open(name) as member:
            while part := member.read(1 << 20):
                yield part
    except (
        KeyError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        OSError,
        EOFError,
        ValueError,
        RuntimeError,
    ) as error:
        raise _damaged(pack, first_line(error)) from None


def _check_members(pack: Path, archive: zipfile.ZipFile) -> dict[str, int]:
    """The declared sizes of a pack's files, by name, before anything of it is read.

    No more than a declared size is ever unpacked, so these bound what opening takes.
    """
    sizes: dict[str, int] = {}
    for member in archive.infolist():
        if member.filename in sizes:
            raise _damaged(pack, f"'{member.filename}' is there twice")
        if member.filename != CONTENTS and not _PLACE.fullmatch(member.filename):
            raise _damaged(pack, f"'{member.filename}' is no file of a pack")
        sizes[member.filename] = member.file_size
    if sizes.get(CONTENTS, 0) > _CONTENTS_SIZE:
        raise _damaged(pack, f"its {CONTENTS} has {sizes[CONTENTS]:,} bytes")
    if (whole := sum(sizes.values())) > (most := _RATIO * pack.stat().st_size + _SMALL):
        raise _damaged(pack, f"it would unpack to {whole:,} bytes, a pack of its size to {most:,} at most")
    return sizes


def _contents(pack: Path, archive: zipfile.ZipFile) -> _Contents:
    sizes = _check_members(pack, archive)
    data = b"".join(_read(pack, archive, CONTENTS))
    try:
        values = files.parse_json(data)
        version = values.get("format") if isinstance(values, dict) else None
        if isinstance(version, int) and version != FORMAT:
            raise RunError(f"{pack} is a pack of format {version}; this kgmlm opens format {FORMAT}")
        contents = _Contents.model_validate(values)
    except ValidationError as error:
        raise _damaged(pack, f"{CONTENTS}: {digests.fault(error)}") from None
    except ValueError as error:
        raise _damaged(pack, str(error).splitlines()[0]) from None
    if missing := {"run.json", "config.toml", _CHOSEN, _MODEL} - contents.files.keys():
        raise _damaged(pack, f"it has no {min(missing)}")
    for name, digest in contents.files.items():
        if name in sizes and sizes[name] != digest.size:
            raise _damaged(pack, f"'{name}' is not as it was written")
        if Path(name).is_absolute() or ".." in Path(name).parts or "\\" in name:
            raise _damaged(pack, f"'{name}' is outside of it")
    return contents


def _damaged(pack: Path, why: str) -> RunError:
    return RunError(f"{pack} is damaged: {why}; restore it from a copy")
