#!/bin/bash
# base.sh ENGINE NAME: a base image from Debian's mirror (or MIRROR), where no image can be pulled. Needs root.
set -euo pipefail
engine=$1 name=$2 suite=${SUITE:-bookworm}
say() { echo "image: $*" >&2; }

case $engine in
  docker) docker image inspect "$name" >/dev/null 2>&1 && exit ;;
  *) "$engine" inspect --type image "localhost/$name" >/dev/null 2>&1 && exit ;;
esac
command -v debootstrap >/dev/null || { say "needs debootstrap: apt-get install debootstrap"; exit 1; }
[ "$(id -u)" = 0 ] || { say "debootstrap needs root"; exit 1; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
say "making $name with debootstrap, two minutes the first time"
debootstrap --variant=minbase --include=ca-certificates,python3 "$suite" "$root" ${MIRROR:+"$MIRROR"} >"$root.log" 2>&1 \
  || { tail -5 "$root.log" >&2; exit 1; }
rm -f "$root.log"
# As the slim images do: no caches, no manuals, no translations.
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
  "$root"/usr/share/{man,locale,info} "$root"/tmp/*
find "$root"/usr/share/doc -type f ! -name copyright -delete
case $engine in
  docker) tar -C "$root" -c . | docker import - "$name" >/dev/null ;;
  podman) tar -C "$root" -c . | podman import -q - "$name" >/dev/null ;;
  buildah)
    container=$(buildah from scratch)
    buildah add -q "$container" "$root" / >/dev/null
    buildah commit -q "$container" "$name" >/dev/null
    buildah rm "$container" >/dev/null ;;
esac
