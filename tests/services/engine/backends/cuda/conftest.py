from __future__ import annotations

import interpreter  # noqa: F401  makes Triton's run here, before any kernel is made
