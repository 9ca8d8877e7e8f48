#!/bin/sh
# Runs a command with the kernel's autogroups off, and turns them on again. With them each session (each QEMU, each sshd) is
# a group of its own, whose share of a busy processor can be next to nothing: seen on Linux 6.18, a process that was ready
# to run for 15 s, on two cores with two busy loops.
switch=/proc/sys/kernel/sched_autogroup_enabled
if [ "$(cat "$switch" 2>/dev/null)" = 1 ] && [ -w "$switch" ]; then
    echo "kernel.sched_autogroup_enabled is 0 while this runs, and 1 again afterwards" >&2
    trap 'echo 1 >"$switch"' EXIT
    for signal in HUP:129 INT:130 QUIT:131 TERM:143; do
        trap "exit ${signal#*:}" "${signal%:*}"
    done
    echo 0 >"$switch"
fi
"$@"
