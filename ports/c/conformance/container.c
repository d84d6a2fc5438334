/* Containers: reading, steps of invalid vectors, writing. */
#include "conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LISTED 1000

/* ---- reading ---- */

static void tell_header(answer *out, const shard_head *h) {
    put_key(out, "header");
    put(out, "{");
    put_number(out, "version", h->version);
    put_number(out, "role", h->role);
    put_number(out, "flags", h->flags);
    put_number(out, "alignment", h->alignment);
    put_number(out, "compression_default", h->compression_default);
    put_number(out, "entry_count", h->entry_count);
    put_number(out, "string_table_offset", h->string_table_offset);
    put_number(out, "data_section_offset", h->data_section_offset);
    put_number(out, "schema_offset", h->schema_offset);
    put_number(out, "total_file_size", h->total_file_size);
    put(out, "}");
}

static shard_code tell_filters(answer *out, const shard_reader *r, uint32_t row, shard_error *error) {
    shard_filters filters;
    int is_filtered;
    shard_code code = shard_reader_filters(r, row, &filters, &is_filtered, error);
    if (code != SHARD_OK || !is_filtered) return code;
    put_key(out, "filters");
    put(out, "[");
    if (filters.delta_width) {
        put(out, "{");
        put_text(out, "name", "delta");
        put_number(out, "order", filters.delta_order);
        put_number(out, "row", filters.delta_row);
        put_number(out, "width", filters.delta_width);
        put(out, filters.planes_width ? "}," : "}");
    }
    if (filters.planes_width) {
        put(out, "{");
        put_text(out, "name", "planes");
        put_number(out, "width", filters.planes_width);
        put(out, "}");
    }
    put(out, "]");
    return SHARD_OK;
}

/* Tells the frames, and compares the range of each with the whole entry. */
static shard_code tell_frames(answer *out, const shard_reader *r, uint32_t row, const shard_bytes *content, shard_error *error) {
    shard_bytes list, part;
    const shard_frame *frames;
    size_t count, i, at = 0;
    shard_code code = shard_reader_frames(r, row, &list, &count, error);
    if (code != SHARD_OK || !list.data) return code;
    frames = (const shard_frame *)(const void *)list.data;
    put_key(out, "seekable_frames");
    put(out, "[");
    for (i = 0; i < count && code == SHARD_OK; i++) {
        put(out, i ? ",{" : "{");
        put_number(out, "compressed_size", frames[i].compressed_size);
        put_number(out, "decompressed_size", frames[i].decompressed_size);
        if (frames[i].has_checksum) put_format(out, "checksum", "%08lx", (unsigned long)frames[i].checksum);
        put(out, "}");
        code = shard_reader_range(r, row, at, frames[i].decompressed_size, &part, error);
        if (code == SHARD_OK && part.size && memcmp(part.data, content->data + at, part.size) != 0) code = program_error(error, "a range differs from the whole entry");
        at += frames[i].decompressed_size;
        shard_bytes_free(&part);
    }
    put(out, "]");
    /* A range across frames, too. */
    if (code == SHARD_OK && content->size > 2) {
        code = shard_reader_range(r, row, 1, content->size - 2, &part, error);
        if (code == SHARD_OK && memcmp(part.data, content->data + 1, part.size) != 0) code = program_error(error, "a range differs from the whole entry");
        shard_bytes_free(&part);
    }
    shard_bytes_free(&list);
    return code;
}

static shard_code tell_entry(answer *out, answer *lines, const shard_reader *r, uint32_t row, shard_error *error) {
    static const char *const codecs[] = {"none", "zstd", "lz4"};
    shard_entry e = shard_reader_entry(r, row);
    shard_codec codec;
    shard_bytes content;
    char hex[65];
    shard_code code = shard_reader_codec(r, row, &codec, error);
    if (code != SHARD_OK) return code;
    if (shard_reader_find_bytes(r, e.name, e.name_size) != row) return program_error(error, "an entry is not found by its name");
    code = shard_reader_read(r, row, &content, error);
    if (code != SHARD_OK) return code;
    shard_sha256_hex(content.data, content.size, hex);
    put(out, row ? ",{" : "{");
    put_key(out, "name");
    put_string(out, e.name, e.name_size);
    put_format(out, "name_hash", "%016llx", (unsigned long long)e.name_hash);
    put_text(out, "codec", codecs[codec]);
    put_number(out, "content_type", e.content_type);
    put_number(out, "tag_bits", e.tag_bits);
    put_format(out, "crc32c", "%08lx", (unsigned long)e.crc32c);
    put_number(out, "data_offset", e.data_offset);
    put_number(out, "disk_size", e.disk_size);
    put_number(out, "orig_size", e.orig_size);
    put_text(out, "sha256", hex);
    code = tell_filters(out, r, row, error);
    if (code == SHARD_OK) code = tell_frames(out, r, row, &content, error);
    put(out, "}");
    put_bytes(lines, e.name, e.name_size);
    put(lines, "\t");
    put(lines, hex);
    put(lines, "\n");
    shard_bytes_free(&content);
    return code;
}

static shard_code tell_entries(answer *out, const shard_reader *r, shard_error *error) {
    answer lines = {NULL, 0, 0};
    char hex[65];
    uint32_t i;
    shard_code code = SHARD_OK;
    size_t start;
    put(&lines, "");
    start = out->size;
    put_key(out, "entries");
    put(out, "[");
    for (i = 0; i < shard_reader_count(r) && code == SHARD_OK; i++) code = tell_entry(out, &lines, r, i, error);
    put(out, "]");
    if (i > MOST_LISTED) {
        out->size = start;
        shard_sha256_hex(lines.text, lines.size, hex);
        put_text(out, "entries_sha256", hex);
    }
    free(lines.text);
    return code;
}

static shard_code tell_metadata(answer *out, const shard_reader *r, shard_error *error) {
    shard_document *document = NULL;
    const shard_json *rows;
    shard_code code = shard_reader_schema(r, &document, error);
    if (document) {
        put_key(out, "schema");
        put_json(out, shard_document_root(document));
        shard_document_free(document);
    }
    if (code != SHARD_OK || shard_reader_header(r)->role != SHARD_ROLE_MANIFEST) return code;
    code = shard_reader_manifest(r, &document, &rows, error);
    if (code == SHARD_OK) {
        put_key(out, "manifest_files");
        put_json(out, rows);
        shard_document_free(document);
    }
    return code;
}

static shard_code tell_container(answer *out, const shard_reader *r, shard_error *error) {
    char first[65], second[65];
    unsigned warnings;
    int count = 0;
    shard_code code = shard_reader_identity(r, 1, first, error);
    if (code == SHARD_OK) code = shard_reader_identity(r, 2, second, error);
    if (code == SHARD_OK) code = shard_reader_warnings(r, &warnings, error);
    if (code != SHARD_OK) return code;
    put(out, "{");
    tell_header(out, shard_reader_header(r));
    put_text(out, "identity", first);
    put_text(out, "identity_2", second);
    put_key(out, "warnings");
    put(out, "[");
#define TELL_WARNING(bit, name) if (warnings & bit) { if (count++) put(out, ","); put(out, "\"" name "\""); }
    SHARD_WARNINGS(TELL_WARNING)
#undef TELL_WARNING
    put(out, "]");
    code = tell_metadata(out, r, error);
    if (code == SHARD_OK) code = tell_entries(out, r, error);
    put(out, "}");
    return code;
}

/* Mapped, so that the mapping is tested; steps read the file. */
shard_code read_container(answer *out, const char *file, shard_error *error) {
    shard_options options;
    shard_reader *r;
    shard_code code;
    memset(&options, 0, sizeof options);
    options.map = 1;
    code = shard_reader_open(file, &options, &r, error);
    if (code == SHARD_OK) code = tell_container(out, r, error);
    shard_reader_close(r);
    return code;
}

/* ---- steps ---- */

static shard_code step(const shard_reader *r, const shard_json *told, shard_error *error) {
    char when[16], text[32];
    const shard_json *entry = shard_json_get(told, "entry"), *rows;
    uint32_t row = entry && entry->kind == SHARD_JSON_STRING ? shard_reader_find_bytes(r, entry->is.text, entry->size) : SHARD_NOT_FOUND;
    shard_document *document = NULL;
    shard_bytes content;
    int version;
    shard_code code = SHARD_OK;
    memset(&content, 0, sizeof content);
    case_text(told, "when", when, sizeof when);
    if (!strcmp(when, "read") || !strcmp(when, "range")) {
        if (row == SHARD_NOT_FOUND) return program_error(error, "the entry is not there");
        if (when[1] == 'e') code = shard_reader_read(r, row, &content, error);
        else code = shard_reader_range(r, row, case_number(told, "start"), strtoull(case_text(told, "length", text, sizeof text), NULL, 10), &content, error);
    } else if (!strcmp(when, "schema")) code = shard_reader_schema(r, &document, error);
    else if (!strcmp(when, "manifest")) code = shard_reader_manifest(r, &document, &rows, error);
    else if (!strcmp(when, "identity")) code = shard_reader_verify_identity(r, &version, error);
    else if (!strcmp(when, "verify")) code = shard_reader_verify(r, error);
    shard_bytes_free(&content);
    shard_document_free(document);
    return code;
}

shard_code step_container(answer *out, const char *file, const shard_json *told, shard_error *error) {
    shard_reader *r;
    shard_options options = case_options(told);
    shard_code code = shard_reader_open(file, &options, &r, error);
    if (code == SHARD_OK) code = step(r, told, error);
    if (code == SHARD_OK) put(out, "{\"done\":true}");
    shard_reader_close(r);
    return code;
}

/* ---- writing ---- */

shard_code tell_written(answer *out, const char *path, shard_error *error) {
    shard_bytes content;
    shard_reader *r = NULL;
    char sha256[65], identity[65];
    shard_code code = load_file(path, &content, error);
    if (code != SHARD_OK) return code;
    shard_sha256_hex(content.data, content.size, sha256);
    code = shard_reader_open_memory(content.data, content.size, NULL, &r, error);
    if (code == SHARD_OK) code = shard_reader_identity(r, 2, identity, error);
    if (code == SHARD_OK) {
        put(out, "{");
        put_text(out, "sha256", sha256);
        put_text(out, "identity", identity);
        put(out, "}");
    }
    shard_reader_close(r);
    free(content.data);
    return code;
}

/* hex:…, ramp:N or lines:N. */
static size_t make_content(const shard_json *told, uint8_t **made) {
    const char *text = told->is.text, *colon = (const char *)memchr(text, ':', told->size);
    size_t used = (size_t)(colon + 1 - text), size, i;
    if (text[0] == 'h') size = (told->size - used) / 2;
    else for (size = 0, i = used; i < told->size; i++) size = size * 10 + (size_t)(text[i] - '0');
    *made = (uint8_t *)malloc(size + 32);
    if (!*made) exit(3);
    for (i = 0; i < size; i++) {
        if (text[0] == 'h') {
            char pair[3] = {text[used + 2 * i], text[used + 2 * i + 1], 0};
            (*made)[i] = (uint8_t)strtoul(pair, NULL, 16);
        } else if (text[0] == 'r') {
            (*made)[i] = (uint8_t)(i & 0xFF);
        } else if (i % 11 == 0) {
            snprintf((char *)*made + i, 12, "row %06u\n", (unsigned)(i / 11 % 1000000));
        }
    }
    return size;
}

static char *copy_name(const shard_json *name) {
    char *copy = (char *)malloc(name->size + 1);
    if (!copy) exit(3);
    memcpy(copy, name->is.text, name->size);
    copy[name->size] = 0;
    return copy;
}

static shard_codec codec_named(const char *name) { return !strcmp(name, "zstd") ? SHARD_ZSTD : !strcmp(name, "lz4") ? SHARD_LZ4 : SHARD_NONE; }

shard_code write_container(answer *out, const shard_json *told, const char *path, shard_error *error) {
    const shard_json *given = shard_json_get(told, "options"), *entries = shard_json_get(told, "entries"), *schema = shard_json_get(told, "schema");
    shard_writer_options options;
    shard_writer *w = NULL;
    shard_bytes schema_text;
    char text[32];
    char **names = (char **)calloc(entries->size + 1, sizeof *names);
    size_t i;
    shard_code code;
    if (!names) exit(3);
    memset(&options, 0, sizeof options);
    memset(&schema_text, 0, sizeof schema_text);
    for (i = 0; i < entries->size; i++) names[i] = copy_name(shard_json_get(entries->is.items + i, "name"));
    options.role = (uint8_t)case_number(given, "role");
    options.alignment = (uint8_t)case_number(given, "alignment");
    options.compression = codec_named(case_text(given, "compression", text, sizeof text));
    options.identity = shard_json_get(given, "identity") && shard_json_get(given, "identity")->kind == SHARD_JSON_TRUE;
    options.no_sync = 1;
    case_text(given, "layout", text, sizeof text);
    if (!strcmp(text, "reserved")) options.max_entries = (uint32_t)case_number(given, "max_entries");
    if (!strcmp(text, "declared")) {
        options.names = (const char *const *)names;
        options.name_count = entries->size;
    }
    if (schema && shard_json_canonical(schema, NULL, &schema_text, error) == SHARD_OK) {
        options.schema = (const char *)schema_text.data;
        options.schema_size = schema_text.size;
    }
    code = shard_writer_create(path, &options, &w, error);
    for (i = 0; i < entries->size && code == SHARD_OK; i++) {
        const shard_json *entry = entries->is.items + i;
        shard_entry_options how;
        uint8_t *content;
        size_t size = make_content(shard_json_get(entry, "content"), &content);
        memset(&how, 0, sizeof how);
        how.content_type = (uint16_t)case_number(entry, "content_type");
        how.tag_bits = (uint16_t)case_number(entry, "tag_bits");
        code = shard_writer_add(w, names[i], content, size, &how, error);
        free(content);
    }
    if (code == SHARD_OK) code = shard_writer_finish(w, error);
    shard_writer_close(w);
    shard_bytes_free(&schema_text);
    for (i = 0; i < entries->size; i++) free(names[i]);
    free(names);
    return code == SHARD_OK ? tell_written(out, path, error) : code;
}

static shard_code copy_entry(shard_writer *w, const shard_reader *r, uint32_t row, shard_error *error) {
    shard_entry e = shard_reader_entry(r, row);
    shard_entry_options how;
    shard_bytes content;
    shard_json name;
    char *text;
    shard_code code;
    memset(&how, 0, sizeof how);
    how.content_type = e.content_type;
    how.tag_bits = e.tag_bits;
    how.has_codec = 1;
    code = shard_reader_codec(r, row, &how.codec, error);
    if (code == SHARD_OK) code = shard_reader_read(r, row, &content, error);
    if (code != SHARD_OK) return code;
    name.is.text = e.name;
    name.size = e.name_size;
    text = copy_name(&name);
    if (memchr(e.name, 0, e.name_size)) { /* the writer takes C text, which ends there */
        code = program_error(error, "a name with NUL cannot be written");
        strcpy(error->rule, "S-NAM-6");
    } else {
        code = shard_writer_add(w, text, content.data, content.size, &how, error);
    }
    free(text);
    shard_bytes_free(&content);
    return code;
}

shard_code rewrite_container(answer *out, const char *in, const char *path, shard_error *error) {
    shard_writer_options options;
    shard_document *schema = NULL;
    shard_bytes schema_text;
    shard_reader *r;
    shard_writer *w = NULL;
    uint32_t i;
    shard_code code = shard_reader_open(in, NULL, &r, error);
    memset(&schema_text, 0, sizeof schema_text);
    if (code == SHARD_OK) code = shard_reader_schema(r, &schema, error);
    if (code == SHARD_OK && schema) code = shard_json_canonical(shard_document_root(schema), NULL, &schema_text, error);
    if (code == SHARD_OK) {
        memset(&options, 0, sizeof options);
        options.role = shard_reader_header(r)->role;
        options.alignment = shard_reader_header(r)->alignment;
        options.schema = (const char *)schema_text.data;
        options.schema_size = schema_text.size;
        options.no_sync = 1;
        code = shard_writer_create(path, &options, &w, error);
    }
    for (i = 0; code == SHARD_OK && i < shard_reader_count(r); i++) code = copy_entry(w, r, i, error);
    if (code == SHARD_OK) code = shard_writer_finish(w, error);
    shard_writer_close(w);
    shard_reader_close(r);
    shard_bytes_free(&schema_text);
    shard_document_free(schema);
    return code == SHARD_OK ? tell_written(out, path, error) : code;
}
