"""What is applied to Kubernetes: objects that it accepts, and keys only in secrets."""

from __future__ import annotations

import base64
import json
import os

import kubernetes_validate
import pytest
import yaml as reader
from broadleaf.cli import group
from broadleaf.cluster.kubernetes import yaml
from click.testing import CliRunner


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    """A function that returns the objects for some arguments, and the client's file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path / "base"))

    def make(*arguments):
        done = CliRunner().invoke(group, ["manifest", "kubernetes", *arguments])
        assert done.exit_code == 0, done.output
        objects = list(reader.safe_load_all(done.stdout))
        name = objects[0]["metadata"]["labels"]["app.kubernetes.io/instance"]
        return objects, tmp_path / f"{name}-client.json"

    return make


def content(secret: dict) -> dict:
    """The content of a secret's only file."""
    (text,) = secret["data"].values()
    return json.loads(base64.b64decode(text))


# The validator leaves files to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("version", ["1.33", "latest"])
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--namespace", "lab", "--name", "run-7", "--engines-per-pod", "4", "--cpus", "4", "--memory", "8Gi"),
    ],
    ids=["plain", "all"],
)
def test_kubernetes_accepts_it(manifest, version, more):
    objects, _ = manifest("-n", "64", "--image", "example.org/lab:1", *more)
    known = kubernetes_validate.latest_version() if version == "latest" else version
    for one in objects:
        kubernetes_validate.validate(one, known, strict=True)
    assert [one["kind"] for one in objects] == ["Secret", "Secret", "Service", "Job", "Job"]


def test_the_engines_are_an_elastic_indexed_job(manifest):
    objects, _ = manifest("-n", "64", "--image", "I", "--engines-per-pod", "5")
    spec = objects[-1]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 13, 13)
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][-3:] == ["engines", "-n", "5"]


def test_keys_are_in_secrets_that_are_mounted_as_files(manifest):
    objects, client_file = manifest("-n", "2", "--image", "I")
    controller, engines, *others = objects
    keys = content(controller)["keys"]
    private = [keys[role]["private"] for role in ("server", "client", "engine")]
    assert content(engines)["private_key"] == keys["engine"]["private"]
    client = json.loads(client_file.read_text())
    assert client["private_key"] == keys["client"]["private"]
    assert client_file.stat().st_mode & 0o777 == 0o600
    assert not any(key in json.dumps(others) for key in private)
    assert not any(
        key in json.dumps(content(engines)) for key in (keys["server"]["private"], keys["client"]["private"])
    )
    for job in others[1:]:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert "env" not in container
        assert "envFrom" not in container
        (volume,) = job["spec"]["template"]["spec"]["volumes"]
        assert volume["secret"]["defaultMode"] == 0o400


def test_each_manifest_has_keys_of_its_own(manifest):
    first, second = (content(manifest("-n", "1", "--image", "I")[0][1])["private_key"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("-n", "0", "--image", "I"), "0 is not in the range"),
        (("-n", "1", "--image", "I", "--name", "No"), "use up to 42 lower-case letters"),
        (("-n", "1", "--image", "I", "-o", "tls"), "is not NAME=VALUE"),
        (("-n", "1", "--image", "I", "-o", "tsl=on"), "did you mean 'tls'"),
        (("-n", "1"), "--image"),
    ],
)
def test_mistakes(arguments, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(group, ["manifest", "kubernetes", *arguments])
    assert done.exit_code
    assert why in done.output
    assert os.listdir(tmp_path) == []


def test_yaml_says_what_json_does():
    objects = [{"a": [1, {"b": [], "c": {}}, "x: y", ["d", {"e": None}]], "f": {"g": True, "h": '"'}}]
    assert list(reader.safe_load_all(yaml(objects))) == objects
