# What the scripts that run on another machine share.

# step COMMAND...: shows it, runs it, and says how long it took. What fails ends the script.
step() {
  local begun=$EPOCHREALTIME
  printf '\n$ %s\n' "$*"
  "$@"
  awk -v begun="$begun" -v now="$EPOCHREALTIME" 'BEGIN { printf "  -- %.1f s\n", now - begun }'
}

system() {
  echo "$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), $(getconf GNU_LIBC_VERSION), $(python3 --version)"
}
