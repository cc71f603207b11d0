"""A pool whose master is named by real Sentinels: passwords, a failover, the master's death, an isolated master."""

import asyncio

import pytest
from pool_helpers import Owner, commit, group, stored, until_done
from test_pool_access import use

from load.chaos.sentinels import MASTER, Sentinels
from services.errors import PoolUnavailable
from services.pool.server.binaries import find_servers

PASSWORD, OF_SENTINELS = "of-servers", "of-sentinels"


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory):
    servers = find_servers()
    if not servers:
        pytest.skip("no redis-server or valkey-server, which is also the Sentinel")
    found = Sentinels(tmp_path_factory.mktemp("sentinels"), servers[0], 0.5, PASSWORD, OF_SENTINELS)
    found.start()
    yield found
    found.stop()


async def test_every_call_goes_to_the_master_that_the_sentinels_name(sentinels, pools_of):
    await use(pools_of("life", sentinels.url.replace("@", "@127.0.0.1:1,", 1)))  # no Sentinel is there


@pytest.mark.parametrize(
    ("right", "wrong"), [(PASSWORD, "hidden"), (OF_SENTINELS, "hidden"), (f"/{MASTER}", "/another")]
)
async def test_a_wrong_password_or_name_is_unavailable_and_not_shown(sentinels, pools_of, caplog, right, wrong):
    pool = pools_of("denied", sentinels.url.replace(right, wrong))
    with pytest.raises(PoolUnavailable) as raised:
        await pool.connect()
    assert "hidden" not in str(raised.value) + caplog.text
    assert PASSWORD not in str(raised.value) + caplog.text


async def test_an_earlier_master_that_still_answers_is_left(sentinels, pools_of):
    """For ten seconds after a failover, the Sentinels let the earlier master take writes, which are lost then."""
    before = await leave_the_earlier_master(sentinels, pools_of)
    assert b"role:master" in sentinels.ask(before, "INFO", "replication")


async def leave_the_earlier_master(sentinels, pools_of):
    early = pools_of("early")
    await until_done(lambda: early.submit(group("before")))
    before = sentinels.master()
    sentinels.fail_over()
    sentinels.wait_for_master(before)
    late = pools_of("early")
    assert (await late.submit(group("after"))).request == "after"
    async with asyncio.timeout(5):
        while not await early.group("after"):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.02)
    assert sorted(await (await Owner.take(early)).claim()) == ["after/0", "before/0"]
    return before


async def test_what_replicas_have_survives_the_master_s_death(sentinels, pools_of):
    """Submits are repeated through a death, as gateways do: none that was answered is lost, none is there twice."""
    pool, answered, over = pools_of("death", wait_replicas=1), [], asyncio.Event()
    owner = await Owner.take(pool)
    await pool.submit(group("first", new=100))
    assert await owner.claim() == ["first/0"]

    async def submit():
        while not over.is_set():
            name = f"r{len(answered)}"
            await until_done(lambda: pool.submit(group(name)))  # noqa: B023 - it is called at once
            answered.append(name)

    submitting = asyncio.create_task(submit())
    exchanged = 0
    while len(answered) < 20:
        await owner.exchange(commit("first/0", exchanged, exchanged))
        exchanged += 1
    before = sentinels.master()
    before.process.kill()
    owner.call += 1
    await until_done(lambda: owner.repeat(commit("first/0", exchanged, exchanged)))
    reached = len(answered)
    while len(answered) < reached + 20:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)
    over.set()
    await submitting
    after = sentinels.wait_for_master(before)
    before.process.wait()
    sentinels.start_server(before, after)
    assert (await pool.overview()).waiting == len(answered)
    for name in answered:
        assert (await pool.group(name)).request == name
    assert (await stored(pool, "first/0")).tokens == list(range(exchanged + 1))
