#!/bin/bash
# One training on two nodes with four GPUs each, by Slurm with Pyxis, in the container: docs/clusters.md.
#
#     enroot import --output perennial.sqsh 'docker://ghcr.io#OWNER/perennial@sha256:DIGEST'
#     sbatch docker/clusters/pyxis.sh        # in the checkout, on a file system that all nodes have
#
# params.yaml: run.launcher: torchrun, run.nodes: 2, run.processes: 8, run.rendezvous: node0:29400 (this script gives another)
# The image has no srun. So srun starts one container on each node, and perennial starts the processes in it.
#SBATCH --job-name=perennial
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
export PET_NNODES=$SLURM_NNODES PET_NPROC_PER_NODE=$SLURM_GPUS_PER_NODE PET_MASTER_PORT=29500
PET_MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PET_MASTER_ADDR
# shellcheck disable=SC2016  # the containers' shell reads SLURM_NODEID, not this one
exec srun --container-image=./perennial.sqsh --container-mounts="$PWD:/workspace" --container-workdir=/workspace \
  sh -c 'export PET_NODE_RANK=$SLURM_NODEID; [ "$PET_NODE_RANK" = 0 ] && exec perennial repro; exec perennial train'
