"""A request takes about as much memory of the server as the bytes that are counted for it."""

import secrets
from dataclasses import replace

import pytest
from pool_helpers import STOP, Owner, commit, group, keys

from services.messages import Logprobs, NewSequence, Room, Submission
from services.pool.limits import Limits
from services.requests import SamplingParams

FACTOR = 1.5  # of the counted bytes; it covers the allocator's rounding and the growth of tables
SLACK = 1 << 20  # bytes of temporary buffers and logs
PROMPT, LENGTH = list(range(100_000, 104_000)), 8000
ALL_STOPS = {
    "stop": tuple(f"{i:03d}" + "x" * 1000 for i in range(4)),
    "stop_token_ids": tuple(range(128)),
    "logit_bias": {100_000 + i: 1.5 for i in range(1024)},
}


def many(request, prompts, n, new, **sampling):
    """A group as gateways make it, with `n` choices of each prompt."""
    asked = SamplingParams(new, **sampling)
    places = [prompt for prompt in prompts for _ in range(n)]
    sequences = [NewSequence(f"{request}/{i}", prompt, replace(asked, choice=i)) for i, prompt in enumerate(places)]
    return Submission(request, "gateway", sequences, background=True)


KINDS = {
    "stops and biases": (4, lambda name: many(name, [[1] for _ in range(16)], 128, 16, **ALL_STOPS)),
    "small": (400, lambda name: many(name, [[1, 2, 3]], 1, 1)),
    "long prompts": (100, lambda name: many(name, [PROMPT], 4, 1)),
    "bodies": (50, lambda name: replace(group(name, body=secrets.token_bytes(50_000)), background=True)),
}


async def memory(pool):
    """What counts towards the server's `maxmemory`: not buffers of an append-only file that is being rewritten."""
    info = await pool._server._scripts.info("memory")
    return info["used_memory"] - info["mem_not_counted_for_evict"]


def name_of(i):
    return f"chatcmpl-{i:032x}"


@pytest.mark.parametrize("kind", KINDS)
async def test_waiting_requests_take_the_counted_memory(server_pools, kind):
    count, make = KINDS[kind]
    pool = await server_pools(Limits(max_waiting=1 << 20))
    before = await memory(pool)
    for i in range(count):
        assert (await pool.submit(make(name_of(i)))).refused is None
    counted, taken = (await pool.overview()).bytes, await memory(pool) - before
    assert taken <= FACTOR * counted + SLACK
    for i in range(count):
        await pool.cancel(name_of(i))
    counted, taken = (await pool.overview()).bytes, await memory(pool) - before
    assert taken <= FACTOR * counted + SLACK


async def test_output_takes_the_counted_memory(server_pools):
    """Tokens and log probabilities, one at a time as engines generate them, while sequences run and after their end."""
    pool = await server_pools()
    owner, top = await Owner.take(pool), [(150_000 + i, -1.25) for i in range(20)]
    await pool.submit(many("plain", [[1]], 16, 8192))
    await pool.submit(many("scored", [[1]], 4, 512, logprobs=20))
    await pool.submit(many("short", [[1]], 4, 8192, logprobs=20))
    await pool.unregister("gateway")
    before = await memory(pool)
    assert len(await owner.claim(Room(24, 100_000, 16))) == 24
    one = Logprobs(-1.5, top)
    for start in range(0, 8192, 1024):
        await owner.exchange(*(commit(f"plain/{i}", start, *[200_000] * 1024) for i in range(16)))
    for start in range(0, 512, 64):
        await owner.exchange(*(commit(f"scored/{i}", start, *[9] * 64, logprobs=[one] * 64) for i in range(4)))
    await owner.exchange(*(commit(f"short/{i}", 0, 9, logprobs=[one]) for i in range(4)))
    open_bytes, taken = (await pool.overview()).bytes, await memory(pool) - before
    assert taken <= FACTOR * open_bytes + SLACK
    ends = [(f"plain/{i}", 8192) for i in range(16)] + [(f"scored/{i}", 512) for i in range(4)]
    ends += [(f"short/{i}", 1) for i in range(4)]
    await owner.exchange(*(commit(id, index, end=STOP) for id, index in ends))
    counted, taken = (await pool.overview()).bytes, await memory(pool) - before
    assert taken <= FACTOR * counted + SLACK
    assert counted < open_bytes - 3 * 8192 * 300  # the tokens that `short` did not generate are no longer counted


async def test_abandoned_requests_exceed_no_bound(server_pools):
    """The same large body again and again; its gateway stops listening at once."""
    bound = 5 << 19
    pool = await server_pools(Limits(max_bytes=bound))
    before = await memory(pool)
    _, make = KINDS["stops and biases"]
    for i in range(5):
        assert (await pool.submit(replace(make(name_of(i)), background=False))).refused is None
        await pool.unlisten("gateway", name_of(i))
    assert (await pool.overview()).bytes <= bound
    assert await memory(pool) - before <= FACTOR * bound + SLACK


async def test_an_ended_group_has_no_prompts_and_sampling_parameters(server_pools):
    pool = await server_pools()
    await pool.submit(many("r", [[1], [2]], 2, 4))
    fields = {key.decode() for key in await pool._server.command("HKEYS", f"{pool._prefix}group:r")}
    assert {"prompt1", "prompt2", "sampling1"} <= fields
    assert "sampling2" not in fields
    await pool.cancel("r")
    fields = {key.decode() for key in await pool._server.command("HKEYS", f"{pool._prefix}group:r")}
    assert not {field for field in fields if field.startswith(("prompt1", "prompt2", "sampling1"))}
    await pool.delete("r")
    assert not {key for key in await keys(pool) if key.startswith(("tenant:", "holders", "ended"))}
