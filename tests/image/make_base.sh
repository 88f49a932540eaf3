#!/usr/bin/env bash
# Make a base image for build_and_check.sh where no image registry can be reached: Debian 12 and its Python,
# from debootstrap's own mirror, or from the one that MIRROR names. Needs root, debootstrap and buildah.
#
#   tests/image/make_base.sh                      makes localhost/debian-python in $STORAGE
set -euo pipefail

STORAGE=${STORAGE:-/tmp/course-image}
NAME=${NAME:-localhost/debian-python}

buildah() { command buildah --storage-driver vfs --root "$STORAGE/root" --runroot "$STORAGE/run" "$@"; }

mkdir -p "$STORAGE"
files=$(mktemp --directory "$STORAGE/debian.XXXXXX")
trap 'rm -rf "$files"' EXIT

# python3 without python3-venv, as on a plain Debian: the Dockerfile must add what it misses.
debootstrap --variant=minbase --include=python3,ca-certificates bookworm "$files" ${MIRROR:+"$MIRROR"} >"$STORAGE/debootstrap.log" ||
  { tail -n 20 "$STORAGE/debootstrap.log"; exit 1; }
rm -rf "$files"/var/cache/apt/archives/*.deb "$files"/var/lib/apt/lists/*

container=$(buildah from scratch)
buildah add --quiet "$container" "$files" / >/dev/null
buildah config --cmd bash --label org.opencontainers.image.title='Debian 12 with Python 3.11' "$container"
buildah commit --quiet --rm "$container" "$NAME" >/dev/null
echo "$NAME is ready in $STORAGE: Debian $(cat "$files/etc/debian_version"), $(chroot "$files" python3 --version)"
