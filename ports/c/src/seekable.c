/* Seek tables of zstd entries (spec/shard.md, section 8). */
#include "internal.h"

#define SEEK_MAGIC 0x8F92EAB1u
#define SEEK_FRAME_MAGIC 0x184D2A5Eu
#define SEEK_FOOTER 9u
#define SEEK_HEAD 8u

static shard_code bad_table(shard_error *error, const char *rule, const char *problem, uint64_t expected, uint64_t found) {
    return shardi_fail(error, SHARD_BAD_SEEK_TABLE, rule, "%s: expected %llu, found %llu", problem, (unsigned long long)expected, (unsigned long long)found);
}

uint64_t shardi_table_size(const uint8_t *tail, size_t size, uint64_t disk_size) {
    const uint8_t *footer;
    uint64_t found;
    if (size < SEEK_FOOTER) return 0;
    footer = tail + size - SEEK_FOOTER;
    if (shardi_u32(footer + 5) != SEEK_MAGIC) return 0;
    found = SEEK_HEAD + (footer[4] & 0x80 ? 12u : 8u) * (uint64_t)shardi_u32(footer) + SEEK_FOOTER;
    return found <= disk_size ? found : 0;
}

void shardi_table_free(shardi_table *table, const shard_allocator *allocator) {
    shardi_release(allocator, table->frames);
    shardi_release(allocator, table->stored);
    shardi_release(allocator, table->content);
    memset(table, 0, sizeof *table);
}

shard_code shardi_parse_table(const uint8_t *tail, size_t size, uint64_t disk_size, uint64_t orig_size, uint64_t leading,
                              const shard_allocator *allocator, shardi_table *table, shard_error *error) {
    const uint8_t *footer = tail + size - SEEK_FOOTER;
    size_t width = footer[4] & 0x80 ? 12 : 8, i;
    memset(table, 0, sizeof *table);
    if (shardi_u32(tail) != SEEK_FRAME_MAGIC || shardi_u32(tail + 4) != size - SEEK_HEAD) return SHARD_OK;
    if (footer[4] & 0x7C) return bad_table(error, "S-SEK-1", "reserved bits of the seek table are set", 0, footer[4]);
    table->count = shardi_u32(footer);
    table->frames = (shard_frame *)shardi_allocate_array(allocator, table->count, sizeof *table->frames);
    table->stored = (uint64_t *)shardi_allocate_array(allocator, (uint64_t)table->count + 1, sizeof *table->stored);
    table->content = (uint64_t *)shardi_allocate_array(allocator, (uint64_t)table->count + 1, sizeof *table->content);
    if (!table->frames || !table->stored || !table->content) {
        shardi_table_free(table, allocator);
        return shardi_no_memory(error, size);
    }
    table->stored[0] = leading;
    table->content[0] = 0;
    for (i = 0; i < table->count; i++) {
        const uint8_t *row = tail + SEEK_HEAD + i * width;
        shard_frame *frame = table->frames + i;
        frame->compressed_size = shardi_u32(row);
        frame->decompressed_size = shardi_u32(row + 4);
        frame->has_checksum = width == 12;
        frame->checksum = width == 12 ? shardi_u32(row + 8) : 0;
        table->stored[i + 1] = table->stored[i] + frame->compressed_size;
        table->content[i + 1] = table->content[i] + frame->decompressed_size;
    }
    if (table->stored[i] + size != disk_size || table->content[i] != orig_size) {
        int is_content = table->content[i] != orig_size;
        uint64_t found = is_content ? table->content[i] : table->stored[i] + size;
        shardi_table_free(table, allocator);
        return bad_table(error, leading ? "S-FLT-6" : "S-SEK-2", "the seek table does not add up to the sizes of the entry", is_content ? orig_size : disk_size, found);
    }
    return SHARD_OK;
}

/* Decodes one frame of a seekable entry and checks it (S-SEK-3, S-SEK-4). */
shard_code shardi_decode_part(shardi_decoder *decoder, const shard_frame *wanted, const uint8_t *stored, uint64_t max_window, uint8_t *out, shard_error *error) {
    shardi_frame frame;
    size_t count = 0;
    shard_code code;
    if (wanted->compressed_size < 4 || shardi_u32(stored) != SHARDI_FRAME_MAGIC) {
        return bad_table(error, "S-SEK-3", "no zstd frame where the seek table says", SHARDI_FRAME_MAGIC, wanted->compressed_size < 4 ? 0 : shardi_u32(stored));
    }
    code = shardi_walk_frame(stored, wanted->compressed_size, max_window, &frame, error);
    if (code != SHARD_OK) return code;
    if (frame.end != wanted->compressed_size) return bad_table(error, "S-SEK-3", "a frame is not as long as the seek table says", wanted->compressed_size, frame.end);
    if (frame.has_size && frame.content_size != wanted->decompressed_size) {
        return bad_table(error, "S-SEK-3", "a frame declares another size than the seek table", wanted->decompressed_size, frame.content_size);
    }
    code = shardi_decode_frame(decoder, stored, &frame, out, wanted->decompressed_size, &count, error);
    if (code == SHARD_CHECKSUM_MISMATCH) return shardi_fail(error, code, "S-SEK-4", "a frame does not fit its own checksum");
    if (code != SHARD_OK) return code;
    if (count != wanted->decompressed_size) return bad_table(error, "S-SEK-3", "a frame decodes to another size than the seek table says", wanted->decompressed_size, count);
    if (wanted->has_checksum) {
        /* The frame's own checksum was compared with its content. */
        uint32_t found = frame.has_checksum ? shardi_u32(stored + frame.end - 4) : (uint32_t)(shard_xxh64(out, count, 0) & 0xFFFFFFFFu);
        if (found != wanted->checksum) {
            return shardi_fail(error, SHARD_CHECKSUM_MISMATCH, "S-SEK-4", "a frame does not fit the checksum of the seek table: expected %08x, found %08x", wanted->checksum, found);
        }
    }
    return SHARD_OK;
}
