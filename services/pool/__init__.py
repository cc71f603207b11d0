"""The request pool: requests, their tokens and who runs them, in a Redis or Valkey server."""

from services.pool.limits import Limits
from services.pool.pool import RequestPool

__all__ = ["Limits", "RequestPool"]
