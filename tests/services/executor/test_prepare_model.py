"""Model preparation, with real processes on a cache of their own."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zlib import crc32

import pytest
from tokenizers import Tokenizer

from services.executor.prepare_model import DEFAULT_MODEL, MANIFEST, check_folder, default_cache_dir, prepare
from shared.errors import ModelError


def start(cache: Path, model: str = DEFAULT_MODEL) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "services.executor.prepare_model", "--model", model, "--cache-dir", str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def unfinished_folders(cache: Path) -> list[Path]:
    return list((cache / "models").glob(f".{DEFAULT_MODEL}.*"))


def wait_for_unfinished_folder(cache: Path, process: subprocess.Popen[str], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not unfinished_folders(cache):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def folder() -> Path:
    return prepare(DEFAULT_MODEL, default_cache_dir(), print)


@pytest.mark.slow
def test_killed_midway_then_raced_by_two(tmp_path: Path) -> None:
    """A killed process leaves nothing that is taken for a model; of two that start together, one converts."""
    killed = start(tmp_path)
    wait_for_unfinished_folder(tmp_path, killed)
    killed.kill()
    killed.communicate()
    folder = tmp_path / "models" / DEFAULT_MODEL
    assert not folder.exists() and len(unfinished_folders(tmp_path)) == 1

    folder.mkdir()
    (folder / "config.json").write_text("{}")  # half a model, as an interrupted copy leaves it
    racers = [start(tmp_path), start(tmp_path)]
    outputs = [racer.communicate(timeout=240) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert {stdout.splitlines()[-1] for stdout, _ in outputs} == {str(folder)}
    assert sorted("unpacking" in stderr for _, stderr in outputs) == [False, True]
    assert unfinished_folders(tmp_path) == []
    check_folder(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"


def test_warm_call_imports_no_model_library(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from services.executor.prepare_model import prepare\n"
        f"assert prepare({DEFAULT_MODEL!r}, Path({str(folder.parent.parent)!r}), print) == Path({str(folder)!r})\n"
        "assert not {'torch', 'transformers', 'numpy', 'huggingface_hub'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_folder_is_complete(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert "<|im_start|>" in config["chat_template"] and config["eos_token"] == "<|im_end|>"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    assert json.loads((folder / MANIFEST).read_text())["files"]["model.safetensors"] > 500e6


def test_tokenizer_is_the_models_own(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>user\n").ids[0] == 1
    assert tokenizer.encode("year 1984").tokens == ["year", "Ġ", "1", "9", "8", "4"]  # digits one by one
    for text in ("don't  stop\n\n now", "é 日本 🙂", "  indented\tcode()"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_local_folder_is_used_as_it_is(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "my-model"
    link.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(folder / name, link)
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        prepare(str(link), tmp_path, print)
    (link / "model.safetensors").symlink_to(folder / "model.safetensors")
    assert prepare(str(link), tmp_path, print) == link

    index = link / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(ModelError, match=r"its index names: model-2\.safetensors"):
        prepare(str(link), tmp_path, print)
    index.unlink()
    (link / "config.json").write_text("not json")
    with pytest.raises(ModelError, match="cannot be read"):
        prepare(str(link), tmp_path, print)


@pytest.mark.parametrize("name", ["gpt-5", "", "./no/such/folder", "a b/c"])
def test_unknown_name_says_what_can_be_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"write {DEFAULT_MODEL}, the path of a folder .* hub id"):
        prepare(name, tmp_path, print)


def test_command_reports_an_error_by_status(tmp_path: Path) -> None:
    process = start(tmp_path, "gpt-5")
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1 and stdout == "" and stderr.startswith("error: no model 'gpt-5'")


def test_hub_that_cannot_be_reached_is_a_model_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="cannot fetch nobody/nothing from the Hugging Face hub"):
        prepare("nobody/nothing", tmp_path, print)


class Hub(BaseHTTPRequestHandler):
    """It has one model, with config and tokenizer of ``folder``, and weights twice."""

    folder = default_cache_dir() / "models" / DEFAULT_MODEL
    files = (
        *("config.json", "tokenizer.json", "special_tokens_map.json", "additional_chat_templates/tool_use.jinja"),
        *("model.safetensors", "consolidated.safetensors", "original/model.safetensors", "README.md"),
    )

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            files = [{"type": "file", "path": name, "size": 9999, "oid": "b" * 40} for name in self.files]
            self.answer(json.dumps(files).encode())
        elif self.path.startswith("/api/"):
            self.answer(json.dumps({"id": "me/model", "sha": "a" * 40, "siblings": []}).encode())
        else:
            self.answer_file(self.folder / self.path.rpartition("/")[2])

    def answer_file(self, path: Path) -> None:
        self.answer(path.read_bytes() if path.suffix == ".json" and path.exists() else b"{}")

    def answer(self, body: bytes, length: int | None = None) -> None:
        self.send_response(200)
        etag = f'"{crc32(self.path.encode()):040x}"'
        about = {"ETag": etag, "X-Repo-Commit": "a" * 40, "Content-Length": length or len(body)}
        for name, value in about.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class CuttingHub(Hub):
    """Of whose files no more comes than their beginnings."""

    files = ("config.json",)

    def answer_file(self, path: Path) -> None:
        self.answer(b"{", 9999)


def prepare_from(hub: type[Hub], home: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, with its hub cache there."""
    with ThreadingHTTPServer(("127.0.0.1", 0), hub) as server:
        threading.Thread(target=server.serve_forever).start()
        at_server = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-m", "services.executor.prepare_model", "--model", "me/model", "--engine", "sim"]
        environ = os.environ | at_server | {"HF_HOME": str(home)}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environ)
        server.shutdown()
    return ended


def test_of_a_hub_that_has_the_weights_twice_they_are_fetched_once(folder: Path, tmp_path: Path) -> None:
    """The model's makers have them in files of their own beside those that are read: twice as much was fetched."""
    ended = prepare_from(Hub, tmp_path)
    assert ended.returncode == 0, ended.stderr
    fetched = Path(ended.stdout.splitlines()[-1])
    assert {str(path.relative_to(fetched)) for path in fetched.rglob("*") if path.is_file()} == {
        *("config.json", "tokenizer.json", "special_tokens_map.json", "model.safetensors"),
        "additional_chat_templates/tool_use.jinja",
    }


def test_a_connection_to_the_hub_that_is_lost_is_an_error_in_one_line(tmp_path: Path) -> None:
    ended = prepare_from(CuttingHub, tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        "error: there is no folder me/model here, and cannot fetch me/model"
    )
    assert "Traceback" not in ended.stderr
