"""To whom the dashboard answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from broadleaf.dashboard.server import Dashboard, DashboardError
from broadleaf.requests import RequestFailed
from event_stream import EventStream, ask, token_of
from simulated_cluster import SimulatedCluster

PATHS = ["/", "/stream", "/engine/0", "/page/main.js", "/page/vendor/uPlot.iife.min.js", "/nothing"]


@pytest.fixture
def url() -> Iterator[str]:
    with Dashboard(SimulatedCluster(2)) as dashboard:
        yield dashboard.url


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def cookie(url: str) -> str:
    """The cookie that a browser has once it has opened the page."""
    return ask(url, f"/?token={token_of(url)}")[1]["Set-Cookie"].partition(";")[0]


@pytest.mark.parametrize("path", PATHS)
def test_nobody_is_answered_without_the_token(url: str, path: str) -> None:
    wrong = token_of(url)[:-1] + ("A" if token_of(url)[-1] != "A" else "B")
    for given in ("", "?token=", f"?token={wrong}", f"?token={token_of(url)}x", "?token=%C3%A9", "?token=%FF"):
        status, _, body = ask(url, path + given)
        assert (status, b"token" in body) == (403, True) or (status == 400 and given == "?token=%FF")
    name = cookie(url).split("=")[0]
    assert ask(url, path, Cookie=f"{name}={wrong}")[0] == 403
    # A cookie of a dashboard on another port of this host: browsers send it here, too.
    assert ask(url, path, Cookie=f"broadleaf-dashboard-1={cookie(url).partition('=')[2]}")[0] == 403


@pytest.mark.parametrize("path", PATHS)
def test_a_page_of_another_origin_is_not_answered(url: str, path: str) -> None:
    port = port_of(url)
    others = ["http://evil.example", f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}", "null",
              f"http://127.0.0.1:{port}.evil.example", f"http://evil.example:{port}", "http://127.0.0.1",
              "http://[", "http://a]b", "http://[v1.x]", "http://127.0.0.1:99999999", "//", "[", "\x80"]  # fmt: skip
    for origin in others:
        status, headers, body = ask(url, f"{path}?token={token_of(url)}", Origin=origin)
        assert (status, b"does not accept requests from pages of" in body) == (403, True), origin
        assert "Access-Control-Allow-Origin" not in headers
        assert ask(url, path, Origin=origin, Cookie=cookie(url))[0] == 403


@pytest.mark.parametrize("path", PATHS)
def test_a_host_name_that_was_made_to_mean_this_host_is_not_answered(url: str, path: str) -> None:
    """DNS rebinding: the browser believes that a name of the attacker's is this host, and sends what it knows."""
    port = port_of(url)
    for host in (
        "evil.example",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        "127.0.0.1",
        f"10.0.0.1:{port}",
    ):
        status, _, body = ask(url, f"{path}?token={token_of(url)}", Host=host, Origin=f"http://{host}")
        assert (status, b"not served under the name" in body) == (403, True), host


def test_whoever_has_the_token_is_answered_and_given_a_cookie(url: str) -> None:
    status, headers, body = ask(url, f"/?token={token_of(url)}")
    assert (status, b"<title>Broadleaf</title>" in body) == (200, True)
    given = headers["Set-Cookie"]
    assert given.startswith(f"broadleaf-dashboard-{port_of(url)}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in given.split(";")}
    assert ask(url, "/page/main.js", Cookie=cookie(url))[0] == 200
    port = port_of(url)
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LocalHost:{port}"):
        assert ask(url, "/", Host=host, Origin=f"http://{host.lower()}", Cookie=cookie(url))[0] == 200


def test_every_answer_forbids_what_the_page_does_not_need(url: str) -> None:
    for path in (path for path in PATHS if path != "/stream"):
        _, headers, _ = ask(url, path, Cookie=cookie(url))
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Server" not in headers


def test_only_files_of_the_page_are_served(url: str) -> None:
    assert ask(url, "/page/vendor/uPlot-LICENSE.txt", Cookie=cookie(url))[2].startswith(b"The MIT License")
    for path in (
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page//etc/passwd",
        "/page/",
        "/page/nothing.js",
        "/page/%00",
        "/page/main.js%00",
        "/page/" + "a" * 5000,
        "/page/%5c",
        "/x",
        "*",
        "//[",
    ):
        assert ask(url, path, Cookie=cookie(url))[0] in (403, 404), path


def test_the_cookie_shows_nothing_of_the_cluster(url: str) -> None:
    """A browser sends a cookie to every port of a host, so the server of another user may have it."""
    given = cookie(url)
    assert token_of(url) not in given
    assert ask(url, "/", Cookie=given)[0] == 200
    key = given.partition("=")[2]
    for path in ("/stream", f"/stream?token={key}", "/engine/0", f"/engine/0?token={key}"):
        status, _, body = ask(url, path, Cookie=given)
        assert (status, b"token" in body) == (403, True)
    with EventStream(url) as stream:
        assert stream.until(bool)


def test_an_engine_is_answered_for_as_asked(url: str) -> None:
    token = token_of(url)
    status, _, body = ask(url, f"/engine/0?token={token}")
    assert (status, json.loads(body)) == (200, {"failed": "the dashboard is not connected to the cluster"})
    with EventStream(url) as stream:
        stream.until(bool)
        status, _, body = ask(url, f"/engine/1?token={token}")
        assert (status, json.loads(body)["pid"]) == (200, 20_001)
        assert ask(url, f"/engine/1?token={token}&pid=20001&output=0&log=0")[0] == 200
        status, _, body = ask(url, f"/engine/2?token={token}")
        assert (status, json.loads(body)) == (200, {"failed": "no such engine: 2"})
        for seen in ("pid=x&output=0&log=0", "pid=1&output=-1&log=0", "pid=1&output=0&log=" + "9" * 20):
            assert ask(url, f"/engine/1?token={token}&{seen}")[0] == 400, seen
        for path in ("/engine/", "/engine/-1", "/engine/1/2", "/engine/" + "9" * 20):
            assert ask(url, f"{path}?token={token}")[0] == 404, path


def test_a_request_that_fails_is_answered_with_the_reason() -> None:
    cluster = SimulatedCluster(3)
    cluster.unreadable = {1: RequestFailed("the host of engine 1 is gone"), 2: TimeoutError("no answer within 5 s")}
    with Dashboard(cluster) as dashboard, EventStream(dashboard.url) as stream:
        stream.until(bool)
        token = token_of(dashboard.url)
        answers = [ask(dashboard.url, f"/engine/{engine}?token={token}") for engine in (0, 1, 2)]
    assert [status for status, _, _ in answers] == [200, 200, 200]
    assert [json.loads(body).get("failed") for _, _, body in answers] == [
        None,
        "the host of engine 1 is gone",
        "no answer within 5 s",
    ]


def test_two_dashboards_have_two_tokens() -> None:
    cluster = SimulatedCluster(1)
    with Dashboard(cluster) as one, Dashboard(cluster) as other:
        assert len(token_of(one.url)) >= 32
        assert token_of(one.url) != token_of(other.url)
        assert ask(one.url, f"/?token={token_of(other.url)}")[0] == 403


def test_a_port_that_is_taken_is_an_error_that_says_so(url: str) -> None:
    with pytest.raises(DashboardError, match=f"port {port_of(url)} .*choose another"):
        Dashboard(SimulatedCluster(1), port=port_of(url)).start()


def test_a_unix_socket_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "dashboard.sock"
    with Dashboard(SimulatedCluster(3), unix_socket=path) as dashboard:
        assert path.stat().st_mode & 0o777 == 0o600
        # Jupyter is in front of it, has judged the request, and passes on its own host's name.
        assert ask(dashboard.url, "/", Host="hub.example", Origin="https://hub.example")[0] == 200
        with EventStream(dashboard.url) as stream:
            assert stream.until(bool)["engines"]["id"] == [0, 1, 2]
        with pytest.raises(DashboardError, match=r"dashboard\.sock"):
            Dashboard(SimulatedCluster(1), unix_socket=path).start()
    assert not path.exists()
