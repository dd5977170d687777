#!/bin/bash
# jobs/scaling.sh MOST_RANKS NEURONS LAYERS
# Runs 1, 2, 4, ... ranks up to MOST_RANKS, on this machine or within an allocation, and writes a
# JSON record for each. Each rank has one thread, or THREADS threads.
# LAUNCHER is the part of the command before the number of ranks:
# "mpirun -n", "srun -n", "jsrun -n".
set -euo pipefail

most=${1:?how many ranks at most}
neurons=${2:-1024}
layers=${3:-120}
results=${SPDNN_RESULTS:-results}
read -r -a launcher <<<"${LAUNCHER:-mpirun -n}"
read -r -a options <<<"${SPDNN_OPTIONS:-}"

export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-${TMPDIR:-/tmp}/spdnn-${USER:-user}}
for ((ranks = 1; ranks <= most; ranks *= 2)); do
    record=$results/scaling-$neurons-$layers-$(printf %04d "$ranks").json
    command=(
        "${launcher[@]}" "$ranks"
        spdnn run --neurons "$neurons" --layers "$layers" --threads "${THREADS:-1}"
        --json "$record" ${options[@]+"${options[@]}"}
    )
    if [[ ${SPDNN_DRY_RUN:-} ]]; then
        echo "${command[*]}"
    else
        mkdir -p "$results"
        "${command[@]}"
    fi
done
