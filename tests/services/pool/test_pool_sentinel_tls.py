"""A pool behind real Sentinels, all with TLS: passwords, certificates, a failover, the master's death."""

import re
import shutil
from dataclasses import dataclass

import pytest
from certificates import Certificates, speaks_tls
from test_pool_access import use
from test_pool_sentinel import OF_SENTINELS, PASSWORD, leave_the_earlier_master

from load.chaos.sentinels import Sentinels, own_addresses
from services.errors import PoolUnavailable
from services.pool.server.binaries import find_servers

HOSTS = own_addresses(6)[3:]  # those before are of the tests without TLS


@dataclass
class WithTls(Sentinels):
    """All connections use TLS, and servers and clients show a certificate of its authority."""

    tls: Certificates | None = None
    scheme = "rediss"

    def listening(self, port):
        return self.tls.of_server(port)

    def of_clients(self):
        return self.tls.of_clients()


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory):
    binary = next((server for server in find_servers() if speaks_tls(server)), None)
    if binary is None or shutil.which("openssl") is None:
        pytest.skip(
            "no redis-server or valkey-server with TLS on the PATH (Debian's redis-server has it), or no openssl"
        )
    certificates = Certificates.make(tmp_path_factory.mktemp("certificates"), HOSTS)
    folder = tmp_path_factory.mktemp("sentinels")
    found = WithTls(folder, binary, 0.5, PASSWORD, OF_SENTINELS, hosts=HOSTS, tls=certificates)
    found.start()
    yield found
    found.stop()


async def test_every_call_goes_to_the_master_over_tls(sentinels, pools_of):
    assert sentinels.url.startswith("rediss+sentinel://")
    await use(pools_of("life", sentinels.url.replace("@", "@127.0.0.1:1,", 1)))  # no Sentinel is there


def without_tls(url):
    return url.partition("?")[0].replace("rediss+", "redis+") + f"?sentinel_password={OF_SENTINELS}"


def with_the_machine_s_authorities(url):
    return re.sub("ssl_ca_certs=[^&]*&", "", url)


def without_a_certificate(url):
    return re.sub("ssl_(certfile|keyfile)=[^&]*&", "", url)


@pytest.mark.parametrize(
    "changed",
    [
        without_tls,
        with_the_machine_s_authorities,
        without_a_certificate,
        lambda url: url.replace(PASSWORD, "hidden"),
        lambda url: url.replace(OF_SENTINELS, "hidden"),
    ],
)
async def test_without_tls_certificates_or_passwords_the_pool_is_unavailable(sentinels, pools_of, caplog, changed):
    pool = pools_of("denied", changed(sentinels.url))
    with pytest.raises(PoolUnavailable) as raised:
        await pool.connect()
    assert "hidden" not in str(raised.value) + caplog.text
    assert PASSWORD not in str(raised.value) + caplog.text


async def test_an_earlier_master_that_still_answers_is_left(sentinels, pools_of):
    await leave_the_earlier_master(sentinels, pools_of)
