#!/bin/sh
# Runs a command with the kernel's autogroups off, and puts them back. With them each session (each QEMU, each sshd) is a
# group of its own, whose share of a busy processor can be next to nothing: seen on Linux 6.18, a process that was ready
# to run for 15 s, on two cores with two busy loops.
switch=/proc/sys/kernel/sched_autogroup_enabled
if [ "$(cat "$switch" 2>/dev/null)" = 1 ] && (echo 0 >"$switch") 2>/dev/null; then
    echo "kernel.sched_autogroup_enabled is 0 while this runs, and 1 again afterwards"
    trap 'echo 1 >"$switch"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
fi
"$@"
