"""Our kernels, with weights as they are served in bfloat16."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import torch

from load.bench.engine.quantized_products.cases import Case, Format, exact
from load.bench.engine.quantized_products.ways import Multiply, Product, Unavailable, Way
from services.engine.backends.cpu.build import Kernels, NoKernels, kernels
from services.engine.backends.cpu.packed import PackedMatrix
from services.engine.backends.cpu.packing import Packer
from services.engine.families.weights import Linear
from services.files import user_cache


def own(format: Format) -> Way:
    """Our kernel for weights in this format."""

    def way(case: Case) -> Product:
        try:
            library = kernels(user_cache())
        except NoKernels as error:
            raise Unavailable(str(error)) from error
        weight = case.weights[format]
        dtype = torch.int8 if format == "int8" else torch.bfloat16
        packer = Packer(library, dtype, torch.get_num_threads())
        packed = packer.matrix(Linear(exact(weight).to(torch.float32) if format == "int8" else weight))
        size = packed.panels.nbytes + (0 if packed.scales is None else packed.scales.nbytes)
        results: dict[int, torch.Tensor] = {}
        return Product(weight, size, torch.float32, lambda: _multiply(library, packer.threads, packed, results))

    return way


def _multiply(library: Kernels, threads: int, packed: PackedMatrix, results: dict[int, torch.Tensor]) -> Multiply:
    """The next product of as many rows is written to the same memory, as in the engine: to `results`, by rows."""
    own = replace(packed, panels=packed.panels.clone())
    struct = own.struct()

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        assert own.panels.data_ptr() == struct.panels, "the copy lives as long as this function"
        if len(rows) not in results:
            results[len(rows)] = torch.empty(len(rows), own.outputs)
        to = results[len(rows)]
        pointers = ctypes.c_void_p(rows.data_ptr()), ctypes.c_void_p(to.data_ptr())
        library.orca_multiply(ctypes.byref(struct), pointers[0], len(rows), threads, pointers[1])
        return to

    return multiply


WAYS: dict[str, Way] = {
    "Orca, bfloat16": own("bfloat16"),
    "Orca, Q4_1": own("Q4_1"),
    "Orca, GPTQ": own("GPTQ"),
    "Orca, MXFP4": own("MXFP4"),
    "Orca, NVFP4": own("NVFP4"),
    "Orca, Q8_0": own("Q8_0"),
    "Orca, FP8": own("FP8"),
    "Orca, `int8`": own("int8"),
}
