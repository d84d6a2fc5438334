#!/bin/sh
# Builds the library with its tests in build/<how>: ports/c/build.sh release | strict | coverage.
set -eu
cd "$(dirname "$0")"
how=$1
case $how in
  release) options="-DCMAKE_BUILD_TYPE=Release" ;;
  strict) options="-DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-g\ -O1 -DSHARD_SANITIZE=ON" ;;
  plain) options="-DCMAKE_BUILD_TYPE=Release -DSHARD_ZSTD=OFF -DSHARD_LZ4=OFF" ;;
  coverage) options="-DCMAKE_BUILD_TYPE=Debug -DSHARD_COVERAGE=ON" ;;
  *) echo "unknown: $how"; exit 2 ;;
esac
mkdir -p build
eval cmake -S . -B "build/$how" "$options" -DSHARD_TESTS=ON -DSHARD_STRICT=ON > "build/$how.log" 2>&1 &&
  cmake --build "build/$how" -j 2 >> "build/$how.log" 2>&1 || { cat "build/$how.log"; exit 1; }
