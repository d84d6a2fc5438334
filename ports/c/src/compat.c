/* The names of the earlier C library over this one: spec and behaviour are those of today. */
#include "internal.h"

#include "shard_compat.h"

#include <stdlib.h>

/* What one entry gave out, freed with the file. */
typedef struct old_entry {
    shard_entry entry;
    char *name;
    uint8_t *content;
    size_t size;
} old_entry;

struct shard_file {
    shard_reader *reader;
    old_entry *entries;
    uint8_t *prefix;
    shard_error error;
};

static shard_file *old_file(shard_reader *reader) {
    shard_file *file = (shard_file *)calloc(1, sizeof *file);
    size_t count = shard_reader_count(reader);
    if (file) file->entries = (old_entry *)calloc(count ? count : 1, sizeof *file->entries);
    if (file && file->entries) {
        file->reader = reader;
        return file;
    }
    free(file);
    shard_reader_close(reader);
    return NULL;
}

static shard_file *open_old(const char *path, int map) {
    shard_options options;
    shard_reader *reader;
    memset(&options, 0, sizeof options);
    options.map = map;
    return shard_reader_open(path, &options, &reader, NULL) == SHARD_OK ? old_file(reader) : NULL;
}

shard_file *shard_open(const char *path) { return open_old(path, 0); }
shard_file *shard_open_mmap(const char *path) { return open_old(path, 1); }

shard_file *shard_from_buffer(const void *data, size_t size) {
    shard_reader *reader;
    return shard_reader_open_memory(data, size, NULL, &reader, NULL) == SHARD_OK ? old_file(reader) : NULL;
}

void shard_close(shard_file *file) {
    uint32_t i;
    if (!file) return;
    for (i = 0; i < shard_reader_count(file->reader); i++) {
        free(file->entries[i].name);
        free(file->entries[i].content);
    }
    free(file->entries);
    free(file->prefix);
    shard_reader_close(file->reader);
    free(file);
}

const shard_head *shard_header(const shard_file *file) { return shard_reader_header(file->reader); }
uint32_t shard_entry_count(const shard_file *file) { return shard_reader_count(file->reader); }

static int has_number(shard_file *file, uint32_t number) {
    if (number < shard_entry_count(file)) return 1;
    (void)shardi_fail(&file->error, SHARD_INVALID_ARGUMENT, "", "no such entry: %lu", (unsigned long)number);
    return 0;
}

const char *shard_entry_name(shard_file *file, uint32_t number) {
    old_entry *one;
    shard_entry entry;
    if (!has_number(file, number)) return NULL;
    one = file->entries + number;
    entry = shard_reader_entry(file->reader, number);
    if (!one->name) one->name = (char *)calloc(1, (size_t)entry.name_size + 1);
    if (one->name) memcpy(one->name, entry.name, entry.name_size);
    return one->name;
}

const shard_entry *shard_get_entry(shard_file *file, uint32_t number) {
    if (!has_number(file, number)) return NULL;
    file->entries[number].entry = shard_reader_entry(file->reader, number);
    return &file->entries[number].entry;
}

int32_t shard_lookup(const shard_file *file, const char *name) {
    uint32_t row = shard_reader_find(file->reader, name);
    return row == SHARD_NOT_FOUND ? -1 : (int32_t)row;
}

int shard_has_entry(const shard_file *file, const char *name) { return shard_lookup(file, name) >= 0; }

const uint8_t *shard_read_entry(shard_file *file, uint32_t number, size_t *size) {
    old_entry *one;
    const uint8_t *view;
    uint64_t wanted;
    *size = 0;
    if (!has_number(file, number)) return NULL;
    one = file->entries + number;
    if (!one->content) {
        if (shard_reader_view(file->reader, number, &view, size, NULL) == SHARD_OK) return view;
        wanted = shard_reader_entry(file->reader, number).orig_size;
        shard_bytes content;
        if (shard_reader_read(file->reader, number, &content, &file->error) != SHARD_OK) return NULL;
        one->content = (uint8_t *)malloc(content.size + 1);
        one->size = (size_t)wanted;
        if (one->content && content.size) memcpy(one->content, content.data, content.size);
        shard_bytes_free(&content);
    }
    *size = one->content ? one->size : 0;
    return one->content;
}

const uint8_t *shard_read_entry_by_name(shard_file *file, const char *name, size_t *size) {
    int32_t row = shard_lookup(file, name);
    *size = 0;
    if (row >= 0) return shard_read_entry(file, (uint32_t)row, size);
    (void)shardi_fail(&file->error, SHARD_ENTRY_NOT_FOUND, "", "no such entry: '%.200s'", name);
    return NULL;
}

/* Lives until the next call. */
const uint8_t *shard_read_entry_prefix(shard_file *file, uint32_t number, size_t most, size_t *size) {
    shard_bytes content;
    uint64_t length;
    *size = 0;
    if (!has_number(file, number)) return NULL;
    length = shard_reader_entry(file->reader, number).orig_size;
    if (length > most) length = most;
    if (shard_reader_range(file->reader, number, 0, length, &content, &file->error) != SHARD_OK) return NULL;
    free(file->prefix);
    file->prefix = (uint8_t *)malloc(content.size + 1);
    if (file->prefix) {
        memcpy(file->prefix, content.data, content.size);
        *size = content.size;
    }
    shard_bytes_free(&content);
    return file->prefix;
}

uint16_t shard_content_type(const shard_file *file, uint32_t number) { return number < shard_entry_count(file) ? shard_reader_entry(file->reader, number).content_type : 0; }

int shard_is_compressed(const shard_file *file, uint32_t number) { return number < shard_entry_count(file) && (shard_reader_entry(file->reader, number).flags & SHARDI_COMPRESSED) != 0; }

static int compare_strings(const void *a, const void *b, const void *context) {
    (void)context;
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

char **shard_list_children(shard_file *file, const char *prefix, size_t *count) {
    uint32_t total = shard_entry_count(file), i;
    size_t size = strlen(prefix), kept = 0, k;
    char **list = (char **)calloc((size_t)total + 1, sizeof *list);
    *count = 0;
    for (i = 0; list && i < total; i++) {
        shard_entry entry = shard_reader_entry(file->reader, i);
        const char *rest = entry.name + size, *slash;
        size_t length;
        if (entry.name_size <= size || memcmp(entry.name, prefix, size) != 0) continue;
        length = entry.name_size - size;
        slash = (const char *)memchr(rest, '/', length);
        if (slash) length = (size_t)(slash - rest);
        list[kept] = (char *)calloc(1, length + 1);
        if (list[kept]) memcpy(list[kept++], rest, length);
    }
    if (!list) return NULL;
    shardi_sort(list, kept, sizeof *list, compare_strings, NULL);
    for (k = 0; k < kept; k++) {
        if (*count && strcmp(list[*count - 1], list[k]) == 0) free(list[k]);
        else list[(*count)++] = list[k];
    }
    return list;
}

void shard_list_free(char **list, size_t count) {
    size_t i;
    for (i = 0; list && i < count; i++) free(list[i]);
    free(list);
}

void shard_last_error(const shard_file *file, shard_error *error) { *error = file->error; }

/* ---- writers ---- */

/* An entry that waits for the path. */
typedef struct old_pending {
    char *name;
    uint8_t *data;
    size_t size;
    shard_entry_options options;
} old_pending;

struct shard_old_writer {
    shard_writer_options options;
    char *path; /* of the stream writer; NULL for the other */
    shard_writer *writer;
    shardi_buffer pending;
    shard_error error;
};

shard_old_writer *shard_writer_new(uint8_t role) {
    shard_old_writer *w = (shard_old_writer *)calloc(1, sizeof *w);
    if (!w) return NULL;
    w->options.role = role;
    w->options.alignment = ALIGN_64;
    w->pending.allocator = shardi_allocator(NULL);
    return w;
}

shard_old_writer *shard_stream_writer_new(const char *path, uint8_t role, uint32_t max_entries) {
    shard_old_writer *w = shard_writer_new(role);
    if (!w) return NULL;
    w->options.max_entries = max_entries ? max_entries : 10000;
    w->path = (char *)malloc(strlen(path) + 1);
    if (w->path) memcpy(w->path, path, strlen(path) + 1);
    else {
        free(w);
        w = NULL;
    }
    return w;
}

static int refuse_late(shard_old_writer *w) {
    if (!w->writer) return 0;
    (void)shardi_fail(&w->error, SHARD_INVALID_ARGUMENT, "", "set this before the first entry");
    return -1;
}

int shard_writer_set_alignment(shard_old_writer *w, uint8_t alignment) {
    if (refuse_late(w)) return -1;
    if (alignment != ALIGN_NONE && alignment != ALIGN_16 && alignment != ALIGN_32 && alignment != ALIGN_64) {
        (void)shardi_fail(&w->error, SHARD_INVALID_ARGUMENT, "", "unknown alignment: %d", alignment);
        return -1;
    }
    w->options.alignment = alignment;
    return 0;
}

int shard_writer_set_compression(shard_old_writer *w, uint8_t compression) {
    if (refuse_late(w)) return -1;
    if (compression > COMPRESS_LZ4) {
        (void)shardi_fail(&w->error, SHARD_INVALID_ARGUMENT, "", "unknown compression: %d", compression);
        return -1;
    }
    w->options.compression = (shard_codec)compression;
    return 0;
}

static int add_old(shard_old_writer *w, const char *name, const void *data, size_t size, const shard_entry_options *options) {
    old_pending one;
    if (w->path) {
        if (!w->writer && shard_writer_create(w->path, &w->options, &w->writer, &w->error) != SHARD_OK) return -1;
        return shard_writer_add(w->writer, name, data, size, options, &w->error) == SHARD_OK ? 0 : -1;
    }
    memset(&one, 0, sizeof one);
    one.name = (char *)malloc(strlen(name) + 1);
    one.data = (uint8_t *)malloc(size + 1);
    one.size = size;
    one.options = *options;
    if (one.name && one.data) {
        memcpy(one.name, name, strlen(name) + 1);
        if (size) memcpy(one.data, data, size);
        shardi_append(&w->pending, &one, sizeof one);
        if (!w->pending.failed) return 0;
    }
    free(one.name);
    free(one.data);
    (void)shardi_no_memory(&w->error, size);
    return -1;
}

/* Earlier writers compress only what they are told to. */
int shard_writer_add_entry_typed(shard_old_writer *w, const char *name, const void *data, size_t size, uint16_t content_type) {
    shard_entry_options options;
    memset(&options, 0, sizeof options);
    options.content_type = content_type;
    options.has_codec = 1;
    return add_old(w, name, data, size, &options);
}

int shard_writer_add_entry(shard_old_writer *w, const char *name, const void *data, size_t size) { return shard_writer_add_entry_typed(w, name, data, size, 0); }

int shard_writer_add_entry_compressed(shard_old_writer *w, const char *name, const void *data, size_t size, uint8_t compression) {
    shard_entry_options options;
    memset(&options, 0, sizeof options);
    options.has_codec = 1;
    options.codec = (shard_codec)compression;
    return add_old(w, name, data, size, &options);
}

static int finish_old(shard_old_writer *w) {
    int result = shard_writer_finish(w->writer, &w->error) == SHARD_OK ? 0 : -1;
    shard_writer_close(w->writer);
    w->writer = NULL;
    return result;
}

int shard_writer_write(shard_old_writer *w, const char *path) {
    const old_pending *entries = (const old_pending *)(const void *)w->pending.data;
    size_t count = w->pending.size / sizeof *entries, i;
    shard_code code = shard_writer_create(path, &w->options, &w->writer, &w->error);
    for (i = 0; i < count && code == SHARD_OK; i++) code = shard_writer_add(w->writer, entries[i].name, entries[i].data, entries[i].size, &entries[i].options, &w->error);
    if (code == SHARD_OK) return finish_old(w);
    shard_writer_close(w->writer);
    w->writer = NULL;
    return -1;
}

void shard_writer_free(shard_old_writer *w) {
    const old_pending *entries;
    size_t i;
    if (!w) return;
    entries = (const old_pending *)(const void *)w->pending.data;
    for (i = 0; i < w->pending.size / sizeof *entries; i++) {
        free(entries[i].name);
        free(entries[i].data);
    }
    shardi_release(w->pending.allocator, w->pending.data);
    shard_writer_close(w->writer);
    free(w->path);
    free(w);
}

int shard_stream_writer_set_alignment(shard_old_writer *w, uint8_t alignment) { return shard_writer_set_alignment(w, alignment); }
int shard_stream_writer_set_compression(shard_old_writer *w, uint8_t compression) { return shard_writer_set_compression(w, compression); }

int shard_stream_writer_begin_data(shard_old_writer *w) {
    (void)w;
    return 0; /* the first entry begins the data */
}

int shard_stream_writer_write_entry(shard_old_writer *w, const char *name, const void *data, size_t size) { return shard_writer_add_entry(w, name, data, size); }

int shard_stream_writer_write_entry_typed(shard_old_writer *w, const char *name, const void *data, size_t size, uint16_t content_type) {
    return shard_writer_add_entry_typed(w, name, data, size, content_type);
}

int shard_stream_writer_finalize(shard_old_writer *w) {
    if (!w->writer && shard_writer_create(w->path, &w->options, &w->writer, &w->error) != SHARD_OK) return -1;
    return finish_old(w);
}

void shard_stream_writer_free(shard_old_writer *w) { shard_writer_free(w); }
void shard_writer_last_error(const shard_old_writer *w, shard_error *error) { *error = w->error; }
