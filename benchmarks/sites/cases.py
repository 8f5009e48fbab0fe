"""The cases of `python -m benchmarks clusters`, which run on the hosts of a site. Definitions: docs/benchmarks.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from broadleaf.bench.cases import Case, Session, Step
from broadleaf.bench.record import OURS, RAW
from broadleaf.bench.turn import System

from benchmarks.environments import WITH_DASK, WITH_MPI, WITH_RAY

SLURM_PER_HOST, SSH_PER_HOST, MPI_PER_HOST = 16, 4, 4
# Cases of clusters that grow and shrink.
PER_BLOCK, TASK_S = 4, 0.5
LONG_S = 1800.0


@dataclass(frozen=True)
class SiteCase(Case):
    """A case of a site."""

    #: The systems that replace those of these names.
    systems: Mapping[str, System] = field(default_factory=dict)


def cases(n_hosts: int) -> dict[str, SiteCase]:
    """The cases of a site with this many hosts, by name."""

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
        SiteCase("slurm", "the time until workers of a Slurm job have run a task each", slurm, raw_job,
                 times_start=True, floor=("ready", "raw_job", "first_line")),
        SiteCase("ssh", "the same of workers that were started by SSH", ssh, raw_logins, times_start=True,
                 floor=("ready", "raw_logins", "ready")),
        SiteCase("elastic", "the first result of a cluster that has no engine yet", elastic, raw_small_job,
                 only_ours=True, floor=("first_result", "raw_job", "first_line")),
        SiteCase("mpi", "the time until ranks of MPI have run a task each", mpi, raw_mpiexec, only_ours=True,
                 times_start=True, systems={OURS: WITH_MPI, RAW: WITH_MPI}, floor=("ready", "raw_mpiexec", "ready")),
        SiteCase("dask", "the same of engines on 2 hosts of Dask", partial(hosted, "dask"), only_ours=True,
                 systems={OURS: WITH_DASK}),
        SiteCase("ray", "the same of engines on 2 hosts of Ray", partial(hosted, "ray"), only_ours=True,
                 systems={OURS: WITH_RAY}),
        SiteCase("run", "how many of `broadleaf run`, two at once on the same nodes, succeed", runs, only_ours=True),
        SiteCase("bastion", "the time until an engine on each host behind a jump host, the first, has run a task",
                 bastion, only_ours=True),
        SiteCase("turnover", "the throughput while jobs end and others replace them", turnover, only_ours=True),
    )  # fmt: skip
    return {case.name: case for case in found}


FIGURES = {
    "ready": "time from the start until every engine has run a task, including time in the queue",
    "after_first_line": "the same from the first line of the first job",
    "scheduler_calls": "commands of the scheduler that were run meanwhile, those in jobs included",
    "beyond_raw": "how much longer that took than the bare programs alone: logins, mpiexec, a job's first line",
    "first_line": "time from the submission of a bare job to its first line",
    "first_result": "time from the call to its result where the cluster had no engine",
    "released_after": "time from then until the engines were released",
    "submissions": "jobs that were submitted",
    "starts": "clusters that were started behind the jump host",
    "complete_starts": "those with an engine on every host",
    "certified_after": "time from the death of a rank until a task of its world ends with that error",
    "worlds": "worlds that were started and stopped",
    "clean": "those whose mpiexec ended by itself, without an error",
    "runs": "runs, of which two were at once on the same nodes",
    "succeeded": "those that found their own cluster on both nodes",
    "pair_time": "time of two such runs",
    "rate": "tasks a second while jobs end and others replace them",
    "static_rate": "the same while no job ends",
    "of_static_rate": "the former over the latter",
    "turnovers": "how often all jobs were replaced",
    "lost": "tasks without a result",
    "ran_twice": "tasks that began more than once",
    "status_calls": "questions about jobs that Slurm's controller answered meanwhile, as `sdiag` counts them",
    "status_calls_in_30_s": "how many that is in 30 s",
}
