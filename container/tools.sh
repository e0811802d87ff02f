#!/bin/bash
# tools.sh: what an offline build and its tests need, by apt where it is missing (Debian, as root).
set -euo pipefail
missing=()
for each in podman runc debootstrap; do
  command -v "$each" >/dev/null || missing+=("$each")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "image: needs ${missing[*]}; install them (here only root with apt-get can)" >&2
  exit 1
fi
echo "image: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get -o DPkg::Lock::Timeout=300 -qq update
apt-get -o DPkg::Lock::Timeout=300 -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
