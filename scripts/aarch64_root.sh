#!/bin/sh
# Unpacks Debian's packages for arm64 that the engine's tests need into the folder $1. Installs nothing, and leaves the
# package lists of this machine alone.
set -eu
root=$1
[ ! -e "$root/complete" ] || exit 0
rm -rf "$root"
mkdir -p "$root/apt/lists/partial" "$root/apt/cache/archives/partial" "$root/packages"
touch "$root/apt/status"
apt() {
  command=$1
  shift
  "$command" -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$root/apt" \
    -o Dir::State::Lists="$root/apt/lists" -o Dir::State::status="$root/apt/status" -o Dir::Cache="$root/apt/cache" \
    -o APT::Sandbox::User=root "$@"
}
apt apt-get update
cd "$root/packages"
apt apt-get download libhwy-dev libhwy1 libgtest-dev libxxhash-dev nlohmann-json3-dev
for package in *.deb; do
  dpkg-deb -x "$package" "$root"
done
touch "$root/complete"
