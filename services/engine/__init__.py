"""The engine: runs one iteration of a model over a flat batch. May import torch; of the other services only models and
messages.

- `engine.py`: Engine, one iteration after another. `null.py`: the same without a model. `settings.py`: how it is
  loaded.
- `decoder.py`: the protocol of what computes logits. `backends/` has three: stock, cpu and cuda.
- `batch/`: the requests of an iteration, flattened, and their KV cache. `sampling/`: from logits to tokens.
- `families/`: which models the fast path (cpu, cuda) runs, a file each. `parallel/`: one model over several ranks.
- `startup/`: all that happens before the first iteration.
"""

import os

# torch reads this when it is loaded. The cores are shared with scheduler, gateway and pool: a thread that spins at a
# barrier keeps the thread it waits for from running.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
