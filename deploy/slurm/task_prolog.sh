#!/bin/sh
# TaskProlog: gives every task the address of the cluster's daemon, unless its user has chosen another one.
#
#   slurm.conf    TaskProlog=/etc/memctl/slurm/task_prolog.sh
#
# Slurm runs this script as the job's user before each task, and before each batch script. Slurm adds the variables of
# lines `export NAME=VALUE` to the task's environment. The settings are lines NAME=VALUE of a file that all users can
# read, such as:
#
#   MEMCTL_DAEMON=https://memctl.example.org:7717
#   MEMCTL_TLS_CA=/etc/memctl/tls/ca.pem
#   MEMCTL_TASK_TOKEN_FILE=/etc/memctl/slurm/task.token
#
# A daemon with tokens accepts only tasks with a token. MEMCTL_TASK_TOKEN_FILE names a file with a token of the role
# `agent`, which all users can read: it delivers recordings and reads nothing. A task gets it as MEMCTL_TOKEN_FILE, unless
# its user has a token. (MEMCTL_TOKEN_FILE of the settings is the epilog's, and is not passed on.)
#
# The script starts no recording: a user does that with `memctl run`. It always succeeds, because Slurm ends a task
# whose prolog fails.
settings=${MEMCTL_SLURM_SETTINGS:-/etc/memctl/slurm/settings}
[ -z "$MEMCTL_DAEMON" ] && [ -r "$settings" ] || exit 0
while IFS='=' read -r name value; do
    case $name in
    MEMCTL_DAEMON | MEMCTL_TLS_CA | MEMCTL_TENANT) echo "export $name=$value" ;;
    MEMCTL_TASK_TOKEN_FILE) [ -n "$MEMCTL_TOKEN$MEMCTL_TOKEN_FILE" ] || echo "export MEMCTL_TOKEN_FILE=$value" ;;
    esac
done <"$settings"
exit 0
