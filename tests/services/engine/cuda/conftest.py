from __future__ import annotations

import interpreter  # noqa: F401
