/* Opens containers and gives their entries. */
#include "internal.h"

#define FIRST_READ 4096u

shard_code shardi_in_entry(const shard_reader *reader, uint32_t row, shard_error *error, shard_code code) {
    shard_entry entry;
    if (code == SHARD_OK || !error) return code;
    entry = shard_reader_entry(reader, row);
    if (error->offset == SHARD_NO_OFFSET) error->offset = entry.data_offset;
    return shardi_locate(error, code, reader->input.name, entry.name, entry.name_size);
}

static shard_code read_head(shard_reader *reader, shard_error *error) {
    const shardi_input *input = &reader->input;
    uint64_t first = input->size < FIRST_READ ? input->size : FIRST_READ;
    const uint8_t *start;
    shard_code code = shardi_input_borrow(input, reader->allocator, 0, first, &start, error);
    if (code != SHARD_OK) return code;
    code = shardi_parse_header(start, (size_t)first, input->size, &reader->limits, &reader->header, error);
    if (code == SHARD_OK && reader->header.data_section_offset <= first) {
        reader->head = start;
    } else {
        shardi_input_release(input, reader->allocator, start);
        if (code == SHARD_OK) code = shardi_input_borrow(input, reader->allocator, 0, reader->header.data_section_offset, &reader->head, error);
    }
    return code == SHARD_OK ? shardi_parse_index(reader, error) : code;
}

/* Takes over the input. */
static shard_code open_input(shardi_input *input, const shard_options *options, shard_reader **reader, shard_error *error) {
    const shard_allocator *allocator = shardi_allocator(options ? options->allocator : NULL);
    shard_reader *made = (shard_reader *)shardi_allocate(allocator, sizeof *made);
    shard_code code;
    if (!made) {
        shardi_input_close(input, allocator);
        return shardi_no_memory(error, sizeof *made);
    }
    memset(made, 0, sizeof *made);
    made->allocator = allocator;
    made->limits = shardi_limits(options ? &options->limits : NULL);
    made->checks = !(options && options->skip_checks);
    made->input = *input;
    code = read_head(made, error);
    if (code == SHARD_OK) {
        *reader = made;
        return SHARD_OK;
    }
    shardi_locate(error, code, input->name, NULL, 0);
    shard_reader_close(made);
    return code;
}

shard_code shard_reader_open(const char *path, const shard_options *options, shard_reader **reader, shard_error *error) {
    shardi_input input;
    shard_code code = shardi_input_open(path, options && options->map, shardi_allocator(options ? options->allocator : NULL), &input, error);
    *reader = NULL;
    return code == SHARD_OK ? open_input(&input, options, reader, error) : code;
}

shard_code shard_reader_open_memory(const void *data, size_t size, const shard_options *options, shard_reader **reader, shard_error *error) {
    shardi_input input;
    shard_code code = shardi_input_memory(data, size, shardi_allocator(options ? options->allocator : NULL), &input, error);
    *reader = NULL;
    return code == SHARD_OK ? open_input(&input, options, reader, error) : code;
}

shard_code shard_reader_open_source(const shard_source *source, const shard_options *options, shard_reader **reader, shard_error *error) {
    shardi_input input;
    shard_code code = shardi_input_source(source, shardi_allocator(options ? options->allocator : NULL), &input, error);
    *reader = NULL;
    return code == SHARD_OK ? open_input(&input, options, reader, error) : code;
}

void shard_reader_close(shard_reader *reader) {
    const shard_allocator *allocator;
    if (!reader) return;
    allocator = reader->allocator;
    if (reader->head) shardi_input_release(&reader->input, allocator, reader->head);
    shardi_release(allocator, reader->slots);
    shardi_input_close(&reader->input, allocator);
    shardi_release(allocator, reader);
}

const shard_head *shard_reader_header(const shard_reader *reader) { return &reader->header; }
uint32_t shard_reader_count(const shard_reader *reader) { return reader->header.entry_count; }

/* Memory for bytes that are given to the caller. Bytes that are read as they stand must be there first. */
static shard_code make_bytes(const shard_reader *reader, const shard_entry *entry, uint64_t size, shard_bytes *bytes, shard_error *error) {
    uint8_t last;
    if (!(entry->flags & SHARDI_COMPRESSED) && entry->disk_size) {
        shard_code code = shardi_input_read(&reader->input, entry->data_offset + entry->disk_size - 1, &last, 1, error);
        if (code != SHARD_OK) return code;
    }
    bytes->allocator = reader->allocator;
    bytes->data = (uint8_t *)shardi_allocate(reader->allocator, size);
    if (!bytes->data) return shardi_no_memory(error, size);
    bytes->size = (size_t)size;
    return SHARD_OK;
}

shard_code shard_reader_read(const shard_reader *reader, uint32_t row, shard_bytes *content, shard_error *error) {
    shard_entry entry = shard_reader_entry(reader, row);
    shard_codec codec;
    shard_code code = shardi_check_sizes(reader, &entry, &codec, error);
    memset(content, 0, sizeof *content);
    if (code == SHARD_OK) code = make_bytes(reader, &entry, entry.orig_size, content, error);
    if (code != SHARD_OK) return shardi_in_entry(reader, row, error, code);
    code = shard_reader_read_into(reader, row, content->data, content->size, error);
    if (code != SHARD_OK) shard_bytes_free(content);
    return code;
}

shard_code shard_reader_range(const shard_reader *reader, uint32_t row, uint64_t start, uint64_t length, shard_bytes *content, shard_error *error) {
    shard_entry entry = shard_reader_entry(reader, row);
    shard_codec codec;
    shard_code code = SHARD_OK;
    memset(content, 0, sizeof *content);
    if (start > entry.orig_size || length > entry.orig_size - start) {
        code = shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "the range is outside the entry: expected at most %llu bytes from %llu, found %llu",
                           (unsigned long long)entry.orig_size, (unsigned long long)start, (unsigned long long)length);
    }
    if (code == SHARD_OK) code = shardi_check_sizes(reader, &entry, &codec, error);
    if (code == SHARD_OK) code = make_bytes(reader, &entry, length, content, error);
    if (code == SHARD_OK) code = shardi_read_range(reader, &entry, start, length, content->data, error);
    if (code != SHARD_OK) shard_bytes_free(content);
    return shardi_in_entry(reader, row, error, code);
}

shard_code shard_reader_frames(const shard_reader *reader, uint32_t row, shard_bytes *frames, size_t *count, shard_error *error) {
    shard_entry entry = shard_reader_entry(reader, row);
    shard_filters filters;
    shardi_table table;
    uint64_t leading = 0;
    shard_codec codec;
    shard_code code = shard_reader_codec(reader, row, &codec, error);
    memset(frames, 0, sizeof *frames);
    *count = 0;
    if (code != SHARD_OK) return code;
    code = shardi_read_filters(reader, &entry, &filters, &leading, error);
    if (code == SHARD_OK) code = shardi_read_table(reader, &entry, codec, leading, &table, error);
    if (code == SHARD_OK && table.frames) {
        *count = table.count;
        frames->data = (uint8_t *)table.frames;
        frames->size = table.count * sizeof *table.frames;
        frames->allocator = reader->allocator;
        table.frames = NULL;
        shardi_table_free(&table, reader->allocator);
    }
    return shardi_in_entry(reader, row, error, code);
}

shard_code shard_reader_filters(const shard_reader *reader, uint32_t row, shard_filters *filters, int *is_filtered, shard_error *error) {
    shard_entry entry = shard_reader_entry(reader, row);
    uint64_t leading;
    shard_code code;
    memset(filters, 0, sizeof *filters);
    code = shardi_read_filters(reader, &entry, filters, &leading, error);
    *is_filtered = leading != 0;
    return shardi_in_entry(reader, row, error, code);
}
