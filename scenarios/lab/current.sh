#!/bin/sh
# The preStop of mode current: the health check fails at once, and the pod stays
# long enough for every request to have ended by then.
# Environment: HC_URL, HOLD (seconds).
post() { curl -sS -m 5 -o /dev/null -X POST "$1" || echo "POST $1: failed"; }
post "$HC_URL/drain"
post "$HC_URL/close-lb"
sleep "$HOLD"
post "$HC_URL/close"
