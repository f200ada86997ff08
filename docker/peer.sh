#!/bin/sh
# A peer's container: wait for the invite, join with it. Words given to the container are options of `shoal peer join`.
# All peers keep their state in one volume; each takes an identity that no other has in use.
set -eu
invite=/invite/invite.txt

waited=0
until [ -s "$invite" ]; do
    [ $((waited % 30)) -ne 0 ] || echo "waiting for the coordinator's invite, $invite, since $waited s; is the coordinator up?" >&2
    sleep 1
    waited=$((waited + 1))
done
exec shoal peer join "$invite" --state /var/lib/shoal "$@"
