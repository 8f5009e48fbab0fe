#!/bin/bash
#BSUB -env all
#BSUB -nnodes 2
#BSUB -n 8
#BSUB -W 0:30
#BSUB -q "normal"
#BSUB -e /dev/null
#BSUB -o /dev/null
PSIJ_NODEFILE="$LSB_HOSTS"
export PSIJ_NODEFILE
exec &>> "BASE/psij/lsf/$LSB_JOBID.out"
/bin/bash LAUNCHERS/mpi_launch.sh JOB '' '' '' /dev/null /home/me/lab/block-psij-BLOCK.log /home/me/lab/block-psij-BLOCK.errors.log 8 /bin/sh /home/me/lab/block-psij-BLOCK.sh 
echo "$?" > "BASE/psij/lsf/$LSB_JOBID.ec"
