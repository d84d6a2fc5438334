/* The content of entries: raw, compressed, seekable, filtered (spec/shard.md, sections 6 to 8). */
#include "internal.h"

#define ZSTD_EXPANSION 32768u
#define LZ4_EXPANSION 255u
#define LZ4_SLACK 64u
#define MOST_STORED 4u /* times the limit of decompressed bytes: skippable frames may be any number of bytes */
#define USUAL_TABLE 4096u
#define SCAN_PIECE (1u << 20)

static shard_code codec_of(const shard_reader *reader, const shard_entry *entry, shard_codec *codec, shard_error *error) {
    *codec = SHARD_NONE;
    if (entry->flags & SHARDI_COMPRESSED) {
        int which = entry->flags & (SHARDI_IS_ZSTD | SHARDI_IS_LZ4), usual = reader->header.compression_default;
        if (which == SHARDI_IS_ZSTD || (!which && usual == SHARD_ZSTD)) *codec = SHARD_ZSTD;
        else if (which == SHARDI_IS_LZ4 || (!which && usual == SHARD_LZ4)) *codec = SHARD_LZ4;
        else {
            return shardi_fail(error, SHARD_UNKNOWN_CODEC, "S-CMP-1", "the codec of the entry cannot be determined: flags 0x%04x, default %d", (unsigned)entry->flags, usual);
        }
    }
    if (entry->flags & SHARDI_FILTERED && *codec != SHARD_ZSTD) return shardi_fail(error, SHARD_BAD_FILTER, "S-FLT-1", "a filtered entry is not compressed with zstd");
    return SHARD_OK;
}

shard_code shard_reader_codec(const shard_reader *reader, uint32_t row, shard_codec *codec, shard_error *error) {
    shard_entry entry = shard_reader_entry(reader, row);
    return shardi_in_entry(reader, row, error, codec_of(reader, &entry, codec, error));
}

int shardi_has_checksum(const shard_reader *reader, const shard_entry *entry) { return (reader->header.flags & SHARDI_HAS_CHECKSUMS) || entry->crc32c; }

shard_code shardi_check_sizes(const shard_reader *reader, const shard_entry *entry, shard_codec *codec, shard_error *error) {
    unsigned long long disk = entry->disk_size, orig = entry->orig_size, most = reader->limits.max_decompressed_bytes;
    shard_code code = codec_of(reader, entry, codec, error);
    if (code != SHARD_OK) return code;
    if (*codec == SHARD_NONE) {
        if (disk == orig) return SHARD_OK;
        return shardi_fail(error, SHARD_SIZE_MISMATCH, "S-DAT-4", "an uncompressed entry has two different sizes: expected %llu bytes, found %llu", orig, disk);
    }
    if (orig > most) return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "S-CMP-2", "the entry is too large after decompression: expected at most %llu bytes, found %llu", most, orig);
    if (disk / MOST_STORED > most) return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "", "the stored bytes of a compressed entry are too many: expected at most 4 times %llu, found %llu", most, disk);
    if (!(*codec == SHARD_ZSTD ? shardi_is_reachable(orig, disk, ZSTD_EXPANSION, 0) : shardi_is_reachable(orig, disk, LZ4_EXPANSION, LZ4_SLACK))) {
        return shardi_fail(error, SHARD_SIZE_MISMATCH, "S-CMP-8", "the stored bytes cannot expand to this size: %llu bytes for %llu", disk, orig);
    }
    return SHARD_OK;
}

/* ---- zstd with a seek table or filters ---- */

typedef struct decoding {
    const shard_reader *reader;
    shardi_decoder decoder;
    const shard_filters *filters; /* NULL for none */
    uint8_t *scratch;
    size_t scratch_size;
} decoding;

static void end_decoding(decoding *d) {
    shardi_decoder_end(&d->decoder);
    shardi_release(d->reader->allocator, d->scratch);
}

static shard_code undo(decoding *d, uint8_t *data, size_t size, shard_error *error) {
    if (!d->filters) return SHARD_OK;
    if (size > d->scratch_size) {
        shardi_release(d->reader->allocator, d->scratch);
        d->scratch_size = 0;
        d->scratch = (uint8_t *)shardi_allocate(d->reader->allocator, size);
        if (!d->scratch) return shardi_no_memory(error, size);
        d->scratch_size = size;
    }
    shardi_undo_filters(d->filters, data, size, d->scratch);
    return SHARD_OK;
}

static shard_code decode_table_frame(decoding *d, const shard_frame *frame, const uint8_t *stored, uint8_t *out, shard_error *error) {
    shard_code code = d->filters ? shardi_check_filtered(d->filters, frame->decompressed_size, error) : SHARD_OK;
    if (code == SHARD_OK) code = shardi_decode_part(&d->decoder, frame, stored, d->reader->limits.max_window_bytes, out, error);
    if (code == SHARD_OK) code = undo(d, out, frame->decompressed_size, error);
    return code;
}

/* One frame and nothing else (S-FLT-1). */
static shard_code decode_filtered(decoding *d, const uint8_t *data, size_t size, uint8_t *out, size_t room, shard_error *error) {
    shardi_frame frame;
    size_t count = 0;
    shard_code code;
    if (size < 4 || shardi_u32(data) != SHARDI_FRAME_MAGIC) return shardi_fail(error, SHARD_BAD_FILTER, "S-FLT-1", "a filtered entry without a seek table is not one frame");
    code = shardi_walk_frame(data, size, d->reader->limits.max_window_bytes, &frame, error);
    if (code != SHARD_OK) return code;
    if (frame.end != size) return shardi_fail(error, SHARD_BAD_FILTER, "S-FLT-1", "a filtered entry without a seek table is not one frame");
    code = shardi_check_filtered(d->filters, room, error);
    if (code == SHARD_OK) code = shardi_decode_frame(&d->decoder, data, &frame, out, room, &count, error);
    if (code != SHARD_OK) return code;
    if (count != room) return shardi_fail(error, SHARD_SIZE_MISMATCH, "S-CMP-3", "the entry decodes to another size: expected %llu bytes, found %llu", (unsigned long long)room, (unsigned long long)count);
    return undo(d, out, room, error);
}

static shard_code decode_zstd_entry(const shard_reader *reader, const shard_entry *entry, const uint8_t *stored, uint8_t *out, shard_error *error) {
    shard_filters filters;
    shardi_table table;
    decoding d;
    uint64_t leading = 0, table_size;
    size_t size = (size_t)entry->disk_size, room = (size_t)entry->orig_size, i;
    shard_code code = SHARD_OK;
    memset(&table, 0, sizeof table);
    memset(&d, 0, sizeof d);
    d.reader = reader;
    if (entry->flags & SHARDI_FILTERED) {
        code = shardi_leading_size(stored, size, entry->disk_size, &leading, error);
        if (code == SHARD_OK) code = shardi_parse_filters(stored + 8, (size_t)leading - 8, reader->allocator, &filters, error);
        d.filters = &filters;
    }
    table_size = shardi_table_size(stored, size, entry->disk_size);
    if (code == SHARD_OK && table_size) {
        code = shardi_parse_table(stored + size - table_size, (size_t)table_size, size, room, leading, reader->allocator, &table, error);
    }
    if (code == SHARD_OK && table.frames) {
        for (i = 0; i < table.count && code == SHARD_OK; i++) code = decode_table_frame(&d, table.frames + i, stored + table.stored[i], out + table.content[i], error);
    } else if (code == SHARD_OK && d.filters) {
        code = decode_filtered(&d, stored + leading, size - (size_t)leading, out, room, error);
    } else if (code == SHARD_OK) {
        code = shardi_decode_zstd(stored, size, reader->limits.max_window_bytes, out, room, error);
    }
    shardi_table_free(&table, reader->allocator);
    end_decoding(&d);
    return code;
}

/* Fills memory of exactly the size of an entry whose sizes are checked. */
shard_code shardi_decode_entry(const shard_reader *reader, const shard_entry *entry, shard_codec codec, uint8_t *out, shard_error *error) {
    const uint8_t *stored;
    shard_code code;
    if (codec == SHARD_NONE) return shardi_input_read(&reader->input, entry->data_offset, out, entry->disk_size, error);
    if (!entry->disk_size) return shardi_fail(error, SHARD_BAD_COMPRESSION, "S-CMP-4", "a compressed entry has no bytes");
    code = shardi_input_borrow(&reader->input, reader->allocator, entry->data_offset, entry->disk_size, &stored, error);
    if (code != SHARD_OK) return code;
    if (codec == SHARD_LZ4) code = shardi_decode_lz4(stored, (size_t)entry->disk_size, out, (size_t)entry->orig_size, error);
    else code = decode_zstd_entry(reader, entry, stored, out, error);
    shardi_input_release(&reader->input, reader->allocator, stored);
    return code;
}

/* ---- ranges ---- */

shard_code shardi_read_filters(const shard_reader *reader, const shard_entry *entry, shard_filters *filters, uint64_t *leading, shard_error *error) {
    uint64_t size = entry->disk_size < 8 + SHARDI_MAX_DESCRIPTION ? entry->disk_size : 8 + SHARDI_MAX_DESCRIPTION;
    const uint8_t *head = NULL;
    shard_codec codec;
    shard_code code;
    *leading = 0;
    if (!(entry->flags & SHARDI_FILTERED)) return SHARD_OK;
    code = codec_of(reader, entry, &codec, error);
    if (code == SHARD_OK) code = shardi_input_borrow(&reader->input, reader->allocator, entry->data_offset, size, &head, error);
    if (code != SHARD_OK) return code;
    code = shardi_leading_size(head, (size_t)size, entry->disk_size, leading, error);
    if (code == SHARD_OK) code = shardi_parse_filters(head + 8, (size_t)*leading - 8, reader->allocator, filters, error);
    shardi_input_release(&reader->input, reader->allocator, head);
    return code;
}

shard_code shardi_read_table(const shard_reader *reader, const shard_entry *entry, shard_codec codec, uint64_t leading, shardi_table *table, shard_error *error) {
    uint64_t size = entry->disk_size < USUAL_TABLE ? entry->disk_size : USUAL_TABLE, found, end = entry->data_offset + entry->disk_size;
    const uint8_t *tail;
    shard_code code;
    memset(table, 0, sizeof *table);
    if (codec != SHARD_ZSTD) return SHARD_OK;
    code = shardi_input_borrow(&reader->input, reader->allocator, end - size, size, &tail, error);
    if (code != SHARD_OK) return code;
    found = shardi_table_size(tail, (size_t)size, entry->disk_size);
    if (found > size) { /* mostly one read brings the whole table */
        shardi_input_release(&reader->input, reader->allocator, tail);
        if (found > reader->limits.max_index_bytes) {
            return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "", "the seek table is too large: expected at most %llu bytes, found %llu",
                               (unsigned long long)reader->limits.max_index_bytes, (unsigned long long)found);
        }
        size = found;
        code = shardi_input_borrow(&reader->input, reader->allocator, end - size, size, &tail, error);
        if (code != SHARD_OK) return code;
    }
    if (found) code = shardi_parse_table(tail + (size - found), (size_t)found, entry->disk_size, entry->orig_size, leading, reader->allocator, table, error);
    shardi_input_release(&reader->input, reader->allocator, tail);
    return code;
}

/* The frame that holds a byte of the content. */
static size_t frame_of(const shardi_table *table, uint64_t byte) {
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table->content[middle + 1] > byte) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* Decodes the frames that hold a range, of which only the first and the last need memory of their own. */
static shard_code decode_range(decoding *d, const shard_entry *entry, const shardi_table *table, uint64_t start, uint64_t length, uint8_t *out, shard_error *error) {
    const shard_allocator *allocator = d->reader->allocator;
    size_t first = frame_of(table, start), last = frame_of(table, start + length - 1), i;
    const uint8_t *stored;
    shard_code code = shardi_input_borrow(&d->reader->input, allocator, entry->data_offset + table->stored[first], table->stored[last + 1] - table->stored[first], &stored, error);
    if (code != SHARD_OK) return code;
    for (i = first; i <= last && code == SHARD_OK; i++) {
        const uint8_t *part = stored + (table->stored[i] - table->stored[first]);
        uint64_t from = table->content[i], to = table->content[i + 1];
        if (from >= start && to <= start + length) {
            code = decode_table_frame(d, table->frames + i, part, out + (from - start), error);
        } else {
            uint64_t low = from > start ? from : start, high = to < start + length ? to : start + length;
            uint8_t *whole = (uint8_t *)shardi_allocate(allocator, to - from);
            if (!whole) code = shardi_no_memory(error, to - from);
            else code = decode_table_frame(d, table->frames + i, part, whole, error);
            if (code == SHARD_OK && high > low) memcpy(out + (low - start), whole + (low - from), (size_t)(high - low));
            shardi_release(allocator, whole);
        }
    }
    shardi_input_release(&d->reader->input, allocator, stored);
    return code;
}

shard_code shardi_read_range(const shard_reader *reader, const shard_entry *entry, uint64_t start, uint64_t length, uint8_t *out, shard_error *error) {
    shard_filters filters;
    shardi_table table;
    decoding d;
    uint64_t leading;
    shard_codec codec;
    shard_code code = shardi_check_sizes(reader, entry, &codec, error);
    if (code != SHARD_OK) return code;
    if (codec == SHARD_NONE) return shardi_input_read(&reader->input, entry->data_offset + start, out, length, error);
    code = shardi_read_filters(reader, entry, &filters, &leading, error);
    if (code == SHARD_OK) code = shardi_read_table(reader, entry, codec, leading, &table, error);
    if (code != SHARD_OK) return code;
    if (table.frames) {
        memset(&d, 0, sizeof d);
        d.reader = reader;
        d.filters = leading ? &filters : NULL;
        if (length) code = decode_range(&d, entry, &table, start, length, out, error);
        end_decoding(&d);
    } else { /* not seekable */
        uint8_t *whole = (uint8_t *)shardi_allocate(reader->allocator, entry->orig_size);
        if (!whole) return shardi_no_memory(error, entry->orig_size);
        code = shardi_decode_entry(reader, entry, codec, whole, error);
        if (code == SHARD_OK && reader->checks && shardi_has_checksum(reader, entry) && shard_crc32c(0, whole, (size_t)entry->orig_size) != entry->crc32c) {
            code = shardi_fail(error, SHARD_CHECKSUM_MISMATCH, "S-CRC-1", "CRC-32C mismatch: the data is damaged");
        }
        if (code == SHARD_OK && length) memcpy(out, whole + start, (size_t)length);
        shardi_release(reader->allocator, whole);
    }
    shardi_table_free(&table, reader->allocator);
    return code;
}

/* ---- checks ---- */

static shard_code compare_checksum(const shard_reader *reader, const shard_entry *entry, uint32_t found, shard_error *error) {
    if (!reader->checks || !shardi_has_checksum(reader, entry) || found == entry->crc32c) return SHARD_OK;
    return shardi_fail(error, SHARD_CHECKSUM_MISMATCH, "S-CRC-1", "CRC-32C mismatch, the data is damaged: expected %08lx, found %08lx", (unsigned long)entry->crc32c, (unsigned long)found);
}

static shard_code scan_raw(const shard_reader *reader, const shard_entry *entry, shardi_sha256 *hash, shard_error *error) {
    uint64_t at;
    uint32_t crc = 0;
    for (at = 0; at < entry->disk_size; at += SCAN_PIECE) {
        uint64_t size = entry->disk_size - at < SCAN_PIECE ? entry->disk_size - at : SCAN_PIECE;
        const uint8_t *piece;
        shard_code code = shardi_input_borrow(&reader->input, reader->allocator, entry->data_offset + at, size, &piece, error);
        if (code != SHARD_OK) return code;
        crc = shard_crc32c(crc, piece, (size_t)size);
        if (hash) shardi_sha256_add(hash, piece, (size_t)size);
        shardi_input_release(&reader->input, reader->allocator, piece);
    }
    return compare_checksum(reader, entry, crc, error);
}

shard_code shardi_scan(const shard_reader *reader, uint32_t row, shardi_sha256 *hash, shard_error *error) {
    shard_entry entry = shard_reader_entry(reader, row);
    shard_codec codec;
    shard_code code = shardi_check_sizes(reader, &entry, &codec, error);
    if (code == SHARD_OK && codec == SHARD_NONE) {
        code = scan_raw(reader, &entry, hash, error);
    } else if (code == SHARD_OK) {
        uint8_t *content = (uint8_t *)shardi_allocate(reader->allocator, entry.orig_size);
        if (!content) code = shardi_no_memory(error, entry.orig_size);
        else code = shardi_decode_entry(reader, &entry, codec, content, error);
        if (code == SHARD_OK) code = compare_checksum(reader, &entry, shard_crc32c(0, content, (size_t)entry.orig_size), error);
        if (code == SHARD_OK && hash) shardi_sha256_add(hash, content, (size_t)entry.orig_size);
        shardi_release(reader->allocator, content);
    }
    return shardi_in_entry(reader, row, error, code);
}

shard_code shard_reader_read_into(const shard_reader *reader, uint32_t row, void *into, size_t size, shard_error *error) {
    shard_entry entry = shard_reader_entry(reader, row);
    shard_codec codec;
    shard_code code = shardi_check_sizes(reader, &entry, &codec, error);
    if (code == SHARD_OK && size != entry.orig_size) {
        code = shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "the memory does not have the size of the entry: expected %llu bytes, found %llu", (unsigned long long)entry.orig_size, (unsigned long long)size);
    }
    if (code == SHARD_OK) code = shardi_decode_entry(reader, &entry, codec, (uint8_t *)into, error);
    if (code == SHARD_OK) code = compare_checksum(reader, &entry, shard_crc32c(0, into, size), error);
    return shardi_in_entry(reader, row, error, code);
}

shard_code shard_reader_view(const shard_reader *reader, uint32_t row, const uint8_t **data, size_t *size, shard_error *error) {
    shard_entry entry = shard_reader_entry(reader, row);
    shard_codec codec;
    shard_code code = shardi_check_sizes(reader, &entry, &codec, error);
    *data = NULL;
    *size = 0;
    if (code == SHARD_OK && (codec != SHARD_NONE || !reader->input.memory)) {
        code = shardi_fail(error, SHARD_NOT_VIEWABLE, "", "%s", codec != SHARD_NONE ? "the entry is compressed" : "the file is not in memory: open it with map");
    }
    if (code == SHARD_OK && reader->checks && shardi_has_checksum(reader, &entry)) code = scan_raw(reader, &entry, NULL, error);
    if (code == SHARD_OK) {
        *data = reader->input.memory + entry.data_offset;
        *size = (size_t)entry.disk_size;
    }
    return shardi_in_entry(reader, row, error, code);
}
