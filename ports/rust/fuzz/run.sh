#!/bin/sh
# Runs every target for some seconds, from the vectors: fuzz/run.sh [SECONDS].
# Needs a nightly compiler; says so and stops if there is none. `cargo +nightly fuzz run TARGET` works, too.
set -eu
cd "$(dirname "$0")"
seconds=${1:-20}
vectors=../../../spec/vectors
if ! host=$(rustc +nightly -vV 2>/dev/null | sed -n 's/^host: //p') || [ -z "$host" ]; then
    echo "left out: fuzzing of Rust, which needs a nightly compiler"
    exit 0
fi
# What cargo-fuzz passes: coverage for libFuzzer, and the address sanitizer.
coverage='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table'
RUSTFLAGS="--cfg fuzzing -Zsanitizer=address $coverage" cargo +nightly build --quiet --locked --release --target "$host"
targets='container json filters episode journal pack pack_recover'
for target in $targets; do
    mkdir -p "corpus/$target"
done
find "$vectors/valid" "$vectors/invalid" -name '*.shard' -size -64k -exec cp {} corpus/container/ \;
for target in pack pack_recover; do
    find "$vectors/valid_packs" "$vectors/invalid_packs" -name '*.shardpack' -size -64k -exec cp {} "corpus/$target/" \;
done
cp "$vectors"/canonical/*.json corpus/json/
find "$vectors/valid" -name '*.wshard' -size -64k -exec cp {} corpus/episode/ \;
find "$vectors/valid_journals" "$vectors/invalid_journals" -name '*.partial' -size -64k -exec cp {} corpus/journal/ \;
for target in $targets; do
    "target/$host/release/$target" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -timeout=10 -verbosity=0 \
        -print_final_stats=0 "corpus/$target" 2>"corpus/$target.log" || { cat "corpus/$target.log"; exit 1; }
done
echo "fuzzed the Rust library: no target failed"
