#!/bin/sh
# Runs every fuzz target of the module for some seconds each: ./fuzz.sh [SECONDS, 10 unless given]
set -eu
cd "$(dirname "$0")"
seconds="${1:-10}"
for package in $(${GO:-go} list ./...); do
	for target in $(${GO:-go} test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "$package $target"
		${GO:-go} test -run '^$' -fuzz "^$target\$" -fuzztime "${seconds}s" "$package"
	done
done
