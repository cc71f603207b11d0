"""The files of the live page: who can read them, and the headers that keep a browser from loading anything else."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from stack import Stack

from gateway.live.routes import INDEX, PageFiles
from services.settings.settings import Settings


@pytest.fixture(scope="module")
def client(served: Stack) -> httpx.Client:
    return served.http


def test_it_needs_no_key(client: httpx.Client) -> None:
    page = client.get("/ui")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert client.head("/ui").headers["content-length"] == str(len(page.content))


@pytest.mark.parametrize("path", ["/ui", "/ui/", f"/ui/{INDEX}"])
def test_all_that_it_loads_is_served_without_a_key(client: httpx.Client, path: str) -> None:
    page = client.get(path, follow_redirects=True)
    loaded = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert loaded
    for address in loaded:
        assert not address.startswith(("http", "//")), address
        assert client.get(page.url.join(address)).status_code == 200, address


def test_a_browser_may_load_nothing_else_and_embed_it_nowhere(client: httpx.Client) -> None:
    headers = client.get("/ui").headers
    policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_only_a_demo_may_call_another_port() -> None:
    policies = [PageFiles(demo).own_headers["Content-Security-Policy"] for demo in (False, True)]
    assert ["127.0.0.1:*" in policy for policy in policies] == [False, True]
    assert not Settings().demo


def test_a_browser_keeps_a_file_that_has_not_changed(client: httpx.Client) -> None:
    tag = client.get("/ui").headers["etag"]
    for known in (tag, f'"other", W/{tag}'):
        again = client.get("/ui", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get("/ui", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2Ffeed.py", "%2e%2e/routes.py", "page/index.html"])
def test_other_files_are_not_served(client: httpx.Client, name: str) -> None:
    assert client.get(f"/ui/{name}").status_code in (401, 404)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer other"}])
@pytest.mark.parametrize("path", ["/ui/feed", "/ui/feed/"])
def test_the_feed_needs_a_key(client: httpx.Client, path: str, headers: dict[str, str]) -> None:
    assert client.get(path, headers=headers, follow_redirects=True).status_code == 401


def test_another_name_for_this_machine_is_refused(client: httpx.Client) -> None:
    assert client.get("/ui", headers={"Host": "rebound.example"}).status_code == 403


def test_an_operator_can_turn_it_off(redis_url: str, tiny_folder: Path) -> None:
    with Stack(redis_url, "no-page", tiny_folder, Settings(disable_ui=True), engine=False) as stack:
        for path in ("/ui", "/ui/index.html", "/ui/feed"):
            assert httpx.get(stack.url + path).status_code == 404
