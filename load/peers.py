"""Other servers as child processes, to be measured beside ours with the same client: vLLM's and llama.cpp's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from load.server import free_port

READY = 600.0  # seconds; vLLM compiles the model at its start
STOP = 60.0
LOOK = 0.1  # seconds between checks whether it is ready


class PeerServer:
    """A server that listens on `port`: ready within `with`, stopped at its end. What it prints is in `log`."""

    def __init__(self, command: Sequence[str], port: int, log: Path, variables: Mapping[str, str] = {}) -> None:
        self.url, self._log = f"http://127.0.0.1:{port}", log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=os.environ | variables, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> PeerServer:
        end = time.monotonic() + READY
        try:
            while not self._answers():
                if self.process.poll() is not None or time.monotonic() > end:
                    printed = self._log.read_text(errors="replace")[-3000:]
                    raise AssertionError(f"{self.process.args!r} is not ready:\n{printed}")
                time.sleep(LOOK)
        except BaseException:  # also an interrupt: `with` calls `__exit__` only after `__enter__`
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ask it to stop; what is left of it after a while is killed."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(self.url + "/health", verify=False).status_code == 200
        return False


def vllm(python: Path, model: Path, dtype: str, max_batch_size: int, max_model_len: int, log: Path) -> PeerServer:
    """`vllm serve` of the interpreter `python`, without prefix caching, on all cores that this process may use."""
    port = free_port()
    flags = {"--dtype": dtype, "--max-num-seqs": max_batch_size, "--max-model-len": max_model_len, "--port": port}
    command = [str(python.parent / "vllm"), "serve", str(model), "--no-enable-prefix-caching"]
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return PeerServer([*command, *_flat(flags)], port, log, variables)


def llama_cpp(program: Path, file: Path, slots: int, length: int, log: Path) -> PeerServer:
    """llama.cpp's `llama-server` on a GGUF file, with `slots` requests at once of at most `length` tokens each, on as
    many threads as this process may use cores."""
    port, threads = free_port(), len(os.sched_getaffinity(0))
    # the context is shared by the slots
    flags = {"--port": port, "-c": slots * length, "-np": slots, "-b": 2048, "-ub": 512, "-t": threads, "-tb": threads}
    return PeerServer([str(program), "-m", str(file), *_flat(flags)], port, log)


def _flat(flags: Mapping[str, object]) -> list[str]:
    return [str(part) for pair in flags.items() for part in pair]
