"""The traces are those that published figures were measured with."""

from load.workloads import equal_size, paper, short_long_mix, single


def test_the_papers_trace() -> None:
    trace = paper()
    assert len(trace) == 64
    assert sum(len(job.prompt) for job in trace) == 17_553
    assert sum(job.max_new_tokens for job in trace) == 3_871
    assert paper(8) == trace[:8]
    assert paper(8, seed=1) != trace[:8]


def test_the_walkthroughs_workloads() -> None:
    assert [(len(job.prompt), job.max_new_tokens) for job in short_long_mix(3)] == [(32, 32), (512, 128), (32, 32)]
    assert {(len(job.prompt), job.max_new_tokens) for job in equal_size()} == {(128, 128)}
    assert len(short_long_mix()) == len(equal_size()) == 16
    assert [(len(job.prompt), job.max_new_tokens) for job in single()] == [(128, 128)]
