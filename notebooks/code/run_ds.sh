#!/bin/sh
# Train with DeepSpeed's own launcher, on CPUs.
#
#   sh run_ds.sh [RANKS] [options of train_cifar_deepspeed.py]         ranks on this machine (default: 2)
#   HOSTFILE=hostfile sh run_ds.sh 0 [options]                         all ranks that the hostfile names, by ssh
#   HOSTFILE=hostfile LAUNCHER=openmpi sh run_ds.sh 0 [options]        the same by mpirun, which brings MPI
#   HOSTFILE=hostfile NODE=0 MASTER=ADDRESS PORT=29511 sh run_ds.sh 0  without ssh: by hand, once on every machine
#
# On GPUs, one per rank: DS_ACCELERATOR=cuda sh run_ds.sh 2 --device cuda
# PYTHON names another Python than the one that is found first, NETWORK the interface or subnet of LAUNCHER=openmpi.
set -e
here=$(cd "$(dirname "$0")" && pwd)
python=$(command -v "${PYTHON:-python3}")
ranks=${1:-2}
[ $# -eq 0 ] || shift
free='import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
port=${PORT:-$("$python" -c "$free")}      # 29500, which everybody takes, may be your neighbour's

export DS_ACCELERATOR=${DS_ACCELERATOR:-cpu}       # cpu: no GPU is looked for
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export DS_ENV_FILE="${DS_ENV_FILE:-$here/ds_env}"  # the launcher sets these on the other machines: ssh sets nothing
if [ -z "$HOSTFILE" ]; then
  export GLOO_SOCKET_IFNAME=lo             # one machine: its own network will do
  set -- --num_gpus="$ranks" --master_addr=127.0.0.1 --master_port="$port" "$here/train_cifar_deepspeed.py" "$@"
elif [ -n "$NODE" ]; then
  set -- --hostfile="$HOSTFILE" --no_ssh --node_rank="$NODE" --master_addr="$MASTER" --master_port="$port" \
    "$here/train_cifar_deepspeed.py" "$@"
elif [ "$LAUNCHER" = openmpi ]; then
  PATH=$(dirname "$python"):$PATH          # the mpirun of this Python's mpi4py
  set -- --hostfile="$HOSTFILE" --launcher=openmpi --launcher_args="--mca btl_tcp_if_include ${NETWORK:-eth0}" \
    --master_port="$port" "$here/train_cifar_deepspeed.py" "$@"
else
  set -- --hostfile="$HOSTFILE" --master_port="$port" "$here/train_cifar_deepspeed.py" "$@"
fi
exec "$python" -m deepspeed.launcher.runner --quiet "$@"
