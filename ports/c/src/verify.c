/* What a checking tool reports about a container. */
#include "internal.h"

#define LARGEST_ALIGNMENT 64u
#define GAP_PIECE (1u << 16)

typedef struct gap_place {
    uint64_t start, end;
} gap_place;

static int compare_places(const void *a, const void *b, const void *context) {
    const gap_place *x = (const gap_place *)a, *y = (const gap_place *)b;
    (void)context;
    return (x->start > y->start) - (x->start < y->start);
}

static shard_code check_gap(const shard_reader *reader, uint64_t start, uint64_t end, unsigned *warnings, shard_error *error) {
    if (end - start >= LARGEST_ALIGNMENT) *warnings |= SHARD_WARN_UNREFERENCED_BYTES;
    while (start < end) {
        uint64_t size = end - start < GAP_PIECE ? end - start : GAP_PIECE, i;
        const uint8_t *gap;
        shard_code code = shardi_input_borrow(&reader->input, reader->allocator, start, size, &gap, error);
        if (code != SHARD_OK) return code;
        for (i = 0; i < size && !gap[i]; i++) {}
        if (i < size) *warnings |= SHARD_WARN_NONZERO_PADDING;
        shardi_input_release(&reader->input, reader->allocator, gap);
        start += size;
    }
    return SHARD_OK;
}

/* Looks at the bytes of the data section that belong to no block. */
static shard_code check_gaps(const shard_reader *reader, unsigned *warnings, shard_error *error) {
    const shard_head *h = &reader->header;
    uint64_t end = h->schema_offset && h->schema_offset <= h->total_file_size ? h->schema_offset : h->total_file_size, at = h->data_section_offset;
    gap_place *places = (gap_place *)shardi_allocate_array(reader->allocator, (uint64_t)h->entry_count + 1, sizeof *places);
    size_t count = 0, i;
    uint32_t row;
    shard_code code = SHARD_OK;
    if (!places) return shardi_no_memory(error, (uint64_t)h->entry_count * sizeof *places);
    for (row = 0; row < h->entry_count; row++) {
        shard_entry entry = shard_reader_entry(reader, row);
        if (!entry.disk_size) continue;
        places[count].start = entry.data_offset;
        places[count++].end = entry.data_offset + entry.disk_size;
    }
    shardi_sort(places, count, sizeof *places, compare_places, NULL);
    places[count].start = end;
    places[count++].end = end;
    for (i = 0; i < count && code == SHARD_OK; i++) {
        if (places[i].start > at) code = check_gap(reader, at, places[i].start, warnings, error);
        if (places[i].end > at) at = places[i].end;
    }
    shardi_release(reader->allocator, places);
    return code;
}

shard_code shard_reader_warnings(const shard_reader *reader, unsigned *warnings, shard_error *error) {
    const shard_head *h = &reader->header;
    uint64_t before = 0;
    uint32_t i;
    *warnings = 0;
    for (i = 0; i < h->entry_count; i++) {
        shard_entry entry = shard_reader_entry(reader, i);
        if (shard_xxh64(entry.name, entry.name_size, 0) != entry.name_hash) *warnings |= SHARD_WARN_NAME_HASH_MISMATCH;
        if (entry.disk_size && h->alignment && entry.data_offset % h->alignment) *warnings |= SHARD_WARN_MISALIGNED;
        if (entry.orig_size > 0 && !shardi_has_checksum(reader, &entry)) *warnings |= SHARD_WARN_NO_CHECKSUM;
        if (entry.data_offset < before) *warnings |= SHARD_WARN_NOT_ASCENDING;
        if (entry.flags & ~SHARDI_KNOWN_ENTRY_FLAGS) *warnings |= SHARD_WARN_NONZERO_RESERVED;
        before = entry.data_offset;
    }
    if ((h->flags & ~SHARDI_KNOWN_FLAGS) || !shardi_reserved_is_zero(reader->head)) *warnings |= SHARD_WARN_NONZERO_RESERVED;
    return shardi_locate(error, check_gaps(reader, warnings, error), reader->input.name, NULL, 0);
}

/* S-ROL-2 and S-ROL-3. */
static shard_code verify_profile(const shard_reader *reader, shard_error *error) {
    shard_document *document = NULL;
    const shard_json *rows;
    shard_code code = SHARD_OK;
    if (reader->header.role == SHARD_ROLE_MANIFEST) {
        if (shardi_find_manifest(reader, &document, &rows, NULL) != SHARD_OK) code = shardi_fail(error, SHARD_BAD_PROFILE, "S-ROL-2", "not a manifest, as its role promises");
    } else if (reader->header.role == SHARD_ROLE_WSHARD) {
        uint32_t row = shard_reader_find(reader, "meta/episode");
        if (row == SHARD_NOT_FOUND || shard_reader_json(reader, row, &document, NULL) != SHARD_OK) {
            code = shardi_fail(error, SHARD_BAD_PROFILE, "S-ROL-3", "not an episode, as its role promises");
        }
    }
    shard_document_free(document);
    return shardi_locate(error, code, reader->input.name, NULL, 0);
}

shard_code shard_reader_verify(const shard_reader *reader, shard_error *error) {
    shard_document *schema = NULL;
    shard_code code = SHARD_OK;
    uint32_t i;
    for (i = 0; i < reader->header.entry_count && code == SHARD_OK; i++) code = shardi_scan(reader, i, NULL, error);
    if (code == SHARD_OK) code = shard_reader_schema(reader, &schema, error);
    shard_document_free(schema);
    return code == SHARD_OK ? verify_profile(reader, error) : code;
}
