#!/bin/sh
# Epilog: appends what memctl recorded of a job to the job's output file.
#
#   slurm.conf    Epilog=/etc/memctl/slurm/epilog.sh
#
# slurmd runs this script as root on each node of an ended job. Only the node of the batch script does something, and
# only if the job was recorded. The script always succeeds, because Slurm drains a node whose epilog fails. Each of its
# commands ends within MEMCTL_EPILOG_SECONDS (10). It writes with the rights of the job's user, so that a link in the
# place of the output file leads to no other user's file. `scontrol` is called once a job: Slurm advises against more.
#
# The settings are those of task_prolog.sh. The daemon must answer root on the nodes: MEMCTL_TOKEN_FILE names a file with
# a token of the role `reader`, which only root can read.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
settings=${MEMCTL_SLURM_SETTINGS:-/etc/memctl/slurm/settings}

bounded() { timeout --kill-after=2 "${MEMCTL_EPILOG_SECONDS:-10}" "$@"; }

fact() { # NAME: a value that scontrol prints on a line of its own. It may contain spaces.
    printf '%s\n' "$facts" | sed -n "s/^ *$1=//p" | head -n 1
}

report() {
    facts=$(bounded scontrol show job "$SLURM_JOB_ID") || return
    [ "$(fact BatchHost)" = "$SLURMD_NODENAME" ] || return
    output=$(fact StdOut)
    [ -n "$output" ] || return
    # memctl knows the task of an array by the name that squeue shows. Only the beginning of the first line is read: the
    # job's name, which its user chooses, follows.
    task='s/^JobId=[0-9]* ArrayJobId=\([0-9]*\) ArrayTaskId=\([0-9]*\) .*/\1_\2/p'
    job=$(printf '%s\n' "$facts" | sed -n "1$task")
    job=${job:-$SLURM_JOB_ID}
    answer=$(bounded memctl query "slurm:$job" --quiet --no-color) || return
    steps=$(bounded memctl jobs --label "slurm.job=$job" --quiet --no-color)
    # `timeout` also ends a write that blocks, for example on a pipe that has no reader.
    printf '\n--- memctl: GPU memory of job %s\n%s\n\n%s\n' "$job" "$answer" "$steps" |
        bounded runuser -u "$SLURM_JOB_USER" -- sh -c 'cat >>"$1"' sh "$output"
}

if [ -r "$settings" ]; then
    set -a
    # shellcheck disable=SC1090
    . "$settings"
    set +a
fi
# Where there is no daemon for all nodes, this script has nothing to ask, and must not start a local service of root.
[ -z "$MEMCTL_DAEMON" ] || report </dev/null >/dev/null 2>&1
exit 0
