"""What `broadleaf run` learns from its launcher, and where its ranks meet."""

from __future__ import annotations

import secrets
import socket

import pytest
from broadleaf.cluster.symmetric import RunMember, SharedSecret, first_of
from broadleaf.errors import ClusterStartError

SLURM = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SLURM, (1, 4, "run-12-3")),
        (SLURM | {"SLURM_RESTART_COUNT": "2"}, (1, 4, "run-12-3-2")),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-n1-7@1"},
            (0, 2, "run-prterun-n1-7-1"),
        ),
        # Inside a Slurm job, where this rank's parent is a step of its own.
        (
            SLURM | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-n1-7@1"},
            (0, 2, "run-prterun-n1-7-1"),
        ),
    ],
)
def test_places(environment, expected):
    member = RunMember.of(environment)
    assert (member.rank, member.size, member.run_id) == expected


def test_a_launcher_that_does_not_name_the_run_needs_an_id():
    mpich = {"PMI_RANK": "1", "PMI_SIZE": "2"}
    with pytest.raises(ValueError, match="pass the same --id to every rank"):
        RunMember.of(mpich)
    assert RunMember.of(mpich, "mine") == RunMember(1, 2, "mine")


def test_without_a_launcher_it_is_alone():
    member = RunMember.of({})
    assert (member.rank, member.size) == (0, 1)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[3-5]", "n3"),
        ("n[08-11,14],login", "n08"),
        ("n[7,9-11]", "n7"),
        ("rack[1-2]n[01-16]-ib,login", "rack1n01-ib"),
        ("n1.site.example,n2", "n1.site.example"),
        ("", ""),
    ],
)
def test_the_first_host_of_slurms_list(hosts, first):
    assert first_of(hosts) == first
    assert RunMember.of(SLURM | {"SLURM_STEP_NODELIST": hosts}).first_host == first


# A new one each time: the ports that follow from it are then free.
SECRET = secrets.token_hex(16)


def shared_secret(secret: str = SECRET, run_id: str = "run-1", controller: str = "localhost") -> SharedSecret:
    """Where ranks with this secret meet."""
    return SharedSecret(RunMember(1, 2, run_id), "default", secret, controller)


def test_ranks_with_the_same_secret_agree():
    listen, credentials = shared_secret().listen()
    again, same = shared_secret().listen()
    assert (again, same.cluster_id, same.keys) == (listen, credentials.cluster_id, credentials.keys)
    for other in (shared_secret(SECRET[::-1]), shared_secret(run_id="run-2")):
        elsewhere, others = other.listen()
        assert elsewhere != listen
        assert others.keys["server"] != credentials.keys["server"]


def test_ports_that_are_taken_are_passed_over():
    seen, taken = [], []
    try:
        for _ in range(4):
            listen, _ = shared_secret().listen()
            host, _, port = listen.rpartition(":")
            assert 20_000 <= int(port) < 30_000
            assert port not in seen
            seen.append(port)
            taken.append(socket.create_server((host, int(port))))
        assert [one["tcp"]["port"] for one, _ in shared_secret().connections()] == list(map(int, seen))
        with pytest.raises(ClusterStartError, match=f"{seen[2]} or {seen[3]}: start again with another"):
            shared_secret().listen()
    finally:
        for one in taken:
            one.close()


def test_a_secret_that_could_be_guessed_is_refused():
    with pytest.raises(ValueError, match="BROADLEAF_SECRET has 5 characters, but needs at least 32"):
        shared_secret("hello")


def test_the_host_of_rank_0_must_be_known():
    with pytest.raises(ValueError, match="pass --controller HOST"):
        shared_secret(controller="")
