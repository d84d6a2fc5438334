#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    shard_options options = fuzz_options();
    (void)exercise_stream(data, size, &options);
    return 0;
}
