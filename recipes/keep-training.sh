#!/bin/sh
# keep-training.sh CONFIG.yaml [--key value ...]: starts `spillway train` again until the run is complete. The
# configuration has `resume_from_checkpoint: auto`. WAIT: seconds before the next start (10).
while :; do
  spillway train "$@"
  code=$?
  case $code in
    0 | 2 | 3 | 130 | 143) exit $code ;; # done, bad input, does not fit, stopped by somebody
  esac
  echo "keep-training: spillway ended with $code, starting it again in ${WAIT:-10} s" >&2
  sleep "${WAIT:-10}"
done
