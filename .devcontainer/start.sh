#!/bin/sh
# Start JupyterLab on my_course/ and come back: it goes on when the window that started it is closed. `address` shows
# where it is, with its token.
set -eu
cd "$(dirname "$0")/.."
if [ "${1:-}" = address ]; then
  for _ in $(seq 60); do
    .venv/bin/jupyter server list 2>/dev/null | grep 'token=' && exit
    sleep 1
  done
  echo "JupyterLab does not answer after a minute. What it said: build/lab.log" >&2
  exit 1
fi
# In a codespace the browser comes from the forwarded address, which Jupyter takes for a stranger. Allow that one only.
if [ -n "${CODESPACE_NAME:-}" ]; then
  domain=${GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN:-app.github.dev}
  set -- "--ServerApp.allow_origin=https://$CODESPACE_NAME-8888.$domain" --ServerApp.allow_remote_access=True
else
  set --
fi
mkdir -p build
nohup setsid .venv/bin/course lab --no-browser -- "$@" >build/lab.log 2>&1 </dev/null &
