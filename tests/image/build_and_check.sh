#!/usr/bin/env bash
# Build the course's image, say how large it is, and try it as its own user and without a network; with Docker, also
# as compose.yaml starts it: without capabilities, with limits, and with a root that is read-only.
#
#   tests/image/build_and_check.sh                    with Docker
#
#   tests/image/make_base.sh                          without Docker and without a registry, as root:
#   BUILDER=buildah BASE_IMAGE=localhost/debian-python tests/image/build_and_check.sh
#
# BUILDER           docker or buildah
# BASE_IMAGE        a Debian 12 with Python 3.11; default: the Dockerfile's
# IMAGE             the name of the result (mpi-course)
# MAX_MB            the size it must stay under (3000)
# EXTRA_BUILD_ARGS  more words for the builder, for example --no-cache, or a folder of wheels for pip:
#                   '--volume /my/wheels:/wheels:ro --volume /my/pip.conf:/etc/pip.conf:ro' (buildah only)
# STORAGE           where buildah keeps its images (/tmp/course-image); remove it when you are done
set -euo pipefail

BUILDER=${BUILDER:-docker}
BASE_IMAGE=${BASE_IMAGE:-}
IMAGE=${IMAGE:-mpi-course}
MAX_MB=${MAX_MB:-3000}
STORAGE=${STORAGE:-/tmp/course-image}
read -r -a extra <<<"${EXTRA_BUILD_ARGS:-}"
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
options=(--tag "$IMAGE" ${BASE_IMAGE:+--build-arg "BASE_IMAGE=$BASE_IMAGE"} ${extra[@]+"${extra[@]}"})

with_docker() {
  docker build "${options[@]}" "$root"
  bytes=$(docker image inspect --format '{{.Size}}' "$IMAGE")
  config() { docker image inspect --format "{{json .Config.$1}}" "$IMAGE"; }
  inside() {
    docker run --rm --network none --shm-size=1g --volume "$here:/checks:ro" \
      --cap-drop ALL --security-opt no-new-privileges --pids-limit 4096 --memory 6g --read-only --env LOCKED_UP=1 \
      --tmpfs /tmp:exec,mode=1777,size=1g --tmpfs /home/learner:exec,mode=0700,uid=1000,gid=1000,size=512m \
      --tmpfs /course/build:mode=0755,uid=1000,gid=1000,size=512m \
      --volume /course/my_course --volume /course/data "$IMAGE" "$@"
  }
}

# `buildah run` starts no entry point and shares the machine's network, processes and /dev/shm: unshare and
# mount give the container its own, setpriv its user, as Docker does.
with_buildah() {
  buildah() { command buildah --storage-driver vfs --root "$STORAGE/root" --runroot "$STORAGE/run" "$@"; }
  buildah build --isolation chroot --format docker --layers "${options[@]}" "$root"
  container=$(buildah from --isolation chroot "$IMAGE")
  trap 'buildah rm "$container" >/dev/null' EXIT
  bytes=$(du --summarize --one-file-system --bytes "$(buildah mount "$container")" | cut -f1)
  buildah umount "$container" >/dev/null
  config() {
    buildah inspect --type image "$IMAGE" |
      python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["Docker"]["config"][sys.argv[1]]))' "$1"
  }
  inside() {
    local entry
    mapfile -t entry < <(config Entrypoint | python3 -c 'import json, sys; print(*json.load(sys.stdin), sep="\n")')
    unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
      buildah --storage-driver vfs --root "$STORAGE/root" --runroot "$STORAGE/run" \
      run --isolation chroot --cap-add CAP_SYS_ADMIN --user root --volume "$here:/checks:ro" "$container" -- \
      unshare --pid --fork --mount-proc --kill-child \
      sh -c 'mount -t tmpfs -o size=1g shm /dev/shm && chmod 1777 /dev/shm && exec "$@"' sh \
      setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs --bounding-set=-all \
      env HOME=/home/learner USER=learner "${entry[@]}" "$@"
  }
}

case $BUILDER in
  docker) with_docker ;;
  buildah) with_buildah ;;
  *) echo "BUILDER=$BUILDER: choose docker or buildah" >&2; exit 2 ;;
esac

echo "$IMAGE: $((bytes / 1000000)) MB"
inside python /checks/checks.py "$(config Cmd)" "$(config Healthcheck | python3 -c \
  'import json, sys; print(json.dumps(json.load(sys.stdin)["Test"]))')"
if ((bytes / 1000000 >= MAX_MB)); then
  echo "FAIL  The image has $((bytes / 1000000)) MB; it must stay under $MAX_MB MB." >&2
  exit 1
fi
