"""Runs on a Hub, by a server that speaks its calls and the real client."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from conftest import Cli, refused

import kgmlm
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.runs.hub import HubName, fetched
from kgmlm.sharing.info import info
from kgmlm.sharing.push import _read_report, model_card

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning"),  # of the client itself
]
TOKEN = "hf_secretsecretsecretsecretsecretsecr"
ASKED = ("--head", "france", "--relation", "capital", "--json", "-q")


class Hub:
    """A Hub: repositories, their commits, and large files by their SHA-256; it asks for :data:`TOKEN`."""

    def __init__(self) -> None:
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.private: dict[str, bool] = {}
        self.large: dict[str, bytes] = {}
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def answer(self, status: int, body: Any = b"", **headers: str) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def respond(self) -> None:
                hub.asked.append(f"{self.command} {self.path}")
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.startswith("/lfs/"):  # as on the real Hub, without the token
                    hub.large[self.path.removeprefix("/lfs/")] = data
                    self.answer(200)
                elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.answer(401, {"error": "Invalid user token"}, X_Error_Code="RepoNotFound")
                elif self.command == "POST":
                    self.answer(*hub.written(self.path, data, f"http://{self.headers['Host']}"))
                else:
                    self.answer(**hub.read(self.path))

            do_GET = do_HEAD = do_POST = do_PUT = respond

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.env = {"HF_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}", "HF_TOKEN": TOKEN}

    def close(self) -> None:
        """Be no longer there."""
        self.server.shutdown()
        self.server.server_close()

    def written(self, path: str, data: bytes, here: str) -> tuple[int, Any]:
        """Do what a POST asks."""
        if path == "/api/repos/create":
            asked = json.loads(data)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.commits.setdefault(name, [("0" * 40, {})])
            self.private.setdefault(name, bool(asked.get("private") or asked.get("visibility") == "private"))
            return 200, {"url": f"{here}/{name}"}
        if path == "/api/validate-yaml":
            return 200, {"warnings": [], "errors": []}
        if match := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            files = json.loads(data)["files"]
            mode = {x["path"]: "regular" if x["path"].endswith((".md", ".json")) else "lfs" for x in files}
            return 200, {
                "files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in mode.items()]
            }
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**x, "actions": {"upload": {"href": f"{here}/lfs/{x['oid']}"}}}
                for x in json.loads(data)["objects"]
            ]
            return 200, {"transfer": "basic", "objects": objects}
        match = re.fullmatch(r"/api/models/(.+)/commit/main", path)
        assert match, path
        files = dict(self.commits[match[1]][-1][1])
        for line in map(json.loads, data.splitlines()):
            of = line["value"]
            if line["key"] == "file":
                files[of["path"]] = base64.b64decode(of["content"])
            elif line["key"] == "lfsFile":
                files[of["path"]] = self.large[of["oid"]]
        commit = sha1(data).hexdigest()
        self.commits[match[1]].append((commit, files))
        return 200, {"commitUrl": f"{here}/{match[1]}/commit/{commit}", "commitOid": commit}

    def read(self, path: str) -> dict[str, Any]:
        """Answer a GET or HEAD of a file."""
        match = re.fullmatch(r"/(.+?/.+?)/resolve/([^/]+)/(.+)", path)
        if not match or match[1] not in self.commits:
            return {"status": 404, "X_Error_Code": "RepoNotFound"}
        commits = dict(self.commits[match[1]])
        commit = [*commits][-1] if match[2] == "main" else match[2]
        if commit not in commits:
            return {"status": 404, "X_Error_Code": "RevisionNotFound", "X_Repo_Commit": commit}
        if match[3] not in commits[commit]:
            return {"status": 404, "X_Error_Code": "EntryNotFound", "X_Repo_Commit": commit}
        data = commits[commit][match[3]]
        return {"status": 200, "body": data, "X_Repo_Commit": commit, "ETag": f'"{sha256(data).hexdigest()}"'}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that this process asks, too; it has read the environment already."""
    from huggingface_hub import constants

    result = Hub()
    result.env |= {"HF_HOME": str(tmp_path / "hf"), "KGMLM_CACHE": str(tmp_path / "kgmlm")}
    monkeypatch.setattr(constants, "ENDPOINT", result.env["HF_ENDPOINT"])
    template = f"{result.env['HF_ENDPOINT']}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    for name in ("HF_TOKEN", "KGMLM_CACHE"):
        monkeypatch.setenv(name, result.env[name])
    fetched.cache_clear()
    yield result
    fetched.cache_clear()
    result.close()


def kgmlm_at(hub: Hub, *arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that begins with the environment of a Hub."""
    words = [sys.executable, "-m", "kgmlm", *map(str, arguments)]
    env = {**os.environ, **hub.env, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", **more}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)


def test_a_pushed_run_opens_elsewhere_with_the_same_answers(
    hub: Hub, toy_run: Path, cli: Cli, tmp_path: Path
) -> None:
    pack = kgmlm.pack(toy_run, tmp_path / "toy.kgmlm", progress=False)
    here = cli("rank", pack, *ASKED)
    assert here.returncode == 0, here.stderr
    done = kgmlm_at(hub, "push", toy_run, "ada/toy", "--license", "cc0-1.0", "--json")
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    parsed = json.loads(done.stdout)
    commit, files = hub.commits["ada/toy"][-1]
    assert parsed["commit"] == commit
    assert parsed["name"] == f"hf://ada/toy@{commit}"
    assert set(files) == {
        "README.md", "run.kgmlm", "config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert not hub.private["ada/toy"]
    assert "It has no probabilities" in files["README.md"].decode(), "a pack of a run has none"
    assert str(toy_run) not in files["README.md"].decode().split("## How it was made")[0]
    for name in ("hf://ada/toy", parsed["name"]):
        there = kgmlm_at(hub, "rank", name, *ASKED)
        assert there.returncode == 0, there.stderr
        assert there.stdout == here.stdout
    assert TOKEN.encode() not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())

    hub.close()
    for env in ({}, {"HF_HUB_OFFLINE": "1"}):
        offline = kgmlm_at(hub, "rank", parsed["name"], *ASKED, **env)
        assert offline.returncode == 0, offline.stderr
        assert offline.stdout == here.stdout, "the cache has it"


def test_its_masked_lm_is_a_plain_model(hub: Hub, toy_run: Path, cli: Cli, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    pack = kgmlm.pack(toy_run, tmp_path / "toy.kgmlm", progress=False)
    done = cli("push", pack, "ada/toy", "--private", "-q")
    assert done.returncode == 0, done.stderr
    assert hub.private["ada/toy"]
    files = hub.commits["ada/toy"][-1][1]
    assert files["run.kgmlm"] == pack.read_bytes()
    for name, data in files.items():
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_bytes(data)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    asked = tokenizer("paris is the capital of [MASK].", return_tensors="pt", return_token_type_ids=False)
    logits = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")(**asked).logits
    assert logits.shape[-1] >= len(tokenizer)


def test_what_cannot_be_pushed_or_opened_is_one_line(hub: Hub, toy_run: Path, cli: Cli) -> None:
    refused(cli("push", toy_run, "toy"), "a run is pushed to USER/NAME, not to 'toy'")
    refused(cli("rank", "hf://ada/none", *ASKED), "hf://ada/none: there is no such repository")
    cli("push", toy_run, "ada/toy", "-q")
    refused(cli("rank", "hf://ada/toy@v9", *ASKED), "it has no revision 'v9'")
    hub.commits["ada/empty"] = [("1" * 40, {"README.md": b""})]
    refused(cli("info", "hf://ada/empty"), "it has no file run.kgmlm")
    done = cli("push", toy_run, "ada/toy", "-q", HF_TOKEN="hf_wrongwrongwrong")
    refused(done, "your access token")
    assert "hf_wrong" not in done.stderr
    refused(cli("tune", "hf://ada/toy"), "is a pack, which is not written to")
    hub.close()
    refused(cli("info", "hf://ada/other"), "the Hub cannot be reached, and the cache has no copy")
    refused(cli("push", toy_run, "ada/toy", "-q"), "hf://ada/toy: ")


def test_a_damaged_copy_in_the_cache_is_told(hub: Hub, toy_run: Path, cli: Cli, tmp_path: Path) -> None:
    cli("push", toy_run, "ada/toy", "-q")
    assert cli("info", "hf://ada/toy").returncode == 0
    fetched.cache_clear()
    (blob,) = (tmp_path / "hf").rglob("blobs/*")
    blob.chmod(0o600)
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    refused(cli("info", "hf://ada/toy"), "is damaged; delete it")


def test_names_of_a_hub() -> None:
    assert HubName.of("hf://ada/toy@main") == ("ada/toy", "main")
    assert HubName.of(Path("hf://ada/toy")) == ("ada/toy", None), "a Path has one slash"
    assert str(HubName("ada/toy", "v1")) == "hf://ada/toy@v1"
    for name in ("ada/toy", "hf://toy", "hf://ada/toy/x", "runs/hf", "hf://ada/toy@"):
        assert HubName.of(name) is None, name


def test_the_model_card_says_what_was_measured(toy_run: Path, tmp_path: Path) -> None:
    described = info(toy_run)
    card = model_card(described, "ada/toy", ("France", "capital"), license="Some license of my own")
    assert "license: " not in card.split("---")[1], "the Hub knows only its own names of licenses"
    assert "License of its texts and triples: Some license of my own" in card
    assert "It was not measured." in card, "its masked LM ranks alone, so that no weights were chosen"
    assert "It has no probabilities" in card
    assert 'kgmlm.open_run("hf://ada/toy")' in card
    assert 'run.rank("France", "capital")' in card
    file = tmp_path / "report.json"
    report = kgmlm.evaluate(toy_run, output=file, progress=False)
    card = model_card(described, "ada/toy", ("France", '"'), report=_read_report(file, "toy"))
    mrr = report.metrics["both.realistic.inverse_harmonic_mean_rank"]
    assert f"| both | {mrr:.4f} |" in card
    assert "model-index: " in card
    assert "among all candidates, filtered by train, valid, test, realistic ranks" in card
    assert f"the own entity left out, by `{report.values['command']}` with kgmlm {kgmlm.__version__}" in card
    with pytest.raises(DataError, match="is of the graph toy, and the run is of wn18rr"):
        _read_report(file, "wn18rr")
    file.write_text("[]")
    with pytest.raises(DataError, match="is no report of an evaluation"):
        _read_report(file, "toy")


def test_a_name_with_a_revision_is_no_target(toy_run: Path) -> None:
    with pytest.raises(ConfigError, match="USER/NAME"):
        kgmlm.push(toy_run, "ada/toy@v1", progress=False)
