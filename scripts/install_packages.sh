#!/usr/bin/env bash
# Installs those packages of debian-packages.txt that are missing, and what $PYTHON lacks for a virtual environment and
# an extension. Asks apt nothing when nothing is missing. Needs root or sudo only when it has something to install.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}

refuse() {
  echo "$1" >&2
  exit 1
}
installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
has_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }
is_recent() { "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; }
has_headers() {
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null
}

mapfile -t wanted < <(grep -v '^#' debian-packages.txt)
if ! command -v dpkg-query >/dev/null; then
  echo "This is no Debian system, so nothing is installed here. The build needs what these packages bring: ${wanted[*]}"
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do installed "$package" || missing+=("$package"); done
if ! command -v "$python" >/dev/null; then
  [ "$python" = python3 ] || refuse "PYTHON=$python: there is no such command"
  missing+=(python3 python3-venv python3-dev)
else
  is_recent || refuse "$python is $("$python" --version); 3.11 or newer is needed. Name one: make PYTHON=python3.11 ..."
  # A Python of another origin (pyenv, conda) brings both itself; only Debian's own comes in parts.
  has_venv || missing+=(python3-venv)
  has_headers || missing+=(python3-dev)
fi
[ ${#missing[@]} -gt 0 ] || exit 0

echo "The engine is compiled here, which needs a compiler and the headers of what it links to."
echo "Debian packages that are missing for it and are installed now: ${missing[*]}"
if [ "$(id -u)" = 0 ]; then
  as_root=()
elif command -v sudo >/dev/null; then
  as_root=(sudo)
else
  refuse "Neither root nor sudo is at hand. Have them installed: apt-get install ${missing[*]}"
fi
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
has_venv && has_headers ||
  refuse "$python still lacks venv or Python.h, which Debian's own brings: make PYTHON=/usr/bin/python3 ..."
