"""Slurm on a bed: slurmctld and munge on the head, slurmd on every other host."""

from __future__ import annotations

from waiting import until

from bed import Bed

_CONF = """ClusterName=bed
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/slurmd.log
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
KillWait=3
SlurmdParameters=config_overrides
MinJobAge=300
OverTimeLimit=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
NodeName=n[1-{n}] CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=n[1-{n}] Default=YES MaxTime=60 State=UP
PartitionName=tiny Nodes=n1 MaxTime=1 MaxNodes=1 State=UP
PartitionName=off Nodes=n1 State=DOWN
PartitionName=low Nodes=n[1-{n}] PriorityTier=1
PartitionName=high Nodes=n[1-{n}] PriorityTier=9
"""

_START_MUNGE = """mkdir -p /run/slurmctld /run/slurmd
chown -R munge /run/munge /etc/munge /var/log/munge /var/lib/munge
setpriv --reuid munge --regid munge --clear-groups munged --force
"""


def start_slurm(bed: Bed, cpus_per_host: int = 4) -> None:
    """Starts all daemons; every node is idle afterwards."""
    nodes = bed.names[1:]
    for name in bed.names:
        bed.write(name, "/etc/slurm/slurm.conf", _CONF.format(n=len(nodes), cpus=cpus_per_host))
        bed.run(name, "sh", "-c", _START_MUNGE)
    bed.run("head", "slurmctld", "-i")
    for name in nodes:
        bed.run(name, "slurmd", "-N", name)

    def idle() -> bool:
        return bed.run(
            "head", "sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D", check=False
        ).stdout.strip() == str(len(nodes))

    assert until(idle, 60), bed.run("head", "sh", "-c", "sinfo; tail -20 /run/slurmctld.log", check=False).stdout


def status_calls(bed: Bed) -> int:
    """Calls of `squeue` that the controller has served, as `sdiag` counts them."""
    for line in bed.run("head", "sdiag").stdout.splitlines():
        if "REQUEST_JOB_INFO" in line:
            return int(line.split("count:")[1].split()[0])
    return 0
