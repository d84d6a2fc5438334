/* Writes containers (spec/shard.md, section 16). */
#include "internal.h"

#define SMALLEST_COMPRESSED 256u
#define LONGEST_NAME 65535u
#define WRITE_BUFFER (1u << 16)
#define COPY_PIECE (1u << 20)

/* One entry as it will stand in the index; the name is in the buffer of names. */
typedef struct written {
    shard_entry entry;
    size_t name_at;
    char hex[65];
} written;

struct shard_writer {
    const shard_allocator *allocator;
    shard_writer_options options;
    shard_document *schema;
    char *path, *partial, *spool_name;
    shardi_handle file, spool; /* spool: blocks whose place is not known yet */
    int is_spooled, is_declared, is_done;
    uint64_t head_size, position; /* position counts from the start of the data section */
    uint8_t *pending;
    size_t pending_size;
    shardi_buffer names, entries, declared; /* declared: the announced names, each with its NUL */
    uint32_t count;
    uint32_t *slots; /* rows by the hashes of their names, plus one; at least twice as many as rows */
    size_t slot_count;
    shardi_buffer compressed;
    size_t declared_at;
    shard_error failed; /* code 0 while all is well */
};

static shard_code invalid(shard_error *error, const char *rule, const char *problem) { return shardi_fail(error, SHARD_INVALID_ARGUMENT, rule, "%s", problem); }

static shard_code cannot(shard_error *error, const char *what) {
    char text[160];
    return shardi_fail(error, SHARD_IO_ERROR, "", "cannot %s: %s", what, shardi_system_error(text));
}

static written *written_at(const shard_writer *w, uint32_t i) { return (written *)(void *)w->entries.data + i; }
static unsigned terminator(const shard_writer *w) { return w->options.role == SHARD_ROLE_WSHARD ? 0 : 1; }

/* ---- blocks ---- */

static shard_code flush(shard_writer *w, shard_error *error) {
    shardi_handle target = w->is_spooled ? w->spool : w->file;
    uint64_t at = (w->is_spooled ? 0 : w->head_size) + w->position - w->pending_size;
    if (!shardi_write_at(target, at, w->pending, w->pending_size)) return cannot(error, "write");
    w->pending_size = 0;
    return SHARD_OK;
}

static shard_code append_block(shard_writer *w, const void *data, size_t size, shard_error *error) {
    shard_code code = SHARD_OK;
    if (!size) return SHARD_OK;
    if (size > WRITE_BUFFER - w->pending_size) code = flush(w, error);
    if (code != SHARD_OK) return code;
    if (size > WRITE_BUFFER) {
        uint64_t at = (w->is_spooled ? 0 : w->head_size) + w->position;
        if (!shardi_write_at(w->is_spooled ? w->spool : w->file, at, data, size)) return cannot(error, "write");
    } else {
        memcpy(w->pending + w->pending_size, data, size);
        w->pending_size += size;
    }
    w->position += size;
    return SHARD_OK;
}

/* ---- names ---- */

static int same_name(const shard_writer *w, uint32_t row, uint64_t hash, const char *name, size_t size) {
    const written *one = written_at(w, row);
    return one->entry.name_hash == hash && one->entry.name_size == size && memcmp(w->names.data + one->name_at, name, size) == 0;
}

/* Where a name is or would go. */
static size_t slot_of(const shard_writer *w, uint64_t hash, const char *name, size_t size) {
    size_t at = (size_t)(hash & (w->slot_count - 1));
    while (w->slots[at] && !same_name(w, w->slots[at] - 1, hash, name, size)) at = (at + 1) & (w->slot_count - 1);
    return at;
}

static shard_code grow_slots(shard_writer *w, shard_error *error) {
    size_t count = w->slot_count ? w->slot_count * 2 : 64;
    uint32_t *old = w->slots, i;
    if (w->count < w->slot_count / 2) return SHARD_OK;
    w->slots = (uint32_t *)shardi_allocate_array(w->allocator, count, sizeof *w->slots);
    if (!w->slots) {
        w->slots = old;
        return shardi_no_memory(error, (uint64_t)count * sizeof *w->slots);
    }
    memset(w->slots, 0, count * sizeof *w->slots);
    w->slot_count = count;
    for (i = 0; i < w->count; i++) {
        const written *one = written_at(w, i);
        w->slots[slot_of(w, one->entry.name_hash, (const char *)w->names.data + one->name_at, one->entry.name_size)] = i + 1;
    }
    shardi_release(w->allocator, old);
    return SHARD_OK;
}

static shard_code check_name(shard_writer *w, const char *name, size_t size, int is_own, shard_error *error) {
    if (!size || size > LONGEST_NAME || !shardi_is_utf8(name, size)) return invalid(error, "S-NAM-6", "the name cannot be stored: expected 1 to 65535 bytes of UTF-8");
    if (w->count >= SHARD_DEFAULT_MAX_ENTRIES) return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "S-HDR-8", "too many entries: expected at most %u", SHARD_DEFAULT_MAX_ENTRIES);
    if (w->is_declared && !is_own) {
        const char *next = (const char *)w->declared.data + w->declared_at;
        if (w->declared_at >= w->declared.size || strcmp(next, name) != 0) return invalid(error, "", "another entry was announced for this place");
    } else if (!w->is_declared && w->options.max_entries && w->count >= w->options.max_entries) {
        return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "", "more entries than the head was reserved for: expected at most %lu", (unsigned long)w->options.max_entries);
    }
    return SHARD_OK;
}

/* ---- entries ---- */

/* Compresses an entry if that is worth it (S-CMP-10). */
static shard_code encode(shard_writer *w, const void *data, size_t size, shard_codec codec, const void **stored, size_t *stored_size, uint16_t *flags, shard_error *error) {
    shard_code code;
    *stored = data;
    *stored_size = size;
    *flags = 0;
    if (codec == SHARD_NONE || size <= SMALLEST_COMPRESSED) return SHARD_OK;
    if (size > SHARD_DEFAULT_MAX_DECOMPRESSED_BYTES) {
        return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "S-CMP-2", "the entry is too large to be compressed: expected at most %u bytes, found %llu", SHARD_DEFAULT_MAX_DECOMPRESSED_BYTES, (unsigned long long)size);
    }
    code = shardi_compress(&w->compressed, data, size, codec, w->options.level, error);
    if (code != SHARD_OK) return code;
    if (w->compressed.size >= (uint64_t)size * 9 / 10) return SHARD_OK;
    *stored = w->compressed.data;
    *stored_size = w->compressed.size;
    *flags = (uint16_t)(SHARDI_COMPRESSED | (codec == SHARD_ZSTD ? SHARDI_IS_ZSTD : SHARDI_IS_LZ4));
    return SHARD_OK;
}

static shard_code put_entry(shard_writer *w, const char *name, const void *data, size_t size, const shard_entry_options *options, int is_own, shard_error *error) {
    static const uint8_t zeros[64] = {0};
    size_t name_size = strlen(name), stored_size, slot;
    uint64_t hash = shard_xxh64(name, name_size, 0), start;
    const void *stored;
    written one;
    shard_code code = check_name(w, name, name_size, is_own, error);
    if (code == SHARD_OK) code = grow_slots(w, error);
    if (code != SHARD_OK) return code;
    slot = slot_of(w, hash, name, name_size);
    if (w->slots[slot]) return shardi_fail(error, SHARD_DUPLICATE_NAME, "S-NAM-4", "the entry is written twice");
    memset(&one, 0, sizeof one);
    code = encode(w, data, size, options->has_codec ? options->codec : w->options.compression, &stored, &stored_size, &one.entry.flags, error);
    if (code != SHARD_OK) return code;
    start = w->count ? shardi_align(w->position, w->options.alignment) : 0;
    one.entry.name_hash = hash;
    one.entry.name_size = (uint16_t)name_size;
    one.entry.data_offset = start;
    one.entry.disk_size = stored_size;
    one.entry.orig_size = size;
    one.entry.crc32c = shard_crc32c(0, data, size);
    one.entry.content_type = options->content_type;
    one.entry.tag_bits = options->tag_bits;
    one.name_at = w->names.size;
    if (w->options.identity && !is_own) shard_sha256_hex(data, size, one.hex);
    /* From here on a failure leaves half an entry behind, so the writer cannot go on. */
    code = append_block(w, zeros, (size_t)(start - w->position), error);
    if (code == SHARD_OK) code = append_block(w, stored, stored_size, error);
    if (code == SHARD_OK) {
        shardi_append(&w->names, name, name_size + terminator(w));
        shardi_append(&w->entries, &one, sizeof one);
        if (w->names.failed || w->entries.failed) code = shardi_no_memory(error, w->names.size + w->entries.size);
    }
    if (code != SHARD_OK) {
        shardi_fail(&w->failed, code, "", "writing failed before: %.400s", error ? error->message : "");
        return code;
    }
    w->slots[slot] = ++w->count;
    if (w->is_declared && !is_own) w->declared_at += name_size + 1;
    return SHARD_OK;
}

static shard_code ready(const shard_writer *w, shard_error *error) {
    if (w->is_done) return shardi_fail(error, SHARD_CLOSED, "", "the writer is finished");
    if (w->failed.code != SHARD_OK) {
        if (error) *error = w->failed;
        return w->failed.code;
    }
    return SHARD_OK;
}

shard_code shard_writer_add(shard_writer *w, const char *name, const void *data, size_t size, const shard_entry_options *options, shard_error *error) {
    shard_entry_options usual;
    shard_error own;
    shard_code code;
    memset(&usual, 0, sizeof usual);
    if (!error) error = &own;
    if (!options) options = &usual;
    code = ready(w, error);
    if (code != SHARD_OK) return code;
    if (options->has_codec && (unsigned)options->codec > SHARD_LZ4) code = invalid(error, "", "unknown codec");
    else if (w->options.identity && strcmp(name, SHARDI_IDENTITY) == 0) code = invalid(error, "", "the writer adds this entry itself");
    else code = put_entry(w, name, data, size, options, 0, error);
    return shardi_locate(error, code, w->path, name, strlen(name));
}

/* ---- starting ---- */

static uint64_t head_for(const shard_writer *w, uint64_t count, uint64_t name_bytes) {
    return shardi_align(SHARDI_HEADER_SIZE + count * SHARDI_ENTRY_SIZE + name_bytes, w->options.alignment);
}

static shard_code check_options(const shard_writer_options *o, shard_error *error) {
    if (o->alignment != 0 && o->alignment != 16 && o->alignment != 32 && o->alignment != 64) {
        return shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "unknown alignment: expected 0, 16, 32 or 64, found %u", (unsigned)o->alignment);
    }
    if ((unsigned)o->compression > SHARD_LZ4) return invalid(error, "", "unknown compression");
    if (o->max_entries > SHARD_DEFAULT_MAX_ENTRIES) return invalid(error, "", "too many entries to reserve");
    if (o->max_entries && o->names) return invalid(error, "", "a head is reserved or declared, not both");
    return SHARD_OK;
}

static shard_code take_schema(shard_writer *w, shard_error *error) {
    shard_limits limits = shardi_limits(NULL);
    shard_code code;
    if (!w->options.schema) return SHARD_OK;
    code = shardi_parse_object(w->options.schema, w->options.schema_size, "the schema section", "S-SCH-2", &limits, w->allocator, &w->schema, error);
    if (code == SHARD_OK) code = shardi_check_schema(shard_document_root(w->schema), error);
    w->options.schema = NULL; /* the caller's memory */
    return code;
}

static shard_code plan_head(shard_writer *w, shard_error *error) {
    size_t i;
    uint64_t bytes = 0;
    if (w->options.names) {
        uint64_t count = (uint64_t)w->options.name_count + (w->options.identity ? 1 : 0);
        w->is_declared = 1;
        for (i = 0; i < w->options.name_count; i++) {
            size_t size = strlen(w->options.names[i]);
            shardi_append(&w->declared, w->options.names[i], size + 1);
            bytes += size + terminator(w);
        }
        w->options.names = NULL; /* the caller's memory */
        if (w->declared.failed) return shardi_no_memory(error, bytes);
        if (w->options.identity) bytes += strlen(SHARDI_IDENTITY) + terminator(w);
        w->head_size = head_for(w, count, bytes);
    } else if (w->options.max_entries) {
        w->head_size = head_for(w, w->options.max_entries, (uint64_t)w->options.max_entries * SHARDI_NAME_ROOM);
    } else {
        w->is_spooled = 1;
    }
    return SHARD_OK;
}

shard_code shard_writer_create(const char *path, const shard_writer_options *options, shard_writer **writer, shard_error *error) {
    shard_writer_options usual;
    const shard_allocator *allocator;
    shard_writer *w;
    size_t size = strlen(path) + 1;
    shard_code code;
    *writer = NULL;
    memset(&usual, 0, sizeof usual);
    if (!options) options = &usual;
    code = check_options(options, error);
    if (code != SHARD_OK) return shardi_locate(error, code, path, NULL, 0);
    allocator = shardi_allocator(options->allocator);
    w = (shard_writer *)shardi_allocate(allocator, sizeof *w);
    if (!w) return shardi_no_memory(error, sizeof *w);
    memset(w, 0, sizeof *w);
    w->allocator = allocator;
    w->options = *options;
    w->file = w->spool = SHARDI_NO_FILE;
    w->names.allocator = w->entries.allocator = w->declared.allocator = w->compressed.allocator = allocator;
    w->path = (char *)shardi_allocate(allocator, size);
    w->pending = (uint8_t *)shardi_allocate(allocator, WRITE_BUFFER);
    code = w->path && w->pending ? SHARD_OK : shardi_no_memory(error, size + WRITE_BUFFER);
    if (w->path) memcpy(w->path, path, size);
    if (code == SHARD_OK) code = take_schema(w, error);
    if (code == SHARD_OK) code = plan_head(w, error);
    if (code == SHARD_OK && !shardi_create_beside(path, allocator, &w->file, &w->partial)) code = cannot(error, "write");
    if (code == SHARD_OK && w->is_spooled && !shardi_create_beside(path, allocator, &w->spool, &w->spool_name)) code = cannot(error, "write");
    if (code != SHARD_OK) {
        shardi_locate(error, code, path, NULL, 0);
        shard_writer_close(w);
        return code;
    }
    *writer = w;
    return SHARD_OK;
}

/* ---- finishing ---- */

static shard_code add_identity(shard_writer *w, const char *schema_hex, shard_error *error) {
    shardi_digest *digests = (shardi_digest *)shardi_allocate_array(w->allocator, w->count, sizeof *digests);
    shard_entry_options options;
    shardi_buffer text;
    uint32_t i;
    shard_code code;
    if (!digests) return shardi_no_memory(error, (uint64_t)w->count * sizeof *digests);
    memset(&options, 0, sizeof options);
    memset(&text, 0, sizeof text);
    options.content_type = SHARD_CONTENT_JSON;
    options.has_codec = 1;
    text.allocator = w->allocator;
    for (i = 0; i < w->count; i++) {
        const written *one = written_at(w, i);
        digests[i].name = (const char *)w->names.data + one->name_at;
        digests[i].size = one->entry.name_size;
        memcpy(digests[i].hex, one->hex, sizeof one->hex);
    }
    code = shardi_identity_text(&text, digests, w->count, 2, w->options.role, schema_hex);
    if (code != SHARD_OK) code = shardi_no_memory(error, text.size);
    else code = put_entry(w, SHARDI_IDENTITY, text.data, text.size, &options, 1, error);
    shardi_release(w->allocator, text.data);
    shardi_release(w->allocator, digests);
    return code;
}

/* Header, index and names. */
static shard_code write_head(shard_writer *w, uint64_t schema_size, shard_error *error) {
    shard_head h;
    uint32_t i;
    int is_written;
    uint8_t *head = (uint8_t *)shardi_allocate(w->allocator, w->head_size);
    if (!head) return shardi_no_memory(error, w->head_size);
    memset(head, 0, (size_t)w->head_size);
    memset(&h, 0, sizeof h);
    h.version = 2;
    h.role = w->options.role;
    h.flags = SHARDI_LITTLE_ENDIAN | SHARDI_HAS_CHECKSUMS;
    h.alignment = w->options.alignment;
    h.compression_default = (uint8_t)w->options.compression;
    h.index_entry_size = SHARDI_ENTRY_SIZE;
    h.entry_count = w->count;
    h.string_table_offset = SHARDI_HEADER_SIZE + (uint64_t)SHARDI_ENTRY_SIZE * w->count;
    h.data_section_offset = w->head_size;
    h.total_file_size = w->head_size + w->position;
    if (schema_size) {
        h.flags |= SHARDI_HAS_SCHEMA;
        h.schema_offset = h.total_file_size - schema_size;
    }
    if (w->options.max_entries) h.flags |= SHARDI_RESERVED_HEAD;
    for (i = 0; i < w->count; i++) {
        shard_entry entry = written_at(w, i)->entry;
        entry.name_offset = (uint32_t)written_at(w, i)->name_at;
        entry.data_offset += w->head_size;
        if (entry.content_type) h.flags |= SHARDI_HAS_CONTENT_TYPES;
        shardi_pack_entry(&entry, head + SHARDI_HEADER_SIZE + (size_t)i * SHARDI_ENTRY_SIZE);
    }
    if (w->names.size) memcpy(head + h.string_table_offset, w->names.data, w->names.size);
    shardi_pack_header(&h, head);
    is_written = shardi_write_at(w->file, 0, head, (size_t)w->head_size);
    shardi_release(w->allocator, head);
    return is_written ? SHARD_OK : cannot(error, "write");
}

static shard_code copy_spool(shard_writer *w, shard_error *error) {
    uint8_t *piece;
    uint64_t at;
    shard_code code = SHARD_OK;
    if (!w->is_spooled) return SHARD_OK;
    piece = (uint8_t *)shardi_allocate(w->allocator, COPY_PIECE);
    if (!piece) return shardi_no_memory(error, COPY_PIECE);
    for (at = 0; at < w->position && code == SHARD_OK; at += COPY_PIECE) {
        size_t size = w->position - at < COPY_PIECE ? (size_t)(w->position - at) : COPY_PIECE;
        if (!shardi_read_at(w->spool, at, piece, size)) code = cannot(error, "read the spool");
        else if (!shardi_write_at(w->file, w->head_size + at, piece, size)) code = cannot(error, "write");
    }
    shardi_release(w->allocator, piece);
    return code;
}

/* Syncs the file and gives it its name. */
static shard_code publish(shard_writer *w, shard_error *error) {
    shardi_handle file = w->file;
    /* An empty last block may lie behind the last byte that was written. */
    if (!shardi_set_size(file, w->head_size + w->position) || !shardi_keep_permissions(file, w->path)) return cannot(error, "write");
    if (!w->options.no_sync && !shardi_sync(file)) return cannot(error, "sync");
    w->file = SHARDI_NO_FILE;
    if (!shardi_close(file)) return cannot(error, "close");
    if (!shardi_rename(w->partial, w->path)) return cannot(error, "rename");
    shardi_release(w->allocator, w->partial);
    w->partial = NULL;
    if (!w->options.no_sync) {
        size_t size = strlen(w->path);
        char *folder = (char *)shardi_allocate(w->allocator, size + 2);
        int is_synced;
        if (!folder) return shardi_no_memory(error, size);
        memcpy(folder, w->path, size);
        while (size && w->path[size - 1] != '/') size--;
        if (!size) folder[size++] = '.';
        folder[size] = 0;
        is_synced = shardi_sync_folder(folder);
        shardi_release(w->allocator, folder);
        if (!is_synced) return cannot(error, "sync the folder");
    }
    return SHARD_OK;
}

static shard_code finish(shard_writer *w, shard_error *error) {
    shardi_buffer schema;
    char schema_hex[65];
    uint64_t needed, table;
    shard_code code = SHARD_OK;
    memset(&schema, 0, sizeof schema);
    schema.allocator = w->allocator;
    if (w->is_declared && w->declared_at < w->declared.size) return invalid(error, "", "not all announced entries were written");
    if (w->schema || w->options.identity) shardi_schema_digest(w->schema ? shard_document_root(w->schema) : NULL, &schema, schema_hex);
    if (schema.failed) code = shardi_no_memory(error, schema.size);
    if (code == SHARD_OK && w->options.identity) code = add_identity(w, schema_hex, error);
    if (!w->schema) schema.size = 0;
    needed = head_for(w, w->count, w->names.size);
    if (w->is_spooled) w->head_size = needed;
    if (code == SHARD_OK && needed > w->head_size) {
        code = shardi_fail(error, SHARD_LIMIT_EXCEEDED, "", "the names need more room than the head was reserved for: expected at most %llu bytes, found %llu",
                           (unsigned long long)w->head_size, (unsigned long long)needed);
    }
    table = w->head_size - SHARDI_HEADER_SIZE - (uint64_t)SHARDI_ENTRY_SIZE * w->count;
    if (code == SHARD_OK && table > SHARD_DEFAULT_MAX_STRING_TABLE_BYTES) {
        code = shardi_fail(error, SHARD_LIMIT_EXCEEDED, "S-HDR-12", "the names, or the room that is reserved for them, are too large: expected at most %u bytes, found %llu",
                           SHARD_DEFAULT_MAX_STRING_TABLE_BYTES, (unsigned long long)table);
    }
    if (code == SHARD_OK) code = append_block(w, schema.data, schema.size, error);
    if (code == SHARD_OK) code = flush(w, error);
    if (code == SHARD_OK) code = write_head(w, schema.size, error);
    if (code == SHARD_OK) code = copy_spool(w, error);
    shardi_release(w->allocator, schema.data);
    return code == SHARD_OK ? publish(w, error) : code;
}

shard_code shard_writer_finish(shard_writer *w, shard_error *error) {
    shard_code code = ready(w, error);
    if (code != SHARD_OK) return code;
    code = finish(w, error);
    w->is_done = 1;
    return shardi_locate(error, code, w->path, NULL, 0);
}

void shard_writer_close(shard_writer *w) {
    const shard_allocator *allocator;
    if (!w) return;
    allocator = w->allocator;
    if (w->file != SHARDI_NO_FILE) (void)shardi_close(w->file);
    if (w->spool != SHARDI_NO_FILE) (void)shardi_close(w->spool);
    if (w->partial) shardi_remove(w->partial);
    if (w->spool_name) shardi_remove(w->spool_name);
    shardi_release(allocator, w->partial);
    shardi_release(allocator, w->spool_name);
    shardi_release(allocator, w->path);
    shardi_release(allocator, w->pending);
    shardi_release(allocator, w->slots);
    shardi_release(allocator, w->names.data);
    shardi_release(allocator, w->entries.data);
    shardi_release(allocator, w->declared.data);
    shardi_release(allocator, w->compressed.data);
    shard_document_free(w->schema);
    shardi_release(allocator, w);
}
