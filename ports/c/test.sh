#!/bin/sh
# Tests the library with sanitizers. `test.sh rest` tests it as an amalgamation in C and C++, without codecs and under
# valgrind, and measures which lines the tests and the vectors reach.
set -eu
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
python=${PYTHON:-python3}
vectors=$root/spec/vectors
warnings="-Wall -Wextra -Wpedantic -Wconversion -Werror"

mkdir -p build
# The README shows a part of the example, and a few lines that run.
"$python" - << 'CHECK'
from pathlib import Path
first, example, *_ = Path("README.md").read_text("utf-8").split("```c\n")[1:]
assert example.split("```")[0] in Path("examples/robot.c").read_text("utf-8"), "the README does not show examples/robot.c"
Path("build/readme.c").write_text(
    '#include "shard.h"\n#include <string.h>\nint main(void) {\nconst char data[] = "hello";\nsize_t size = sizeof data;\nint is_read = 0;\n'
    + first.split("```")[0].replace("/* content.data", "is_read = content.size == size && !memcmp(content.data, data, size); /* content.data")
    + "return !is_read;\n}\n"
)
CHECK

if [ "${1:-}" != rest ]; then
  ./build.sh strict
  build/strict/shard_tests
  build/strict/robot build/robot.shard "$vectors/valid/episode_action_spaces.wshard" state
  exit
fi

# One file, in both languages, found through no build system.
"$python" tools/amalgamate.py build/amalgamation
(cd build/amalgamation &&
  ${CC:-cc} -std=c11 $warnings -O1 -c shard-amalgamated.c -o c.o &&
  ${CC:-cc} -std=c11 $warnings -O1 -I. ../../examples/robot.c c.o -lm -o robot &&
  ./robot robot.shard "$vectors/valid/episode_action_spaces.wshard" state &&
  ${CC:-cc} -std=c11 $warnings -O1 -I. ../readme.c c.o -lm -o readme && ./readme &&
  { ! command -v "${CXX:-c++}" > /dev/null || ${CXX:-c++} -x c++ -std=c++11 $warnings -O1 -c shard-amalgamated.c -o cxx.o; })

./build.sh plain
build/plain/shard_tests > /dev/null

./build.sh release
# Installed, and found by CMake and by pkg-config.
installed=$PWD/build/installed
cmake --install build/release --prefix "$installed" > /dev/null
mkdir -p build/user
cat > build/user/CMakeLists.txt << 'USER'
cmake_minimum_required(VERSION 3.16)
project(user LANGUAGES C)
find_package(shard REQUIRED)
add_executable(robot ../../examples/robot.c)
target_link_libraries(robot PRIVATE shard::shard)
USER
cmake -S build/user -B build/user/build -DCMAKE_PREFIX_PATH="$installed" > build/user.log 2>&1 && cmake --build build/user/build >> build/user.log 2>&1 ||
  { cat build/user.log; exit 1; }
build/user/build/robot build/robot.shard "$vectors/valid/episode_action_spaces.wshard" state
if command -v pkg-config > /dev/null; then
  flags=$(PKG_CONFIG_PATH=$(dirname "$(find "$installed" -name shard.pc)") pkg-config --define-variable=prefix="$installed" --cflags --libs --static shard)
  # shellcheck disable=SC2086
  ${CC:-cc} -std=c11 examples/robot.c $flags -o build/user/robot
  build/user/robot build/robot.shard "$vectors/valid/episode_action_spaces.wshard" state
fi

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
