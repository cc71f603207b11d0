"""Overload by clients that give up, with default settings: the loop and the reference model in virtual time."""

from math import inf

from load.simulation.overload import CAPACITY, Clients, overload
from services.loop.clock import run_in_virtual_time


def test_engines_serve_clients_that_still_wait():
    """Once the first clients have left, ten times the rate that can be served yields almost as many answers."""
    found = run_in_virtual_time(overload([Clients("a", 20.0)], times=10))
    assert found["answered"] >= 0.9 * CAPACITY


def test_a_tenant_whose_clients_leave_early_does_not_refuse_those_of_another():
    hasty, patient = Clients("a", 5.0, share=0.9), Clients("b", inf, share=0.1)
    found = run_in_virtual_time(overload([hasty, patient], times=3))
    assert found["refused, a"] > 0.0
    assert "refused, b" not in found
