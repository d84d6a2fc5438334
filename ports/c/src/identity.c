/* The identity of a container (spec/shard.md, section 12), and what binds a manifest to it (S-MAN-7). */
#include "internal.h"

#include <stdio.h>

static shard_code bad_identity(shard_error *error, const char *rule, const char *problem) {
    return shardi_fail(error, SHARD_IDENTITY_MISMATCH, rule, "%s", problem);
}

static int compare_digests(const void *a, const void *b, const void *context) {
    const shardi_digest *x = *(const shardi_digest *const *)a, *y = *(const shardi_digest *const *)b;
    (void)context;
    return shardi_compare_bytes(x->name, x->size, y->name, y->size);
}

shard_code shardi_identity_text(shardi_buffer *out, shardi_digest *digests, size_t count, int version, unsigned role, const char *schema_hex) {
    const shardi_digest **sorted = (const shardi_digest **)shardi_allocate_array(out->allocator, count, sizeof *sorted);
    char text[160];
    size_t i;
    if (!sorted) return SHARD_IO_ERROR;
    for (i = 0; i < count; i++) sorted[i] = digests + i;
    shardi_sort(sorted, count, sizeof *sorted, compare_digests, NULL);
    shardi_append_text(out, "{\"entries\":{");
    for (i = 0; i < count; i++) {
        if (i) shardi_append_text(out, ",");
        shardi_append_string(out, sorted[i]->name, sorted[i]->size);
        shardi_append_text(out, ":");
        shardi_append_string(out, sorted[i]->hex, 64);
    }
    shardi_append_text(out, "},\"leaf\":\"sha256\",");
    if (version >= 2) {
        (void)snprintf(text, sizeof text, "\"role\":%u,\"schema\":\"%s\",", role, schema_hex);
        shardi_append_text(out, text);
    }
    (void)snprintf(text, sizeof text, "\"v\":%d}", version);
    shardi_append_text(out, text);
    shardi_release(out->allocator, (void *)sorted);
    return out->failed ? SHARD_IO_ERROR : SHARD_OK;
}

void shardi_schema_digest(const shard_json *schema, shardi_buffer *scratch, char hex[65]) {
    scratch->size = 0;
    if (schema) shardi_append_canonical(scratch, schema);
    else shardi_append_text(scratch, "{}");
    shard_sha256_hex(scratch->data, scratch->size, hex);
}

/* What a file is, for its identity. */
typedef struct content_digests {
    shardi_digest *digests;
    size_t count;
    char schema[65];
} content_digests;

static shard_code digest_content(const shard_reader *reader, int version, content_digests *found, shard_error *error) {
    shardi_buffer scratch;
    shard_document *schema = NULL;
    shard_code code = SHARD_OK;
    uint32_t i;
    memset(found, 0, sizeof *found);
    memset(&scratch, 0, sizeof scratch);
    scratch.allocator = reader->allocator;
    found->digests = (shardi_digest *)shardi_allocate_array(reader->allocator, reader->header.entry_count, sizeof *found->digests);
    if (!found->digests) return shardi_no_memory(error, (uint64_t)reader->header.entry_count * sizeof *found->digests);
    for (i = 0; i < reader->header.entry_count && code == SHARD_OK; i++) {
        shard_entry entry = shard_reader_entry(reader, i);
        shardi_digest *one = found->digests + found->count;
        shardi_sha256 hash;
        shardi_sha256_start(&hash);
        code = shardi_scan(reader, i, &hash, error);
        if (shardi_compare_bytes(entry.name, entry.name_size, SHARDI_IDENTITY, strlen(SHARDI_IDENTITY)) == 0) continue;
        one->name = entry.name;
        one->size = entry.name_size;
        shardi_sha256_hex(&hash, one->hex);
        found->count++;
    }
    if (code == SHARD_OK && version >= 2) {
        code = shard_reader_schema(reader, &schema, error);
        if (code == SHARD_OK) shardi_schema_digest(schema ? shard_document_root(schema) : NULL, &scratch, found->schema);
        if (scratch.failed) code = shardi_no_memory(error, scratch.size);
    }
    shard_document_free(schema);
    shardi_release(reader->allocator, scratch.data);
    if (code != SHARD_OK) shardi_release(reader->allocator, found->digests);
    return code;
}

shard_code shard_reader_identity(const shard_reader *reader, int version, char hex[65], shard_error *error) {
    content_digests found;
    shardi_buffer text;
    shard_code code;
    hex[0] = 0;
    if (version != 1 && version != 2) return shardi_fail(error, SHARD_INVALID_ARGUMENT, "S-IDN-4", "unknown version of the identity: expected 1 or 2, found %d", version);
    code = digest_content(reader, version, &found, error);
    if (code != SHARD_OK) return code;
    memset(&text, 0, sizeof text);
    text.allocator = reader->allocator;
    if (shardi_identity_text(&text, found.digests, found.count, version, reader->header.role, found.schema) != SHARD_OK) code = shardi_no_memory(error, text.size);
    else shard_sha256_hex(text.data, text.size, hex);
    shardi_release(reader->allocator, text.data);
    shardi_release(reader->allocator, found.digests);
    return code;
}

/* ---- the stored identity ---- */

typedef struct stored_identity {
    shard_document *document;
    const shard_json *entries;
    int version;
    int64_t role;
    const char *schema;
} stored_identity;

static shard_code check_fields(const shard_json *fields, stored_identity *stored, shard_error *error) {
    const shard_json *schema = shard_json_get(fields, "schema");
    int64_t version;
    size_t i;
    int is_right;
    if (!shard_json_int64(shard_json_get(fields, "v"), &version)) {
        const shard_json *v = shard_json_get(fields, "v");
        if (!v || v->kind != SHARD_JSON_INTEGER) return bad_identity(error, "S-IDN-1", "meta/identity has no version");
        version = -1;
    }
    if (version != 1 && version != 2) return shardi_fail(error, SHARD_UNSUPPORTED_VERSION, "S-IDN-4", "unknown version of the identity: expected 1 or 2, found %lld", (long long)version);
    stored->version = (int)version;
    stored->entries = shard_json_get(fields, "entries");
    is_right = stored->entries && stored->entries->kind == SHARD_JSON_OBJECT && shard_json_is(shard_json_get(fields, "leaf"), "sha256");
    is_right = is_right && fields->size == (version == 2 ? 5u : 3u);
    if (is_right && version == 2) {
        is_right = shard_json_int64(shard_json_get(fields, "role"), &stored->role) && shardi_is_digest(schema);
        if (is_right) stored->schema = schema->is.text;
    }
    for (i = 0; is_right && i < stored->entries->size; i++) {
        const shard_json *one = stored->entries->is.items + i;
        is_right = shardi_is_digest(one) && shardi_compare_bytes(one->key, one->key_size, SHARDI_IDENTITY, strlen(SHARDI_IDENTITY)) != 0;
    }
    return is_right ? SHARD_OK : bad_identity(error, "S-IDN-1", "meta/identity has other fields than an identity");
}

/* Reads meta/identity (S-IDN-1, S-IDN-4). What it says is not compared with the file. */
static shard_code read_stored(const shard_reader *reader, stored_identity *stored, shard_error *error) {
    uint32_t row = shard_reader_find(reader, SHARDI_IDENTITY);
    shard_limits limits = reader->limits;
    uint64_t count = reader->header.entry_count, bytes = 256 + 72 * count + 6 * reader->name_bytes;
    shardi_buffer canonical;
    shard_bytes text;
    shard_code code;
    memset(stored, 0, sizeof *stored);
    if (row == SHARD_NOT_FOUND) return shardi_fail(error, SHARD_ENTRY_NOT_FOUND, "", "the file has no meta/identity");
    if (limits.max_json_bytes < bytes) limits.max_json_bytes = bytes; /* as long as the file has entries */
    if (limits.max_json_nodes < 8 + 2 * count) limits.max_json_nodes = 8 + 2 * count;
    code = shardi_read_json(reader, row, "S-IDN-1", &limits, &stored->document, error);
    if (code == SHARD_BAD_METADATA) code = bad_identity(error, "S-IDN-1", "meta/identity is not a JSON object");
    if (code == SHARD_OK) code = check_fields(shard_document_root(stored->document), stored, error);
    if (code == SHARD_OK) code = shard_reader_read(reader, row, &text, error);
    if (code == SHARD_OK) {
        memset(&canonical, 0, sizeof canonical);
        canonical.allocator = reader->allocator;
        shardi_append_canonical(&canonical, shard_document_root(stored->document));
        if (canonical.failed) code = shardi_no_memory(error, canonical.size);
        else if (shardi_compare_bytes(canonical.data, canonical.size, text.data, text.size) != 0) code = bad_identity(error, "S-IDN-1", "meta/identity is not the canonical text");
        shardi_release(reader->allocator, canonical.data);
        shard_bytes_free(&text);
    }
    if (code != SHARD_OK) {
        shard_document_free(stored->document);
        stored->document = NULL;
        return shardi_in_entry(reader, row, error, code);
    }
    return SHARD_OK;
}

/* ---- S-MAN-7 ---- */

static int same_json(const shard_json *a, const shard_json *b, const shard_allocator *allocator) {
    shardi_buffer x, y;
    int is_same;
    memset(&x, 0, sizeof x);
    x.allocator = allocator;
    y = x;
    shardi_append_canonical(&x, a);
    shardi_append_canonical(&y, b);
    is_same = !x.failed && !y.failed && shardi_compare_bytes(x.data, x.size, y.data, y.size) == 0;
    shardi_release(allocator, x.data);
    shardi_release(allocator, y.data);
    return is_same;
}

/* The lists of the schema section must be in the entry. */
static shard_code compare_lists(const shard_reader *reader, uint32_t row, shard_error *error) {
    static const char *const keys[] = {"files", "chunks"};
    shard_document *schema = NULL, *entry = NULL;
    const shard_json *section;
    int i;
    shard_code code = shard_reader_schema(reader, &schema, error);
    if (code != SHARD_OK) return code;
    section = schema ? shard_json_get(shard_document_root(schema), "manifest") : NULL;
    if (row != SHARD_NOT_FOUND && (shard_json_get(section, "files") || shard_json_get(section, "chunks"))) {
        code = shardi_read_json(reader, row, "S-MAN-1", &reader->limits, &entry, error);
    }
    for (i = 0; i < 2 && code == SHARD_OK; i++) {
        const shard_json *listed = shard_json_get(section, keys[i]), *covered = entry ? shard_json_get(shard_document_root(entry), keys[i]) : NULL;
        if (listed && !(covered && same_json(listed, covered, reader->allocator))) {
            code = bad_identity(error, "S-MAN-7", "the schema section lists files that the entry meta/manifest does not list");
        }
    }
    shard_document_free(entry);
    shard_document_free(schema);
    return code;
}

static shard_code check_manifest(const shard_reader *reader, const stored_identity *stored, shard_error *error) {
    uint32_t row = shard_reader_find(reader, SHARDI_MANIFEST);
    const shard_json *stated = shard_json_get(stored->entries, SHARDI_MANIFEST);
    char hex[65] = "";
    shard_code code;
    if (reader->header.role != SHARD_ROLE_MANIFEST) return SHARD_OK;
    if (stored->version >= 2 && stored->role != SHARD_ROLE_MANIFEST) return bad_identity(error, "S-MAN-7", "the file was not a manifest when the identity was made");
    if (row != SHARD_NOT_FOUND) {
        shardi_sha256 hash;
        shardi_sha256_start(&hash);
        code = shardi_scan(reader, row, &hash, error);
        if (code != SHARD_OK) return code;
        shardi_sha256_hex(&hash, hex);
    }
    if (stated ? !shard_json_is(stated, hex) : hex[0] != 0) return bad_identity(error, "S-MAN-7", "the identity does not cover the manifest");
    return compare_lists(reader, row, error);
}

shard_code shardi_check_stored_identity(const shard_reader *reader, shard_error *error) {
    stored_identity stored;
    shard_code code;
    if (shard_reader_find(reader, SHARDI_IDENTITY) == SHARD_NOT_FOUND) return SHARD_OK;
    code = read_stored(reader, &stored, error);
    if (code != SHARD_OK) return code;
    code = check_manifest(reader, &stored, error);
    shard_document_free(stored.document);
    return code;
}

/* ---- comparing ---- */

static shard_code differs(shard_error *error, const char *problem, const char *name, size_t size) {
    return shardi_locate(error, bad_identity(error, "S-IDN-2", problem), "", name, size);
}

/* Names the first difference (S-IDN-2). Both lists are in the order of names. */
static shard_code compare_entries(const shard_reader *reader, content_digests *found, const shard_json *stated, shard_error *error) {
    const shardi_digest **sorted = (const shardi_digest **)shardi_allocate_array(reader->allocator, found->count, sizeof *sorted);
    size_t i, k = 0;
    shard_code code = SHARD_OK;
    if (!sorted) return shardi_no_memory(error, found->count * sizeof *sorted);
    for (i = 0; i < found->count; i++) sorted[i] = found->digests + i;
    shardi_sort(sorted, found->count, sizeof *sorted, compare_digests, NULL);
    for (i = 0; (i < found->count || k < stated->size) && code == SHARD_OK;) {
        const shardi_digest *mine = i < found->count ? sorted[i] : NULL;
        const shard_json *theirs = k < stated->size ? stated->is.items + k : NULL;
        int order = !mine ? 1 : !theirs ? -1 : shardi_compare_bytes(mine->name, mine->size, theirs->key, theirs->key_size);
        if (order > 0) code = differs(error, "an entry of the identity is missing", theirs->key, theirs->key_size);
        else if (order < 0) code = differs(error, "the identity does not have this entry", mine->name, mine->size);
        else if (memcmp(mine->hex, theirs->is.text, 64) != 0) code = differs(error, "the entry is not that of the identity", mine->name, mine->size);
        i++;
        k++;
    }
    shardi_release(reader->allocator, (void *)sorted);
    return code;
}

shard_code shard_reader_verify_identity(const shard_reader *reader, int *version, shard_error *error) {
    stored_identity stored;
    content_digests found;
    shard_code code;
    *version = 0;
    if (shard_reader_find(reader, SHARDI_IDENTITY) == SHARD_NOT_FOUND) {
        code = shardi_fail(error, SHARD_ENTRY_NOT_FOUND, "", "the file has no meta/identity");
        return shardi_locate(error, code, reader->input.name, NULL, 0);
    }
    code = digest_content(reader, 2, &found, error);
    if (code != SHARD_OK) return code;
    code = read_stored(reader, &stored, error);
    if (code == SHARD_OK) {
        if (stored.version >= 2 && stored.role != reader->header.role) code = differs(error, "the role is not that of the identity", "", 0);
        else if (stored.version >= 2 && memcmp(stored.schema, found.schema, 64) != 0) code = differs(error, "the schema section is not that of the identity", "", 0);
        else code = compare_entries(reader, &found, stored.entries, error);
        if (code == SHARD_OK) code = check_manifest(reader, &stored, error);
        if (code == SHARD_OK) *version = stored.version;
        shard_document_free(stored.document);
        shardi_locate(error, code, reader->input.name, NULL, 0);
    }
    shardi_release(reader->allocator, found.digests);
    return code;
}
