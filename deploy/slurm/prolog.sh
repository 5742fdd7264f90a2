#!/bin/sh
# Prolog: looks at a node's devices before a job starts. Memory that belongs to no running job would be missing in the
# new one.
#
#   slurm.conf    Prolog=/etc/memctl/slurm/prolog.sh
#
# slurmd runs this script as root on each node before a job's first step. Settings (see task_prolog.sh):
#
#   MEMCTL_NODE_CHECK=report            writes what it finds to the system log (this is the default)
#   MEMCTL_NODE_CHECK=refuse            also fails: Slurm then drains the node and queues the job again
#   MEMCTL_NODE_CHECK_FLAGS='--allow nvidia-cuda-mps-server --above 256MiB'
#
# The check ends within MEMCTL_PROLOG_SECONDS (10). If it cannot be made, the job starts.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
settings=${MEMCTL_SLURM_SETTINGS:-/etc/memctl/slurm/settings}
if [ -r "$settings" ]; then
    set -a
    # shellcheck disable=SC1090
    . "$settings"
    set +a
fi
# shellcheck disable=SC2086
found=$(timeout --kill-after=2 "${MEMCTL_PROLOG_SECONDS:-10}" \
    memctl node check --refuse --no-color $MEMCTL_NODE_CHECK_FLAGS </dev/null 2>/dev/null)
[ $? = 1 ] || exit 0
printf 'memctl: before job %s: %s\n' "$SLURM_JOB_ID" "$found" >&2
logger -t memctl -- "before job $SLURM_JOB_ID: $found" 2>/dev/null
[ "$MEMCTL_NODE_CHECK" != refuse ]
