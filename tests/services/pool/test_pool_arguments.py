"""The arguments of scripts have names, which both sides check."""

import re

import pytest

from services.errors import PoolFault
from services.pool import scripts
from services.pool.packing import pack

GIVEN = {"cluster": "cluster", "engines": 2}


@pytest.mark.parametrize("name", scripts.names())
def test_a_script_reads_the_arguments_that_its_header_lists(name):
    script = scripts.script(name)
    assert set(re.findall(r"\bargs\.(\w+)", script.text)) == script.arguments


@pytest.mark.parametrize("arguments", [{"cluster": "cluster"}, GIVEN | {"spares": 1}], ids=["missing", "unknown"])
def test_a_call_gives_each_argument_of_its_script(arguments):
    with pytest.raises(AssertionError, match="scale"):
        scripts.script("scale").pack(**arguments)


async def test_a_script_does_not_read_what_it_was_not_given(server_pools):
    pool = await server_pools()
    assert await pool._server.run("scale", pool._prefix, pack(GIVEN))
    with pytest.raises(PoolFault, match="no argument engines"):
        await pool._server.run("scale", pool._prefix, pack({"cluster": "cluster"}))
