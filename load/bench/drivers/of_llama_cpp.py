"""llama.cpp in a process of its own: `PYTHON of_llama_cpp.py GGUF CACHE`. It needs llama_cpp and nothing else.

CACHE is "shared" (one KV cache, in which each token attends past the cells of other sequences) or "separate".

A line on stdin is a trace, a list of [prompt, output tokens]; the answer is a line with the times of each request's
tokens. The first line on stdout describes the settings.

The loop is that of llama-server: each step decodes one token of each running sequence, and in the rest of `N_BATCH`
tokens the prompts of those that came first. Sampling is greedy, and the end-of-text token ends nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import llama_cpp  # type: ignore[import-not-found, unused-ignore]  # only in the environment of this driver

N_BATCH = 512  # tokens of a step
N_SEQ_MAX = 32
CONTEXT = 640  # tokens of a sequence: the longest of `paper`
ERROR = 4  # ggml's level of a log line


@dataclass(slots=True)
class Sequence:
    """A request and how far it is. `slot`: llama.cpp's number of the sequence. `next`: the token to decode next."""

    prompt: list[int]
    outputs: int
    slot: int = -1
    done: int = 0  # tokens whose keys and values are in the cache
    next: int = -1
    times: list[float] = field(default_factory=list)

    def take(self, room: int) -> list[int]:
        """The tokens of the next step, at most `room`."""
        return [self.next] if self.times else self.prompt[self.done : self.done + room]


class LlamaCpp:
    """A model with a context and a batch."""

    def __init__(self, gguf: str, unified: bool) -> None:
        self._log = llama_cpp.llama_log_callback(_log)  # kept, because the library calls it later
        llama_cpp.llama_log_set(self._log, None)
        llama_cpp.llama_backend_init()
        threads = len(os.sched_getaffinity(0))
        self._model = llama_cpp.llama_model_load_from_file(gguf.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = N_SEQ_MAX * CONTEXT, N_SEQ_MAX, unified
        params.n_batch = params.n_ubatch = N_BATCH
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit(f"llama.cpp cannot load {gguf}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._sampler = llama_cpp.llama_sampler_init_greedy()
        self._batch = llama_cpp.llama_batch_init(N_BATCH, 0, 1)
        self.about = (
            f"llama-cpp-python {llama_cpp.__version__}, n_threads {threads}, n_batch and n_ubatch {N_BATCH}, "
            f"n_seq_max {N_SEQ_MAX}, n_ctx {N_SEQ_MAX * CONTEXT}, kv_unified {str(unified).lower()}, "
            "flash attention auto, keys and values in float16, greedy sampler"
        )

    def run(self, trace: list[tuple[list[int], int]]) -> list[list[float]]:
        """The seconds from the beginning to each token of each request."""
        llama_cpp.llama_memory_clear(self._memory, False)
        began = time.perf_counter()
        sequences = [Sequence(prompt, outputs) for prompt, outputs in trace]
        waiting, running = deque(sequences), list[Sequence]()
        slots = list(range(N_SEQ_MAX))
        while waiting or running:
            while waiting and slots:
                running.append(waiting.popleft())
                running[-1].slot = slots.pop()
            self._step(running, began)
            for sequence in [one for one in running if len(one.times) == one.outputs]:
                running.remove(sequence)
                llama_cpp.llama_memory_seq_rm(self._memory, sequence.slot, -1, -1)
                slots.append(sequence.slot)
        return [sequence.times for sequence in sequences]

    def _step(self, running: list[Sequence], began: float) -> None:
        """Decode a batch, and sample a token of each sequence whose prompt is complete."""
        ends: list[tuple[Sequence, int]] = []  # with the place of its last token in the batch
        size = 0
        for sequence in sorted(running, key=lambda one: not one.times):  # running ones before prompts
            tokens = sequence.take(N_BATCH - size)
            self._put(size, tokens, sequence)
            size += len(tokens)
            sequence.done += len(tokens)
            if sequence.times or (tokens and sequence.done == len(sequence.prompt)):
                self._batch.logits[size - 1] = 1
                ends.append((sequence, size - 1))
        self._batch.n_tokens = size
        if code := llama_cpp.llama_decode(self._context, self._batch):
            raise SystemExit(f"llama_decode returned {code} for a batch of {size} tokens")
        for sequence, place in ends:
            sequence.next = llama_cpp.llama_sampler_sample(self._sampler, self._context, place)
            sequence.times.append(time.perf_counter() - began)

    def _put(self, place: int, tokens: list[int], sequence: Sequence) -> None:
        batch = self._batch
        for i, token in enumerate(tokens):
            batch.token[place + i] = token
            batch.pos[place + i] = sequence.done + i
            batch.n_seq_id[place + i] = 1
            batch.seq_id[place + i][0] = sequence.slot
            batch.logits[place + i] = 0


def _log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    if level == ERROR:
        sys.stderr.write(text.decode(errors="replace"))


def main() -> None:
    gguf, cache = sys.argv[1:]
    model = LlamaCpp(gguf, cache == "shared")
    say(model.about)
    for line in sys.stdin:
        say(model.run(json.loads(line)))


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
