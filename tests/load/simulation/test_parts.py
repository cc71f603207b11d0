"""Each part of the simulator at a small scale prints the expected rows, the same twice."""

import pytest

from gateway.pool_client.event_reader import PAUSE
from load.curves import Curve, Point, sweep
from load.simulation import __main__ as simulate
from load.simulation import paper, plan
from load.simulation.cost import TABLE_1
from load.simulation.paper import Scale
from load.simulation.pool import Price, Reads
from load.trace import Answer
from load.workloads import sized
from services.messages import Commit, Exchange, Room


def test_the_paper_part_is_the_same_twice_and_draws(tmp_path):
    partition = TABLE_1["175B"]
    scale = Scale(batch_sizes=(8,), least=4, each=1, baseline=8)
    report = paper.report({"175B": partition}, scale, tmp_path)
    assert paper.curves_table(paper.figure_10(partition, scale)) in report
    assert "| orca(8) | " in report
    assert "| ft(8, 8) | " in report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure_10.png", "figure_11.png"]


def test_the_plan_part_is_the_same_twice_and_draws(tmp_path):
    load = plan.Load(running=4, warm_up=0.2, seconds=0.2)
    report = plan.report(load, (1, 2), ((4, 2),), tmp_path)
    assert report == plan.report(load, (1, 2), ((4, 2),), None)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.png"]


def test_an_exchange_costs_by_its_commits_and_tokens():
    price = Price(exchange=100.0, commit=10.0, token=1.0)
    commits = [Commit("a", 0, [5]), Commit("b", 0, [5, 5, 5]), Commit("c", 0, [])]
    exchange = Exchange("s", "e", 1, commits, Room(0, 0, 16))
    assert price.of(exchange) == 100 + 30 + 2


def test_a_gateway_reads_the_events_of_several_exchanges_at_once():
    reads = Reads(gateways=2)
    assert reads.caused(0.0, commits=64) == 2
    assert reads.caused(0.1 * PAUSE, commits=64) == 2  # read after the pause
    assert reads.caused(0.9 * PAUSE, commits=64) == 0  # with those
    assert reads.caused(5.0 * PAUSE, commits=1) == 1  # a gateway without a sequence hears nothing


def test_a_gateway_for_each_processor_of_chunks():
    load = plan.Load(running=64, iteration=0.020)
    assert (load.gateways(1), load.gateways(10), load.gateways(11)) == (1, 1, 2)  # 3,200 chunks a second of 0.028 ms


def test_a_full_engine_gives_all_it_can_and_a_pool_with_too_many_does_not():
    load = plan.Load(running=8, iteration=0.002, warm_up=0.1, seconds=0.1)
    alone, many = plan.carry(1, load), plan.carry(20, load)
    assert alone.filled == pytest.approx(1.0, abs=0.02)
    assert many.server_busy == pytest.approx(1.0, abs=0.02)
    assert many.filled < alone.filled
    assert many.exchange > alone.exchange


def test_a_curve_is_read_between_its_points():
    curve = Curve("", 4.0, [Point(1.0, 0.1), Point(2.0, 0.2), Point(3.0, 0.6)])
    assert curve.throughput_at(0.05) == 0.0
    assert curve.throughput_at(0.15) == pytest.approx(1.5)
    assert curve.throughput_at(0.4) == pytest.approx(2.5)
    assert curve.throughput_at(1.0) == 3.0


def test_a_sweep_loads_a_share_of_the_peak():
    def serve(trace):  # one request at a time, a second each
        end, served = 0.0, []
        for request in trace:
            end = max(end, request.at) + 1.0
            served.append(Answer(request, request.at, times=[end]))
        return served

    curve = sweep("", [sized(1, 1)] * 100, serve, lambda served: served[0].latency, loads=(0.1, 0.5))
    assert curve.peak == 1.0
    assert [point.throughput for point in curve.points] == pytest.approx([0.1, 0.5], rel=0.25)


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        simulate.main(["--part", "nothing"])
    assert "'nothing'" in capsys.readouterr().err
