"""Engines in jobs of PBS and LSF, on this host, with programs that say what theirs do.

What they say was taken from real ones: from the manuals of OpenPBS, Torque and LSF, and from reports of their users.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets import Block
from broadleaf.cluster.engine_sets.batch import CommandError
from waiting import until

_RUN = """cat >"{folder}/script"
{refused}
{variables} setsid sh "{folder}/script" >/dev/null 2>&1 </dev/null &
echo $! >"{folder}/pid"
{said}
"""
_END = """#!/bin/sh
echo "$@" >"{folder}/deleted"
if [ -e "{folder}/complaint" ]; then cat "{folder}/complaint" >&2; exit 255; fi
exec env kill -TERM -- "-$(cat "{folder}/pid")"
"""
# Says what a test has put there.
_SAYS = """#!/bin/sh
echo "$@" >>"{folder}/asked"
if [ "$1 $2" = "-f -x" ]; then cat "{folder}/history"; exit; fi
cat "{folder}/says"
"""
_RUNS_PBS = """Job Id: 17.here
    Job_Name = broadleaf
    job_state = R
    queue = short
"""
# Runs a command on a host of that name.
_ELSEWHERE = """unshare --uts sh -c 'hostname "$0"; exec "$@"'"""
PROGRAMS = {
    "qsub": "#!/bin/sh\n"
    + _RUN.replace(
        "{refused}",
        'grep -q "#PBS -q nowhere" "{folder}/script" && {{ echo "qsub: Unknown queue" >&2; exit 1; }}',
    )
    .replace("{variables}", "PBS_JOBID=17.here PBS_NODEFILE={folder}/nodes")
    .replace("{said}", "echo 17.here"),
    "qstat": _SAYS,
    "qdel": _END,
    "pbsdsh": f'#!/bin/sh\necho "$2" >>"{{folder}}/started"\nhost=host$2\nshift 3\nexec {_ELSEWHERE} "$host" "$@"\n',
    "bsub": "#!/bin/sh\n"
    + _RUN.replace(
        "{refused}",
        'grep -q "#BSUB -q nowhere" "{folder}/script" && '
        '{{ echo "nowhere: No such queue. Job not submitted." >&2; exit 255; }}',
    )
    .replace("{variables}", 'LSB_JOBID=930 LSB_MCPU_HOSTS="here 1 there 1"')
    .replace("{said}", 'echo "Job <930> is submitted to default queue <normal>."'),
    "bjobs": _SAYS,
    "bkill": _END,
    # As `rsh` does, in the words that a shell makes of them.
    "blaunch": f'#!/bin/sh\necho "$1" >>"{{folder}}/started"\nhost=$1\nshift\nexec {_ELSEWHERE} "$host" sh -c "$*"\n',
}  # fmt: skip
SETS = {"pbs": (ipp.PBS, "17.here"), "lsf": (ipp.LSF, "930")}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the programs, which are on the path, note what they do."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text.format(folder=tmp_path))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "nodes").write_text("here\nhere\nthere\nthere\n")
    return tmp_path


def says(folder, name):
    """Lets the scheduler say that the job runs."""
    record = '{"COMMAND":"bjobs","JOBS":1,"RECORDS":[{"JOBID":"930","STAT":"RUN","EXIT_CODE":"","PEND_REASON":""}]}'
    (folder / "says").write_text(_RUNS_PBS if name == "pbs" else record)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "nodes", [1, pytest.param(2, marks=pytest.mark.skipif(os.geteuid() != 0, reason="another host's name needs root"))]
)
@pytest.mark.parametrize("name", SETS)
def test_engines_run_in_a_job_and_the_job_ends_with_the_cluster(folder, name, nodes):
    says(folder, name)
    made, _ = SETS[name]
    with ipp.Cluster(n=2, engines=made(nodes=nodes, queue="short", walltime="1:00:00")) as rc:
        assert rc[:].apply_sync(lambda: 6 * 7) == [42, 42]
        script = (folder / "script").read_text()
        job = int((folder / "pid").read_text())
    marker, limit = ("#PBS", "-l walltime=1:00:00") if name == "pbs" else ("#BSUB", "-W 1:00")
    assert f"{marker} {limit}\n{marker} -q short\n" in script
    assert until(lambda: not Path(f"/proc/{job}").exists() or "Z" in Path(f"/proc/{job}/stat").read_text().split()[2])
    if nodes == 2:
        assert sorted((folder / "started").read_text().split()) == (["0", "2"] if name == "pbs" else ["here", "there"])


@pytest.mark.parametrize(
    ("name", "words"),
    [("pbs", "PBS refuses the job: .*Unknown queue"), ("lsf", "LSF refuses the job: .*No such queue")],
)
def test_a_refusal_has_the_scheduler_s_words(folder, name, words):
    with pytest.raises(ipp.ClusterStartError, match=words):
        ipp.Cluster(n=1, engines=SETS[name][0](queue="nowhere")).start_cluster_sync()


def note(name):
    """What a set makes of what its scheduler says: state and reason of the job, or None if it does not answer."""
    made, job = SETS[name]
    block = Block(f"{name}-{job}", facts={"job": job})
    return (block.state, block.reason) if made().note_news({job: block}) else None


@pytest.mark.parametrize(
    ("attributes", "known"),
    [
        ("job_state = R", ("running", "job 17.here is running")),
        (
            "job_state = Q\n    comment = Not Running: Insufficient amount of resource: ncpus (R:\n\t 16 A: 4 T: 4)",
            (
                "pending",
                "job 17.here is pending (Q): Not Running: Insufficient amount of resource: ncpus (R: 16 A: 4 T: 4)",
            ),
        ),
        (
            "job_state = Q\n    comment = Can Never Run: Insufficient amount of resource: ncpus (R: 99 A: 4 T: 4)",
            (
                "failed",
                "job 17.here is pending (Q): Can Never Run: Insufficient amount of resource: ncpus (R: 99 A: 4 T: 4)",
            ),
        ),
        ("job_state = H\n    Hold_Types = u", ("failed", "job 17.here is held")),
        ("job_state = H\n    depend = afterok:16.here@here", ("pending", "job 17.here is pending (H)")),
        ("job_state = C\n    exit_status = 271", ("failed", "job 17.here has ended with exit status 271")),
        ("job_state = C\n    exit_status = 0", ("ended", "job 17.here has ended with exit status 0")),
    ],
)
def test_news_of_pbs(folder, attributes, known):
    (folder / "says").write_text(f"Job Id: 17.here\n    Job_Name = broadleaf\n    {attributes}\n")
    assert note("pbs") == known


def test_news_of_a_job_that_pbs_only_remembers(folder):
    (folder / "says").write_text("qstat: 17.here Job has finished, use -x or -H to obtain historical job information\n")
    (folder / "history").write_text("Job Id: 17.here\n    job_state = F\n    Exit_status = -29\n")
    assert note("pbs") == ("failed", "job 17.here: its walltime has run out")
    assert (folder / "asked").read_text().splitlines() == ["-f 17.here", "-f -x 17.here"]


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("qstat: Unknown Job Id 17.here\n", ("failed", "job 17.here is no longer known to PBS")),
        ("Connection refused\nqstat: cannot connect to server here (errno=15010)\n", None),
    ],
)
def test_what_pbs_does_not_know(folder, said, known):
    (folder / "says").write_text(said)
    assert note("pbs") == known


@pytest.mark.parametrize(
    ("record", "known"),
    [
        ('"STAT":"RUN"', ("running", "job 930 is running")),
        ('"STAT":"UNKWN"', ("running", "job 930 is running (UNKWN)")),
        (
            '"STAT":"PEND","PEND_REASON":"There are no suitable hosts for the job;"',
            ("pending", "job 930 is pending: There are no suitable hosts for the job"),
        ),
        (
            '"STAT":"PSUSP","PEND_REASON":"Job was suspended by LSF admin or root while pending;"',
            ("failed", "job 930 is held (PSUSP): Job was suspended by LSF admin or root while pending"),
        ),
        ('"STAT":"DONE","EXIT_CODE":""', ("ended", "job 930 has ended")),
        (
            '"STAT":"EXIT","EXIT_CODE":"140",'
            '"EXIT_REASON":"TERM_RUNLIMIT: job killed after reaching LSF run time limit"',
            (
                "failed",
                "job 930: its walltime has run out (TERM_RUNLIMIT: job killed after reaching LSF run time limit)",
            ),
        ),
        (
            '"STAT":"EXIT","EXIT_CODE":"130","EXIT_REASON":"TERM_OWNER: job killed by owner"',
            ("failed", "job 930 has ended with exit status 130 (TERM_OWNER: job killed by owner)"),
        ),
    ],
)
def test_news_of_lsf(folder, record, known):
    (folder / "says").write_text(f'{{"COMMAND":"bjobs","JOBS":1,"RECORDS":[{{"JOBID":"930",{record}}}]}}\n')
    assert note("lsf") == known


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ('{"COMMAND":"bjobs","JOBS":0,"RECORDS":[]}', ("failed", "job 930 is no longer known to LSF")),
        ("LSF is down. Please wait ...\n", None),
    ],
)
def test_what_lsf_does_not_know(folder, said, known):
    (folder / "says").write_text(said)
    assert note("lsf") == known


@pytest.mark.parametrize(
    ("name", "complaint", "is_gone"),
    [
        ("pbs", "qdel: Unknown Job Id 17.here", True),
        ("pbs", "qdel: Job has finished 17.here", True),
        ("pbs", "qdel: Request invalid for state of job MSG=invalid state for job - COMPLETE 17.here", True),
        ("pbs", "qdel: Unauthorized Request 17.here", False),
        ("lsf", "Job <930>: No matching job found", True),
        ("lsf", "Job <930>: Job has already finished", True),
        ("lsf", "Job <930>: User permission denied", False),
    ],
)
def test_jobs_are_ended_by_their_names(folder, name, complaint, is_gone):
    made, job = SETS[name]
    says(folder, name)
    (folder / "complaint").write_text(complaint)
    block = Block(f"{name}-{job}", facts={"job": job, "log": str(folder / "log")})
    if is_gone:
        made().cancel([block])
    else:
        with pytest.raises(CommandError, match=complaint):
            made().cancel([block])
    assert (folder / "deleted").read_text() == f"{job}\n"


def test_a_line_that_selects_hosts_stands_in_place_of_ours():
    script = ipp.Cluster(engines=ipp.PBS(nodes=2, pbs=["-l select=2:ncpus=8:mpiprocs=1"])).script()
    assert "#PBS -l select=2:ncpus=8:mpiprocs=1\n" in script
    assert "nodes=" not in script


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (ipp.PBS(queue="a b"), "queue='a b': PBS directives cannot contain a space"),
        (ipp.LSF(account='a"b'), "LSF directives cannot contain a double quote"),
        (ipp.LSF(lsf=["-x\n-q other"]), "LSF directives cannot contain a line break"),
    ],
)
def test_what_a_directive_cannot_have_is_refused_by_name(made, said):
    with pytest.raises(ipp.ClusterStartError, match=said):
        ipp.Cluster(engines=made).script()


@pytest.mark.parametrize(("name", "program"), [("pbs", "qsub"), ("PBS", "qsub"), ("lsf", "bsub")])
def test_names_of_ipython_parallel_say_what_is_missing(monkeypatch, name, program):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ipp.ClusterStartError, match=f"the program '{program}' was not found on this host"):
        ipp.Cluster(engines=name, n=4).start_cluster_sync()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", SETS)
def test_a_job_is_found_whose_submitter_was_killed_before_it_could_record_it(folder, name):
    made, job = SETS[name]
    program = folder / "programs" / made.program
    program.write_text(f"#!/bin/sh\ncat >'{folder}/script'\nkill -9 $PPID\n")
    submit = (
        f"import broadleaf as ipp; ipp.Cluster(engines=ipp.{made.__name__}(), cluster_id={name!r}).start_cluster_sync()"
    )
    subprocess.run([sys.executable, "-c", submit], check=False)
    given = re.search(r"^#\w+ -[NJ] (\S+)$", (folder / "script").read_text(), re.MULTILINE)[1]
    records = [{"JOBID": "930", "STAT": "PEND", "EXIT_CODE": "", "PEND_REASON": "it waits"}]
    user = pwd.getpwuid(os.getuid()).pw_name
    said = {
        "pbs": "".join(
            f"Job Id: {number}.here\n    Job_Name = {of}\n    Job_Owner = {owner}@here\n    job_state = Q\n"
            for number, of, owner in [("16", "another", user), ("17", given, user), ("18", given, f"{user}2")]
        ),
        "lsf": json.dumps({"COMMAND": "bjobs", "JOBS": 1, "RECORDS": records}),
    }[name]
    (folder / "says").write_text(said)
    manager = ipp.ClusterManager()
    assert until(lambda: [one for one in manager.dead_clusters() if one.cluster_id == name])
    (orphans,) = (one for one in manager.orphans() if one.cluster.cluster_id == name)
    assert [block.id for block in orphans.blocks] == [f"{name}-{job}"]
    if name == "lsf":
        assert f"-J {given}" in (folder / "asked").read_text()
    (folder / "programs" / made.cancel_program).write_text(f"#!/bin/sh\necho \"$@\" >'{folder}/deleted'\n")
    orphans.cluster.stop_cluster_sync()
    assert (folder / "deleted").read_text() == f"{job}\n"
    assert not [one for one in manager.dead_clusters() if one.cluster_id == name]


@pytest.mark.parametrize("words", ["No unfinished job found", "No job found", "Job <here> is not found"])
def test_lsf_has_no_job_of_a_name(folder, words):
    (folder / "programs" / "bjobs").write_text(f"#!/bin/sh\necho '{words}' >&2; exit 255\n")
    assert ipp.LSF().jobs_named("here") == []


@pytest.mark.parametrize(
    ("name", "program"),
    [("pbs", "echo 'qstat: cannot connect to server here (errno=111)' >&2; exit 1"),
     ("lsf", "echo 'LSF is down. Please wait ...' >&2; exit 255")],
)  # fmt: skip
def test_a_scheduler_that_does_not_answer_has_not_said_that_there_is_no_job(folder, name, program):
    (folder / "programs" / {"pbs": "qstat", "lsf": "bjobs"}[name]).write_text(f"#!/bin/sh\n{program}\n")
    with pytest.raises(CommandError, match=r"cannot connect|is down"):
        SETS[name][0]().jobs_named("here")


@pytest.mark.parametrize("name", SETS)
def test_ctrl_c_in_the_middle_of_a_submission_leaves_no_job(folder, name):
    made, job = SETS[name]
    record = '{"RECORDS":[{"JOBID":"930"}]}'
    listed = {
        "pbs": 'echo \'Job Id: 17.here\'; echo " Job_Name = $name"; echo " Job_Owner = $(id -un)@here"',
        "lsf": f"echo '{record}'",
    }[name]
    programs = {
        made.program: f"cat >'{folder}/script'\nkill -INT $PPID",
        made.cancel_program: f"echo \"$@\" >'{folder}/deleted'",
        {"pbs": "qstat", "lsf": "bjobs"}[name]: f"name=$(sed -n 's/^#.* -N //p' '{folder}/script')\n{listed}",
    }
    for program, text in programs.items():
        (folder / "programs" / program).write_text(f"#!/bin/sh\n{text}\n")
    with pytest.raises(KeyboardInterrupt):
        ipp.Cluster(n=1, engines=made()).start_cluster_sync()
    assert (folder / "deleted").read_text() == f"{job}\n"
