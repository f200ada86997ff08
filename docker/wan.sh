#!/bin/sh
# A peer behind a home's link: shape this container's network, give all privileges up, go on as any peer.
# SHOAL_UP and SHOAL_DOWN are rates, SHOAL_DELAY is one way, all as `tc` writes them. Runs as root with the capability NET_ADMIN.
set -eu
up=${SHOAL_UP:-20mbit} down=${SHOAL_DOWN:-100mbit} delay=${SHOAL_DELAY:-20ms}
device=$(ip -o route show default | head -n 1 | sed -E 's/.* dev ([^ ]+).*/\1/')
limit="burst 64kb latency 200ms"

# Netem and ifb are kernel modules that not every machine has. Without them a link is shaped as far as it can be.
place=root
if tc qdisc add dev "$device" root handle 1: netem delay "$delay" 2>/dev/null; then
    place="parent 1:1"
else
    delay="none (this kernel has no netem)"
fi
# shellcheck disable=SC2086  # words, not one word
tc qdisc add dev "$device" $place handle 10: tbf rate "$up" $limit

# shellcheck disable=SC2086
if ip link add shaped type ifb 2>/dev/null; then
    ip link set shaped up
    tc qdisc add dev shaped root tbf rate "$down" $limit
    tc qdisc add dev "$device" handle ffff: ingress
    tc filter add dev "$device" parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev shaped
else
    down="as fast as it comes (this kernel has no ifb)"
fi

echo "link $device: up $up, down $down, delay $delay" >&2
export HOME=/home/shoal
exec setpriv --reuid shoal --regid shoal --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all peer.sh "$@"
