"""The engine: runs one iteration of a model over a flat batch. May import torch; of the other services only models and
messages.

Each line may import those below it, and none above:

- `preload.py`, `warm_up.py`: what comes before an engine's weights, and before its first request.
- `engine.py`: Engine, one iteration after another. `null.py`: NullEngine, which has no model.
- `startup/`: choose device, dtype and backend, check the fast path, load, keep the memory for the next process.
- `backends/`: how layers run: stock, cpu or cuda.
- `families/`: which models the fast path (cpu, cuda) runs: their specs, and their weights fused as products run.
- `weights/`: weights as they are stored.
- `parallel/`: one model over several ranks. `sampling/`: from logits to tokens.
- `decoder.py`: the protocol of what computes logits.
- `batch/`: the requests of an iteration, what their settings do to logits, and their KV cache.
- `spec.py`: what layers compute. `settings.py`: how an engine is loaded.
"""

import os

# torch reads this when it is loaded. The cores are shared with scheduler, gateway and pool: a thread that spins at a
# barrier keeps the thread it waits for from running.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
