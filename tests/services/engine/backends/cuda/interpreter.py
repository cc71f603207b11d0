"""Triton's interpreter, made to run here. Imported before any kernel runs, where it is on."""

from __future__ import annotations

import os
from typing import Any

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def index_of_one_number(tensor: Any, scope: Any) -> None:
        """Loops from one loaded number to another: numpy 2.4 makes no int of the array of one that Triton 3.6 has."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = index_of_one_number
