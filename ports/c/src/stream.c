/* Reads a shard of ShardPack from start to end (spec/shardpack.md, section 11). */
#include "internal.h"

#define STREAM_PIECE (1u << 16)
#define LARGEST_RECORD (UINT64_C(4) << 30) /* in memory as a whole */

struct shard_stream {
    const shard_allocator *allocator;
    shard_limits limits;
    shard_stream_function read;
    void *context;
    uint64_t position, count;
    int is_done;
};

static shard_code cut_stream(shard_error *error, const char *rule) { return shardi_fail(error, SHARD_TRUNCATED, rule, "the stream ends before the index of the shard"); }

/* Adds bytes until there are size, or the stream ends. Memory grows as bytes arrive, so a false size costs nothing. */
static shard_code fill(shard_stream *s, shardi_buffer *block, uint64_t size, shard_error *error) {
    while (block->size < size) {
        uint64_t wanted = block->size < STREAM_PIECE ? STREAM_PIECE : (uint64_t)block->size * 2;
        size_t count;
        if (wanted > size) wanted = size;
        if (wanted > block->capacity) {
            uint8_t *grown = (uint8_t *)shardi_allocate(s->allocator, wanted);
            if (!grown) return shardi_no_memory(error, wanted);
            if (block->size) memcpy(grown, block->data, block->size);
            shardi_release(s->allocator, block->data);
            block->data = grown;
            block->capacity = (size_t)wanted;
        }
        count = s->read(s->context, block->data + block->size, (size_t)wanted - block->size);
        if (count > (size_t)wanted - block->size) return shardi_fail(error, SHARD_IO_ERROR, "", "cannot read the stream");
        block->size += count;
        if (block->size < wanted) break;
    }
    return SHARD_OK;
}

/* Reads the index and checks that it fits what was read (P-IDX-2). */
static shard_code end_stream(shard_stream *s, shardi_buffer *block, uint64_t size, shard_error *error) {
    shardi_footer footer;
    uint8_t more;
    shard_code code;
    if (size > s->limits.max_index_bytes) {
        return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "P-IDX-1", "the index is too large: expected at most %llu bytes, found %llu", (unsigned long long)s->limits.max_index_bytes, (unsigned long long)size);
    }
    code = fill(s, block, size, error);
    if (code != SHARD_OK) return code;
    if (block->size < size) return cut_stream(error, "P-FTR-1");
    code = shardi_parse_footer(block->data, block->size, s->position + size, block->data, &footer, error);
    if (code != SHARD_OK) return code;
    if (footer.index_offset != s->position || footer.record_count != s->count) {
        return shardi_fail(error, SHARD_SIZE_MISMATCH, "P-IDX-2", "the footer does not match the records before it: expected %llu, found %llu", (unsigned long long)footer.record_count, (unsigned long long)s->count);
    }
    code = shardi_check_index_head(block->data, &footer, error);
    if (code == SHARD_OK && s->read(s->context, &more, 1) != 0) code = shardi_fail(error, SHARD_TRAILING_DATA, "P-FTR-5", "bytes follow the footer");
    return code;
}

static shard_code next_block(shard_stream *s, shardi_buffer *block, shard_record **record, shard_error *error) {
    static const uint8_t zeros[SHARDI_BLOCK_START] = {0};
    uint64_t size;
    int kind;
    shard_code code = fill(s, block, SHARDI_BLOCK_START, error);
    if (code != SHARD_OK) return code;
    /* Zeros are space that a writer reserved and did not use. */
    if (block->size < SHARDI_BLOCK_START || memcmp(block->data, zeros, sizeof zeros) == 0) return cut_stream(error, "P-FTR-1");
    kind = shardi_block_start(block->data, &size);
    if (kind == SHARDI_NO_BLOCK) return shardi_fail(error, SHARD_BAD_MAGIC, "P-REC-2", "neither a record nor the index starts here");
    if (size < SHARDI_BLOCK_START) return shardi_fail(error, SHARD_BAD_OFFSET, "P-REC-1", "a block is smaller than its head: %llu bytes", (unsigned long long)size);
    if (kind == SHARDI_INDEX_BLOCK) {
        s->is_done = 1;
        return end_stream(s, block, size, error);
    }
    if (size > LARGEST_RECORD) return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "", "a record is too large to read from a stream: %llu bytes", (unsigned long long)size);
    code = fill(s, block, size, error);
    if (code != SHARD_OK) return code;
    if (block->size < size) return cut_stream(error, "P-REC-7");
    code = shardi_open_record(NULL, s->allocator, &s->limits, s->position, size, block->data, block->size, record, error);
    block->data = NULL; /* taken over */
    s->position += size;
    s->count++;
    return code;
}

shard_code shard_stream_open(shard_stream_function read, void *context, const shard_options *options, shard_stream **stream, shard_error *error) {
    const shard_allocator *allocator = shardi_allocator(options ? options->allocator : NULL);
    shard_stream *made = (shard_stream *)shardi_allocate(allocator, sizeof *made);
    *stream = made;
    if (!made) return shardi_no_memory(error, sizeof *made);
    memset(made, 0, sizeof *made);
    made->allocator = allocator;
    made->limits = shardi_limits(options ? &options->limits : NULL);
    made->read = read;
    made->context = context;
    return SHARD_OK;
}

shard_code shard_stream_next(shard_stream *stream, shard_record **record, shard_error *error) {
    shardi_buffer block;
    shard_code code;
    uint64_t start = stream->position;
    *record = NULL;
    if (stream->is_done) return SHARD_OK;
    memset(&block, 0, sizeof block);
    block.allocator = stream->allocator;
    code = next_block(stream, &block, record, error);
    shardi_release(stream->allocator, block.data);
    if (code != SHARD_OK) {
        stream->is_done = 1;
        if (error && error->offset == SHARD_NO_OFFSET) error->offset = start;
    }
    return code;
}

void shard_stream_close(shard_stream *stream) {
    if (stream) shardi_release(stream->allocator, stream);
}
