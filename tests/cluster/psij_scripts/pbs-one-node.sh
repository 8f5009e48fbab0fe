#!/bin/bash
#PBS -V
#PBS -l select=1:ncpus=8:mpiprocs=8
#PBS -l place=scatter:shared
#PBS -l "place=excl"
#PBS -e /dev/null
#PBS -o /dev/null
#PBS -V
PSIJ_NODEFILE="$PBS_NODEFILE"
export PSIJ_NODEFILE
exec &>> "BASE/psij/pbs/$PBS_JOBID.out"
/bin/bash LAUNCHERS/single_launch.sh JOB '' '' '' /dev/null /home/me/lab/block-psij-BLOCK.log /home/me/lab/block-psij-BLOCK.errors.log /bin/sh /home/me/lab/block-psij-BLOCK.sh 
echo "$?" > "BASE/psij/pbs/$PBS_JOBID.ec"
