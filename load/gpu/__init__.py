"""The parts of `load.gpu_bench`: the engine on a GPU, with random weights of real configurations."""

import services.engine  # noqa: F401  says how threads wait, which torch reads when it is loaded
