/* Errors, memory, sorting and bytes. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- errors ---- */

const char *shard_code_name(shard_code code) {
    switch (code) {
#define NAME_OF(value, name) case value: return name;
        SHARD_CODES(NAME_OF)
#undef NAME_OF
        default: return "ok";
    }
}

shard_code shardi_fail(shard_error *error, shard_code code, const char *rule, const char *format, ...) {
    if (error) {
        va_list arguments;
        memset(error, 0, sizeof *error);
        error->code = code;
        error->offset = SHARD_NO_OFFSET;
        (void)snprintf(error->rule, sizeof error->rule, "%s", rule);
        va_start(arguments, format);
        (void)vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
    }
    return code;
}

shard_code shardi_no_memory(shard_error *error, uint64_t size) {
    return shardi_fail(error, SHARD_IO_ERROR, "", "no memory for %llu bytes", (unsigned long long)size);
}

shard_code shardi_locate(shard_error *error, shard_code code, const char *path, const char *entry, size_t size) {
    char before[sizeof error->message];
    size_t shown = size;
    if (code == SHARD_OK || !error) return code;
    memcpy(before, error->message, sizeof before);
    if (size && !error->entry[0]) {
        if (shown >= sizeof error->entry) shown = sizeof error->entry - 1;
        memcpy(error->entry, entry, shown);
        error->entry[shown] = 0;
        (void)snprintf(error->message, sizeof error->message, "%s%s'%s': %.320s", path, path[0] ? ": " : "", error->entry, before);
    } else if (path[0]) {
        (void)snprintf(error->message, sizeof error->message, "%.160s: %.320s", path, before);
    }
    return code;
}

/* ---- memory ---- */

static void *usual_allocate(void *context, size_t size) {
    (void)context;
    return malloc(size);
}

static void usual_release(void *context, void *memory) {
    (void)context;
    free(memory);
}

static const shard_allocator usual_allocator = {usual_allocate, usual_release, NULL};

const shard_allocator *shardi_allocator(const shard_allocator *given) {
    return given && given->allocate && given->release ? given : &usual_allocator;
}

void *shardi_allocate(const shard_allocator *allocator, uint64_t size) {
    if (size > SIZE_MAX / 2) return NULL;
    return allocator->allocate(allocator->context, size ? (size_t)size : 1);
}

void *shardi_allocate_array(const shard_allocator *allocator, uint64_t count, uint64_t size) {
    uint64_t total;
    return shardi_multiply(count, size, &total) ? shardi_allocate(allocator, total) : NULL;
}

void shardi_release(const shard_allocator *allocator, void *memory) {
    if (memory) allocator->release(allocator->context, memory);
}

void shard_bytes_free(shard_bytes *bytes) {
    if (!bytes || !bytes->data) return;
    shardi_release(bytes->allocator, bytes->data);
    bytes->data = NULL;
    bytes->size = 0;
}

shard_limits shardi_limits(const shard_limits *given) {
    shard_limits limits;
    memset(&limits, 0, sizeof limits);
    if (given) limits = *given;
    if (!limits.max_entries) limits.max_entries = SHARD_DEFAULT_MAX_ENTRIES;
    if (!limits.max_index_bytes) limits.max_index_bytes = SHARD_DEFAULT_MAX_INDEX_BYTES;
    if (!limits.max_string_table_bytes) limits.max_string_table_bytes = SHARD_DEFAULT_MAX_STRING_TABLE_BYTES;
    if (!limits.max_decompressed_bytes) limits.max_decompressed_bytes = SHARD_DEFAULT_MAX_DECOMPRESSED_BYTES;
    if (!limits.max_window_bytes) limits.max_window_bytes = SHARD_DEFAULT_MAX_WINDOW_BYTES;
    if (!limits.max_json_bytes) limits.max_json_bytes = SHARD_DEFAULT_MAX_JSON_BYTES;
    if (!limits.max_json_nodes) limits.max_json_nodes = SHARD_DEFAULT_MAX_JSON_NODES;
    return limits;
}

void shardi_append(shardi_buffer *buffer, const void *data, size_t size) {
    if (buffer->failed || !size) return;
    if (size > buffer->capacity - buffer->size) {
        uint64_t wanted = (uint64_t)buffer->size + size;
        uint64_t capacity = (uint64_t)buffer->capacity * 2;
        uint8_t *grown;
        if (capacity < wanted) capacity = wanted;
        if (capacity < 256) capacity = 256;
        grown = (uint8_t *)shardi_allocate(buffer->allocator, capacity);
        if (!grown) {
            buffer->failed = 1;
            return;
        }
        if (buffer->size) memcpy(grown, buffer->data, buffer->size);
        shardi_release(buffer->allocator, buffer->data);
        buffer->data = grown;
        buffer->capacity = (size_t)capacity;
    }
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
}

void shardi_append_text(shardi_buffer *buffer, const char *text) { shardi_append(buffer, text, strlen(text)); }

/* ---- sorting ---- */

static void sift_down(uint8_t *base, size_t root, size_t count, size_t size, shardi_compare compare, const void *context) {
    uint8_t moved[32];
    memcpy(moved, base + root * size, size);
    for (;;) {
        size_t child = 2 * root + 1;
        if (child >= count) break;
        if (child + 1 < count && compare(base + child * size, base + (child + 1) * size, context) < 0) child++;
        if (compare(moved, base + child * size, context) >= 0) break;
        memcpy(base + root * size, base + child * size, size);
        root = child;
    }
    memcpy(base + root * size, moved, size);
}

void shardi_sort(void *base, size_t count, size_t size, shardi_compare compare, const void *context) {
    uint8_t *items = (uint8_t *)base;
    uint8_t last[32];
    size_t i;
    for (i = count / 2; i > 0; i--) sift_down(items, i - 1, count, size, compare, context);
    for (i = count; i > 1; i--) {
        memcpy(last, items + (i - 1) * size, size);
        memcpy(items + (i - 1) * size, items, size);
        memcpy(items, last, size);
        sift_down(items, 0, i - 1, size, compare, context);
    }
}

/* ---- bytes ---- */

int shardi_compare_bytes(const void *a, size_t a_size, const void *b, size_t b_size) {
    size_t shorter = a_size < b_size ? a_size : b_size;
    int order = shorter ? memcmp(a, b, shorter) : 0;
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

int shardi_is_utf8(const void *data, size_t size) {
    const uint8_t *at = (const uint8_t *)data, *end = at + size;
    while (at < end) {
        uint32_t rune, lowest;
        int more;
        if (end - at >= 8) { /* most text is ASCII */
            uint64_t word;
            memcpy(&word, at, 8);
            if (!(word & UINT64_C(0x8080808080808080))) {
                at += 8;
                continue;
            }
        }
        if (*at < 0x80) {
            at++;
            continue;
        }
        if (*at >= 0xC2 && *at <= 0xDF) { rune = *at & 0x1Fu; more = 1; lowest = 0x80; }
        else if ((*at & 0xF0) == 0xE0) { rune = *at & 0x0Fu; more = 2; lowest = 0x800; }
        else if (*at >= 0xF0 && *at <= 0xF4) { rune = *at & 0x07u; more = 3; lowest = 0x10000; }
        else return 0;
        if (end - at <= more) return 0;
        for (at++; more > 0; more--, at++) {
            if ((*at & 0xC0) != 0x80) return 0;
            rune = rune << 6 | (*at & 0x3Fu);
        }
        if (rune < lowest || rune > 0x10FFFF || (rune >= 0xD800 && rune <= 0xDFFF)) return 0;
    }
    return 1;
}

int shardi_is_digest(const shard_json *value) {
    size_t i;
    if (!value || value->kind != SHARD_JSON_STRING || value->size != 64) return 0;
    for (i = 0; i < 64; i++) {
        char c = value->is.text[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return 0;
    }
    return 1;
}

int shardi_add(uint64_t a, uint64_t b, uint64_t *result) {
    *result = a + b;
    return *result >= a;
}

int shardi_multiply(uint64_t a, uint64_t b, uint64_t *result) {
    if (a && b > UINT64_MAX / a) return 0;
    *result = a * b;
    return 1;
}
