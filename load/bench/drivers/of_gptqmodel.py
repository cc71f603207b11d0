"""gptqmodel's kernels for a CPU in a process of their own: `PYTHON of_gptqmodel.py`. It needs only
gptqmodel and torch.

The first line on stdout is [a description, the names of the kernels that run here, the errors of others by name]. Then
each line on stdin is one of these, and each answer a number:

- {"kernel", "weights", "group", "copies"}: pack weights of four bits without offsets; the bytes of a copy.
- {"run", "rows", "window", "to"}: multiply by one copy after another for so many seconds, once at least; the seconds of
  a product. With "to", the last product is written to this file in float32.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

MODULES = "gptqmodel.nn_modules.qlinear"
KERNELS = {
    "AVX512-BF16": ("torch_cpu_avx512", "TorchCpuAvx512Linear"),
    "ATen": ("torch_aten_kernel", "TorchAtenLinear"),
}
CODES = 8  # in an int32
ZEROS = -0x77777778  # the code 8 of each


def packed(kind: Any, codes: torch.Tensor, scales: torch.Tensor, group: int) -> Any:
    """A layer of this kind, from codes [outputs, inputs] and scales [outputs, inputs / group]."""
    outputs, inputs = codes.shape
    layer = kind(
        bits=4, group_size=group, sym=True, desc_act=False, in_features=inputs, out_features=outputs, bias=False
    )
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)[None, :, None]
    parts = codes.t().reshape(inputs // CODES, CODES, outputs).to(torch.int32) << shifts
    layer.qweight = parts.sum(1, dtype=torch.int32)
    layer.qzeros = torch.full((inputs // group, outputs // CODES), ZEROS, dtype=torch.int32)
    layer.scales = scales.t().to(torch.float16).contiguous()
    layer.g_idx = (torch.arange(inputs) // group).to(torch.int32)
    layer.post_init()
    layer.eval()
    layer(torch.zeros(1, inputs, dtype=torch.bfloat16))  # packs the weights
    return layer


def size_of(layer: Any) -> int:
    """The bytes of the packed weights that a product reads."""
    factors = [layer.scales_and_zeros] if hasattr(layer, "scales_and_zeros") else [layer.scales, layer.qzeros]
    return sum(int(one.nbytes) for one in (layer.qweight, *factors))


def run(layers: Iterator[Any], asked: dict[str, Any]) -> float:
    rows = torch.load(asked["rows"])
    began, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - began < asked["window"]:
        found = next(layers)(rows)
        calls += 1
    seconds = (time.perf_counter() - began) / calls
    if "to" in asked:
        torch.save(found.to(torch.float32), asked["to"])
    return seconds


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # gptqmodel writes to stdout
    version = importlib.import_module("gptqmodel").__version__

    def say(what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    kinds, errors = {}, {}
    for name, (module, kind) in KERNELS.items():
        kinds[name] = getattr(importlib.import_module(f"{MODULES}.{module}"), kind)
        runs, error = kinds[name].validate_once()
        if not runs:
            errors[name] = str(error)
            del kinds[name]
    say([f"gptqmodel {version}, torch {torch.__version__}", list(kinds), errors])
    layers: dict[str, Iterator[Any]] = {}
    with torch.inference_mode():
        for line in sys.stdin:
            asked = json.loads(line)
            if "run" in asked:
                say(run(layers[asked["run"]], asked))
                continue
            weights = torch.load(asked["weights"])
            made = [
                packed(kinds[asked["kernel"]], weights["codes"], weights["scales"], asked["group"])
                for _ in range(asked["copies"])
            ]
            layers[asked["kernel"]] = itertools.cycle(made)
            say(size_of(made[0]))


if __name__ == "__main__":
    main()
