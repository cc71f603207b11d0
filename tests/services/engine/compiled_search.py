"""The compiled search for contenders, once for all tests."""

from __future__ import annotations

import functools

from services.engine.native.build import kernels
from services.engine.native.searching import NativeSearch
from services.user_folders import user_cache


@functools.cache
def compiled_search() -> NativeSearch:
    return NativeSearch(kernels(user_cache()), 2)
