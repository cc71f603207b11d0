"""The bodies that are sent to block a gateway's event loop are valid JSON of the stated size."""

from __future__ import annotations

import orjson

from load.bench.loop_holds.bodies import HEAD, attacks

LONGEST = 64 << 10


def test_each_body_is_json_of_at_most_the_length() -> None:
    made = list(attacks(LONGEST))
    assert len({(attack.path, attack.name) for attack in made}) == len(made)
    for attack in made:
        assert isinstance(orjson.loads(attack.body), dict)
        fixed = "stops and biases" in attack.name or attack.name in ("4,096 messages", "a prompt scored")
        assert fixed or len(attack.body) <= LONGEST + HEAD
