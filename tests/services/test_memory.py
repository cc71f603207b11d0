"""Which engines may have a machine's memory: never more than there is, and every model that waits gets its turn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from services.memory import FIRST, IDLE, Memory, Share, Wish

TURN = 20.0
MOST = 10  # bytes
MEMORY = Memory(MOST, True, TURN)


def share(engine: str, bytes: int, since: float = 0.0, used: float = 0.0, model: str = "") -> Share:
    return Share(engine, model or engine, bytes, since, used)


def leaving(shares: list[Share], now: float, bytes: int = 6, model: str = "w", memory: Memory = MEMORY) -> set[str]:
    return memory.leaving([Wish("w", model, bytes, 0.0)], shares, now)


def test_nothing_leaves_where_there_is_room() -> None:
    assert leaving([share("a", 4)], 1000.0) == set()
    assert MEMORY.leaving([], [share("a", 10)], 1000.0) == set()


def test_the_least_recently_used_idle_engine_leaves() -> None:
    shares = [share("a", 4, used=50.0), share("b", 4, used=40.0), share("c", 2, used=95.0)]
    assert leaving(shares, 100.0, bytes=4) == {"b"}
    assert leaving(shares, 100.0, bytes=8) == {"a", "b"}


def test_no_engine_leaves_in_vain() -> None:
    small, large = share("a", 2, used=40.0), share("b", 7, used=50.0)
    assert leaving([small, large], 100.0, bytes=8) == {"b"}
    assert leaving([share("a", 4, used=40.0), share("b", 6, since=99.0, used=100.0)], 100.0, bytes=10) == set()


def test_a_busy_engine_leaves_when_its_turn_is_over() -> None:
    assert leaving([share("a", 6, since=90.0, used=100.0)], 100.0) == set()
    assert leaving([share("a", 6, since=80.0, used=100.0)], 100.0) == {"a"}
    busy = [share("a", 5, since=70.0, used=100.0), share("b", 5, since=60.0, used=100.0)]
    assert leaving(busy, 100.0, bytes=5) == {"b"}


def test_an_engine_that_loads_or_has_just_loaded_stays() -> None:
    loading = Share("a", "a", 6)
    assert leaving([loading], 1000.0) == set()
    assert leaving([share("a", 6, since=100.0, used=100.0 + FIRST)], 105.0) == set()


def test_no_engine_leaves_for_one_of_its_own_model() -> None:
    assert leaving([share("a", 6, used=1.0, model="w")], 1000.0) == set()
    assert leaving([share("a", 5, model="w"), share("b", 5, used=999.9)], 1000.0, bytes=5) == set()  # b is busy
    assert leaving([share("a", 5, model="w"), share("b", 5, used=1.0)], 1000.0, bytes=5) == {"b"}


def test_a_model_without_an_engine_goes_first() -> None:
    second, other = Wish("a2", "a", 4, 1.0), Wish("b", "b", 4, 2.0)
    assert MEMORY.first([second, other], [share("a1", 4, model="a")]) is other
    assert MEMORY.first([other, second], []) is second
    assert MEMORY.first([replace(second, bytes=7), other], [share("a1", 4, model="a")]) is other


def test_engines_of_one_model_are_not_bounded_unless_the_operator_says_so() -> None:
    found = replace(MEMORY, given=False)
    wish, sibling = Wish("w", "a", 8, 0.0), share("a1", 8, model="a")
    assert found.fits(wish, [sibling])
    assert not MEMORY.fits(wish, [sibling])
    assert not found.fits(wish, [sibling, share("b", 1)])
    assert found.fits(replace(wish, bytes=11), [])


@dataclass
class Machine:
    """A machine with an engine for each model, which does what its owners and processes do."""

    bytes: list[int]
    memory: Memory
    now: float = 0.0
    shares: dict[str, Share] = field(default_factory=dict)
    wishes: dict[str, Wish] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)

    def step(self, busy: set[str], dead: set[str]) -> None:
        """A second in which these engines have requests, and those die."""
        self.now += 1.0
        for engine in dead:
            self.shares.pop(engine, None)
            self.wishes.pop(engine, None)
        for engine, share in self.shares.items():
            ready = replace(share, since=min(share.since, self.now))
            self.shares[engine] = replace(ready, used=self.now if engine in busy else min(share.used, self.now + FIRST))
        for engine in self.memory.leaving([*self.wishes.values()], [*self.shares.values()], self.now):
            del self.shares[engine]
        for number, bytes in enumerate(self.bytes):
            engine = str(number)
            if engine in busy and engine not in self.shares:
                wish = self.wishes.setdefault(engine, Wish(engine, engine, bytes, self.now))
                first = self.memory.first([*self.wishes.values()], [*self.shares.values()])
                if first is wish and self.memory.fits(wish, [*self.shares.values()]):
                    self.shares[engine] = Share(engine, engine, bytes)
                    self.turns[engine] = self.turns.get(engine, 0) + 1
                    del self.wishes[engine]
        assert sum(share.bytes for share in self.shares.values()) <= self.memory.bytes


engines = st.lists(st.integers(1, MOST), min_size=2, max_size=5)


@given(engines, st.lists(st.tuples(st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4), max_size=1)), max_size=60))
def test_engines_never_have_more_than_there_is(sizes: list[int], seconds: list[tuple[set[int], set[int]]]) -> None:
    machine = Machine(sizes, MEMORY)
    for busy, dead in seconds:
        machine.step({str(each) for each in busy}, {str(each) for each in dead})


@given(engines, st.integers(0, 4))
def test_every_busy_model_gets_a_turn_again_and_again(sizes: list[int], dying: int) -> None:
    """Also if the engine of one of them dies all the time."""
    machine = Machine(sizes, MEMORY)
    everyone = {str(number) for number in range(len(sizes))}
    longest = len(sizes) * (TURN + 3)
    for second in range(int(3 * longest)):
        machine.step(everyone, {str(dying)} if second % 7 == 0 else set())
        assert all(machine.now - wish.since <= longest for wish in machine.wishes.values())
        assert machine.shares


@given(engines)
def test_where_all_fit_each_loads_once(sizes: list[int]) -> None:
    machine = Machine(sizes, replace(MEMORY, bytes=sum(sizes)))
    for second in range(100):
        machine.step({str(number) for number in range(len(sizes)) if (second // 5) % 2 or number % 2}, set())
    assert set(machine.turns.values()) == {1}
    assert IDLE < FIRST < TURN
