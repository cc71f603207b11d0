"""A patch that lets Triton's interpreter run here. Imported before any kernel runs."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.runtime import interpreter

    patch_tensor, patch_language = interpreter._patch_lang_tensor, cache(interpreter._patch_lang)

    def index_of_one_number(tensor: Any, scope: Any) -> None:
        """Loops over loaded numbers need it: numpy 2.4 does not convert Triton 3.6's arrays of one number to int."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def patch_once(function: Any) -> Any:
        """The language stays patched. Triton 3.7 patches it again at each call of a function, which takes most of the
        interpreter's time."""
        patch_language(function)
        return interpreter._LangPatchScope()  # nothing to restore

    def numbers(handle: Any) -> Any:
        """A tensor's numbers in float32. The interpreter keeps bfloat16 as integers of 16 bits."""
        if handle.data.dtype == np.uint16:
            return (handle.data.astype(np.uint32) << 16).view(np.float32)
        return handle.data.astype(np.float32)

    def dot_in_order(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        """A float32 sum in ascending order, as a tensor core's. numpy's order depends on the shape."""
        total = d.data.copy()
        for left, right in zip(numbers(a).T, numbers(b), strict=True):
            total += np.multiply.outer(left, right)
        return interpreter.TensorHandle(total, d.dtype.scalar)

    find_dtype, dtypes = interpreter._get_np_dtype, dict[str, Any]()

    def numpy_dtype(kind: Any) -> Any:
        """That of a scalar, of pointers or of a block of them. The interpreter makes its table of them at each call."""
        name = kind.scalar.name
        if name not in dtypes:
            dtypes[name] = find_dtype(kind)
        return dtypes[name]

    cast = interpreter.InterpreterBuilder.cast_impl

    def cast_to_nearest(self: Any, handle: Any, to: Any) -> Any:
        """Rounds ties to even, as a device does. The interpreter cuts bits off where it makes a float32 a bfloat16."""
        if handle.dtype.scalar.name != "fp32" or to.scalar.name != "bf16":
            return cast(self, handle, to)
        bits = np.ascontiguousarray(handle.data).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        kept = np.where(np.isnan(handle.data), 0x7FC0, rounded)
        return interpreter.TensorHandle(kept.astype(np.uint16), to.scalar)

    def fused(self: Any, x: Any, y: Any, z: Any) -> Any:
        """Rounded once, if the sum is exact in float64. The interpreter rounds the product, too."""
        exact = x.data.astype(np.float64) * y.data + z.data
        return interpreter.TensorHandle(exact.astype(x.data.dtype), x.dtype.scalar)

    builder = interpreter.interpreter_builder
    # a sum of integers would be computed once more in 64 bits, and nothing told of a difference without `debug`
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype = numpy_dtype
    interpreter.InterpreterBuilder.create_fma = fused
    interpreter.InterpreterBuilder.cast_impl = cast_to_nearest
    interpreter.InterpreterBuilder.create_dot = dot_in_order
    interpreter._patch_lang_tensor = index_of_one_number
    interpreter._patch_lang = patch_once
