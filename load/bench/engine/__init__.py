"""The floor of an iteration on this machine, and what the engine takes beside it; see `load.bench.engine`."""

import services.engine  # noqa: F401  says how threads wait, which torch reads when it is loaded
