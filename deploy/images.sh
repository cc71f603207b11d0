#!/bin/sh
# Builds the images `orca` and `orca-bench`, and prints their sizes and layers. Arguments are those of the engine's `build`.
#   deploy/images.sh --build-arg MODEL=default
#   CONTAINER_ENGINE=podman PIP_CONF=pip.conf deploy/images.sh
# CONTAINER_ENGINE: docker, podman or buildah; the first that works by default.
# PIP_CONF: pip's settings of another package index.
set -eu
cd "$(dirname "$0")/.."

works() {
    case $1 in
        docker) docker info >/dev/null 2>&1 ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

if [ -z "${CONTAINER_ENGINE:-}" ]; then
    for CONTAINER_ENGINE in docker podman buildah none; do
        works "$CONTAINER_ENGINE" && break
    done
fi
case $CONTAINER_ENGINE in
    docker | podman) build="$CONTAINER_ENGINE build" ;;
    buildah) build="buildah build --layers" ;;
    *)
        echo "no Docker daemon, Podman or Buildah to build images with" >&2
        exit 1
        ;;
esac
[ -z "${PIP_CONF:-}" ] || set -- --secret "id=pip.conf,src=$PIP_CONF" "$@"

$build --file deploy/Dockerfile "$@" --tag orca .
$build --file deploy/Dockerfile "$@" --target bench --tag orca-bench .

for image in orca orca-bench; do
    case $CONTAINER_ENGINE in
        buildah) buildah images --format "{{.Name}}: {{.Size}}" "$image" ;;
        *)
            echo "$image: $("$CONTAINER_ENGINE" image inspect --format '{{.Size}}' "$image") bytes"
            "$CONTAINER_ENGINE" history --format '{{.Size}}	{{.CreatedBy}}' "$image"
            ;;
    esac
done
