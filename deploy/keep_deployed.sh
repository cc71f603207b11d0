#!/bin/sh
# Deploys a Serve config; ends when the cluster no longer knows the application, because its head was replaced.
# Whoever runs this starts it again then. Deploying a config that runs already changes nothing.
#   keep_deployed.sh DASHBOARD_URL CONFIG
set -eu
serve deploy --address "$1" "$2"
token=$(ray get-auth-token)
while wget -q -T 5 -O- --header "Authorization: Bearer $token" "$1/api/serve/applications/" | grep -q '"orca"'; do
    sleep 1
done
echo "$1 no longer runs the application" >&2
exit 1
