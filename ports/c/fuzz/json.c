#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    shard_options options = fuzz_options();
    exercise_json(data, size, &options);
    return 0;
}
