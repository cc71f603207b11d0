"""A trace over HTTP against a small server: when requests are sent, and the tokens and times of their answers."""

from __future__ import annotations

import orjson

from load.over_http import NO_ID, run_over_http
from load.trace import Request
from tests.services.client.sse_server import Asked, Reply, SseServer, frame
from tests.services.client.streams import chunks_of, events


def frames(start: list[int] | None = None) -> list[bytes]:
    return [frame(event.data.encode(), event.id) for event in events(chunks_of("r", [[5, 6, 7]], start))]


async def test_answers_have_tokens_and_times_also_over_a_connection_that_breaks() -> None:
    def reply(asked: Asked) -> Reply:
        return Reply(frames([2])) if asked.last_id else Reply(frames()[:3], cut=True)

    with SseServer() as server:
        server.reply = reply
        run = await run_over_http(server.url, [Request([1, 2], 3), Request([3], 3, at=0.2)])
        bodies = [asked.body for asked in server.asked if not asked.last_id]
    assert run.outputs == [[5, 6, 7]] * 2
    assert run.tokens == 6
    for answer in run.answers:
        assert answer.times == sorted(answer.times)
        assert len(answer.times) == 3
        assert answer.arrived >= answer.request.at
        assert answer.chunks == len(chunks_of("r", [[5, 6, 7]])) + 1  # the opening event came on both connections
    assert run.seconds == run.answers[1].times[-1] > 0.2
    assert [body["prompt"] for body in bodies] == [[1, 2], [3]]
    assert [body["max_tokens"] for body in bodies] == [3, 3]


async def test_a_server_that_names_no_ids_sends_a_token_in_each_event_with_text() -> None:
    texts = ["a", "", "b", ""]
    sent = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in texts]
    sent[-1]["choices"][0]["finish_reason"] = "length"
    usage = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 4}}
    with SseServer() as server:
        server.reply = lambda asked: Reply(
            [frame(orjson.dumps(one), "") for one in [*sent, usage]] + [frame(b"[DONE]", "")]
        )
        run = await run_over_http(server.url, [Request([1, 2], 4)], reuse=False)
    assert run.outputs == [[NO_ID] * 4]
    assert len(run.answers[0].times) == 4
