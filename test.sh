#!/usr/bin/env bash
# Runs all tests, on real servers where there are any, and ends with what failed and a line per
# store and broker.
#
# As root on Debian or Ubuntu without Docker it first installs the server packages. A server that
# is not found is reported as skipped with the reason; INBOX_TEST_REQUIRE=postgres,redis (or all) makes that
# a failure. Arguments go to `cargo test`.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
target=${CARGO_TARGET_DIR:-target}
# Tests of servers wait more than they work.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-6}

for_cargo=()
while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
    for_cargo+=("$1")
    shift
done
# Without the `--`.
for_programs=("${@:2}")
# All but examples, which the lints compile. Documentation comes last.
build=(cargo test --workspace --all-features --lib --bins --tests --no-run "${for_cargo[@]}")

# The servers are installed while the rest is built.
cargo test --workspace --all-features --no-run --test servers "${for_cargo[@]}" || exit 1
"$target/debug/test-servers" install >"$target/install.log" 2>&1 &
installation=$!
"${build[@]}"
built=$?
wait "$installation" || echo "test.sh: going on with the servers that are there"
cat "$target/install.log"
[ "$built" = 0 ] || exit 1

# A line for each program: its package's folder, the kind of target, its name, the program.
list() {
    "${build[@]}" --quiet --message-format json |
        sed -nE '/"overflow_checks":[a-z]*,"test":true/s|.*"manifest_path":"([^"]*)/Cargo.toml","target":\{"kind":\["([^"]*)".*"name":"([^"]*)","src_path".*"executable":"([^"]*)".*|\1 \2 \3 \4|p' |
        sort
}

# Runs the programs that are listed, one after another, each where Cargo would.
run() {
    local folder kind name program began status failed=0
    while read -r folder kind name program; do
        printf '\n     Running %s %s %s\n' "${folder##*/}" "$kind" "$name"
        began=$SECONDS
        (cd "$folder" && CARGO_MANIFEST_DIR=$folder exec "$program" "${for_programs[@]}") </dev/null
        status=$?
        [ "$status" = 0 ] || failed=1
        printf '       Ended %s %s %s with %s after %s s\n' "${folder##*/}" "$kind" "$name" "$status" $((SECONDS - began))
    done
    return "$failed"
}

# Cargo would run one program after another. The brokers' wait most of the time, so they run next to the others, with
# fewer threads. That of SQS comes first, next to those with the least work: its emulator is slow where others work hard,
# and gives messages out again.
status=0
rm -f "$target"/test*.log
list >"$target/programs" || exit 1
# In a process group, to be ended whole.
set -m
{
    grep -F "/brokers/" "$target/programs" | sort -r | RUST_TEST_THREADS=$((RUST_TEST_THREADS / 2 + 1)) run
} >"$target/test-brokers.log" 2>&1 &
brokers=$!
trap 'kill -TERM -- "-$brokers" 2>/dev/null' EXIT
set +m
grep -vF "/brokers/" "$target/programs" | run 2>&1 | tee "$target/test.log" || status=1
cargo test --workspace --all-features --doc --no-fail-fast "${for_cargo[@]}" -- "${for_programs[@]}" 2>&1 |
    tee -a "$target/test.log" || status=1
wait "$brokers" || status=1
cat "$target/test-brokers.log"

awk '
    /^ +Running [^ ]+ [^ ]+ [^ ]+$/ { package = $2 }
    /^ *Doc-tests / { package = "documentation" }
    /^ +Ended .* with [0-9]+ after [0-9]+ s$/ {
        seconds[$2] += $8
        if ($6 != 0) bad[$2] = 1
    }
    /^test result: / {
        passed[package] += $4
        failed[package] += $6
    }
    # What failed is said again at the end, where it is looked for.
    /^ *(Running|Doc-tests) / { running = $0 }
    /^failures:$/ { if (!failing) failures = failures "\n" running "\n"; failing = 1 }
    /^test result: / || /^error: / || /^ +Ended / { failing = 0; shown = 0 }
    failing && shown++ < 200 { failures = failures $0 "\n" }
    / NOT CHECKED: / { unchecked[package]++ }
    /^test-servers: [a-z-]+: / {
        kind = $2
        sub(/:$/, "", kind)
        about = $0
        sub(/^test-servers: [a-z-]+: /, "", about)
        server[kind] = about
    }
    function line(package, name) {
        text = sprintf("%-15s ", name)
        if (!(package in seconds)) return text "not run"
        text = text sprintf("%d passed, %d failed", passed[package], failed[package])
        if (bad[package] && !failed[package]) text = text ", ended early"
        if (unchecked[package]) text = text sprintf(", %d not checked (see above)", unchecked[package])
        text = text sprintf(", %d s", seconds[package])
        delete seconds[package]
        return text
    }
    END {
        if (failures) printf "\nFailed\n%s", failures
        print "\nStores"
        print line("inbox-memory", "memory")
        print line("inbox-mongo", "mongodb")
        print line("inbox-mysql", "mysql, mariadb")
        print line("inbox-postgres", "postgres")
        print line("inbox-redis", "redis")
        print line("inbox-sqlite", "sqlite")
        print line("redb-store", "redb (example)")
        print "\nBrokers"
        print line("inbox-kafka", "kafka")
        print line("inbox-nats", "nats")
        print line("inbox-rabbitmq", "rabbitmq")
        print line("inbox-redis-streams", "redis streams")
        print line("inbox-sqs", "sqs")
        print "\nOthers"
        for (package in seconds) if (passed[package] + failed[package] + bad[package]) rest[package]
        for (package in rest) print line(package, package) | "sort"
        close("sort")
        print "\nServers for tests"
        for (kind in server) print sprintf("%-16s", kind) server[kind] | "sort"
    }
' "$target/test.log" "$target/test-brokers.log"
exit "$status"
