#!/bin/sh
# Deploys a Serve config. Ends when the cluster no longer runs the application, because its head was replaced; Compose then
# starts it again. To deploy a config that already runs changes nothing.
#   keep_deployed.sh DASHBOARD_URL CONFIG
set -eu
serve deploy --address "$1" "$2"
token=$(ray get-auth-token)
while wget -q -T 5 -O- --header "Authorization: Bearer $token" "$1/api/serve/applications/" | grep -q '"orca"'; do
    sleep 1
done
echo "$1 no longer runs the application" >&2
exit 1
