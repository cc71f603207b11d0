"""RequestLevelScheduler: no request joins before the whole batch has ended."""

from services.messages import Room
from services.scheduling import RequestLevelScheduler
from tests.services.scheduling.scripted import claim, scripted


def test_the_batch_is_fixed_until_its_last_request_ends() -> None:
    s = scripted(RequestLevelScheduler, batch=2)
    s.scheduler.add([claim("a", 1, 3, 1), claim("b", 2, 3, 3), claim("c", 3, 3, 1)])
    batches = []
    while s.select():
        batches.append(list(s.batch))
        s.finish()
    assert batches == [["a", "b"], ["b"], ["b"], ["c"]]


def test_room_is_offered_only_for_a_whole_batch() -> None:
    s = scripted(RequestLevelScheduler, batch=2, blocks=10)
    assert s.scheduler.room() == Room(2, 10, 4, longest=40)
    s.scheduler.add([claim("a", 1, 3, 1), claim("b", 2, 3, 2)])
    s.select()
    assert s.scheduler.room() == Room(0, 0, 4)  # a ends, b does not
    s.finish()
    s.select()
    assert s.scheduler.room() == Room(2, 10, 4, longest=40)  # the last ends by length
    s.finish()


def test_a_cancelled_batch_makes_room() -> None:
    s = scripted(RequestLevelScheduler, batch=2, blocks=10)
    s.scheduler.add([claim("a", 1, 3, 9)])
    s.step()
    assert s.scheduler.room().requests == 0
    s.scheduler.cancel(["a"])
    assert s.scheduler.room() == Room(2, 10, 4, longest=40)
