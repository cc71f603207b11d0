#!/bin/sh
# Makes the Secrets that the manifests name, where they are missing, and prints the API key that it makes.
#   secrets.sh [--namespace NAME] [other options of kubectl]
set -eu
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
missing() { [ -z "$(kubectl get secret "$@" --ignore-not-found --output name)" ]; }

for server in orca-pool orca-gcs; do # letters and digits only, as the password is part of a URL
    if missing "$server" "$@"; then
        random | kubectl create secret generic "$server" --from-file=password=/dev/stdin "$@"
    fi
done
if missing orca-keys "$@"; then
    key=$(random)
    echo "default: $key" | kubectl create secret generic orca-keys --from-file=keys=/dev/stdin "$@"
    echo "API key: $key"
fi
