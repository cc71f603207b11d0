"""The engine beside the floor of its machine; see `load.bench.engine.__main__`."""

import services.engine  # noqa: F401 - sets how threads wait, which torch reads when it is loaded
