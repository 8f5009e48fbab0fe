"""What `broadleaf bench clusters` runs on the hosts of a site. Definitions: docs/benchmarks.md."""

from functools import partial

from .cases import Case, Session, Step
from .environments import OURS, RAW, WITH_DASK, WITH_MPI, WITH_RAY

SLURM_PER_HOST, SSH_PER_HOST, MPI_PER_HOST = 16, 4, 4
# Of clusters that grow and shrink.
PER_BLOCK, TASK_S = 4, 0.5
LONG_S = 1800.0


def cases(n_hosts: int) -> dict[str, Case]:
    """The cases of a site with so many hosts, by name."""

    def slurm(workers: int, repeats: int, quick: bool) -> list[Session]:
        return [Session(n_hosts * (1 if quick else SLURM_PER_HOST), [Step("jobs", recorded_as="slurm")], repeats)]

    def ssh(workers: int, repeats: int, quick: bool) -> list[Session]:
        return [Session(n_hosts * (1 if quick else SSH_PER_HOST), [], repeats)]

    def elastic(workers: int, repeats: int, quick: bool) -> list[Session]:
        return [
            Session(0, [Step("on-demand", {"per_block": PER_BLOCK, "idle_s": 2.0}, recorded_as="elastic")], repeats)
        ]

    def turnover(workers: int, repeats: int, quick: bool) -> list[Session]:
        n = 600 if quick else 4_000  # even the former takes longer than a job may run
        workers = PER_BLOCK if quick else 2 * PER_BLOCK
        params = {"workers": workers, "n": n, "task_s": TASK_S, "per_block": PER_BLOCK, "walltime": "1m"}
        return [Session(0, [Step("turnover", params, timeout_s=LONG_S)], 1)]

    def mpi(workers: int, repeats: int, quick: bool) -> list[Session]:
        n = n_hosts * (1 if quick else MPI_PER_HOST)
        ends = Step("ends", {"ranks": n_hosts, "rounds": 2 if quick else 100}, timeout_s=LONG_S, recorded_as="mpi")
        return [
            Session(n, [], repeats),
            Session(0, [Step("killed-rank", {"ranks": n}, recorded_as="mpi")], repeats),
            Session(0, [ends], 1),
        ]

    def runs(workers: int, repeats: int, quick: bool) -> list[Session]:
        step = Step("runs", {"pairs": 1 if quick else 50}, timeout_s=LONG_S, recorded_as="run")
        return [Session(0, [step], 1)]

    def bastion(workers: int, repeats: int, quick: bool) -> list[Session]:
        step = Step(
            "starts", {"hosts": n_hosts - 1, "rounds": 1 if quick else 20}, timeout_s=LONG_S, recorded_as="bastion"
        )
        return [Session(0, [step], 1)]

    def hosted(name: str, workers: int, repeats: int, quick: bool) -> list[Session]:
        return [Session(0, [Step("up", {"workers": 4}, recorded_as=name)], repeats)]

    def raw_mpiexec(quick: bool) -> list[Step]:
        return [Step("raw_mpiexec", {"workers": n_hosts * (1 if quick else MPI_PER_HOST)})]

    def raw_job(quick: bool) -> list[Step]:
        return [Step("raw_job", {"workers": n_hosts * (1 if quick else SLURM_PER_HOST), "hosts": n_hosts})]

    def raw_small_job(quick: bool) -> list[Step]:
        return [Step("raw_job", {"workers": PER_BLOCK, "hosts": 1})]

    def raw_logins(quick: bool) -> list[Step]:
        return [Step("raw_logins")]

    found = (
        Case("slurm", "the time until workers of a Slurm job have run a task each", slurm, raw_job, times_start=True,
             floor=("ready", "raw_job", "first_line")),
        Case("ssh", "the same of workers that were started by SSH", ssh, raw_logins, times_start=True,
             floor=("ready", "raw_logins", "ready")),
        Case("elastic", "the first result of a cluster that has no engine yet", elastic, raw_small_job, only_ours=True,
             floor=("first_result", "raw_job", "first_line")),
        Case("mpi", "the time until ranks of MPI have run a task each", mpi, raw_mpiexec, only_ours=True,
             times_start=True, systems={OURS: WITH_MPI, RAW: WITH_MPI}, floor=("ready", "raw_mpiexec", "ready")),
        Case("dask", "the same of engines on 2 hosts of Dask", partial(hosted, "dask"), only_ours=True,
             systems={OURS: WITH_DASK}),
        Case("ray", "the same of engines on 2 hosts of Ray", partial(hosted, "ray"), only_ours=True,
             systems={OURS: WITH_RAY}),
        Case("run", "how many of `broadleaf run`, two at once on the same nodes, succeed", runs, only_ours=True),
        Case("bastion", "the time until an engine on each host behind a jump host, the first, has run a task", bastion,
             only_ours=True),
        Case("turnover", "the throughput while jobs end and others replace them", turnover, only_ours=True),
    )  # fmt: skip
    return {case.name: case for case in found}
