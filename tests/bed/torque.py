"""The commands of PBS on a bed: those that Slurm brings, with what PBS's own do besides.

Slurm's `qsub` takes no script from standard input, jobs have none of PBS's variables, there is no `pbsdsh`, and `qdel`
fails without a word for a job that has ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bed import Bed

FOLDER = "/opt/pbs"
PATH = f"{FOLDER}:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
"""The search path that has the commands of PBS before those of Grid Engine."""
_TORQUE = "/opt/slurm-wlm-torque/usr/bin"
_PROGRAMS = {
    # Its variables are set where a script's directives end.
    "qsub": f"""#!/bin/sh
script=$(mktemp)
awk '!done && !/^#/ {{
  print "export PBS_JOBID=$SLURM_JOB_ID PBS_NODEFILE=$(/usr/bin/perl {_TORQUE}/generate_pbs_nodefile)"
  print "export PATH={FOLDER}:$PATH"; done = 1
}} {{ print }}' >"$script"
{_TORQUE}/qsub "$@" "$script" || exit
""",
    "qstat": f"""#!/bin/sh
exec {_TORQUE}/qstat "$@"
""",
    "qdel": f"""#!/bin/sh
said=$({_TORQUE}/qdel "$@") && exit
echo "${{said:-qdel: Unknown Job Id}}" >&2
exit 153
""",
    "pbsdsh": """#!/bin/sh
host=$(sed -n "$(($2 + 1))p" "$PBS_NODEFILE")
shift 3
exec srun --overlap --nodes=1 --ntasks=1 --nodelist="$host" "$@"
""",
}


def add_pbs(bed: Bed) -> None:
    """Puts the commands into `FOLDER` of every host of a bed with Slurm."""
    for name in bed.names:
        bed.run(name, "ln", "-sf", "/usr/bin/sbatch", f"{_TORQUE}/sbatch")
        for program, text in _PROGRAMS.items():
            bed.write(name, f"{FOLDER}/{program}", text, 0o755)
