/* Records of ShardPack and their entries (spec/shardpack.md, sections 2 to 6). */
#include "internal.h"

#define LONGEST_KEY 65536u
#define LONGEST_TYPE 255u
#define MOST_ENTRIES (1u << 20)
#define LARGEST_METADATA (16u << 20)
#define LARGEST_HEAD (64u << 20)
#define CHECKED 0x48674BC7u /* the CRC-32C of any bytes that are followed by their own */
#define GZIP_EXPANSION 1032u

typedef struct entry_place {
    uint32_t name_at; /* in the block */
    uint16_t name_size, type_size;
    uint64_t start; /* in the record; SHARD_NO_OFFSET if it leaves the record */
} entry_place;

struct shard_record {
    const shardi_input *input; /* NULL: the block is the whole record */
    const shard_allocator *allocator;
    shard_limits limits;
    uint64_t offset;
    shardi_record_head head;
    uint8_t *block; /* the head at least */
    size_t block_size;
    entry_place *places;
    uint32_t *by_name; /* numbers of entries in the order of their names */
};

static shard_code too_large(shard_error *error, const char *rule, const char *what, uint64_t most, uint64_t found) {
    return shardi_fail(error, SHARD_LIMIT_EXCEEDED, rule, "%s: expected at most %llu, found %llu", what, (unsigned long long)most, (unsigned long long)found);
}

/* P-REC-1 to P-REC-7. */
static shard_code check_record_head(const shardi_record_head *h, uint64_t size, shard_error *error) {
    uint64_t head_size = shardi_head_size(h);
    if (memcmp(h->marker, "SPR1", 4) != 0) return shardi_fail(error, SHARD_BAD_MAGIC, "P-REC-2", "no record starts here");
    if (h->version != 1) return shardi_fail(error, SHARD_UNSUPPORTED_VERSION, "P-REC-3", "unknown version of the format: expected 1, found %d", h->version);
    if (h->metadata_encoding > 2 || (h->alignment != 1 && h->alignment != 8 && h->alignment != 64) || h->flags) {
        return shardi_fail(error, SHARD_BAD_HEADER, "P-REC-4", "metadata encoding, alignment or flags of a record are not allowed: %d, %d, %d", h->metadata_encoding, h->alignment, h->flags);
    }
    if (!h->key_size) return shardi_fail(error, SHARD_BAD_NAME, "P-REC-5", "a record has no key");
    if (h->key_size > LONGEST_KEY) return too_large(error, "P-REC-5", "the key of a record is too long", LONGEST_KEY, h->key_size);
    if (h->entry_count > MOST_ENTRIES) return too_large(error, "P-REC-6", "a record has too many entries", MOST_ENTRIES, h->entry_count);
    if (h->metadata_size > LARGEST_METADATA) return too_large(error, "P-REC-6", "the metadata of a record is too large", LARGEST_METADATA, h->metadata_size);
    if (head_size > LARGEST_HEAD) return too_large(error, "P-REC-6", "the head of a record is too large", LARGEST_HEAD, head_size);
    if (h->record_size != size) {
        return shardi_fail(error, SHARD_SIZE_MISMATCH, "P-REC-7", "the size of a record does not match its place in the shard: expected %llu, found %llu",
                           (unsigned long long)size, (unsigned long long)h->record_size);
    }
    if (head_size > size) {
        return shardi_fail(error, SHARD_BAD_OFFSET, "P-REC-7", "the head of a record is larger than the record: expected at most %llu bytes, found %llu",
                           (unsigned long long)size, (unsigned long long)head_size);
    }
    return SHARD_OK;
}

/* ---- names, content types and places ---- */

static shard_code bad_kinds(shard_error *error) { return shardi_fail(error, SHARD_SIZE_MISMATCH, "P-KND-1", "names and content types do not fill their area"); }

static shard_code check_kind(const uint8_t *name, size_t name_size, size_t type_size, shard_error *error) {
    size_t i;
    if (!name_size || memchr(name, 0, name_size) || !shardi_is_utf8(name, name_size)) {
        return shardi_fail(error, SHARD_BAD_NAME, "P-KND-2", "the name of an entry cannot be read: expected UTF-8 without U+0000, not empty");
    }
    if (type_size > LONGEST_TYPE) return shardi_fail(error, SHARD_BAD_HEADER, "P-KND-3", "a content type is longer than 255 bytes");
    for (i = 0; i < type_size; i++) {
        if (name[name_size + i] < 0x20 || name[name_size + i] > 0x7E) return shardi_fail(error, SHARD_BAD_HEADER, "P-KND-3", "a content type is not printable ASCII");
    }
    return SHARD_OK;
}

static int compare_entries_by_name(const void *a, const void *b, const void *context) {
    const shard_record *record = (const shard_record *)context;
    const entry_place *x = record->places + *(const uint32_t *)a, *y = record->places + *(const uint32_t *)b;
    return shardi_compare_bytes(record->block + x->name_at, x->name_size, record->block + y->name_at, y->name_size);
}

static shard_code parse_kinds(shard_record *record, shard_error *error) {
    uint32_t count = record->head.entry_count, i;
    uint64_t at = shardi_kinds_at(&record->head), end = shardi_key_at(&record->head);
    int ascends = 1;
    if ((end - at) / 4 < count) return bad_kinds(error);
    record->places = (entry_place *)shardi_allocate_array(record->allocator, count, sizeof *record->places);
    record->by_name = (uint32_t *)shardi_allocate_array(record->allocator, count, sizeof *record->by_name);
    if (!record->places || !record->by_name) return shardi_no_memory(error, (uint64_t)count * sizeof *record->places);
    for (i = 0; i < count; i++) {
        entry_place *place = record->places + i;
        shard_code code;
        if (end - at < 4) return bad_kinds(error);
        place->name_size = shardi_u16(record->block + at);
        place->type_size = shardi_u16(record->block + at + 2);
        at += 4;
        if (end - at < (uint64_t)place->name_size + place->type_size) return bad_kinds(error);
        code = check_kind(record->block + at, place->name_size, place->type_size, error);
        if (code != SHARD_OK) return code;
        place->name_at = (uint32_t)at;
        at += (uint64_t)place->name_size + place->type_size;
        record->by_name[i] = i;
        if (i && ascends) ascends = compare_entries_by_name(record->by_name + i - 1, record->by_name + i, record) < 0;
    }
    if (at != end) return bad_kinds(error);
    if (!ascends) shardi_sort(record->by_name, count, sizeof *record->by_name, compare_entries_by_name, record);
    for (i = 1; i < count && !ascends; i++) {
        if (compare_entries_by_name(record->by_name + i - 1, record->by_name + i, record) == 0) return shardi_fail(error, SHARD_DUPLICATE_NAME, "P-KND-4", "a record has two entries of the same name");
    }
    return SHARD_OK;
}

/* Follows the sizes of the entries (section 4). After one that leaves the record, all do. */
static void find_places(shard_record *record) {
    uint64_t end = shardi_head_size(&record->head), size = record->head.record_size;
    uint32_t i;
    for (i = 0; i < record->head.entry_count; i++) {
        shard_record_entry entry;
        uint64_t start = shardi_align(end, record->head.alignment); /* end is at most the size of a file, so this fits */
        shardi_unpack_row(record->block + SHARDI_FIXED_HEAD + (size_t)i * SHARDI_ROW, &entry);
        if (end > size || start < end || start > size || entry.stored_size > size - start) {
            record->places[i].start = SHARD_NO_OFFSET;
            end = UINT64_MAX;
        } else {
            record->places[i].start = start;
            end = start + entry.stored_size;
        }
    }
}

static shard_code read_record(shard_record *record, uint64_t size, shard_error *error) {
    uint64_t head_size;
    const uint8_t *key;
    shard_code code;
    if (size < SHARDI_FIXED_HEAD + 4 || record->block_size < SHARDI_FIXED_HEAD) {
        return shardi_fail(error, SHARD_BAD_OFFSET, "P-REC-1", "a record is smaller than its head: expected at least 36 bytes, found %llu", (unsigned long long)size);
    }
    shardi_unpack_record_head(record->block, &record->head);
    code = check_record_head(&record->head, size, error);
    if (code != SHARD_OK) return code;
    head_size = shardi_head_size(&record->head);
    if (head_size > record->block_size) {
        uint8_t *whole = (uint8_t *)shardi_allocate(record->allocator, head_size);
        if (!whole) return shardi_no_memory(error, head_size);
        shardi_release(record->allocator, record->block);
        record->block = whole;
        record->block_size = (size_t)head_size;
        code = shardi_input_read(record->input, record->offset, whole, head_size, error);
        if (code != SHARD_OK) return code;
    }
    if (shard_crc32c(0, record->block, (size_t)head_size) != CHECKED) return shardi_fail(error, SHARD_CHECKSUM_MISMATCH, "P-REC-8", "the head of a record is damaged");
    code = parse_kinds(record, error);
    if (code != SHARD_OK) return code;
    key = record->block + shardi_key_at(&record->head);
    if (memchr(key, 0, record->head.key_size) || !shardi_is_utf8(key, record->head.key_size)) {
        return shardi_fail(error, SHARD_BAD_NAME, "P-REC-5", "the key of a record cannot be read: expected UTF-8 without U+0000");
    }
    find_places(record);
    return SHARD_OK;
}

shard_code shardi_open_record(const shardi_input *input, const shard_allocator *allocator, const shard_limits *limits, uint64_t offset, uint64_t size,
                              uint8_t *block, size_t block_size, shard_record **record, shard_error *error) {
    shard_record *made = (shard_record *)shardi_allocate(allocator, sizeof *made);
    shard_code code;
    *record = NULL;
    if (!made) {
        shardi_release(allocator, block);
        return shardi_no_memory(error, sizeof *made);
    }
    memset(made, 0, sizeof *made);
    made->input = input;
    made->allocator = allocator;
    made->limits = *limits;
    made->offset = offset;
    made->block = block;
    made->block_size = block_size;
    code = read_record(made, size, error);
    if (code == SHARD_OK) {
        *record = made;
        return SHARD_OK;
    }
    if (error) error->offset = offset;
    shard_record_free(made);
    return code;
}

void shard_record_free(shard_record *record) {
    if (!record) return;
    shardi_release(record->allocator, record->block);
    shardi_release(record->allocator, record->places);
    shardi_release(record->allocator, record->by_name);
    shardi_release(record->allocator, record);
}

/* ---- what a record says ---- */

const char *shard_record_key(const shard_record *record, size_t *size) {
    *size = record->head.key_size;
    return (const char *)record->block + shardi_key_at(&record->head);
}

uint64_t shard_record_offset(const shard_record *record) { return record->offset; }
uint64_t shard_record_size(const shard_record *record) { return record->head.record_size; }
unsigned shard_record_alignment(const shard_record *record) { return record->head.alignment; }
uint32_t shard_record_count(const shard_record *record) { return record->head.entry_count; }

shard_record_entry shard_record_entry_at(const shard_record *record, uint32_t number) {
    const entry_place *place = record->places + number;
    shard_record_entry entry;
    memset(&entry, 0, sizeof entry);
    shardi_unpack_row(record->block + SHARDI_FIXED_HEAD + (size_t)number * SHARDI_ROW, &entry);
    entry.name = (const char *)record->block + place->name_at;
    entry.name_size = place->name_size;
    entry.content_type = entry.name + place->name_size;
    entry.content_type_size = place->type_size;
    entry.offset = place->start == SHARD_NO_OFFSET ? SHARD_NO_OFFSET : record->offset + place->start;
    return entry;
}

uint32_t shard_record_find(const shard_record *record, const void *name, size_t size) {
    uint32_t low = 0, high = record->head.entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2, number = record->by_name[middle];
        const entry_place *place = record->places + number;
        int order = shardi_compare_bytes(record->block + place->name_at, place->name_size, name, size);
        if (!order) return number;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return SHARD_NOT_FOUND;
}

static shard_code in_record(const shard_record *record, const shard_record_entry *entry, shard_error *error, shard_code code) {
    size_t size;
    const char *key = shard_record_key(record, &size);
    char name[512];
    size_t shown = size < 200 ? size : 200, more = entry ? entry->name_size : 0;
    if (code == SHARD_OK || !error) return code;
    if (more > 200) more = 200;
    memcpy(name, key, shown);
    name[shown] = '/';
    if (entry) memcpy(name + shown + 1, entry->name, more);
    if (error->offset == SHARD_NO_OFFSET) error->offset = record->offset;
    return shardi_locate(error, code, record->input ? record->input->name : "", name, entry ? shown + 1 + more : shown);
}

/* ---- content ---- */

/* All checks of an entry that need no data (P-ENT-1, P-ENT-2, P-ENC-1, P-ENC-3, P-ENC-4). */
static shard_code check_row_sizes(const shard_record *record, const shard_record_entry *e, shard_error *error) {
    unsigned long long stored = e->stored_size, original = e->original_size;
    int is_reachable;
    if (e->encoding > SHARD_ENCODING_ZSTD) return shardi_fail(error, SHARD_UNKNOWN_CODEC, "P-ENC-1", "unknown encoding: expected 0 to 3, found %d", e->encoding);
    if (e->encoding == SHARD_ENCODING_NONE && stored != original) {
        return shardi_fail(error, SHARD_SIZE_MISMATCH, "P-ENT-2", "an entry that is not compressed has two different sizes: %llu and %llu", stored, original);
    }
    if (e->encoding != SHARD_ENCODING_NONE) {
        if (original > record->limits.max_decompressed_bytes) return too_large(error, "P-ENC-3", "the entry is too large after decompression", record->limits.max_decompressed_bytes, original);
        if (!stored) return shardi_fail(error, SHARD_BAD_COMPRESSION, "P-ENC-5", "a compressed entry has no bytes");
        if (e->encoding == SHARD_ENCODING_GZIP) is_reachable = shardi_is_reachable(original, stored, GZIP_EXPANSION, 0);
        else if (e->encoding == SHARD_ENCODING_LZ4) is_reachable = shardi_is_reachable(original, stored, 255, 64);
        else is_reachable = shardi_is_reachable(original, stored, 32768, 0);
        if (!is_reachable) return shardi_fail(error, SHARD_SIZE_MISMATCH, "P-ENC-4", "the stored bytes cannot expand to this size: %llu bytes for %llu", stored, original);
    }
    if (e->offset == SHARD_NO_OFFSET) return shardi_fail(error, SHARD_BAD_OFFSET, "P-ENT-1", "the entry extends beyond its record: %llu bytes", stored);
    return SHARD_OK;
}

/* The rules of the container have other ids here. */
static shard_code as_pack_rule(shard_error *error, shard_code code) {
    static const char *const rules[] = {"P-ENC-3", "P-ENC-4", "P-ENC-5", "P-ENC-5", "P-ENC-5", "P-ENC-3", "P-ENC-4", "P-ENC-5"};
    if (error && strncmp(error->rule, "S-CMP-", 6) == 0 && error->rule[6] >= '2' && error->rule[6] <= '9') memcpy(error->rule, rules[error->rule[6] - '2'], 8);
    return code;
}

static shard_code decode_stored(const shard_record *record, const shard_record_entry *e, const uint8_t *stored, shard_bytes *content, shard_error *error) {
    size_t size = (size_t)e->stored_size;
    uint32_t crc = shard_crc32c(0, stored, size);
    shard_code code = SHARD_OK;
    if (crc != e->crc32c) {
        return shardi_fail(error, SHARD_CHECKSUM_MISMATCH, "P-ENT-3", "the stored bytes are damaged: expected %08lx, found %08lx", (unsigned long)e->crc32c, (unsigned long)crc);
    }
    content->allocator = record->allocator;
    content->data = (uint8_t *)shardi_allocate(record->allocator, e->original_size);
    if (!content->data) return shardi_no_memory(error, e->original_size);
    content->size = (size_t)e->original_size;
    switch (e->encoding) {
        case SHARD_ENCODING_GZIP: code = shardi_decode_gzip(stored, size, content->data, content->size, error); break;
        case SHARD_ENCODING_LZ4: code = shardi_decode_lz4(stored, size, content->data, content->size, error); break;
        case SHARD_ENCODING_ZSTD: code = shardi_decode_zstd(stored, size, record->limits.max_window_bytes, content->data, content->size, error); break;
        default:
            if (size) memcpy(content->data, stored, size);
    }
    if (code != SHARD_OK) shard_bytes_free(content);
    return as_pack_rule(error, code);
}

shard_code shard_record_read(const shard_record *record, uint32_t number, shard_bytes *content, shard_error *error) {
    shard_record_entry e = shard_record_entry_at(record, number);
    shard_code code = check_row_sizes(record, &e, error);
    memset(content, 0, sizeof *content);
    if (code == SHARD_OK) {
        uint64_t start = e.offset - record->offset;
        if (start + e.stored_size <= record->block_size) {
            code = decode_stored(record, &e, record->block + start, content, error);
        } else {
            const uint8_t *stored;
            code = shardi_input_borrow(record->input, record->allocator, e.offset, e.stored_size, &stored, error);
            if (code == SHARD_OK) {
                code = decode_stored(record, &e, stored, content, error);
                shardi_input_release(record->input, record->allocator, stored);
            }
        }
    }
    return in_record(record, &e, error, code);
}

/* ---- metadata ---- */

shard_metadata_encoding shard_record_stored_metadata(const shard_record *record, const uint8_t **data, size_t *size) {
    *data = record->block + shardi_metadata_at(&record->head);
    *size = record->head.metadata_size;
    return (shard_metadata_encoding)record->head.metadata_encoding;
}

shard_code shard_record_metadata(const shard_record *record, shard_document **document, shard_error *error) {
    const uint8_t *data;
    size_t size;
    shard_metadata_encoding encoding = shard_record_stored_metadata(record, &data, &size);
    shard_code code = SHARD_OK;
    *document = NULL;
    if (encoding == SHARD_METADATA_JSON) code = shardi_parse_object(data, size, "the metadata", "P-MTD-2", &record->limits, record->allocator, document, error);
    else if (encoding == SHARD_METADATA_MESSAGEPACK) code = shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "the metadata is MessagePack");
    else if (size) code = shardi_fail(error, SHARD_BAD_METADATA, "P-MTD-1", "metadata is present, but its encoding is 'none'");
    return in_record(record, NULL, error, code);
}

shard_code shard_record_messagepack(const shard_record *record, shard_bytes *values, shard_error *error) {
    const uint8_t *data;
    size_t size;
    shard_code code;
    memset(values, 0, sizeof *values);
    if (shard_record_stored_metadata(record, &data, &size) != SHARD_METADATA_MESSAGEPACK) {
        code = shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "the metadata is not MessagePack");
    } else {
        code = shardi_parse_packed(data, size, record->limits.max_json_nodes, record->allocator, values, error);
        if (code == SHARD_OK && ((const shard_packed *)(const void *)values->data)->kind != SHARD_PACKED_MAP) {
            shard_bytes_free(values);
            code = shardi_fail(error, SHARD_BAD_METADATA, "P-MTD-3", "the metadata is not a map");
        }
    }
    return in_record(record, NULL, error, code);
}
