/* What the fuzz targets share: small limits, so that a run spends its time on the parsers. */
#ifndef FUZZ_H
#define FUZZ_H

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wunused-function"
#endif
#include "../tests/exercise.h"

static shard_options fuzz_options(void) {
    shard_options options;
    memset(&options, 0, sizeof options);
    options.limits.max_decompressed_bytes = 1 << 20;
    options.limits.max_window_bytes = 1 << 20;
    options.limits.max_json_bytes = 1 << 18;
    options.limits.max_json_nodes = 1 << 14;
    return options;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
