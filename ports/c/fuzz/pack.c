#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    shard_options options = fuzz_options();
    shard_pack *pack;
    if (shard_pack_open_memory(data, size, &options, &pack, NULL) == SHARD_OK) exercise_pack(pack);
    return 0;
}
