"""Another server as a child process: what is started is stopped, also if it never answers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from load.peers import PeerServer, llama_cpp, vllm

SERVER = '#!/bin/sh\necho "$@"\nexec sleep 1000\n'


def program(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder / name


def test_one_that_ends_is_an_error_with_what_it_printed(tmp_path: Path) -> None:
    program(tmp_path, "vllm", "#!/bin/sh\necho no such model\n")
    server = vllm(tmp_path / "python", Path("m"), "bfloat16", 4, 2048, tmp_path / "log")
    with pytest.raises(AssertionError, match="no such model"), server:
        pass
    assert server.process.returncode == 0


def test_an_interrupt_before_it_is_ready_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = llama_cpp(program(tmp_path, "llama", SERVER), Path("m.gguf"), 4, 640, tmp_path / "log")

    def interrupt(_: PeerServer) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(PeerServer, "_answers", interrupt)
    with pytest.raises(KeyboardInterrupt), server:
        pass
    assert server.process.returncode in (-signal.SIGINT, -signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        os.kill(server.process.pid, 0)
