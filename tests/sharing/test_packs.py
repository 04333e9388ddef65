"""Runs in one file."""

from __future__ import annotations

import json
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from conftest import Cli, refused
from safetensors.numpy import load_file, save

import kgmlm
from kgmlm.core.arrays import Floats
from kgmlm.core.config import KGESettings
from kgmlm.core.errors import RunError
from kgmlm.runs import packs
from kgmlm.runs.opened import open_folder, tuned_ranker, untuned_ranker
from kgmlm.runs.packs import find_pack, read_card, unpack
from kgmlm.runs.writing import save_signal, save_tuned, write_record
from kgmlm.signals.base import Pool
from kgmlm.signals.kge import KGE
from kgmlm.text.reader import Reading

GOLDEN = Path(__file__).parent.parent / "golden" / "run"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with vectors, KGE and reverse scoring."""
    path = tmp_path_factory.mktemp("packs") / "whole"
    shutil.copytree(GOLDEN, path)
    write_record(open_folder(path), model=str(path / "model"))
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KGMLM_MODELS", str(tmp_path / "models"))
    return tmp_path / "cache"


def scores(run: object) -> Floats:
    opened = kgmlm.open_run(run, device="cpu")  # type: ignore[arg-type]
    queries, _ = opened.folder.graph.queries("test")
    values = np.zeros((len(queries), len(opened.graph.entities)), np.float32)
    for rows, part in opened.predictor.ranker.rank(queries):
        values[rows] = part
    return values


def test_a_pack_ranks_nearly_as_its_run(whole: Path, tmp_path: Path, cache: Path) -> None:
    file = kgmlm.pack(whole, tmp_path / "small.kgmlm", progress=False)
    opened = open_folder(file, verify=True)
    assert set(opened.tuned.of) == {"likelihood", "vector", "kge"}
    assert opened.tuned.stage_weights == open_folder(whole).tuned.stage_weights
    assert opened.graph.same(open_folder(whole).graph)
    before, after = scores(whole), scores(file)
    assert not np.array_equal(before, after), "weights are rounded"
    assert np.abs(before - after).max() < 0.15
    (folder,) = (cache / "packs").iterdir()
    stamp = (folder / "run.json").stat().st_mtime_ns
    open_folder(file)
    assert (folder / "run.json").stat().st_mtime_ns == stamp, "unpacked once"
    assert kgmlm.pack(whole, tmp_path / "again.kgmlm", progress=False).read_bytes()
    assert read_card(file) == {"dataset": "toy"}
    text = zipfile.ZipFile(file).read("run.json").decode()
    assert json.loads(text)["model"] == "model", "no path of one machine"


def test_rules_go_along_unrounded(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    kgmlm.tune(run, add="rules", progress=False)
    file = kgmlm.pack(run, tmp_path / "rules.kgmlm", progress=False)
    before, after = (tuned_ranker(open_folder(x), "cpu", scores="rules") for x in (run, file))
    queries, _ = open_folder(run).graph.queries("test")
    for (_, a), (_, b) in zip(before.rank(queries), after.rank(queries), strict=True):
        assert np.array_equal(a, b)


def test_a_pack_may_leave_out_graph_embeddings(whole: Path, tmp_path: Path) -> None:
    file = kgmlm.pack(whole, tmp_path / "text.kgmlm", kge=False, progress=False)
    opened = open_folder(file)
    assert "kge" not in tuned_ranker(opened, "cpu").signals
    assert "kge" not in opened.record["signals"]
    assert file.stat().st_size < kgmlm.pack(whole, tmp_path / "all.kgmlm", progress=False).stat().st_size
    assert set(opened.tuned.by["valid"]) <= {"text"}, "other figures are those of the run"


def test_what_was_chosen_beside_what_is_left_out_is_said(cli: Cli, whole: Path, tmp_path: Path) -> None:
    done = " ".join(cli("pack", whole, "--no-kge", "--output", tmp_path / "x.kgmlm", "-q").stderr.split())
    assert "chosen with KGE beside them" in done
    copy = shutil.copytree(whole, tmp_path / "copy")
    assert cli("tune", copy, "--drop", "kge", "-q").returncode == 0, "as it says"
    assert "KGE" not in cli("pack", copy, "--no-kge", "-q").stderr
    assert "KGE" not in cli("pack", whole, "--output", tmp_path / "all.kgmlm", "-q").stderr


def test_rules_are_packed_as_they_are(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    kgmlm.tune(run, add="rules", max_triples=5, progress=False)
    file = kgmlm.pack(run, tmp_path / "small.kgmlm", kge=False, progress=False)
    opened = open_folder(file, verify=True)
    assert set(opened.tuned.of) == {"likelihood", "vector", "rules"}
    before, after = (untuned_ranker(x, "cpu", ("kge",)).signals["rules"] for x in (open_folder(run), opened))
    queries, _ = opened.graph.queries("test")
    pool = Pool(len(opened.graph.entities))
    assert np.array_equal(before.score(Reading(queries), pool), after.score(Reading(queries), pool))


@pytest.mark.slow
def test_commands_take_a_pack_by_its_name(cli: Cli, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    done = cli("pack", whole, "--output", tmp_path / "models" / "golden.kgmlm")
    assert "golden.kgmlm: 0." in done.stdout, done.stderr
    rank = ("rank", "golden", "--head", "france", "--relation", "capital", "-k", "2", "--json")
    rows = [json.loads(line) for line in cli(*rank).stdout.splitlines()]
    assert len(rows) == 2
    assert json.loads(cli("evaluate", "golden", "--json", "-q").stdout)["metrics"]["mrr"] > 0
    assert cli("info", "golden").returncode == 0
    assert cli("linearize", "golden", "--head", "france", "--relation", "capital").returncode == 0
    for command in ("tune", "index"):
        refused(cli(command, "golden"), "is a pack, which is not written to", "kgmlm unpack golden")
    refused(cli("train", "--output", "golden", "--resume"), "is a pack, which is not trained")
    done = cli("unpack", "golden", "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert cli("tune", tmp_path / "run", "-q").returncode == 0
    refused(cli("unpack", "golden", "--output", tmp_path / "run"), "exists")
    refused(cli("unpack", "nothing", "--output", tmp_path / "x"), "there is no pack nothing")
    refused(cli("pack", whole, "--output", tmp_path / "x.zip"), "a pack ends in .kgmlm")
    refused(cli("rank", "nothing", *rank[2:]), "does not exist")
    (tmp_path / "golden").mkdir()
    assert find_pack(tmp_path / "golden") is None, "a folder goes before a pack"


def test_a_pack_in_the_cache_is_not_written_to(whole: Path, tmp_path: Path) -> None:
    file = kgmlm.pack(whole, tmp_path / "a.kgmlm", progress=False)
    with pytest.raises(RunError, match="is not written to"):
        kgmlm.tune(kgmlm.open_run(file), drop="kge", progress=False)
    with pytest.raises(RunError, match="is a pack already"):
        kgmlm.pack(file, progress=False)
    assert "kge" in tuned_ranker(open_folder(file), "cpu").signals
    made = kgmlm.unpack(file, tmp_path / "run")
    kgmlm.tune(made, drop="kge", progress=False)
    kgmlm.evaluate(file, progress=False)
    assert kgmlm.compare(file, file, draws=100).queries > 0


def test_stale_weights_are_not_packed(whole: Path, tmp_path: Path) -> None:
    run = open_folder(shutil.copytree(whole, tmp_path / "run"))
    run = save_signal(run, KGE.fit(run.graph, KGESettings(dimension=4, epochs=1)))
    with pytest.raises(RunError, match="not chosen for the kge"):
        kgmlm.pack(run.path, tmp_path / "a.kgmlm", progress=False)
    assert kgmlm.pack(run.path, tmp_path / "a.kgmlm", kge=False, progress=False)


def test_a_run_that_changes_meanwhile_is_packed_as_it_was_at_one_time(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    chosen = open_folder(run).tuned
    changed: list[int] = []

    def change(what: str, n: int, total: int) -> None:
        if not changed:  # another one, with other weights, as `kgmlm tune` leaves it
            changed.append(n)
            opened = open_folder(run)
            signal = KGE.open(run / KGE.file, opened.graph)
            opened = save_signal(opened, replace(signal, entities_SD=signal.entities_SD * 2))
            opened = save_tuned(opened, replace(chosen, by={"command": "another"}))

    file = kgmlm.pack(run, tmp_path / "small.kgmlm", progress=change)
    opened = open_folder(file)
    assert changed
    assert opened.tuned.by["command"] == "another"
    result = KGE.open(opened.path / KGE.file, opened.graph).entities_SD
    wanted = KGE.open(run / KGE.file, opened.graph).entities_SD
    assert np.abs(np.asarray(result) - np.asarray(wanted)).max() < 0.05


def test_of_several_that_open_a_pack_first_one_unpacks_it(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = kgmlm.pack(whole, tmp_path / "a.kgmlm", progress=False)
    written, together = [], Barrier(4)
    write = packs._write_run

    def slowly(pack: Path, output: Path, *, cached: bool) -> None:
        written.append(output)
        write(pack, output, cached=cached)

    def opened() -> Path:
        together.wait()
        return unpack(file)

    monkeypatch.setattr(packs, "_write_run", slowly)
    with ThreadPoolExecutor(4) as pool:
        match = {future.result() for future in [pool.submit(opened) for _ in range(4)]}
    assert len(match) == len(written) == 1
    assert np.isfinite(scores(match.pop())).all()


def test_a_run_is_packed_from_within(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shutil.copytree(whole, tmp_path / "mine"))
    assert Path(kgmlm.pack(".", progress=False)).resolve() == tmp_path / "mine.kgmlm"


def test_a_cache_that_cannot_be_written_is_a_sentence(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = kgmlm.pack(whole, tmp_path / "a.kgmlm", progress=False)
    monkeypatch.setenv("KGMLM_CACHE", str(file))
    with pytest.raises(RunError, match="KGMLM_CACHE names another folder"):
        open_folder(file)


def test_any_changed_byte_is_one_sentence(whole: Path, tmp_path: Path) -> None:
    file = kgmlm.pack(whole, tmp_path / "a.kgmlm", progress=False)
    data = file.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(data), 40):
        changed = bytearray(data)
        changed[at] ^= 255
        file.write_bytes(changed)
        with suppress(RunError):  # nothing else
            open_folder(file)


def rewritten(file: Path, name: str, data: bytes | None) -> None:
    """The same archive with other contents of a file, or without it."""
    with zipfile.ZipFile(file) as archive:
        entries = {i.filename: archive.read(i) for i in archive.infolist()}
    entries.pop(name)
    with zipfile.ZipFile(file, "w") as archive:
        for key, value in entries.items() if data is None else {**entries, name: data}.items():
            archive.writestr(key, value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: f.write_bytes(b""), "is damaged"),
        (lambda f: f.write_bytes(f.read_bytes()[:-100]), "is damaged"),
        (lambda f: f.write_bytes(f.read_bytes()[:5000] + b"x" * 50 + f.read_bytes()[5050:]), "is damaged"),
        (lambda f: rewritten(f, "pack.json", b"{"), "is damaged"),
        (lambda f: rewritten(f, "pack.json", b'{"format": 99}'), "is a pack of format 99; this kgmlm opens"),
        (lambda f: rewritten(f, "pack.json", None), "is damaged"),
        (lambda f: rewritten(f, "config.toml", None), "is damaged"),
        (lambda f: rewritten(f, "run.json", None), "is damaged"),
        (lambda f: rewritten(f, "config.toml", b"[text]"), "'config.toml' is not as it was written"),
    ],
)
def test_what_is_damaged_is_one_sentence(whole: Path, tmp_path: Path, damage: object, message: str) -> None:
    file = kgmlm.pack(whole, tmp_path / "a.kgmlm", progress=False)
    damage(file)  # type: ignore[operator]
    with pytest.raises(RunError, match=message) as caught:
        open_folder(file)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("cache/packs/*")), "nothing half unpacked is left"


def test_nothing_is_unpacked_outside_of_the_folder(whole: Path, tmp_path: Path) -> None:
    file = kgmlm.pack(whole, tmp_path / "a.kgmlm", progress=False)
    with zipfile.ZipFile(file) as archive:
        contents = json.loads(archive.read("pack.json"))
    contents["files"]["../evil"] = contents["files"]["config.toml"]
    rewritten(file, "pack.json", json.dumps(contents).encode())
    with pytest.raises(RunError, match="is outside of it"):
        unpack(file)
    assert not (tmp_path / "evil").exists()


def test_what_would_unpack_to_too_much_is_refused_unread(whole: Path, tmp_path: Path) -> None:
    file = kgmlm.pack(whole, tmp_path / "a.kgmlm", progress=False)
    with (
        zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("graph/more.parquet", "w") as member,
    ):
        for _ in range(64):
            member.write(bytes(2**22))
    assert file.stat().st_size < 2**21
    with pytest.raises(RunError, match="would unpack to"):
        unpack(file)


@pytest.mark.parametrize("name", ["evil.py", "model/../../evil", "model/", "signals/a/b", ".hidden"])
def test_files_that_no_pack_has_are_refused(name: str, whole: Path, tmp_path: Path) -> None:
    file = kgmlm.pack(whole, tmp_path / "a.kgmlm", progress=False)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(RunError, match="is no file of a pack"):
        unpack(file)


@pytest.mark.parametrize("scale", [[1.0], [1.0, 1.0], [float("nan")] * 3, [0.0] * 3, [[1.0]] * 3])
def test_a_scale_that_does_not_fit_is_refused(scale: list[float], tmp_path: Path) -> None:
    tensors: dict[str, np.ndarray] = {
        "a": np.ones((3, 3), np.int8), "a:scale": np.array(scale, np.float32),
    }  # fmt: skip
    (tmp_path / "packed").write_bytes(save(tensors))
    with pytest.raises(RunError, match="'a' has no scale that fits"):
        packs._dequantize(tmp_path / "p.kgmlm", tmp_path / "packed")


def test_tensors_of_all_kinds_are_unpacked(tmp_path: Path) -> None:
    packed: dict[str, np.ndarray] = {
        "matrix": np.array([[1, -127], [3, 0], [0, 5]], np.int8),
        "matrix:scale": np.array([0.5, 1.0, 2.0], np.float32),
        "half": np.array([1.5, -2.0], np.float16),
        "number": np.array(7.0, np.float16),
        "none": np.zeros((0, 4), np.float32),
        "ids": np.arange(3),
    }
    path = tmp_path / "a.safetensors"
    path.write_bytes(save(packed))
    packs._dequantize(tmp_path / "p.kgmlm", path)
    loaded = load_file(path)
    assert {name: (x.dtype.name, x.shape) for name, x in loaded.items()} == {
        "matrix": ("float32", (3, 2)),
        "half": ("float32", (2,)),
        "number": ("float32", ()),
        "none": ("float32", (0, 4)),
        "ids": ("int64", (3,)),
    }
    assert loaded["matrix"].tolist() == [[0.5, -63.5], [3.0, 0.0], [0.0, 10.0]]
    assert loaded["half"].tolist() == [1.5, -2]
    assert loaded["number"].item() == 7
    assert loaded["ids"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 64, save({"a": np.ones(3, np.int8)}), save({"a:scale": np.ones(3)})[:-1]]
)
def test_tensors_that_cannot_be_unpacked_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(data)
    with pytest.raises(RunError, match="is damaged"):
        packs._dequantize(tmp_path / "p.kgmlm", tmp_path / "packed")
