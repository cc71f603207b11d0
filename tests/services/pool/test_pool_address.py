"""The forms of `redis_url`: what they mean, what is wrong with others, and that no error shows a password."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.pool.address import Address, parse, without_password

HIDDEN = "h1dden"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", Address("server", "redis://", (("localhost", 6379),))),
        ("rediss://u:p@h:1/2?a=b", Address("server", "rediss://u:p@h:1/2?a=b", (("h", 1),))),
        ("unix:///a/b.sock?db=1", Address("server", "unix:///a/b.sock?db=1")),
        (
            "rediss+sentinel://u:p%40@a,b:5/main/3?ssl_ca_certs=c&sentinel_username=s&sentinel_password=t%2F",
            Address(
                "sentinel",
                "rediss://u:p%40@a:26379/3?ssl_ca_certs=c",
                (("a", 26379), ("b", 5)),
                "main",
                {"username": "s", "password": "t/"},
            ),
        ),
        ("rediss+sentinel://[::1]:7/m", Address("sentinel", "rediss://[::1]:7/0", (("::1", 7),), "m")),
        ("redis+cluster://:p@a:1,b", Address("cluster", "redis://:p@a:1/0", (("a", 1), ("b", 6379)))),
        ("rediss+cluster://a/0?x=y", Address("cluster", "rediss://a:6379/0?x=y", (("a", 6379),))),
    ],
)
def test_a_url_is_read(url, address):
    assert parse(url) == address


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        (f"http://{HIDDEN}", "is not 'redis://'"),
        ("redis", "is not 'redis://'"),
        (f"redis://:{HIDDEN}/word@h:1", "is not 'redis://'"),
        (f"redis://h:{HIDDEN}", "is not 'redis://'"),
        (f"unix+sentinel://:{HIDDEN}@a/m", "is not 'redis://'"),
        (f"redis+other://:{HIDDEN}@a/m", "is not 'redis://'"),
        (
            f"redis+sentinel://:{HIDDEN}@a:1,b:2",
            r"names no master .*; expected redis\+sentinel://\[USER:PASSWORD@\]HOST",
        ),
        (f"redis+sentinel://:{HIDDEN}/word@a:1/m", "at place 1 of its list"),
        (f"redis+sentinel://a,,b/{HIDDEN}", "at place 2"),
        (f"redis+sentinel://a,b:{HIDDEN}/m", "at place 2"),
        (f"redis+sentinel://a,b:0/{HIDDEN}", "at place 2"),
        (f"redis+sentinel://a/m/{HIDDEN}", "a database that is not a number"),
        (f"redis+sentinel://:{HIDDEN}@/m", "at place 1"),
        (
            f"redis+sentinel://:{HIDDEN}\u2100@a/m",
            "that hosts cannot have; expected redis\\+sentinel",
        ),
        (f"redis+cluster://:{HIDDEN}]@a", "a bracket or another .*; expected redis\\+cluster://"),
        (f"redis+cluster://:{HIDDEN}@a/1", "a Cluster has one only; expected redis\\+cluster://"),
        (f"redis+cluster://:{HIDDEN}@a/m", "a database that is not a number"),
        (f"redis://:{HIDDEN}@a?ssl_ca_certs=c", "options of TLS .*, which need 'rediss://'"),
        (f"redis+sentinel://:{HIDDEN}@a/m?ssl_ca_certs=c", r"which need 'rediss\+sentinel://'"),
    ],
)
def test_a_wrong_url_is_refused_with_the_reason_and_the_form(url, wrong):
    with pytest.raises(ValueError, match=wrong) as raised:
        parse(url)
    assert HIDDEN not in str(raised.value)


names = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)
hosts = st.lists(st.tuples(names, st.integers(1, 65535)), min_size=1, max_size=4)


@given(st.sampled_from(["redis", "rediss"]), hosts, names, st.integers(0, 15), st.sampled_from(["", "u:p@", ":p@"]))
def test_each_host_port_master_and_database_is_found(tls, hosts, master, database, login):
    listed = ",".join(f"{host}:{port}" for host, port in hosts)
    url = f"{tls}+sentinel://{login}{listed}/{master}/{database}"
    found = parse(url)
    assert (list(found.hosts), found.master) == (hosts, master)
    assert found.server_url == f"{tls}://{login}{hosts[0][0]}:{hosts[0][1]}/{database}"
    assert parse(found.server_url).hosts == found.hosts[:1]
    assert without_password(url) == f"{tls}+sentinel://{listed}/{master}/{database}"
