#!/bin/sh
# The coordinator's container: make the run unless the volume holds it, lay out the invite for peers, serve.
# Words given to the container are options of `shoal coordinator init` (`command:` in docker-compose.yml).
set -eu
run=/var/lib/shoal/run

# Its summary is for people who start the rest by hand. What is worth telling goes to standard error.
shoal coordinator init "$run" --if-missing --advertise coordinator --invite-uses 100000 --invite-hours 87600 "$@" >/dev/null

cp "$run/invite.txt" /invite/invite.new
mv /invite/invite.new /invite/invite.txt
exec shoal coordinator serve "$run"
