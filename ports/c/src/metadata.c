/* The schema section, JSON entries and manifests (spec/shard.md, sections 9 and 11). */
#include "internal.h"

static shard_code bad_metadata(shard_error *error, const char *rule, const char *problem) {
    return shardi_fail(error, SHARD_BAD_METADATA, rule, "%s", problem);
}

shard_code shardi_read_json(const shard_reader *reader, uint32_t row, const char *rule, const shard_limits *limits, shard_document **document, shard_error *error) {
    shard_entry entry = shard_reader_entry(reader, row);
    shard_bytes text;
    shard_code code;
    *document = NULL;
    if (entry.orig_size > limits->max_json_bytes) {
        code = shardi_fail(error, SHARD_LIMIT_EXCEEDED, "S-SCH-7", "the entry is too long: expected at most %llu bytes, found %llu",
                           (unsigned long long)limits->max_json_bytes, (unsigned long long)entry.orig_size);
        return shardi_in_entry(reader, row, error, code);
    }
    code = shard_reader_read(reader, row, &text, error);
    if (code != SHARD_OK) return code;
    code = shardi_parse_object(text.data, text.size, "the entry", rule, limits, reader->allocator, document, error);
    shard_bytes_free(&text);
    return shardi_in_entry(reader, row, error, code);
}

shard_code shard_reader_json(const shard_reader *reader, uint32_t row, shard_document **document, shard_error *error) {
    return shardi_read_json(reader, row, "S-SCH-2", &reader->limits, document, error);
}

/* ---- the schema section ---- */

shard_code shardi_check_schema(const shard_json *schema, shard_error *error) {
    static const char *const lists[] = {"tag_dictionary", "tags"};
    const shard_json *value;
    size_t i, k;
    for (k = 0; k < 2; k++) {
        value = shardi_json_given(schema, lists[k]);
        if (!value) continue;
        if (value->kind != SHARD_JSON_LIST || (k == 0 && value->size > 16)) return bad_metadata(error, "S-SCH-4", "tag_dictionary and tags are lists of strings, the first of at most 16");
        for (i = 0; i < value->size; i++) {
            if (value->is.items[i].kind != SHARD_JSON_STRING) return bad_metadata(error, "S-SCH-4", "tag_dictionary and tags are lists of strings");
        }
    }
    value = shardi_json_given(schema, "entry_metadata");
    if (!value) return SHARD_OK;
    if (value->kind != SHARD_JSON_OBJECT) return bad_metadata(error, "S-SCH-4", "entry_metadata is an object of objects");
    for (i = 0; i < value->size; i++) {
        if (value->is.items[i].kind != SHARD_JSON_OBJECT) return bad_metadata(error, "S-SCH-4", "entry_metadata is an object of objects");
    }
    return SHARD_OK;
}

static shard_code parse_schema(const shard_reader *reader, shard_document **schema, shard_error *error) {
    const shard_head *h = &reader->header;
    uint64_t end = h->data_section_offset, size;
    const uint8_t *text;
    uint32_t i;
    shard_code code;
    for (i = 0; i < h->entry_count; i++) {
        shard_entry entry = shard_reader_entry(reader, i);
        if (entry.data_offset + entry.disk_size > end) end = entry.data_offset + entry.disk_size;
    }
    if (h->schema_offset < end || h->schema_offset > h->total_file_size) {
        return shardi_fail(error, SHARD_BAD_METADATA, "S-SCH-1", "the schema section is not behind the data: expected %llu to %llu, found %llu",
                           (unsigned long long)end, (unsigned long long)h->total_file_size, (unsigned long long)h->schema_offset);
    }
    size = h->total_file_size - h->schema_offset;
    if (size > reader->limits.max_json_bytes) {
        return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "S-SCH-7", "the schema section is too long: expected at most %llu bytes, found %llu",
                           (unsigned long long)reader->limits.max_json_bytes, (unsigned long long)size);
    }
    code = shardi_input_borrow(&reader->input, reader->allocator, h->schema_offset, size, &text, error);
    if (code != SHARD_OK) return code;
    code = shardi_parse_object(text, (size_t)size, "the schema section", "S-SCH-2", &reader->limits, reader->allocator, schema, error);
    shardi_input_release(&reader->input, reader->allocator, text);
    if (code == SHARD_OK) {
        code = shardi_check_schema(shard_document_root(*schema), error);
        if (code != SHARD_OK) {
            shard_document_free(*schema);
            *schema = NULL;
        }
    }
    return code;
}

shard_code shard_reader_schema(const shard_reader *reader, shard_document **schema, shard_error *error) {
    *schema = NULL;
    if (!reader->header.schema_offset) return SHARD_OK;
    return shardi_locate(error, parse_schema(reader, schema, error), reader->input.name, NULL, 0);
}

/* ---- manifests ---- */

static int is_natural(const shard_json *value) {
    return value->kind == SHARD_JSON_INTEGER && (value->is.text[0] != '-' || value->is.text[1] == '0');
}

/* One row (S-MAN-2). */
static shard_code check_reference(const shard_json *row, shard_error *error) {
    const shard_json *uri = shard_json_get(row, "uri"), *value;
    static const char *const keys[] = {"start_key", "end_key"};
    int i;
    if (!uri || uri->kind != SHARD_JSON_STRING || !uri->size || memchr(uri->is.text, 0, uri->size)) {
        return bad_metadata(error, "S-MAN-2", "'uri' of a row is not a string without NUL that is not empty");
    }
    value = shardi_json_given(row, "sha256");
    if (value && !shardi_is_digest(value)) return bad_metadata(error, "S-MAN-2", "'sha256' of a row is not 64 lower-case hex digits");
    value = shardi_json_given(row, "size");
    if (value && !is_natural(value)) return bad_metadata(error, "S-MAN-2", "'size' of a row is not an integer of 0 or more");
    for (i = 0; i < 2; i++) {
        value = shardi_json_given(row, keys[i]);
        if (value && value->kind != SHARD_JSON_STRING) return bad_metadata(error, "S-MAN-2", "'start_key' or 'end_key' of a row is not a string");
    }
    return SHARD_OK;
}

static int compare_uris(const void *a, const void *b, const void *context) {
    const shard_json *x = shard_json_get(*(const shard_json *const *)a, "uri"), *y = shard_json_get(*(const shard_json *const *)b, "uri");
    (void)context;
    return shardi_compare_bytes(x->is.text, x->size, y->is.text, y->size);
}

static shard_code check_references(const shard_reader *reader, const shard_json *rows, shard_error *error) {
    const shard_json **sorted;
    size_t i;
    shard_code code = SHARD_OK;
    if (!rows || rows->kind != SHARD_JSON_LIST) return bad_metadata(error, "S-MAN-1", "the manifest has no list of files");
    for (i = 0; i < rows->size; i++) {
        if (rows->is.items[i].kind != SHARD_JSON_OBJECT) return bad_metadata(error, "S-MAN-1", "a row of the manifest is not an object");
        code = check_reference(rows->is.items + i, error);
        if (code != SHARD_OK) return code;
    }
    sorted = (const shard_json **)shardi_allocate_array(reader->allocator, rows->size, sizeof *sorted);
    if (!sorted) return shardi_no_memory(error, (uint64_t)rows->size * sizeof *sorted);
    for (i = 0; i < rows->size; i++) sorted[i] = rows->is.items + i;
    shardi_sort(sorted, rows->size, sizeof *sorted, compare_uris, NULL);
    for (i = 1; i < rows->size && code == SHARD_OK; i++) {
        if (compare_uris(sorted + i - 1, sorted + i, NULL) == 0) code = bad_metadata(error, "S-MAN-2", "the manifest names a file twice");
    }
    shardi_release(reader->allocator, (void *)sorted);
    return code;
}

shard_code shardi_find_manifest(const shard_reader *reader, shard_document **document, const shard_json **rows, shard_error *error) {
    uint32_t row = shard_reader_find(reader, SHARDI_MANIFEST);
    const shard_json *fields;
    shard_code code;
    *document = NULL;
    *rows = NULL;
    if (reader->header.role != SHARD_ROLE_MANIFEST) return shardi_fail(error, SHARD_BAD_METADATA, "", "the file is not a manifest: expected role 4, found %u", (unsigned)reader->header.role);
    code = shardi_check_stored_identity(reader, error);
    if (code != SHARD_OK) return code;
    if (row != SHARD_NOT_FOUND) {
        code = shardi_read_json(reader, row, "S-MAN-1", &reader->limits, document, error);
        fields = code == SHARD_OK ? shard_document_root(*document) : NULL;
    } else {
        code = shard_reader_schema(reader, document, error);
        fields = *document ? shard_json_get(shard_document_root(*document), "manifest") : NULL;
        if (code == SHARD_OK && (!fields || fields->kind != SHARD_JSON_OBJECT)) code = bad_metadata(error, "S-MAN-1", "the file has no manifest");
    }
    if (code == SHARD_OK) {
        *rows = shard_json_get(fields, "files");
        if (!*rows) *rows = shard_json_get(fields, "chunks");
        code = check_references(reader, *rows, error);
    }
    if (code != SHARD_OK) {
        shard_document_free(*document);
        *document = NULL;
        *rows = NULL;
    }
    return code;
}

shard_code shard_reader_manifest(const shard_reader *reader, shard_document **document, const shard_json **rows, shard_error *error) {
    return shardi_locate(error, shardi_find_manifest(reader, document, rows, error), reader->input.name, NULL, 0);
}
