"""Runs one iteration of a model over a flat batch. May import torch; of the other services only models and messages."""

import os

# Read when torch is loaded. The cores are shared with scheduler, gateway and pool: a thread that spins at a barrier
# keeps the thread it waits for from running.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
