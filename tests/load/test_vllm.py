"""vLLM's server as a child process: what is started is stopped, also if it never answers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from load.vllm import VllmServer

SERVER = '#!/bin/sh\necho "$@"\nexec sleep 1000\n'


def program(folder: Path, text: str) -> Path:
    """An interpreter beside which a `vllm` is that runs `text`."""
    (folder / "vllm").write_text(text)
    (folder / "vllm").chmod(0o755)
    return folder / "python"


def test_one_that_ends_is_an_error_with_what_it_printed(tmp_path: Path) -> None:
    server = VllmServer(program(tmp_path, "#!/bin/sh\necho no such model\n"), Path("m"), tmp_path / "log")
    with pytest.raises(AssertionError, match="no such model"), server:
        pass
    assert server.process.returncode == 0


def test_an_interrupt_before_it_is_ready_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = VllmServer(program(tmp_path, SERVER), Path("m"), tmp_path / "log", "--flag")

    def interrupt() -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "_answers", interrupt)
    with pytest.raises(KeyboardInterrupt), server:
        pass
    assert server.process.returncode in (-signal.SIGINT, -signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        os.kill(server.process.pid, 0)
