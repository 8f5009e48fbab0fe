"""The commands of a Kubernetes manifest, on hosts that stand for pods: secrets are mounted, names are known."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys

import pytest
import yaml as reader
from bed import Bed
from programs import check_nothing_is_left
from waiting import until

pytestmark = pytest.mark.timeout(240)

CLIENT_FILE = "/root/lab-client.json"
# As a pod of the service sees it; nobody needs the port 4242 of another one.
MANIFEST = ("manifest", "kubernetes", "-n", "4", "--image", "I", "--engines-per-pod", "2", "--name", "lab",
            "--python", sys.executable)  # fmt: skip


class Pods:
    """Pods of a manifest's jobs: n1 has the controller, others have engines."""

    def __init__(self, bed: Bed, objects: list[dict]) -> None:
        self.bed = bed
        secrets = {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "Secret"}
        self.jobs = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Job"}
        for host, job in (("n1", "lab-controller"), ("n2", "lab-engines"), ("n3", "lab-engines")):
            pod = self.jobs[job]["template"]["spec"]
            (volume,) = pod["volumes"]
            for file, text in secrets[volume["secret"]["secretName"]].items():
                content = base64.b64decode(text).decode()
                bed.write(host, f"/etc/broadleaf/{file}", content, volume["secret"]["defaultMode"])
        self.running: list[subprocess.Popen[str]] = []

    def start(self, host: str, job: str) -> subprocess.Popen[str]:
        """Starts a job's pod on a host."""
        (container,) = self.jobs[job]["template"]["spec"]["containers"]
        pod = self.bed.start(host, *container["command"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.running.append(pod)
        return pod

    def stop(self, host: str) -> None:
        """Ends the pod of a host as Kubernetes does: its first process is told to end."""
        program = f"{sys.executable} -m broadleaf.cluster.kubernetes"
        self.bed.signal(host, signal.SIGTERM, lambda line: program in line)

    def close(self) -> None:
        """Ends all pods."""
        for host in ("n1", "n2", "n3"):
            self.stop(host)
        for pod in self.running:
            pod.communicate(timeout=60)


@pytest.fixture
def pods(bed):
    """The pods of a manifest that was made on the head, whose service is named after the cluster."""
    written = bed.run("head", sys.executable, "-m", "broadleaf", *MANIFEST)
    hosts = bed.path("head", "/etc/hosts").read_text()
    for name in bed.names:
        # The head stands for a client with `kubectl port-forward`, whose end is on its loopback interface.
        bed.write(name, "/etc/hosts", f"{hosts}{bed.host('n1').address} lab\n")
    made = Pods(bed, list(reader.safe_load_all(written.stdout)))
    yield made
    made.close()
    check_nothing_is_left(bed)
    for name in bed.names:
        bed.write(name, "/etc/hosts", hosts)


def client_program(bed: Bed, body: str) -> str:
    """The output of a client on the head; the service's address stands for the forwarded port."""
    return bed.python(f"""
import json, socket, broadleaf as ipp
connection = json.load(open({CLIENT_FILE!r}))
connection["tcp"]["host"] = {bed.host("n1").address!r}
connection["addresses"] = [connection["tcp"]["host"]]
with ipp.Client(connection) as rc:
{body}
""").stdout


def test_controller_and_engines_find_each_other(pods):
    early = pods.start("n2", "lab-engines")  # before there is a controller, as may happen
    controller = pods.start("n1", "lab-controller")
    assert "cluster 'lab' listens on port 4242" in controller.stdout.readline()
    pods.start("n3", "lab-engines")
    said = client_program(pods.bed, """
    rc.wait_for_engines(4)
    assert len(set(rc[:].apply_sync(hash, "leaf"))) == 1, "all pods have the same hashes"
    print(sorted(rc[:].apply_sync(socket.gethostname)))
""")  # fmt: skip
    assert said == "['n2', 'n2', 'n3', 'n3']\n"
    assert "has joined with 2 engines" in early.stdout.readline()


def test_fewer_pods_and_more(pods):
    controller = pods.start("n1", "lab-controller")
    assert "listens" in controller.stdout.readline()
    first, second = pods.start("n2", "lab-engines"), pods.start("n3", "lab-engines")
    for pod in (first, second):
        assert "has joined with 2 engines" in pod.stdout.readline()
    pods.stop("n3")  # as when the job's parallelism is reduced
    assert second.wait(30) == 0
    said = client_program(pods.bed, """
    while len(rc) > 2:
        rc.wait(timeout=0.01)
    print(rc[:].apply_sync(socket.gethostname))
""")  # fmt: skip
    assert said == "['n2', 'n2']\n"
    again = pods.start("n3", "lab-engines")
    assert "has joined with 2 engines" in again.stdout.readline()
    said = client_program(pods.bed, "    rc.wait_for_engines(4); print(len(rc))")
    assert said == "4\n"


def test_engines_end_with_the_controller(pods):
    controller = pods.start("n1", "lab-controller")
    assert "listens" in controller.stdout.readline()
    engines = pods.start("n2", "lab-engines")
    assert "has joined" in engines.stdout.readline()
    pods.stop("n1")
    assert controller.wait(30) == 0
    assert until(lambda: engines.poll() is not None, 60)
    assert engines.returncode == 0, "the job has succeeded: the cluster was stopped"


def test_keys_are_in_files_alone(pods):
    controller = pods.start("n1", "lab-controller")
    assert "listens" in controller.stdout.readline()
    engines = pods.start("n2", "lab-engines")
    assert "has joined" in engines.stdout.readline()
    keys = json.loads(pods.bed.path("n1", "/etc/broadleaf/keys.json").read_text())["keys"]
    private = [pair["private"][-32:] for pair in keys.values()]
    for pid, told in pods.bed.told_by_processes().items():
        assert not any(key in told for key in private), pid
    found = {path.name for path in pods.bed.files_with(private)}
    assert found == {"keys.json", "engine.json", "client.json", "lab-client.json"}


def test_a_pod_without_its_keys_says_so(pods):
    pods.bed.run("n2", "rm", "/etc/broadleaf/engine.json")
    pod = pods.start("n2", "lab-engines")
    said, _ = pod.communicate(timeout=60)
    assert pod.returncode == 1
    assert "/etc/broadleaf/engine.json" in said
