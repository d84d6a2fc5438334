#include "fuzz.h"

/* Without checksums, so that damage reaches the descriptions. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    shard_options options = fuzz_options();
    shard_reader *reader;
    options.skip_checks = 1;
    if (shard_reader_open_memory(data, size, &options, &reader, NULL) != SHARD_OK) return 0;
    exercise_episode(reader);
    shard_reader_close(reader);
    return 0;
}
