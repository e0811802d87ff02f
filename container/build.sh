#!/bin/bash
# build.sh [--offline]: build the image from the Dockerfile, with docker, podman or buildah.
#
#   IMAGE=murmurate:dev   its name
#   ENGINE=podman         which of the three; default: the first that works
#   BASE=… TORCH=… TORCH_INDEX=…   build arguments, see the Dockerfile
#   --offline             nothing is pulled: the base is made by debootstrap from Debian's mirror
#                         (or MIRROR; SUITE), torch comes from where this machine's pip finds it
#
# How pip reaches its index here (pip config, certificates) goes in as build secrets; nothing of it
# stays in the image.
set -euo pipefail
cd "$(dirname "$0")/.."
image=${IMAGE:-murmurate:dev}
base_image=${BASE_IMAGE:-murmurate-base:bookworm}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "image: $*" >&2; }

works() {
  case $1 in
    docker) docker info >/dev/null 2>&1 ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

engine=${ENGINE:-}
for each in docker podman buildah; do
  if [ -z "$engine" ] && works "$each"; then engine=$each; fi
done
[ -n "$engine" ] || { say "none of docker, podman and buildah works here; install one of them"; exit 1; }

arguments=()
for each in BASE TORCH TORCH_INDEX; do
  [ -z "${!each:-}" ] || arguments+=(--build-arg "$each=${!each}")
done

if [ "${1:-}" = --offline ]; then
  container/base.sh "$engine" "$base_image"
  case $engine in docker) base=$base_image ;; *) base=localhost/$base_image ;; esac
  arguments+=(--build-arg "BASE=$base")
fi

# -- how this machine's pip reaches its index -----------------------------------------------------
python=$(command -v python3.11 || command -v python3)
"$python" container/pip_secret.py "$work/pip.conf" "$work/ca.pem" "$work/folders"
arguments+=(--secret "id=pip,src=$work/pip.conf" --secret "id=ca,src=$work/ca.pem")
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' node/murmurate/__init__.py)
revision=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
arguments+=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision" -t "$image")

case $engine in
  docker)
    [ ! -s "$work/folders" ] || say "docker cannot see folders of this machine's pip: $(tr '\n' ' ' <"$work/folders")"
    DOCKER_BUILDKIT=1 docker build "${arguments[@]}" . ;;
  *)
    # --format docker: the OCI form has no HEALTHCHECK. Network and processes as on this machine:
    # also where no bridge can be made, and where limits may not be raised.
    while read -r folder; do arguments+=(-v "$folder:$folder:ro"); done <"$work/folders"
    arguments+=(--format docker --network host --ulimit nofile=1024:1024 --ulimit nproc=1024:1024)
    if command -v runc >/dev/null; then arguments+=(--runtime runc); fi
    if [ "$engine" = podman ]; then podman build "${arguments[@]}" .; else buildah build "${arguments[@]}" .; fi ;;
esac
say "$image built with $engine"
