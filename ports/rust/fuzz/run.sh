#!/bin/sh
# Runs every target for some seconds, from the vectors: fuzz/run.sh [SECONDS].
# Needs cargo-fuzz and a nightly compiler; says so and stops if they are missing.
set -eu
cd "$(dirname "$0")"
seconds=${1:-20}
vectors=../../../spec/vectors
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "left out: fuzzing of Rust, which needs cargo-fuzz and a nightly compiler"
    exit 0
fi
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
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -timeout=10
done
