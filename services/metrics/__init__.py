"""Metrics: their names, the counters of a process, and the Prometheus text of the pool's sums.

Processes send increments to the pool together with calls that they make anyway. The sums are kept there, so every
gateway renders the same figures and a restarted process loses none.
"""

from services.metrics.counters import Counters
from services.metrics.page import ModelPage, Wanted, render

__all__ = ["Counters", "ModelPage", "Wanted", "render"]
