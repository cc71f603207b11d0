"""Which parser reads the answers of a request."""

from __future__ import annotations

from gateway.answer.parsers.pieces import Parser
from gateway.answer.plan import Plan


def parser_of(plan: Plan) -> Parser | None:
    """A parser for one choice of a request; None if all of its text is content."""
    return None
