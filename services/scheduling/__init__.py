"""Which requests run in each iteration, and when a request has ended. Plain Python without I/O."""

from services.scheduling.block_pool import BlockPool
from services.scheduling.cost_model import CostModel, WarmUpTime
from services.scheduling.knobs import Knobs
from services.scheduling.scheduler import RequestLevelScheduler, Scheduler

__all__ = ["BlockPool", "CostModel", "Knobs", "RequestLevelScheduler", "Scheduler", "WarmUpTime"]
