/* Packs: reading at random and as a stream, steps of invalid vectors. */
#include "conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LISTED 1000

/* Tells a value of MessagePack with its type. */
static void tell_packed(answer *out, const shard_packed *value) {
    size_t i;
    put(out, "{");
    switch (value->kind) {
        case SHARD_PACKED_NIL: put(out, "\"nil\":null"); break;
        case SHARD_PACKED_FALSE: put(out, "\"bool\":false"); break;
        case SHARD_PACKED_TRUE: put(out, "\"bool\":true"); break;
        case SHARD_PACKED_INT: put_integer(out, "int", value->is.integer); break;
        case SHARD_PACKED_UINT: put_number(out, "int", value->is.natural); break;
        case SHARD_PACKED_FLOAT: put_format(out, "float64_hex", "%016llx", (unsigned long long)value->is.natural); break;
        case SHARD_PACKED_TEXT:
            put_key(out, "text");
            put_string(out, (const char *)value->is.data, value->size);
            break;
        case SHARD_PACKED_BIN:
            put_key(out, "bin");
            put_hex(out, value->is.data, value->size);
            break;
        case SHARD_PACKED_EXT:
            put(out, "\"ext\":{");
            put_integer(out, "code", value->code);
            put_key(out, "hex");
            put_hex(out, value->is.data, value->size);
            put(out, "}");
            break;
        default:
            put(out, value->kind == SHARD_PACKED_LIST ? "\"list\":[" : "\"map\":[");
            for (i = 0; i < value->size; i++) {
                if (i) put(out, ",");
                if (value->kind == SHARD_PACKED_LIST) {
                    tell_packed(out, value->is.items + i);
                    continue;
                }
                put(out, "[");
                tell_packed(out, value->is.items + 2 * i);
                put(out, ",");
                tell_packed(out, value->is.items + 2 * i + 1);
                put(out, "]");
            }
            put(out, "]");
    }
    put(out, "}");
}

static shard_code tell_metadata(answer *out, const shard_record *record, shard_error *error) {
    static const char *const names[] = {"none", "json", "messagepack"};
    const uint8_t *data;
    size_t size;
    shard_metadata_encoding encoding = shard_record_stored_metadata(record, &data, &size);
    shard_document *document = NULL;
    shard_bytes values;
    shard_code code;
    put_text(out, "metadata_encoding", names[encoding]);
    put_key(out, "metadata");
    if (encoding == SHARD_METADATA_MESSAGEPACK) {
        code = shard_record_messagepack(record, &values, error);
        if (code != SHARD_OK) return code;
        tell_packed(out, (const shard_packed *)(const void *)values.data);
        shard_bytes_free(&values);
        return code;
    }
    code = shard_record_metadata(record, &document, error);
    if (code != SHARD_OK) return code;
    if (document) put_json(out, shard_document_root(document));
    else put(out, "{}");
    shard_document_free(document);
    return code;
}

static shard_code tell_entry(answer *out, answer *lines, const shard_record *record, uint32_t number, shard_error *error) {
    static const char *const names[] = {"none", "gzip", "lz4", "zstd"};
    shard_record_entry e = shard_record_entry_at(record, number);
    shard_bytes content;
    char hex[65];
    shard_code code = shard_record_read(record, number, &content, error);
    if (code != SHARD_OK) return code;
    if (shard_record_find(record, e.name, e.name_size) != number) code = program_error(error, "an entry is not found by its name");
    shard_sha256_hex(content.data, content.size, hex);
    shard_bytes_free(&content);
    put(out, number ? ",{" : "{");
    put_key(out, "name");
    put_string(out, e.name, e.name_size);
    put_key(out, "content_type");
    put_string(out, e.content_type, e.content_type_size);
    put_text(out, "encoding", names[e.encoding]);
    put_number(out, "offset", e.offset);
    put_number(out, "stored_size", e.stored_size);
    put_number(out, "original_size", e.original_size);
    put_format(out, "crc32c", "%08lx", (unsigned long)e.crc32c);
    put_text(out, "sha256", hex);
    put(out, "}");
    put_bytes(lines, e.name, e.name_size);
    put(lines, "\t");
    put(lines, hex);
    put(lines, "\n");
    return code;
}

static shard_code tell_record(answer *out, const shard_record *record, shard_error *error) {
    answer lines = {NULL, 0, 0};
    size_t size, start;
    const char *key = shard_record_key(record, &size);
    char hex[65];
    uint32_t i;
    shard_code code;
    put(&lines, "");
    put(out, "{");
    put_key(out, "key");
    put_string(out, key, size);
    put_format(out, "key_hash", "%016llx", (unsigned long long)shard_xxh64(key, size, 0));
    put_number(out, "offset", shard_record_offset(record));
    put_number(out, "size", shard_record_size(record));
    put_number(out, "alignment", shard_record_alignment(record));
    code = tell_metadata(out, record, error);
    start = out->size;
    put_key(out, "entries");
    put(out, "[");
    for (i = 0; i < shard_record_count(record) && code == SHARD_OK; i++) code = tell_entry(out, &lines, record, i, error);
    put(out, "]");
    if (i > MOST_LISTED) {
        out->size = start;
        shard_sha256_hex(lines.text, lines.size, hex);
        put_text(out, "entries_sha256", hex);
    }
    put(out, "}");
    free(lines.text);
    return code;
}

/* ---- streams ---- */

static size_t read_file(void *context, void *into, size_t size) {
    FILE *file = (FILE *)context;
    size_t count = fread(into, 1, size, file);
    return ferror(file) ? (size_t)-1 : count;
}

typedef shard_code (*use_record)(answer *out, const shard_record *record, shard_error *error);

/* Gives each record to use, and counts them. */
static shard_code stream(answer *out, const char *path, use_record use, uint64_t *count, shard_error *error) {
    FILE *file = fopen(path, "rb");
    shard_stream *made = NULL;
    shard_record *record = NULL;
    shard_code code;
    *count = 0;
    if (!file) return program_error(error, "cannot open the file");
    code = shard_stream_open(read_file, file, NULL, &made, error);
    while (code == SHARD_OK) {
        code = shard_stream_next(made, &record, error);
        if (code != SHARD_OK || !record) break;
        if (use) code = use(out, record, error);
        if (use) put(out, "\n");
        shard_record_free(record);
        (*count)++;
    }
    shard_stream_close(made);
    fclose(file);
    return code;
}

shard_code stream_pack(answer *out, const char *file, shard_error *error) {
    uint64_t count;
    shard_code code = stream(NULL, file, NULL, &count, error);
    put(out, "{");
    put_key(out, "error_code");
    if (code == SHARD_OK) put(out, "null");
    else put_string(out, shard_code_name(code), strlen(shard_code_name(code)));
    put_number(out, "records", count);
    put(out, "}");
    return SHARD_OK;
}

/* ---- reading ---- */

/* Every way to a record must give the same one. */
static shard_code tell_by_number(answer *out, const shard_pack *pack, uint64_t number, shard_error *error) {
    shard_record *record, *same = NULL;
    const char *key;
    size_t size;
    shard_code code = shard_pack_record(pack, number, &record, error);
    if (code != SHARD_OK) return code;
    key = shard_record_key(record, &size);
    code = shard_pack_record_by_key(pack, key, size, &same, error);
    if (code == SHARD_OK && shard_record_offset(same) != shard_record_offset(record)) code = program_error(error, "a key leads to another record");
    if (code == SHARD_OK) code = tell_record(out, record, error);
    shard_record_free(record);
    shard_record_free(same);
    return code;
}

static shard_code tell_pack(answer *out, const char *file, const shard_pack *pack, shard_error *error) {
    shard_document *document;
    answer lines = {NULL, 0, 0}, streamed = {NULL, 0, 0};
    uint64_t i, count;
    shard_code code = shard_pack_check_offsets(pack, error);
    if (code == SHARD_OK) code = shard_pack_metadata(pack, &document, error);
    if (code != SHARD_OK) return code;
    put(&lines, "");
    put(&streamed, "");
    put(out, "{");
    put_number(out, "index_offset", shard_pack_index_offset(pack));
    put_key(out, "metadata");
    put_json(out, shard_document_root(document));
    shard_document_free(document);
    for (i = 0; i < shard_pack_count(pack) && code == SHARD_OK; i++) {
        code = tell_by_number(&lines, pack, i, error);
        put(&lines, "\n");
    }
    if (code == SHARD_OK) code = stream(&streamed, file, tell_record, &count, error);
    if (code == SHARD_OK && strcmp(lines.text, streamed.text) != 0) code = program_error(error, "a stream gives other records");
    put_key(out, "records");
    put(out, "[");
    if (lines.size) lines.text[--lines.size] = 0;
    for (i = 0; i < lines.size; i++) {
        if (lines.text[i] == '\n') lines.text[i] = ',';
    }
    put(out, lines.text);
    put(out, "]}");
    free(lines.text);
    free(streamed.text);
    return code;
}

shard_code read_pack(answer *out, const char *file, shard_error *error) {
    shard_options options;
    shard_pack *pack;
    shard_code code;
    memset(&options, 0, sizeof options);
    options.map = 1;
    code = shard_pack_open(file, &options, &pack, error);
    if (code == SHARD_OK) code = tell_pack(out, file, pack, error);
    shard_pack_close(pack);
    return code;
}

/* ---- steps ---- */

static shard_code step_in_record(const shard_record *record, const char *when, const shard_json *told, shard_error *error) {
    const shard_json *entry = shard_json_get(told, "entry");
    const uint8_t *data;
    size_t size;
    shard_document *document = NULL;
    shard_bytes content;
    uint32_t number;
    shard_code code = SHARD_OK;
    if (!strcmp(when, "metadata")) {
        if (shard_record_stored_metadata(record, &data, &size) == SHARD_METADATA_MESSAGEPACK) {
            code = shard_record_messagepack(record, &content, error);
            shard_bytes_free(&content);
        } else {
            code = shard_record_metadata(record, &document, error);
            shard_document_free(document);
        }
    } else if (!strcmp(when, "entry")) {
        number = shard_record_find(record, entry->is.text, entry->size);
        if (number == SHARD_NOT_FOUND) return program_error(error, "the entry is not there");
        code = shard_record_read(record, number, &content, error);
        shard_bytes_free(&content);
    }
    return code;
}

static shard_code step_in_pack(const shard_pack *pack, const char *when, const shard_json *told, shard_error *error) {
    const shard_json *key = shard_json_get(told, "key");
    shard_document *document = NULL;
    shard_record *record = NULL;
    shard_code code = SHARD_OK;
    if (shard_json_get(told, "record")) {
        code = shard_pack_record(pack, case_number(told, "record"), &record, error);
        if (code == SHARD_OK) code = step_in_record(record, when, told, error);
    } else if (!strcmp(when, "offsets")) code = shard_pack_check_offsets(pack, error);
    else if (!strcmp(when, "lookup")) code = shard_pack_check_lookup(pack, error);
    else if (!strcmp(when, "index_metadata")) code = shard_pack_metadata(pack, &document, error);
    else if (!strcmp(when, "key")) code = shard_pack_record_by_key(pack, key->is.text, key->size, &record, error);
    shard_document_free(document);
    shard_record_free(record);
    return code;
}

shard_code step_pack(answer *out, const char *file, const shard_json *told, shard_error *error) {
    shard_pack *pack = NULL;
    uint64_t count;
    char when[16];
    shard_code code;
    case_text(told, "when", when, sizeof when);
    if (!strcmp(when, "stream")) {
        code = stream(NULL, file, NULL, &count, error);
    } else {
        shard_options options = case_options(told);
        code = shard_pack_open(file, &options, &pack, error);
        if (code == SHARD_OK) code = step_in_pack(pack, when, told, error);
        shard_pack_close(pack);
    }
    if (code == SHARD_OK) put(out, "{\"done\":true}");
    return code;
}
