#!/bin/bash
# Runs as an ordinary user on a bare Debian with Python, in a home without a checkout: installs a wheel, then uses it.
#   bare_machine.sh WHEEL WHEELHOUSE TRY     TRY: the folder of first_run.sh and of what that needs
set -euo pipefail
wheel=$1 wheelhouse=$2 try=$3
source "$try/steps.sh"
cd "$HOME"

machine() {
  echo "$(system), $(dpkg-query -W | wc -l) packages, user $(id -un) ($(id -u))"
  [ "$(id -u)" != 0 ]
  local command
  for command in cc gcc g++ clang make cmake ninja git sudo; do
    if command -v "$command"; then return 1; fi
  done
  if dpkg-query -W -f '${Package}\n' | grep -e '-dev$'; then return 1; fi
  if grep -l up /sys/class/net/*/operstate 2>/dev/null; then return 1; fi
  echo "no compiler, no make, no sudo, no package of headers, no network"
}

step machine
step python3 -m venv venv
step venv/bin/pip --disable-pip-version-check install --quiet --no-index --find-links "$wheelhouse" torch "$wheel"
step venv/bin/python "$try/processors.py" "$try/qemu-x86_64-static"
PATH=$HOME/venv/bin:$PATH exec "$try/first_run.sh" "$try"
