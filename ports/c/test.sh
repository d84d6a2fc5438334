#!/bin/sh
# Tests the library with sanitizers. `test.sh rest` tests it as an amalgamation in C and C++, without codecs and under
# valgrind, and measures which lines the tests and the vectors reach.
set -eu
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
python=${PYTHON:-python3}
vectors=$root/spec/vectors
warnings="-Wall -Wextra -Wpedantic -Wconversion -Werror"

if [ "${1:-}" != rest ]; then
  ./build.sh strict
  build/strict/shard_tests
  build/strict/robot build/robot.shard "$vectors/valid/episode_action_spaces.wshard" state

  # The README shows a part of the example.
  "$python" - << 'CHECK'
from pathlib import Path
part = Path("README.md").read_text("utf-8").split("<!-- example:robot -->")[1].split("```c\n")[1].split("```")[0]
assert part in Path("examples/robot.c").read_text("utf-8"), "the README does not show examples/robot.c"
CHECK
  exit
fi

mkdir -p build
# One file, in both languages, found through no build system.
"$python" tools/amalgamate.py build/amalgamation
(cd build/amalgamation &&
  ${CC:-cc} -std=c11 $warnings -O1 -c shard-amalgamated.c -o c.o &&
  ${CC:-cc} -std=c11 $warnings -O1 -I. ../../examples/robot.c c.o -lm -o robot &&
  ./robot robot.shard "$vectors/valid/episode_action_spaces.wshard" state &&
  { ! command -v "${CXX:-c++}" > /dev/null || ${CXX:-c++} -x c++ -std=c++11 $warnings -O1 -c shard-amalgamated.c -o cxx.o; })

./build.sh plain
build/plain/shard_tests > /dev/null

./build.sh release
if command -v valgrind > /dev/null; then
  # The tests of faults repeat much of the library thousands of times: too slow here.
  SHARD_TESTS=quick valgrind -q --error-exitcode=1 --leak-check=full build/release/shard_tests
  echo "valgrind finds nothing"
fi

./build.sh coverage
find build/coverage -name '*.gcda' -delete
build/coverage/shard_tests > /dev/null
"$python" tools/ask.py build/coverage/run "$vectors" > /dev/null
(cd build/coverage && gcov -n -o CMakeFiles/shard.dir/src CMakeFiles/shard.dir/src/*.gcda 2> /dev/null) | "$python" tools/coverage.py 95
