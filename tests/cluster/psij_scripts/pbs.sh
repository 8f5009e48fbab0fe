#!/bin/bash
#PBS -V
#PBS -l select=4:ncpus=16:mpiprocs=16
#PBS -l place=scatter:shared
#PBS -l walltime=2:0:0
#PBS -A physics
#PBS -q long
#PBS -e /dev/null
#PBS -o /dev/null
#PBS -V
PSIJ_NODEFILE="$PBS_NODEFILE"
export PSIJ_NODEFILE
exec &>> "BASE/psij/pbs/$PBS_JOBID.out"
/bin/bash LAUNCHERS/mpi_launch.sh JOB '' '' '' /dev/null /home/me/lab/block-psij-BLOCK.log /home/me/lab/block-psij-BLOCK.errors.log 64 /bin/sh /home/me/lab/block-psij-BLOCK.sh 
echo "$?" > "BASE/psij/pbs/$PBS_JOBID.ec"
