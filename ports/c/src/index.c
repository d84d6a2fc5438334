/* The head of a container: checks its structure and finds names (spec/shard.md, sections 2 to 5). */
#include "internal.h"

static shard_code bad_head(shard_error *error, shard_code code, const char *rule, const char *problem, uint64_t expected, uint64_t found) {
    return shardi_fail(error, code, rule, "%s: expected %llu, found %llu", problem, (unsigned long long)expected, (unsigned long long)found);
}

shard_code shardi_parse_header(const uint8_t *head, size_t size, uint64_t file_size, const shard_limits *limits, shard_head *header, shard_error *error) {
    size_t known = size < 4 ? size : 4;
    uint64_t index_end;
    shard_head *h = header;
    if (known && memcmp(head, SHARDI_MAGIC, known) != 0) return shardi_fail(error, SHARD_BAD_MAGIC, "S-HDR-2", "not a Shard file: expected it to start with SHRD");
    if (size < SHARDI_HEADER_SIZE) return bad_head(error, SHARD_TRUNCATED, "S-HDR-1", "the file ends inside its header", SHARDI_HEADER_SIZE, file_size);
    shardi_unpack_header(head, h);
    index_end = SHARDI_HEADER_SIZE + (uint64_t)SHARDI_ENTRY_SIZE * h->entry_count;
    if (h->version != 2) return bad_head(error, SHARD_UNSUPPORTED_VERSION, "S-HDR-3", "unknown version of the format", 2, h->version);
    if (h->index_entry_size != SHARDI_ENTRY_SIZE) return bad_head(error, SHARD_BAD_HEADER, "S-HDR-4", "wrong size of an index entry", SHARDI_ENTRY_SIZE, h->index_entry_size);
    if (h->alignment != 0 && h->alignment != 16 && h->alignment != 32 && h->alignment != 64) {
        return shardi_fail(error, SHARD_BAD_HEADER, "S-HDR-5", "the alignment is not allowed: expected 0, 16, 32 or 64, found %u", (unsigned)h->alignment);
    }
    if (h->flags & SHARDI_BIG_ENDIAN) return shardi_fail(error, SHARD_BAD_HEADER, "S-HDR-6", "the header claims big-endian numbers: flags 0x%04x", (unsigned)h->flags);
    if (h->total_file_size > file_size) return bad_head(error, SHARD_TRUNCATED, "S-HDR-7", "the file is shorter than its header says", h->total_file_size, file_size);
    if (h->total_file_size < file_size) return bad_head(error, SHARD_TRAILING_DATA, "S-HDR-7", "the file goes on after its stated end", h->total_file_size, file_size);
    if (h->entry_count > limits->max_entries || index_end - SHARDI_HEADER_SIZE > limits->max_index_bytes) {
        return bad_head(error, SHARD_LIMIT_EXCEEDED, "S-HDR-8", "too many entries", limits->max_entries, h->entry_count);
    }
    if (index_end > file_size) return bad_head(error, SHARD_BAD_OFFSET, "S-HDR-9", "the index does not fit in the file", file_size, index_end);
    if (h->string_table_offset != index_end) return bad_head(error, SHARD_BAD_OFFSET, "S-HDR-10", "the string table does not follow the index", index_end, h->string_table_offset);
    if (h->data_section_offset < index_end || h->data_section_offset > file_size) {
        return bad_head(error, SHARD_BAD_OFFSET, "S-HDR-11", "the data section is out of range", index_end, h->data_section_offset);
    }
    if (h->data_section_offset - index_end > limits->max_string_table_bytes) {
        return bad_head(error, SHARD_LIMIT_EXCEEDED, "S-HDR-12", "the string table is too large", limits->max_string_table_bytes, h->data_section_offset - index_end);
    }
    return SHARD_OK;
}

shard_entry shard_reader_entry(const shard_reader *reader, uint32_t row) {
    shard_entry entry;
    shardi_unpack_entry(reader->head + SHARDI_HEADER_SIZE + (size_t)row * SHARDI_ENTRY_SIZE, &entry);
    entry.name = (const char *)reader->head + reader->header.string_table_offset + entry.name_offset;
    return entry;
}

static int compare_names(const shard_entry *a, const shard_entry *b) { return shardi_compare_bytes(a->name, a->name_size, b->name, b->name_size); }

static shard_code in_row(shard_error *error, uint32_t row, shard_code code) {
    if (code != SHARD_OK && error) error->offset = SHARDI_HEADER_SIZE + (uint64_t)row * SHARDI_ENTRY_SIZE;
    return code;
}

/* S-NAM-1 to S-NAM-3, S-NAM-9, S-DAT-1 and S-DAT-2 of one row. */
static shard_code check_row(shard_reader *reader, const shard_entry *entry, shard_error *error) {
    const shard_head *h = &reader->header;
    uint64_t table = h->data_section_offset - h->string_table_offset, end;
    if (!entry->name_size) return shardi_fail(error, SHARD_BAD_NAME, "S-NAM-2", "a name is empty");
    if ((uint64_t)entry->name_offset + entry->name_size > table) {
        return bad_head(error, SHARD_BAD_NAME, "S-NAM-1", "a name is outside the string table", table, (uint64_t)entry->name_offset + entry->name_size);
    }
    reader->name_bytes += entry->name_size;
    if (reader->name_bytes > reader->limits.max_string_table_bytes) {
        return bad_head(error, SHARD_LIMIT_EXCEEDED, "S-NAM-9", "the names are too long together", reader->limits.max_string_table_bytes, reader->name_bytes);
    }
    if (!shardi_is_utf8(entry->name, entry->name_size)) return shardi_fail(error, SHARD_BAD_NAME, "S-NAM-3", "a name is not valid UTF-8");
    if (entry->data_offset < h->data_section_offset) return bad_head(error, SHARD_BAD_OFFSET, "S-DAT-1", "a block starts before the data section", h->data_section_offset, entry->data_offset);
    if (!shardi_add(entry->data_offset, entry->disk_size, &end) || end > h->total_file_size) {
        return shardi_fail(error, SHARD_BAD_OFFSET, "S-DAT-2", "a block ends after the end of the file: %llu bytes at offset %llu", (unsigned long long)entry->disk_size,
                           (unsigned long long)entry->data_offset);
    }
    return SHARD_OK;
}

static int compare_slots(const void *a, const void *b, const void *context) {
    const shardi_slot *x = (const shardi_slot *)a, *y = (const shardi_slot *)b;
    shard_entry left, right;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    left = shard_reader_entry((const shard_reader *)context, x->row);
    right = shard_reader_entry((const shard_reader *)context, y->row);
    return compare_names(&left, &right);
}

/* Sorts the rows by the hashes of their names, which it computes: the file's may be wrong. Refuses equal names (S-NAM-4). */
static shard_code sort_names(shard_reader *reader, shard_error *error) {
    uint32_t count = reader->header.entry_count, i;
    reader->slots = (shardi_slot *)shardi_allocate_array(reader->allocator, count, sizeof *reader->slots);
    if (!reader->slots) return shardi_no_memory(error, (uint64_t)count * sizeof *reader->slots);
    for (i = 0; i < count; i++) {
        shard_entry entry = shard_reader_entry(reader, i);
        reader->slots[i].hash = shard_xxh64(entry.name, entry.name_size, 0);
        reader->slots[i].row = i;
    }
    shardi_sort(reader->slots, count, sizeof *reader->slots, compare_slots, reader);
    for (i = 1; i < count; i++) {
        if (compare_slots(reader->slots + i - 1, reader->slots + i, reader) == 0) {
            shard_entry entry = shard_reader_entry(reader, reader->slots[i].row);
            shard_code code = shardi_fail(error, SHARD_DUPLICATE_NAME, "S-NAM-4", "two entries have the same name");
            return shardi_locate(error, code, "", entry.name, entry.name_size);
        }
    }
    return SHARD_OK;
}

typedef struct block_place {
    uint64_t start, end;
} block_place;

static int compare_blocks(const void *a, const void *b, const void *context) {
    const block_place *x = (const block_place *)a, *y = (const block_place *)b;
    (void)context;
    return (x->start > y->start) - (x->start < y->start);
}

/* S-DAT-3 of blocks in any order. */
static shard_code check_overlaps(const shard_reader *reader, shard_error *error) {
    uint32_t count = reader->header.entry_count, i;
    size_t used = 0, k;
    shard_code code = SHARD_OK;
    block_place *blocks = (block_place *)shardi_allocate_array(reader->allocator, count, sizeof *blocks);
    if (!blocks) return shardi_no_memory(error, (uint64_t)count * sizeof *blocks);
    for (i = 0; i < count; i++) {
        shard_entry entry = shard_reader_entry(reader, i);
        if (!entry.disk_size) continue;
        blocks[used].start = entry.data_offset;
        blocks[used++].end = entry.data_offset + entry.disk_size;
    }
    shardi_sort(blocks, used, sizeof *blocks, compare_blocks, NULL);
    for (k = 1; k < used && code == SHARD_OK; k++) {
        if (blocks[k].start >= blocks[k - 1].end) continue;
        code = bad_head(error, SHARD_OVERLAP, "S-DAT-3", "the blocks of two entries overlap", blocks[k - 1].end, blocks[k].start);
        if (error) error->offset = blocks[k].start;
    }
    shardi_release(reader->allocator, blocks);
    return code;
}

shard_code shardi_parse_index(shard_reader *reader, shard_error *error) {
    uint32_t i;
    uint64_t end = 0;
    int is_ordered = 1, ascends = 1;
    shard_entry entry, before;
    shard_code code;
    memset(&before, 0, sizeof before);
    for (i = 0; i < reader->header.entry_count; i++) {
        entry = shard_reader_entry(reader, i);
        code = check_row(reader, &entry, error);
        if (code != SHARD_OK) return in_row(error, i, code);
        if (i && ascends) ascends = compare_names(&before, &entry) < 0;
        before = entry;
        if (entry.disk_size) {
            is_ordered &= entry.data_offset >= end;
            end = entry.data_offset + entry.disk_size;
        }
    }
    /* Most files have their blocks in order, and many their names: then nothing is sorted, and no name is there twice. */
    code = ascends ? SHARD_OK : sort_names(reader, error);
    if (code == SHARD_OK && !is_ordered) code = check_overlaps(reader, error);
    return code;
}

uint32_t shard_reader_find_bytes(const shard_reader *reader, const void *name, size_t size) {
    uint32_t low = 0, high = reader->header.entry_count;
    uint64_t hash = reader->slots ? shard_xxh64(name, size, 0) : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2, row = middle;
        int order = 0;
        if (reader->slots) {
            const shardi_slot *slot = reader->slots + middle;
            row = slot->row;
            order = (slot->hash > hash) - (slot->hash < hash);
        }
        if (!order) {
            shard_entry entry = shard_reader_entry(reader, row);
            order = shardi_compare_bytes(entry.name, entry.name_size, name, size);
        }
        if (!order) return row;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return SHARD_NOT_FOUND;
}

uint32_t shard_reader_find(const shard_reader *reader, const char *name) { return shard_reader_find_bytes(reader, name, strlen(name)); }
