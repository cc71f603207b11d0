"""Models by hub id, fetched with the real client library from a local server with the protocol of the hub."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from pathlib import Path
from services.errors import ModelError
from services.models import ModelInfo, resolve
try:
    print(ModelInfo.load(resolve(sys.argv[1], Path("cache"))))
except ModelError as error:
    print(f"ModelError: {error}")
"""


@dataclass
class Hub:
    """A hub with one repository, `some/tiny-llama`. `served` lists the files that were downloaded."""

    url: str = ""
    revision: str = "a" * 40
    files: dict[str, bytes] = field(default_factory=dict)
    served: list[str] = field(default_factory=list)


@pytest.fixture
def hub(tiny: Path) -> Iterator[Hub]:
    hub = Hub(files={file.name: file.read_bytes() for file in tiny.iterdir()})
    hub.files |= {"README.md": b"long", "pytorch_model.bin": b"other weights", "consolidated.safetensors": b"the same"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, hub, body=True)

        def do_HEAD(self) -> None:
            _answer(self, hub, body=False)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
        server.shutdown()


def _answer(request: BaseHTTPRequestHandler, hub: Hub, body: bool) -> None:
    path = request.path.partition("?")[0]
    status, content, headers = 404, b"{}", {"X-Error-Code": "RepoNotFound"}
    if path.startswith("/api/models/some/tiny-llama/tree"):
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": _etag(data)} for name, data in hub.files.items()
        ]
        status, content, headers = 200, json.dumps(tree).encode(), {}
    elif path.startswith("/api/models/some/tiny-llama"):
        siblings = [{"rfilename": name, "size": len(data)} for name, data in hub.files.items()]
        info = {"id": "some/tiny-llama", "sha": hub.revision, "siblings": siblings}
        status, content, headers = 200, json.dumps(info).encode(), {}
    elif path.startswith(f"/some/tiny-llama/resolve/{hub.revision}/"):
        name = path.rpartition("/")[2]
        status, content, headers = 200, hub.files[name], {"X-Repo-Commit": hub.revision, "ETag": _etag(hub.files[name])}
        if body:
            hub.served.append(name)
    request.send_response(status)
    for key, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
        request.send_header(key, value)
    request.end_headers()
    if body:
        request.wfile.write(content)


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def ask(model: str, url: str, folder: Path, program: str = PROGRAM) -> str:
    """Return what a process with its hub at `url` prints when it resolves `model` or runs another program."""
    environment = os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf"), "PYTHONPATH": str(ROOT)}
    environment |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-c", program, model]
    return subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_needed_files_are_fetched_once_and_used_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    first = ask("some/tiny-llama", hub.url, tmp_path)
    assert "ModelInfo(name='tiny-llama'" in first
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= set(hub.served)
    assert not {"README.md", "pytorch_model.bin", "consolidated.safetensors"} & set(hub.served)

    hub.served.clear()
    assert "ModelInfo(name='tiny-llama'" in ask("some/tiny-llama", hub.url, tmp_path)
    assert hub.served == []

    away = ask("some/tiny-llama", "http://127.0.0.1:9", tmp_path)
    assert "served as it was fetched last" in away
    assert "ModelInfo(name='tiny-llama'" in away

    hub.revision = "b" * 40
    hub.files["config.json"] = hub.files["config.json"].replace(
        b'"max_position_embeddings": 128', b'"max_position_embeddings": 64'
    )
    assert "max_model_len=64" in ask("some/tiny-llama", hub.url, tmp_path)


def test_a_model_that_another_program_has_fetched_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    fetching = "import sys; from huggingface_hub import snapshot_download; print(snapshot_download(sys.argv[1]))"
    ask("some/tiny-llama", hub.url, tmp_path, fetching)
    away = ask("some/tiny-llama", "http://127.0.0.1:9", tmp_path)
    assert "ModelInfo(name='tiny-llama'" in away


def test_a_pinned_commit_stays(hub: Hub, tmp_path: Path) -> None:
    """It does not change after a push, or if the hub does not answer."""
    pinned = f"some/tiny-llama@{'a' * 40}"
    pinning = "from services.models.pin import pin; import sys; from pathlib import Path; "
    assert f"{pinned}\n" in ask(
        "some/tiny-llama", hub.url, tmp_path, pinning + "print(pin(sys.argv[1], Path('cache')))"
    )

    hub.revision = "b" * 40
    hub.files["config.json"] = hub.files["config.json"].replace(
        b'"max_position_embeddings": 128', b'"max_position_embeddings": 64'
    )
    asking = "from services.models.pin import pin_commit; import sys; print(pin_commit(sys.argv[1]))"
    assert ask("some/tiny-llama", hub.url, tmp_path, asking) == f"some/tiny-llama@{'b' * 40}\n"
    for url in (hub.url, "http://127.0.0.1:9"):
        found = ask(pinned, url, tmp_path)
        assert found.startswith("ModelInfo(name='tiny-llama'")
        assert "max_model_len=128" in found
    assert "max_model_len=64" in ask("some/tiny-llama", hub.url, tmp_path)


def test_an_unknown_model_is_named(hub: Hub, tmp_path: Path) -> None:
    assert ask("some/other", hub.url, tmp_path).startswith("ModelError: 'some/other' is no local path, and the hub")


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    output = ask("some/tiny-llama", "http://127.0.0.1:9", tmp_path)
    assert output.startswith("ModelError: 'some/tiny-llama' is no local path, and the hub cannot be reached: ")


def test_a_name_that_is_neither_a_path_nor_a_hub_id(tmp_path: Path) -> None:
    output = ask("no such model!", "http://127.0.0.1:9", tmp_path)
    assert output.startswith("ModelError: 'no such model!' is neither a local path nor a hub id")


def test_a_repository_of_gguf_files_only_lists_them(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"README.md": b"", "tiny.Q4_1.gguf": b"GGUF"}
    output = ask("some/tiny-llama", hub.url, tmp_path)
    assert output.startswith("ModelError: some/tiny-llama has neither safetensors nor .bin weights")
    assert "tiny.Q4_1.gguf" in output


def test_a_tokenizer_of_the_hub_is_fetched_without_weights(hub: Hub, tiny: Path, tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from services.models.replaced import Replaced, resolve_replaced
folder = resolve_replaced(sys.argv[1], Replaced(tokenizer="some/tiny-llama@%s"), Path("cache"))
print(folder.name, sorted(file.name for file in folder.iterdir() if not file.is_symlink()))
"""
    model = Path(shutil.copytree(tiny, tmp_path / "own-model"))
    (model / "chat_template.jinja").unlink()
    for url in (hub.url, "http://127.0.0.1:9"):  # a commit that was fetched needs no hub
        found = ask(str(model), url, tmp_path, program % hub.revision).splitlines()[-1]
        assert found == "own-model ['chat_template.jinja', 'tokenizer.json', 'tokenizer_config.json']"
    assert "tokenizer.json" in hub.served
    assert not [name for name in hub.served if name.endswith((".safetensors", ".bin"))]
    assert ask("some/tiny-llama", "http://127.0.0.1:9", tmp_path).startswith("ModelError")  # it is no model
