#!/usr/bin/env bash
# Names the images of docker-compose.yml and deploy/Dockerfile by digests as well: by those that the registry answers
# for their tags now. A digest names the bytes of an image, a tag does not. Needs Docker with buildx.
set -euo pipefail
cd "$(dirname "$0")/.."

files=(docker-compose.yml deploy/Dockerfile)
for name in $(sed -nE 's/^(ARG PYTHON=| +image: )([a-z/]+:[0-9][0-9a-z.-]*).*/\2/p' "${files[@]}" | sort -u); do
    digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$name")
    [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "$name: the registry answers no digest: $digest" >&2; exit 1; }
    for file in "${files[@]}"; do
        pinned=$(sed -E "s#^(ARG PYTHON=| +image: )$name(@sha256:[0-9a-f]{64})?#\1$name@$digest#" "$file")
        printf '%s\n' "$pinned" >"$file"
    done
    echo "$name@$digest"
done
