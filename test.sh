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
log=$target/test.log
# All but examples, which the lints compile. Documentation comes last.
programs=(--workspace --all-features --lib --bins --tests)

# The servers are installed while the rest is built.
cargo test --workspace --all-features --no-run --test servers "$@" || exit 1
"$target/debug/test-servers" install >"$target/install.log" 2>&1 &
installation=$!
cargo test "${programs[@]}" --no-run "$@"
built=$?
wait "$installation" || echo "test.sh: going on with the servers that are there"
cat "$target/install.log"
[ "$built" = 0 ] || exit 1

{
    cargo test "${programs[@]}" --no-fail-fast "$@"
    status=$?
    cargo test --workspace --all-features --doc --no-fail-fast "$@" || status=$?
    exit "$status"
} 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

awk '
    # Cargo runs package by package; the tests of a library or binary itself come first.
    /^ *Running unittests / {
        package = $NF
        sub(/.*\/deps\//, "", package)
        sub(/-[0-9a-f]+\)$/, "", package)
        seen[package] = 1
    }
    /^test result: / {
        passed[package] += $4
        failed[package] += $6
        if ($3 != "ok.") bad[package] = 1
    }
    # What failed is said again at the end, where it is looked for.
    /^ *(Running|Doc-tests) / { running = $0 }
    /^failures:$/ { if (!failing) failures = failures "\n" package running "\n"; failing = 1 }
    /^test result: / || /^error: / { failing = 0; shown = 0 }
    failing && shown++ < 200 { failures = failures $0 "\n" }
    / NOT CHECKED: / { unchecked[package]++ }
    /^test-servers: [a-z-]+: / {
        kind = $2
        sub(/:$/, "", kind)
        about = $0
        sub(/^test-servers: [a-z-]+: /, "", about)
        server[kind] = about
    }
    function store(package, name) {
        line = sprintf("%-16s", name)
        if (!(package in seen)) {
            print line "not run"
            return
        }
        line = line sprintf("%d passed, %d failed", passed[package], failed[package])
        if (bad[package] && !failed[package]) line = line ", ended early"
        if (unchecked[package]) line = line sprintf(", %d not checked (see above)", unchecked[package])
        print line
    }
    END {
        if (failures) printf "\nFailed\n%s", failures
        print "\nStores"
        store("inbox_memory", "memory")
        store("inbox_mongo", "mongodb")
        store("inbox_mysql", "mysql, mariadb")
        store("inbox_postgres", "postgres")
        store("inbox_redis", "redis")
        store("inbox_sqlite", "sqlite")
        store("redb_store", "redb (example)")
        print "\nBrokers"
        store("inbox_kafka", "kafka")
        store("inbox_nats", "nats")
        store("inbox_rabbitmq", "rabbitmq")
        store("inbox_redis_streams", "redis streams")
        store("inbox_sqs", "sqs")
        print "\nServers for tests"
        for (kind in server) print sprintf("%-16s", kind) server[kind] | "sort"
    }
' "$log"
exit "$status"
