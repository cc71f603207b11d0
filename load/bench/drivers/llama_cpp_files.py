"""llama.cpp's quantizer and its logits, in a process of its own: `PYTHON llama_cpp_files.py`. It needs llama_cpp alone.

A line on stdin is {"make": [SOURCE, TARGET, KIND]}, which writes TARGET with the weights of SOURCE in ggml's KIND
("Q4_K_M") and answers TARGET, or {"score": [FILE, TOKENS]}, whose answer is the mean negative log likelihood of the
tokens, each given all tokens before it.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
from typing import Any

import llama_cpp  # type: ignore[import-not-found, unused-ignore]  # only in the environment of this driver

CHUNK = 512  # tokens of a step
ERROR = 4  # ggml's level of a log line


def make(source: str, target: str, kind: str) -> str:
    params = llama_cpp.llama_model_quantize_default_params()
    every = "ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{every}")
    params.allow_requantize, params.nthread = True, _threads()
    if code := llama_cpp.llama_model_quantize(source.encode(), target.encode(), params):
        raise SystemExit(f"llama_model_quantize returned {code} for {kind}")
    return target


def score(file: str, tokens: list[int]) -> float:
    model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = -(-len(tokens) // 256) * 256, CHUNK, CHUNK
    params.n_threads = params.n_threads_batch = _threads()
    context = llama_cpp.llama_init_from_model(model, params) if model else None
    if not context:
        raise SystemExit(f"llama.cpp cannot load {file}")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    losses = []
    batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)
    for begin in range(0, len(tokens) - 1, CHUNK):
        part = tokens[begin : min(begin + CHUNK, len(tokens) - 1)]
        for i, token in enumerate(part):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, begin + i, 1, 1
            batch.seq_id[i][0] = 0
        batch.n_tokens = len(part)
        if code := llama_cpp.llama_decode(context, batch):
            raise SystemExit(f"llama_decode returned {code}")
        losses += [_loss(context, i, vocabulary, tokens[begin + i + 1]) for i in range(len(part))]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return math.fsum(losses) / len(losses)


def _loss(context: Any, place: int, vocabulary: int, token: int) -> float:
    import numpy as np  # llama_cpp needs it

    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, place), (vocabulary,)).astype(np.float64)
    most = logits.max()
    return float(most + np.log(np.exp(logits - most).sum()) - logits[token])


def _threads() -> int:
    return len(os.sched_getaffinity(0))


def _log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    if level == ERROR:
        sys.stderr.write(text.decode(errors="replace"))


def main() -> None:
    log = llama_cpp.llama_log_callback(_log)  # kept, because the library calls it later
    llama_cpp.llama_log_set(log, None)
    llama_cpp.llama_backend_init()
    print(json.dumps(f"llama-cpp-python {llama_cpp.__version__}"), flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        answer = make(*asked["make"]) if "make" in asked else score(*asked["score"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
