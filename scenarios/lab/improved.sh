#!/bin/sh
# The preStop of mode improved: our transcription of the seven-step shell hook.
# Every call is best effort with a limit of 5 s; what cannot be read sums to 0.
# Environment: HC_URL, ENVOY_ADMIN, DRAIN_TIMEOUT, POLL_INTERVAL, LB_BUFFER (seconds).
post() { curl -sS -m 5 -o /dev/null -X POST "$1" || echo "POST $1: failed"; }
active() {
	curl -sS -m 5 "$ENVOY_ADMIN/stats?filter=downstream_rq_active|upstream_rq_active" |
		awk -F': ' '{ sum += $2 } END { print sum + 0 }'
}
end=$(($(date +%s) + DRAIN_TIMEOUT))
post "$HC_URL/drain"                                  # 1 not ready for more
post "$ENVOY_ADMIN/drain_listeners?graceful&skip_exit" # 2 Envoy tells its connections
while n=$(active); [ "$n" -gt 0 ]; do                 # 3 until nothing is active
	echo "active $n"
	[ "$(date +%s)" -ge "$end" ] && break             # 4 or the deadline has passed
	sleep "$POLL_INTERVAL"
done
post "$HC_URL/close-lb"                               # 5 the health check fails
sleep "$LB_BUFFER"                                    # 6 time for the balancer to see it
post "$HC_URL/close"                                  # 7 the pod may go
