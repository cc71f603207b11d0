"""Metrics: increments of several processes add up to one Prometheus page."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from services.messages import EngineFigures
from services.metrics import Counters, ModelPage, Wanted, render
from services.metrics.counters import total
from services.metrics.declared import (
    COUNTERS,
    ENGINE,
    GATEWAY_COUNTERS,
    GATEWAY_GAUGES,
    HISTOGRAMS,
    OPTIONAL_GAUGES,
    POOL_GAUGES,
    SEAT_GAUGES,
    TENANT,
)
from services.overview import Overview, SeatOverview
from services.requests import FinishReason

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
MODEL = ("model_name", "tiny")
GATEWAYS = {"ab": {"requests": 3.0, "cpu": 1.5, "memory": 7.0, "lag": 0.0}}


def page(*takes: dict[str, float], **gauges: float) -> Samples:
    sums: Counter[str] = Counter()
    for take in takes:
        sums.update(take)
    return shown([SeatOverview("c/0", True, None, 3, {"kv_usage": 0.5} | gauges, "")], sums)


def shown(seats: list[SeatOverview], sums: dict[str, float], wanted: dict[str, int] | None = None) -> Samples:
    overview = Overview(7, 3, 2, 99, None, seats, dict(sums), 1, gateway_gauges=GATEWAYS, wanted=wanted or {})
    families = text_string_to_metric_families(render([ModelPage("tiny", {0: overview}, Wanted(2, 3, 1000))]).decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def test_several_shards_are_told_apart_by_a_label() -> None:
    """One does not answer. Wanted engines are dealt to shards; gateways register in each pool, and are shown once."""
    seat, sums = SeatOverview("c/0", True, None, 3, {"kv_usage": 0.5}, ""), {"orca:reclaimed_requests": 2.0}
    overview = Overview(7, 3, 2, 99, None, [seat], sums, 1, gateway_gauges=GATEWAYS)
    overviews = {0: overview, 2: None, 5: overview}
    families = list(text_string_to_metric_families(render([ModelPage("tiny", overviews, Wanted(4, 3, 1000))]).decode()))
    samples = [sample for family in families for sample in family.samples]

    def by_shard(name: str) -> dict[str | None, float]:
        return {sample.labels.get("shard"): sample.value for sample in samples if sample.name == name}

    assert len(families) == len({family.name for family in families})
    assert by_shard("orca:pool_answers") == {"0": 1, "2": 0, "5": 1}
    assert by_shard("orca:engines_wanted") == {"0": 2, "5": 1}
    assert by_shard("orca:reclaimed_requests_total") == {"0": 2, "5": 2}
    assert by_shard("orca:gateway_requests") == {None: 3}


def labels(**values: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((MODEL, *values.items())))


def test_counters_of_two_processes_add_up() -> None:
    a, b = Counters(), Counters()
    a.inc("vllm:request_success", engine="0", finished_reason="stop")
    b.inc("vllm:request_success", 2, finished_reason="stop", engine="0")
    b.inc("vllm:request_success", engine="1", finished_reason="length")
    taken = a.take(), b.take()
    samples = page(*taken)
    assert samples["vllm:request_success_total", labels(engine="0", finished_reason="stop")] == 3
    assert samples["vllm:request_success_total", labels(engine="1", finished_reason="length")] == 1
    assert total(Counter(taken[0]) + Counter(taken[1]), "vllm:request_success") == 4
    assert a.take() == {}


def test_histogram_buckets_are_cumulative_and_end_in_the_count() -> None:
    counters = Counters()
    for value in (0.5, 3, 3, 10**9):
        counters.observe("vllm:iteration_tokens_total", value, engine="0")
    samples = page(counters.take())

    def bucket(bound: str) -> float:
        return samples["vllm:iteration_tokens_total_bucket", labels(engine="0", le=bound)]

    assert [bucket("1.0"), bucket("2.0"), bucket("4.0"), bucket("+Inf")] == [1, 1, 3, 4]
    assert samples["vllm:iteration_tokens_total_count", labels(engine="0")] == 4


def test_every_metric_that_is_not_divided_further_than_by_engines_is_on_the_page_from_the_start() -> None:
    names = {name for name, _ in page()}
    for name, counter in COUNTERS.items():
        assert counter.labels not in ((), ENGINE) or f"{name}_total" in names
    for name, histogram in HISTOGRAMS.items():
        assert histogram.labels not in ((), ENGINE) or f"{name}_count" in names
    for name, _ in (*SEAT_GAUGES.values(), *GATEWAY_GAUGES.values()):
        assert name in names
    assert set(POOL_GAUGES) <= names
    assert {f"{name}_total" for name, _ in GATEWAY_COUNTERS.values()} <= names


def test_ends_of_requests_and_lines_of_batches_are_on_the_page_before_the_first_one() -> None:
    samples = page()
    for reason in FinishReason:
        assert samples["vllm:request_success_total", labels(engine="0", finished_reason=reason.value)] == 0
        tenant = labels(tenant="default", priority="0", finished_reason=reason.value)
        assert samples["orca:tenant_requests_total", tenant] == 0
    for file in ("output", "error"):
        assert samples["orca:batch_lines_total", labels(file=file)] == 0


def test_an_optional_gauge_is_not_shown_as_zero() -> None:
    names = {name for name, _ in OPTIONAL_GAUGES.values()}
    assert not names & {name for name, _ in page()}
    samples = page(token_budget=512, paused=0)
    assert [samples[name, labels(engine="0")] for name in ("orca:token_budget", "orca:paused_requests")] == [512, 0]


def test_different_numerics_of_engines_are_counted() -> None:
    def kinds(*numerics: str, alive: int = 9, name: str = "orca:numerics") -> float:
        seats = [
            SeatOverview(f"c/{i}", i < alive, EngineFigures("m", 256, 8, 16, 320, each), 0, {}, "")
            for i, each in enumerate(numerics)
        ]
        return shown(seats, {})[name, labels()]

    assert kinds() == 0
    assert kinds("a", "a") == 1
    assert kinds("a", "b", "b") == 2
    assert kinds("a", "b", alive=1) == 1
    assert kinds("r cpu native 1a", "r cpu sdpa fallback 2b", "r cpu sdpa 2b", name="orca:fallback_engines") == 1


def test_the_weights_of_each_living_engine_are_on_the_page() -> None:
    seats = [
        SeatOverview(f"c/{i}", i < 2, EngineFigures("m", 256, 8, 16, 320, "n", f"as {i}", 10 + i), 0, {}, "")
        for i in range(3)
    ]
    samples = shown(seats, {})
    assert [samples["orca:weight_bytes", labels(engine=str(i))] for i in range(2)] == [10, 11]
    asleep = shown([replace(seat, gauges={"sleep": level}) for seat, level in zip(seats, (1, 2, 0), strict=True)], {})
    assert [asleep["orca:weight_bytes", labels(engine=str(i))] for i in range(2)] == [10, 0]
    assert samples["orca:weights_info", labels(engine="0", weights="as 0")] == 1
    assert len([name for name, _ in samples if name == "orca:weights_info"]) == 2
    assert samples["vllm:cache_config_info", labels(engine="1", block_size="16", num_gpu_blocks="8")] == 1


def test_what_the_settings_ask_for_stands_beside_what_there_is() -> None:
    samples = page()
    there = [samples[name, labels()] for name in ("orca:engines", "orca:gateways", "orca:pool_bytes")]
    wanted = [
        samples[name, labels()] for name in ("orca:engines_wanted", "orca:gateways_wanted", "orca:pool_bytes_limit")
    ]
    assert (there, wanted) == ([1, 1, 99], [2, 3, 1000])


def test_the_engines_that_living_clusters_are_to_have_take_the_place_of_the_setting() -> None:
    """During an upgrade two clusters share the pool; of a cluster that died the pool still has the number."""
    seats = [
        SeatOverview("a/0", True, None, 0, {}, ""),
        SeatOverview("b/0", True, None, 0, {}, ""),
        SeatOverview("c/0", False, None, 0, {}, ""),
    ]
    assert shown(seats, {}, {"a": 3, "b": 1, "c": 5})["orca:engines_wanted", labels()] == 4
    assert shown(seats[2:], {}, {"c": 5})["orca:engines_wanted", labels()] == 2


def test_engines_of_two_clusters_with_one_number_keep_their_gauges_apart() -> None:
    seats = [SeatOverview(f"{c}/0", True, None, 0, {"kv_usage": kv}, "") for c, kv in (("a", 0.25), ("b", 0.5))]
    samples = shown([*seats, SeatOverview("a/1", True, None, 0, {"kv_usage": 0.75}, "")], {})
    usage = {dict(key[1])["engine"]: value for key, value in samples.items() if key[0] == "vllm:kv_cache_usage_perc"}
    assert usage == {"a/0": 0.25, "b/0": 0.5, "1": 0.75}


@settings(max_examples=30)
@given(
    tenants=st.lists(
        st.sampled_from(["default", "a|b", "%7C"]) | st.text(min_size=1, max_size=4), min_size=1, unique=True
    ),
    named=st.integers(0, 4),
)
def test_tenants_beyond_the_named_ones_share_one_series_and_none_is_lost(tenants: list[str], named: int) -> None:
    counters = Counters(tenants[:named])
    for tenant in tenants:
        counters.inc("orca:tenant_prompt_tokens", 2, tenant=tenant, priority="0")
    samples = page(counters.take())
    by_tenant = {dict(k)["tenant"]: v for (n, k), v in samples.items() if n == "orca:tenant_prompt_tokens_total"}
    expected = Counter({"default": 0})  # which is there from the start
    for tenant in tenants:
        expected[tenant if tenant in ("default", *tenants[:named]) else "other"] += 2
    assert by_tenant == expected


def test_sums_of_an_earlier_build_with_other_labels_are_not_shown() -> None:
    samples = page({"orca:iterations": 5.0, "orca:iterations|0": 2.0, "vllm:time_to_first_token_seconds_sum": 1.0})
    assert samples["orca:iterations_total", labels(engine="0")] == 2
    assert ("orca:iterations_total", labels()) not in samples
    sums = [value for (name, _), value in samples.items() if name == "vllm:time_to_first_token_seconds_sum"]
    assert sums == [0.0]


def test_labels_are_those_that_are_documented() -> None:
    known = {"finished_reason", "reason", "file", "position", *ENGINE, *TENANT}
    assert {label for metric in (*COUNTERS.values(), *HISTOGRAMS.values()) for label in metric.labels} <= known
