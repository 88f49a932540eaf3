#!/usr/bin/env bash
# Set the course up and test it on Debian 13: Python 3.13, an ordinary user, no compiler, and the build of PyTorch that pip
# finds by itself, which needs a GPU for nothing. Needs root, debootstrap and 15 GB in STORAGE; about an hour.
#
#   tests/versions/debian_13.sh                   set up, `make test`
#   tests/versions/debian_13.sh make test-all     set up, then this command
#   STORAGE=/big/disk tests/versions/debian_13.sh
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
STORAGE=${STORAGE:-/tmp/course-debian-13}
files=$STORAGE/files
[ $# -gt 0 ] || set -- make test

mkdir -p "$STORAGE"
if [ ! -e "$files/etc/course-ready" ]; then
  debootstrap --variant=minbase --include=python3-venv,ca-certificates,git,make,procps,iproute2 trixie "$files" \
    >"$STORAGE/debootstrap.log" || { tail -n 20 "$STORAGE/debootstrap.log"; exit 1; }
  chroot "$files" useradd --uid 1000 --create-home --shell /bin/bash learner
  touch "$files/etc/course-ready"
fi
# What the machine knows of names, of certificates and of pip's places holds there, too.
cp --dereference /etc/resolv.conf /etc/hosts "$files/etc/"
cp --dereference /etc/ssl/certs/ca-certificates.crt "$files/etc/ssl/certs/"
for settings in /etc/pip.conf /etc/xdg/pip; do
  [ ! -e "$settings" ] || { mkdir -p "$files$(dirname "$settings")"; cp -rT "$settings" "$files$settings"; }
done
course=$files/home/learner/course
[ -d "$course" ] || git clone --quiet --no-hardlinks "$here" "$course"
git -c safe.directory="$course" -C "$course" fetch --quiet "$here" HEAD
git -c safe.directory="$course" -C "$course" reset --quiet --hard FETCH_HEAD
chown -R 1000:1000 "$files/home/learner"

export files
exec unshare --mount --pid --fork --kill-child bash -euc '
  mount -t proc proc "$files/proc"
  mount -t sysfs -o ro sysfs "$files/sys"
  mount --rbind /dev "$files/dev"
  mount -t tmpfs -o mode=1777,size=1g shm "$files/dev/shm"
  exec chroot "$files" setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \
    env --ignore-environment --chdir /home/learner/course HOME=/home/learner USER=learner LANG=C.UTF-8 \
    PATH=/usr/bin:/bin PIP_CERT=/etc/ssl/certs/ca-certificates.crt sh -euc "make setup; exec \"\$@\"" sh "$@"
' bash "$@"
