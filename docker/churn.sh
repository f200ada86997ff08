#!/bin/sh
# A peer that does not stay: away for a while, then in the swarm for a while, then killed, or asked to leave, by chance.
# Its container ends with an error code then, and `restart: on-failure` starts it again. When the run ends it ends with 0 and stays away.
# SHOAL_AWAY and SHOAL_LIFE are ranges in seconds.
set -eu

away=$(shuf -n 1 -i "${SHOAL_AWAY:-0-15}")
life=$(shuf -n 1 -i "${SHOAL_LIFE:-30-120}")
signal=$(shuf -n 1 -e KILL TERM)
echo "this peer comes in $away s and gets SIG$signal $life s after that" >&2
sleep "$away"
exec timeout --signal="$signal" "$life" peer.sh "$@"
