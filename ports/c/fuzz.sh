#!/bin/sh
# Fuzzes each target for some seconds, with the vectors as seeds: ports/c/fuzz.sh 30. Needs clang.
set -eu
cd "$(dirname "$0")"
seconds=${1:-10}
clang=$(command -v clang || command -v clang-16 || true)
[ -n "$clang" ] || { echo "left out: fuzzing of the C library, which needs clang"; exit 0; }
mkdir -p build
cmake -S . -B build/fuzz -DCMAKE_C_COMPILER="$clang" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSHARD_FUZZ=ON > build/fuzz.log 2>&1 || { cat build/fuzz.log; exit 1; }
cmake --build build/fuzz -j 2 > build/fuzz.log 2>&1 || { cat build/fuzz.log; exit 1; }
vectors=../../spec/vectors
work=../../fuzz-work/c
for target in container json pack stream episode; do
  case $target in
    container) seeds="$vectors/valid $vectors/invalid" ;;
    json) seeds="$vectors/canonical" ;;
    episode) seeds="$vectors/valid $vectors/invalid_episodes" ;;
    *) seeds="$vectors/valid_packs $vectors/invalid_packs" ;;
  esac
  mkdir -p "$work/$target"
  # shellcheck disable=SC2086
  "build/fuzz/fuzz_$target" -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 -verbosity=0 -print_final_stats=0 \
    -artifact_prefix="$work/" "$work/$target" $seeds
done
echo "fuzzed the C library: no target failed"
