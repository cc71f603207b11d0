"""For each rule, a small history that breaks it is reported, and the correct one is not."""

from __future__ import annotations

import pytest

from load.chaos.pool_history import replay
from tests.load.chaos.pool_file import (
    RIGHT,
    Commands,
    acquire,
    append,
    at,
    attached,
    cancel,
    claim,
    command,
    end,
    exchange,
    forget,
    pack,
    publish,
    released,
    renew,
    said_dead,
    submit,
    transactions,
    vacate,
    wait_again,
)


def rules(*all: Commands) -> list[str]:
    history = replay(transactions(*all))
    history.check_finished()
    return [violation.rule for violation in history.violations]


def test_a_correct_history_passes() -> None:
    history = replay(transactions(*RIGHT))
    history.check_finished()
    assert history.violations == []
    assert (history.sequences["r/0"].tokens, history.sequences["r/1"].tokens) == ([5, 6], [7])


def test_a_submission_with_the_tokens_that_the_pool_lost() -> None:
    run = [exchange("s", 1, claim("s", "r/0")), exchange("s", 9, append("r/0", 6), end("r/0", "s"))]
    history = replay(transactions(submit("r", have=(4, 5)), acquire("s", "1:a"), *run))
    assert (history.violations, history.sequences["r/0"].tokens) == ([], [4, 5, 6])


def test_deleted_while_it_ended() -> None:
    begin = [submit("r"), acquire("s", "1:a"), exchange("s", 1, claim("s", "r/0"))]
    assert rules(*begin, exchange("s", 2, end("r/0", "s"), forget("r"))) == []


START = [submit("r"), acquire("s", "1:a"), acquire("t", "2:b"), exchange("s", 1, claim("s", "r/0"))]
DONE = exchange("s", 2, append("r/0", 5), end("r/0", "s"))
AGAIN = [command("HSET", "seq:r/0", "state", "ended", "end", "x"), command("HINCRBY", "group:r", "open", 0)]
BROKEN: dict[str, tuple[str, list[Commands]]] = {
    "nothing ends it": ("unfinished", []),
    "it ends twice": ("ended twice", [DONE, AGAIN]),
    "it waits after its end": ("state", [DONE, wait_again("r/0")]),
    "it ends, is forgotten and comes again": ("state", [DONE, forget("r"), submit("r"), cancel("r/0")]),
    "it runs without having waited": ("state", [exchange("s", 2, claim("s", "r/0")), DONE]),
    "a claim for another seat": ("claim", [vacate("s", "r/0"), exchange("t", 1, claim("s", "r/0")), DONE]),
    "a claim of a seat without an owner": ("claim", [vacate("s", "r/0"), exchange("s", 1, claim("s", "r/0")), DONE]),
    "tokens of another seat": ("fence", [exchange("t", 1, append("r/0", 5)), DONE]),
    "tokens outside an exchange": ("fence", [append("r/0", 5), DONE]),
    "tokens of one that waits": ("fence", [vacate("s", "r/0"), exchange("t", 1, append("r/0", 5)), cancel("r/0")]),
    "tokens of one that ended": ("fence", [DONE, exchange("s", 3, append("r/0", 5))]),
    "tokens under another epoch": ("fence", [[command("HDEL", "seat:s", "epoch"), *acquire("s", "3:c")], DONE]),
    "a seat given while it is held": ("fence", [acquire("s", "3:c"), DONE]),
    "an epoch that was used before": ("fence", [vacate("t"), acquire("t", "1:a"), DONE]),
    "an exchange of an owner whose time is over": ("fence", [DONE, exchange("s", 2)]),
    "an engine with other bits": ("numerics", [DONE, attached("s", "native 1"), attached("t", "native 2")]),
    "an exchange without an owner": ("fence", [DONE, vacate("t"), exchange("t", 5)]),
    "more tokens than asked for": ("tokens", [exchange("s", 2, append("r/0", *range(9)), end("r/0", "s"))]),
    "a seat taken under a living lease": ("takeover", [at(1, vacate("t") + acquire("t", "3:c", 1)), DONE]),
    "a lease that another epoch gave back": ("takeover", [at(1, released("t", "1:a") + vacate("t")), DONE]),
    "a lease that is too long": ("takeover", [at(1, renew("t", 2)), DONE]),
    "half a token": ("tokens", [exchange("s", 2, [command("APPEND", "tok:r/0", b"abc")], end("r/0", "s"))]),
    "tokens set anew": ("changed", [DONE, [command("SET", "tok:r/0", pack(6))]]),
    "a token overwritten": ("changed", [DONE, [command("SETRANGE", "tok:r/0", 0, pack(6))]]),
    "on two seats": ("place", [exchange("t", 1, [command("SADD", "running:t", "r/0")]), DONE]),
    "on no seat": ("place", [exchange("s", 2, [command("SREM", "running:s", "r/0")]), DONE]),
    "in the queue while it runs": ("place", [[command("ZADD", "waiting:default", 1, "r/0")], DONE]),
    "its seat vacated alone": ("place", [[command("HDEL", "seat:s", "epoch")], vacate("s", "r/0"), cancel("r/0")]),
    "the group counts otherwise": ("place", [DONE[:-2] + DONE[-1:]]),
    "told otherwise than committed": ("published", [exchange("s", 2, append("r/0", 5), publish("r/0", 0, 6)), DONE]),
    "told before it was committed": ("published", [exchange("s", 2, publish("r/0", 0, 5)), DONE]),
    "forgotten while it runs": ("forgotten early", [forget("r"), DONE]),
}


@pytest.mark.parametrize(("rule", "after"), BROKEN.values(), ids=BROKEN.keys())
def test_a_planted_violation_is_reported(rule: str, after: list[Commands]) -> None:
    assert rule in rules(*START, *after)


LEFT: dict[str, list[Commands]] = {
    "a lease that ran out": [at(6, vacate("t") + acquire("t", "3:c", 6)), at(7, renew("s", 7)), DONE],
    "given back": [at(1, released("t", "2:b") + vacate("t")), DONE],
    "of one that is dead": [at(1, said_dead("t", "2:b") + vacate("t") + acquire("t", "3:c", 1)), DONE],
}


@pytest.mark.parametrize("after", LEFT.values(), ids=LEFT.keys())
def test_how_a_seat_may_change_its_owner(after: list[Commands]) -> None:
    assert rules(*START, *after) == []


def test_a_renewed_lease_lives_longer() -> None:
    taken = [at(4, renew("t", 4)), at(6, vacate("t") + acquire("t", "3:c", 6)), DONE]
    assert rules(*START, *taken) == ["takeover"]


def test_the_history_before_the_planted_violations_is_correct() -> None:
    assert rules(*START, DONE) == []


# entries without information of their own, or about a seat that no process takes again
SILENT = {"XADD events:g", "ZADD leases", "HDEL seq:r/0", "HDEL seq:r/1", "DEL seq:r/0", "DEL seq:r/1", "DEL group:r"}


def test_no_command_that_matters_can_be_left_out() -> None:
    for number, commands in enumerate(RIGHT):
        for index, (name, key, *_) in enumerate(commands):
            label = f"{name.decode()} {key.decode().removeprefix('orca:{test}:')}"
            last_vacated = number == 7 and label == "HDEL seat:s"
            cut = [c if n != number else c[:index] + c[index + 1 :] for n, c in enumerate(RIGHT)]
            assert bool(rules(*cut)) != (label in SILENT or last_vacated), f"transaction {number} without {label}"
