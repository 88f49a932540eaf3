#!/bin/sh
# Run a command on an image's files as compose.yaml has Docker run it, without Docker: as root, on Linux.
#
#   unshare --mount --pid --net --ipc --uts --fork --kill-child tests/image/contained.sh FILES TMPFS COMMAND…
#
# FILES   the folder with the image's files, as `buildah mount` prints it
# TMPFS   the places in memory, one a line, as Docker's option --tmpfs takes them: /tmp:exec,mode=1777,size=1g
#
# It has the network, processes and mounts of its own that unshare gave it, and no capability. Its root is read-only but
# for TMPFS, the two volumes and /dev/shm. What Docker would add: its filter of system calls.
set -eu
files=$1 places=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)

ip link set lo up
mount --bind "$files" "$files"
mount -t proc -o nosuid,nodev,noexec proc "$files/proc"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$files/sys"
mount -t tmpfs -o nosuid,mode=0755,size=64k tmpfs "$files/dev"
for device in null zero full random urandom tty; do
  : >"$files/dev/$device"
  mount --bind "/dev/$device" "$files/dev/$device"
done
mkdir "$files/dev/pts" "$files/dev/shm"
ln -s /proc/self/fd "$files/dev/fd"
ln -s pts/ptmx "$files/dev/ptmx"
mount -t devpts -o nosuid,noexec,newinstance,ptmxmode=0666 devpts "$files/dev/pts"
mount -t tmpfs -o nosuid,nodev,noexec,mode=1777,size=1g shm "$files/dev/shm"
for place in $places; do
  mount -t tmpfs -o "noexec,nosuid,nodev,${place#*:}" tmpfs "$files${place%%:*}"
done
for volume in course/my_course course/data; do
  mount --bind "$files/$volume" "$files/$volume"
done
printf '127.0.0.1 localhost\n::1 localhost\n' >"$files/etc/hosts"
mkdir -p "$files/checks"
mount --bind "$here" "$files/checks"
mount -o remount,bind,ro "$files/checks"
mount -o remount,bind,ro "$files"

exec chroot "$files" setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs \
  --inh-caps=-all --bounding-set=-all env --chdir /course \
  HOME=/home/learner USER=learner "$@"
