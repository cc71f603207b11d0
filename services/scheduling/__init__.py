"""Who runs next, and when a request has ended."""

from services.scheduling.block_pool import BlockPool
from services.scheduling.knobs import Knobs
from services.scheduling.request_level import RequestLevelScheduler
from services.scheduling.scheduler import Scheduler

__all__ = ["BlockPool", "Knobs", "RequestLevelScheduler", "Scheduler"]
