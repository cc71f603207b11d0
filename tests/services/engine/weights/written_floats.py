"""Random weights of floats in eight and four bits, written as each method writes them. The numbers are computed in
float64 from scales that are rounded as the formats define it."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import torch
from writer import Writer, Written, of_arrays


def fp8(scale: str, shape: Callable[[int, int], tuple[int, ...]], block: tuple[int, int] = (1, 1)) -> Writer:
    """`shape`: of the scales, of a weight with so many outputs and inputs. `block`: weights that share one."""

    def write(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
        weight = torch.from_numpy(rng.normal(0, 100, (outputs, inputs))).to(torch.float8_e4m3fn)
        scales = rng.uniform(0.001, 0.004, shape(outputs, inputs)).astype(np.float32)
        numbers = weight.to(torch.float64).numpy()
        if block == (1, 1):
            numbers = numbers * scales.astype(np.float64).reshape(-1, 1)
        else:
            for i, j in np.ndindex(scales.shape):
                part = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
                numbers[part] *= scales[i, j].astype(np.float64)
        found = of_arrays({scale: scales}, numbers)
        return Written({"weight": weight, **found.tensors}, numbers)

    return write


def modelopt_blocks(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
    """FP8 in blocks of 128 x 128, whose scales have two more dimensions."""
    written = fp8("weight_scale", lambda rows, columns: (-(-rows // 128), -(-columns // 128)), (128, 128))(
        rng, outputs, inputs
    )
    written.tensors["weight_scale"] = written.tensors["weight_scale"][:, None, :, None]
    return written


def mxfp8(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
    """ModelOpt, with exponents of powers of two for groups of 32 inputs."""
    weight = torch.from_numpy(rng.normal(0, 100, (outputs, inputs))).to(torch.float8_e4m3fn)
    exponents = rng.integers(116, 119, (outputs, inputs // 32)).astype(np.uint8)
    numbers = weight.to(torch.float64).numpy() * np.repeat(2.0 ** (exponents.astype(np.float64) - 127), 32, 1)
    return Written({"weight": weight, "weight_scale": torch.from_numpy(exponents)}, numbers)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
    """compressed-tensors, with exponents of powers of two."""
    codes, exponents = (
        _fp4_codes(rng, outputs, inputs),
        rng.integers(122, 126, (outputs, inputs // 32)).astype(np.uint8),
    )
    numbers = E2M1[codes] * np.repeat(2.0 ** (exponents.astype(np.float64) - 127), 32, 1)
    return of_arrays({"weight_packed": _in_pairs(codes), "weight_scale": exponents}, numbers)


def nvfp4(name: str, factor: str, divides: bool = False) -> Writer:
    """`name`: of the bytes. `factor`: the name of what the scales of all groups are multiplied or divided by. Groups
    have 16 inputs; the scales are rounded to float32 before they are multiplied by the numbers of codes."""

    def write(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
        codes = _fp4_codes(rng, outputs, inputs)
        scales = torch.from_numpy(rng.uniform(60, 448, (outputs, inputs // 16))).to(torch.float8_e4m3fn)
        least = np.float32(rng.uniform(1e-4, 2e-4))
        stored = np.float32(1 / least) if divides else least
        each = scales.to(torch.float32).numpy()
        numbers = E2M1[codes] * np.repeat(each / stored if divides else each * stored, 16, 1).astype(np.float64)
        found = of_arrays({name: _in_pairs(codes), factor: np.array([stored] if divides else stored)}, numbers)
        return Written({**found.tensors, "weight_scale": scales}, numbers)

    return write


def _fp4_codes(rng: np.random.Generator, outputs: int, inputs: int) -> np.ndarray:
    return rng.integers(0, 16, (outputs, inputs)).astype(np.uint8)


def _in_pairs(codes: np.ndarray) -> np.ndarray:
    """Two codes in a byte, the first of them in its lower half."""
    return codes[:, ::2] | codes[:, 1::2] << 4


_NF4_BELOW = (-1.0, -0.696192801, -0.525073051, -0.394917488, -0.284441382, -0.18477343, -0.0910500363)
_NF4_ABOVE = (0.0, 0.0795802996, 0.16093020, 0.246112302, 0.337915242, 0.440709829, 0.562617004, 0.722956836, 1.0)
NF4_BOOK = np.array(_NF4_BELOW + _NF4_ABOVE, np.float32)


def nf4(nested: bool = False, size: int = 32) -> Writer:
    """bitsandbytes. Blocks follow one another through all rows. `nested`: their scales are codes of a book."""

    def write(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
        codes = rng.integers(0, 16, outputs * inputs).astype(np.uint8)
        state = {"quant_type": "nf4", "blocksize": size, "dtype": "float16", "shape": [outputs, inputs]}
        absmax = rng.uniform(0.2, 0.5, len(codes) // size).astype(np.float32)
        tensors = {"weight": (codes[::2] << 4 | codes[1::2])[:, None], "weight.quant_map": NF4_BOOK}
        if nested:
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.35}
            book = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            stored = rng.integers(0, 256, len(absmax)).astype(np.uint8)
            factors = rng.uniform(0.1, 0.15, -(-len(absmax) // 256)).astype(np.float32)
            absmax = book[stored] * np.repeat(factors, 256)[: len(absmax)] + np.float32(0.35)
            tensors |= {"weight.nested_absmax": factors, "weight.nested_quant_map": book}
        tensors["weight.absmax"] = stored if nested else absmax
        tensors["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
        numbers = NF4_BOOK[codes].astype(np.float64) * np.repeat(absmax, size)
        return of_arrays(tensors, numbers.reshape(outputs, inputs))

    return write
