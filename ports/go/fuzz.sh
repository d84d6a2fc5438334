#!/bin/sh
# Runs every fuzz target of the module for some seconds each: ./fuzz.sh [SECONDS, 10 unless given]
set -eu
cd "$(dirname "$0")"
seconds="${1:-10}"
for package in $(${GO:-go} list ./...); do
	for target in $(${GO:-go} test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "$package $target"
		# Without a bound, most of a short run goes into making one input shorter.
		${GO:-go} test -run '^$' -fuzz "^$target\$" -fuzztime "${seconds}s" -fuzzminimizetime 10x "$package"
	done
done
