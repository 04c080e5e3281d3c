#!/usr/bin/env bash
# Become a throw-away copy of this machine: FOLDER LAYERS COMMAND...
# Called as the first process of new namespaces. All that is written goes into FOLDER, above LAYERS of a file system, and
# COMMAND becomes the first process of the copy. What reaches the real machine through the kernel is read-only.
set -euo pipefail
folder=$1 layers=$2
shift 2
mkdir "$folder" "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay -o "lowerdir=$layers,upperdir=$folder/upper,workdir=$folder/work" overlay "$folder/root"
cd "$folder/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
    touch "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mkdir run/before
pivot_root . run/before
umount -l run/before
exec env -i container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set=-sys_boot,-sys_module,-sys_rawio,-sys_time,-syslog "$@"
