"""vLLM's server as a child process, to be measured beside ours with the same client."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import httpx

from load.processes import descendants, processor_seconds
from load.server import free_port

READY = 600.0  # seconds; it compiles the model at its start
STOP = 60.0


class VllmServer:
    """`vllm serve` of the interpreter `python` with the flags given: ready within `with`, stopped at its end. It uses
    all cores that this process may use, as our engine does. What it prints is in `log`."""

    def __init__(self, python: Path, model: Path, log: Path, *flags: str) -> None:
        self.url, self._log = f"http://127.0.0.1:{(port := free_port())}", log
        command = [str(python.parent / "vllm"), "serve", str(model), "--port", str(port), *flags]
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        environment = {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": "4",
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> VllmServer:
        end = time.monotonic() + READY
        try:
            while not self._answers():
                if self.process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"vLLM is not ready:\n{self._log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.5)
        except BaseException:  # also an interrupt: `with` calls `__exit__` only after `__enter__`
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Interrupt it; what is left of it after a while is killed."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def processor_seconds(self) -> dict[int, float]:
        """Processor seconds of its living processes so far, by their ids."""
        return processor_seconds([self.process.pid, *descendants(self.process.pid)])

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(self.url + "/health", verify=False).status_code == 200
        return False
