"""A pool in Cluster mode: it lives in one slot. MOVED is followed; a slot that migrates is waited for."""

import asyncio
import contextlib
import subprocess

import pytest
import redis
from pool_helpers import Owner, commit, group, stored, until_done
from test_pool_access import use

from load.server import free_port, until
from services.errors import PoolUnavailable
from services.pool.pool import RequestPool
from services.pool.server.binaries import find_servers

SLOTS = 16384


class Node:
    def __init__(self, binary, folder):
        while (port := free_port()) + 10_000 > 65_535:  # the port of the nodes' own connections
            pass
        self.port, self.client = port, redis.Redis("127.0.0.1", port, socket_timeout=5)
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "15000", "--repl-diskless-sync-delay", "0")
        command = [str(binary.path), "--port", str(port), "--dir", str(folder), "--logfile", f"{folder}/log", *options]
        self.process = subprocess.Popen([*command, "--save", ""], stdout=subprocess.DEVNULL)

    def says(self, *command):
        with contextlib.suppress(redis.RedisError):
            return self.client.execute_command(*command)
        return ""

    @property
    def id(self):
        return self.says("CLUSTER", "MYID").decode()

    def knows(self, nodes):
        return f"cluster_known_nodes:{nodes}" in str(self.says("CLUSTER", "INFO"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two masters, of which the first has all slots at the start, and a replica of the first."""
    servers = find_servers()
    if not servers:
        pytest.skip("no redis-server or valkey-server")
    nodes = [Node(servers[0], tmp_path_factory.mktemp("node")) for _ in range(3)]
    asyncio.run(joined(*nodes))
    yield nodes
    for node in nodes:
        node.process.kill()
        node.process.wait()


async def joined(first, second, replica):
    for node in (first, second, replica):
        await until(lambda: node.says("PING"))  # noqa: B023 - it is called at once
    for number, node in enumerate((first, second, replica), 1):
        node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number)
    first.client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS - 1))
    second.client.execute_command("CLUSTER", "ADDSLOTS", SLOTS - 1)
    for other in (second, replica):
        first.client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
    await until(lambda: all(node.knows(3) for node in (first, second, replica)))
    await until(lambda: "OK" in str(replica.says("CLUSTER", "REPLICATE", first.id)))
    await until(
        lambda: all("cluster_state:ok" in str(node.says("CLUSTER", "INFO")) for node in (first, second, replica))
    )
    await until(lambda: "master_link_status:up" in str(replica.client.info("replication")).replace("': '", ":"))


@pytest.fixture
async def pool(cluster):
    """A pool whose URL names a port without a server, and the node without slots."""
    pool = RequestPool(f"redis+cluster://127.0.0.1:{cluster[1].port},127.0.0.1:1", "moving")
    yield pool
    await pool.close()


def slot_of(pool, cluster):
    return cluster[0].client.execute_command("CLUSTER", "KEYSLOT", pool._prefix)


async def test_every_call_goes_to_the_node_that_has_the_slot(cluster):
    for nodes in (cluster[1:2], cluster[2:], cluster):
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        pool = RequestPool(url, "life")
        await use(pool)
        await pool.close()
        assert pool._server._nodes.current[1] == cluster[0].port


async def test_one_url_of_any_node_is_enough(cluster):
    pool = RequestPool(f"redis://127.0.0.1:{cluster[1].port}", "plain")
    assert (await pool.submit(group("r"))).request == "r"
    await pool.close()


async def test_calls_go_on_after_the_slot_has_migrated(cluster, pool):
    source, target, _ = cluster
    await pool.submit(group("r"))
    owner = await Owner.take(pool)
    assert await owner.claim() == ["r/0"]
    await owner.exchange(commit("r/0", 0, 5))
    slot = slot_of(pool, cluster)
    target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
    source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
    keys = source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
    assert len(keys) > 5
    half = len(keys) // 2
    source.client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys[:half])
    for call in (lambda: owner.exchange(commit("r/0", 1, 6)), lambda: pool.submit(group("q")), pool.overview):
        with pytest.raises(PoolUnavailable, match="ASK"):
            await call()
    source.client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys[half:])
    for node in (target, source):
        node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target.id)
    await until_done(lambda: owner.repeat(commit("r/0", 1, 6)))
    assert (await stored(pool, "r/0")).tokens == [5, 6]
    assert await pool.group("q") is None
    assert pool._server._nodes.current[1] == target.port


async def test_blocked_reads_and_calls_follow_a_failover(cluster):
    master, _, replica = cluster
    pool = RequestPool(f"redis+cluster://127.0.0.1:{cluster[1].port}", "promoted")
    await pool.submit(group("r"))
    blocked = asyncio.create_task(pool.wait_bell("seat", 20))
    await until(lambda: master.client.info("clients")["blocked_clients"] == 1)
    replica.client.execute_command("CLUSTER", "FAILOVER")
    await until(lambda: replica.client.info("replication")["role"] == "master")
    with contextlib.suppress(PoolUnavailable):  # or it is redirected, and waits there
        await asyncio.wait_for(until_done(lambda: pool.submit(group("q"))), 20)
    async with asyncio.timeout(30):
        try:
            await blocked
        except PoolUnavailable:
            await pool.wait_bell("seat", 0.01)
    owner = await until_done(lambda: Owner.take(pool, "seat"))
    assert sorted(await owner.claim()) == ["q/0", "r/0"]
    assert pool._server._nodes.current[1] == replica.port
    await pool.close()


async def test_a_dead_node_is_left_for_another_of_the_url(cluster):
    pool = RequestPool(f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster[1].port}", "seeds")
    with pytest.raises(PoolUnavailable):
        await pool.submit(group("r"))
    assert (await pool.submit(group("r"))).request == "r"
    await pool.close()
