"""Whether the memory of a process outlives it: what one process has put into SharedMemory, found by a second one before
and after the first is killed.

`python -m load.bench.outliving` runs this alone.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import torch

from services.engine.batch.buffers import Allocate
from services.engine.startup.shared_memory import SharedMemory

SIZE = 64 << 20  # bytes
MADE, CHANGED = 0x5A, 0xA5  # what each process fills the memory with
PATIENCE = 60.0  # seconds
IDENTITY, MAKER = "outliving", "maker"


def fill(memory: SharedMemory, device: str) -> Any:
    """Put two tensors into the memory, in place of weights and KV cache, and return them."""

    def made(allocate: Allocate) -> Any:
        return allocate((SIZE,), torch.uint8, torch.device(device)).fill_(MADE)

    return memory.fill(IDENTITY, made, lambda _, allocate: made(allocate))


def outlives(device: str) -> dict[str, bool]:
    """What a second process sees of memory that a first one made, before and after that one's death."""
    maker = subprocess.Popen(
        [sys.executable, "-m", "load.bench.outliving", device, MAKER], stdout=subprocess.PIPE, text=True
    )
    memory = SharedMemory()
    try:
        assert maker.stdout
        if device == "cuda":
            torch.zeros(1, device=device)  # the context, without which the driver maps nothing
        found = {"given by its maker": memory.hold(maker.stdout.readline().strip())}
        contents: Any = memory.restore(IDENTITY)
        found["seen while its maker lives"] = all(bool((one == MADE).all()) for one in contents)
        found["its maker's end is known"] = memory.end_maker(PATIENCE)
    finally:
        maker.kill()
        maker.wait()
    found["seen after its maker is killed"] = all(bool((one == MADE).all()) for one in contents)
    contents.cache.fill_(CHANGED)
    found["written after its maker is killed"] = bool((contents.cache == CHANGED).all())
    return found


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    if sys.argv[2:3] == [MAKER]:
        memory = SharedMemory()
        kept = fill(memory, chosen)
        print(memory.path, flush=True)
        signal.pause()
    print(json.dumps(outlives(chosen), indent=1))
