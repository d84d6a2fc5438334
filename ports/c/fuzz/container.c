#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    shard_options options = fuzz_options();
    shard_reader *reader;
    if (shard_reader_open_memory(data, size, &options, &reader, NULL) == SHARD_OK) (void)exercise_reader(reader);
    return 0;
}
