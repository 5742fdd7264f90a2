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
#
# The script starts no recording: a user does that with `memctl run`. It always succeeds, because Slurm ends a task
# whose prolog fails.
settings=${MEMCTL_SLURM_SETTINGS:-/etc/memctl/slurm/settings}
[ -z "$MEMCTL_DAEMON" ] && [ -r "$settings" ] || exit 0
while IFS='=' read -r name value; do
    case $name in
    MEMCTL_DAEMON | MEMCTL_TLS_CA | MEMCTL_TENANT) echo "export $name=$value" ;;
    esac
done <"$settings"
exit 0
