#!/usr/bin/env bash
# Processor time of a dashboard, and of the PostgreSQL server's connections to its database, per request: for
# dashboard.md. Both on this machine.
#
#     dashboard.sh postgres://…/shop http://127.0.0.1:8090 PID_OF_THE_DASHBOARD
set -euo pipefail
database=$1 base=$2 dashboard=$3

# In hundredths of a second, on Linux.
ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }
server() {
    local sum=0 pid
    for pid in $(psql "$database" -Atc "SELECT pid FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid() AND backend_type = 'client backend'"); do
        sum=$((sum + $(ticks "$pid")))
    done
    echo "$sum"
}

# So many requests for a page, with a pause that is longer than what was read is good for.
measure() {
    local number=$1 pause=$2 page=$3 own theirs
    curl -sSf -o /dev/null "$base/$page"
    own=$(ticks "$dashboard") theirs=$(server)
    for _ in $(seq "$number"); do
        sleep "$pause"
        curl -sSf -o /dev/null "$base/$page"
    done
    awk -v own=$(($(ticks "$dashboard") - own)) -v theirs=$(($(server) - theirs)) -v n="$number" -v page="$page" \
        'BEGIN { printf "%-66s dashboard %6.1f ms  server %6.1f ms\n", page, own * 10 / n, theirs * 10 / n }'
}

measure 50 0.01 messages
measure 50 0.01 'messages?state=dead'
measure 50 0.01 'message?handler=mail&id=evt-9999001'
measure 60 0.01 'dead?more=true'
for page in overview dead keys workers scheduled 'confirm?action=replay&state=dead&handler=billing&kind=order.paid'; do
    measure 20 1.1 "$page"
done
echo "an overview that is open, and renewed every two seconds:"
measure 30 2 overview
