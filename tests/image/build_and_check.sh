#!/usr/bin/env bash
# Build the course's image, say how large it is, and try it as compose.yaml starts it, and without a network: as its
# own user, without capabilities, with limits, and with a root that is read-only.
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
# CHECK_ONLY        not empty: check the image that is there, without building it (buildah only)
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
# As in compose.yaml.
in_memory=(
  /tmp:exec,mode=1777,size=1g
  /home/learner:exec,mode=0700,uid=1000,gid=1000,size=512m
  /course/build:exec,mode=0755,uid=1000,gid=1000,size=512m
)
options=(--tag "$IMAGE" ${BASE_IMAGE:+--build-arg "BASE_IMAGE=$BASE_IMAGE"} ${extra[@]+"${extra[@]}"})

with_docker() {
  docker build "${options[@]}" "$root"
  bytes=$(docker image inspect --format '{{.Size}}' "$IMAGE")
  config() { docker image inspect --format "{{json .Config.$1}}" "$IMAGE"; }
  inside() {
    docker run --rm --network none --shm-size=1g --volume "$here:/checks:ro" \
      --cap-drop ALL --security-opt no-new-privileges --pids-limit 4096 --memory 6g --read-only \
      --env LIMITED="pids memory" "${in_memory[@]/#/--tmpfs=}" \
      --volume /course/my_course --volume /course/data "$IMAGE" "$@"
  }
}

# `buildah run` starts no entry point and shares the machine's network and processes: contained.sh does what
# `docker run` does, with the options above.
with_buildah() {
  buildah() { command buildah --storage-driver vfs --root "$STORAGE/root" --runroot "$STORAGE/run" "$@"; }
  [[ -n ${CHECK_ONLY:-} ]] || buildah build --isolation chroot --format docker --layers "${options[@]}" "$root"
  container=$(buildah from --isolation chroot "$IMAGE")
  trap 'buildah rm "$container" >/dev/null; remove_limits' EXIT
  files=$(buildah mount "$container")
  bytes=$(du --summarize --one-file-system --bytes "$files" | cut -f1)
  config() {
    buildah inspect --type image "$IMAGE" |
      python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["Docker"]["config"][sys.argv[1]]))' "$1"
  }
  inside() {
    local settings
    mapfile -t settings < <((config Env && config Entrypoint) |
      python3 -c 'import json, sys; [print(word) for line in sys.stdin for word in json.loads(line)]')
    limit pids pids.max 4096
    limit memory memory.limit_in_bytes $((6 << 30))
    (
      for group in "${limits[@]}"; do echo 0 >"$group/cgroup.procs"; done
      exec unshare --mount --pid --net --ipc --uts --fork --kill-child \
        "$here/contained.sh" "$files" "${in_memory[*]}" LIMITED="${limited[*]}" "${settings[@]}" "$@"
    )
  }
}

# A limit of the kernel's control groups (version 1), set in a group of its own. Where this process is in somebody's
# group already, the limits are theirs to set.
limits=() limited=()
limit() {
  local folder=/sys/fs/cgroup/$1/mpi-course-$$
  if grep --quiet "^[0-9]*:$1:/\$" /proc/self/cgroup && mkdir "$folder" 2>/dev/null; then
    limits+=("$folder") limited+=("$1")
    echo "$3" >"$folder/$2"
  else
    echo "no limit on $1: its control group is not ours to make"
  fi
}
remove_limits() {
  for group in "${limits[@]}"; do rmdir "$group"; done
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
