"""The traces are those of the published figures."""

from load.trace import HttpRequest
from load.workloads import paper


def test_the_papers_trace() -> None:
    trace = paper()
    assert len(trace) == 64
    assert sum(len(request.prompt) for request in trace) == 17_553
    assert sum(request.max_new_tokens for request in trace) == 3_871
    assert paper(8) == trace[:8]
    assert paper(8, seed=1) != trace[:8]


def test_the_choices_of_an_http_request() -> None:
    bodies = [{"prompt": "a"}, {"prompt": [1, 2]}, {"prompt": ["a", "b"], "n": 3}, {"prompt": [[1], [2]]}, {"n": 2}]
    assert [HttpRequest("/", body).choices for body in bodies] == [1, 1, 6, 2, 2]
