/* Reads MessagePack (P-MTD-3). */
#include "internal.h"

#define MOST_LEVELS 128

/* Reads twice: first it checks and counts, without memory; then it makes the values. */
typedef struct unpacker {
    const uint8_t *data;
    size_t size, at;
    uint64_t values, most;
    shard_packed *made; /* NULL while it counts */
    const shard_allocator *allocator;
    shard_error *error;
} unpacker;

static shard_code bad_packed(unpacker *u, const char *problem) { return shardi_fail(u->error, SHARD_BAD_METADATA, "P-MTD-3", "not valid MessagePack: %s", problem); }

static shard_code take_bytes(unpacker *u, uint64_t size, const uint8_t **data) {
    *data = u->data + u->at;
    if (size > u->size - u->at) return bad_packed(u, "it ends too early");
    u->at += (size_t)size;
    return SHARD_OK;
}

static shard_code take_number(unpacker *u, unsigned width, uint64_t *value) {
    const uint8_t *data;
    unsigned i;
    shard_code code = take_bytes(u, width, &data);
    *value = 0;
    if (code != SHARD_OK) return code;
    for (i = 0; i < width; i++) *value = *value << 8 | data[i];
    return SHARD_OK;
}

static shard_code unpack_value(unpacker *u, shard_packed *value, int level);

static int compare_packed(const void *a, const void *b, const void *context) {
    const shard_packed *x = *(const shard_packed *const *)a, *y = *(const shard_packed *const *)b;
    (void)context;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    switch (x->kind) {
        case SHARD_PACKED_INT:
        case SHARD_PACKED_UINT:
        case SHARD_PACKED_FLOAT: return memcmp(&x->is, &y->is, 8);
        case SHARD_PACKED_TEXT:
        case SHARD_PACKED_BIN:
        case SHARD_PACKED_EXT:
            if (x->code != y->code) return x->code < y->code ? -1 : 1;
            return shardi_compare_bytes(x->is.data, x->size, y->is.data, y->size);
        default: return 0;
    }
}

static shard_code check_keys(unpacker *u, const shard_packed *map) {
    const shard_packed **keys;
    size_t i;
    shard_code code = SHARD_OK;
    keys = (const shard_packed **)shardi_allocate_array(u->allocator, map->size, sizeof *keys);
    if (!keys) return shardi_no_memory(u->error, (uint64_t)map->size * sizeof *keys);
    for (i = 0; i < map->size; i++) keys[i] = map->is.items + 2 * i;
    shardi_sort(keys, map->size, sizeof *keys, compare_packed, NULL);
    for (i = 1; i < map->size && code == SHARD_OK; i++) {
        if (compare_packed(keys + i - 1, keys + i, NULL) == 0) code = bad_packed(u, "a key occurs twice in one map");
    }
    shardi_release(u->allocator, (void *)keys);
    return code;
}

/* A map or a list. What it claims to hold is refused before anything is made of it. */
static shard_code unpack_items(unpacker *u, shard_packed *value, shard_packed_kind kind, uint64_t count, int level) {
    uint64_t total = kind == SHARD_PACKED_MAP ? 2 * count : count, i, first = u->values;
    shard_code code = SHARD_OK;
    if (level > MOST_LEVELS) return bad_packed(u, "more than 128 levels of nesting");
    if (total > u->size - u->at) return bad_packed(u, "it ends too early"); /* each takes at least one byte */
    u->values += total;
    if (u->values > u->most) {
        return shardi_fail(u->error, SHARD_LIMIT_EXCEEDED, "P-MTD-3", "the MessagePack has too many values: expected at most %llu", (unsigned long long)u->most);
    }
    value->kind = kind;
    value->size = (size_t)count;
    value->is.items = u->made ? u->made + 1 + first : NULL;
    for (i = 0; i < total && code == SHARD_OK; i++) {
        shard_packed unused, *one = u->made ? u->made + 1 + first + i : &unused;
        code = unpack_value(u, one, level + 1);
        if (code == SHARD_OK && kind == SHARD_PACKED_MAP && i % 2 == 0 && one->kind >= SHARD_PACKED_LIST) code = bad_packed(u, "a key is a list or a map");
    }
    return code == SHARD_OK && u->made && kind == SHARD_PACKED_MAP ? check_keys(u, value) : code;
}

static shard_code unpack_bytes(unpacker *u, shard_packed *value, shard_packed_kind kind, uint64_t size) {
    const uint8_t *code_byte;
    shard_code code = SHARD_OK;
    value->kind = kind;
    if (kind == SHARD_PACKED_EXT) {
        code = take_bytes(u, 1, &code_byte);
        if (code == SHARD_OK) memcpy(&value->code, code_byte, 1);
    }
    if (code == SHARD_OK) code = take_bytes(u, size, &value->is.data);
    value->size = (size_t)size;
    if (code == SHARD_OK && kind == SHARD_PACKED_TEXT && !shardi_is_utf8(value->is.data, value->size)) code = bad_packed(u, "a string is not UTF-8");
    return code;
}

static shard_code unpack_integer(unpacker *u, shard_packed *value, uint8_t first) {
    unsigned width = 1u << (first & 3); /* 0xCC to 0xCF are unsigned, 0xD0 to 0xD3 signed */
    uint64_t number;
    shard_code code = take_number(u, width, &number);
    if (first >= 0xD0 && width < 8 && (number >> (8 * width - 1) & 1)) number |= ~UINT64_C(0) << (8 * width);
    value->kind = first < 0xD0 && number > (uint64_t)INT64_MAX ? SHARD_PACKED_UINT : SHARD_PACKED_INT;
    memcpy(&value->is, &number, sizeof number);
    return code;
}

static shard_code unpack_float(unpacker *u, shard_packed *value, unsigned width) {
    uint64_t bits;
    shard_code code = take_number(u, width, &bits);
    value->kind = SHARD_PACKED_FLOAT;
    if (width == 4) {
        uint32_t narrow = (uint32_t)bits;
        float number;
        memcpy(&number, &narrow, sizeof number);
        value->is.number = (double)number;
    } else {
        memcpy(&value->is.number, &bits, sizeof bits);
    }
    return code;
}

static shard_code unpack_value(unpacker *u, shard_packed *value, int level) {
    const uint8_t *data;
    uint8_t first;
    uint64_t size = 0;
    shard_code code = take_bytes(u, 1, &data);
    memset(value, 0, sizeof *value);
    if (code != SHARD_OK) return code;
    first = data[0];
    if (first < 0x80 || first >= 0xE0) {
        value->kind = SHARD_PACKED_INT;
        value->is.integer = first < 0x80 ? first : (int64_t)first - 256;
        return SHARD_OK;
    }
    if (first < 0x90) return unpack_items(u, value, SHARD_PACKED_MAP, first & 0x0F, level);
    if (first < 0xA0) return unpack_items(u, value, SHARD_PACKED_LIST, first & 0x0F, level);
    if (first < 0xC0) return unpack_bytes(u, value, SHARD_PACKED_TEXT, first & 0x1F);
    if (first == 0xC0) return SHARD_OK;
    if (first == 0xC1) return bad_packed(u, "unknown first byte 0xc1");
    if (first <= 0xC3) {
        value->kind = first == 0xC3 ? SHARD_PACKED_TRUE : SHARD_PACKED_FALSE;
        return SHARD_OK;
    }
    if (first == 0xCA || first == 0xCB) return unpack_float(u, value, first == 0xCA ? 4 : 8);
    if (first >= 0xCC && first <= 0xD3) return unpack_integer(u, value, first);
    if (first >= 0xD4 && first <= 0xD8) return unpack_bytes(u, value, SHARD_PACKED_EXT, UINT64_C(1) << (first - 0xD4));
    if (first >= 0xDC) {
        code = take_number(u, 2u << (first & 1), &size);
        return code == SHARD_OK ? unpack_items(u, value, first >= 0xDE ? SHARD_PACKED_MAP : SHARD_PACKED_LIST, size, level) : code;
    }
    if (first <= 0xC9) { /* 0xC4 to 0xC6 binary, 0xC7 to 0xC9 extensions */
        code = take_number(u, 1u << ((first - 0xC4) % 3), &size);
        return code == SHARD_OK ? unpack_bytes(u, value, first <= 0xC6 ? SHARD_PACKED_BIN : SHARD_PACKED_EXT, size) : code;
    }
    code = take_number(u, 1u << (first - 0xD9), &size);
    return code == SHARD_OK ? unpack_bytes(u, value, SHARD_PACKED_TEXT, size) : code;
}

shard_code shardi_parse_packed(const uint8_t *data, size_t size, uint64_t most, const shard_allocator *allocator, shard_bytes *values, shard_error *error) {
    shard_packed counted;
    unpacker u;
    shard_code code;
    uint64_t count;
    memset(values, 0, sizeof *values);
    memset(&u, 0, sizeof u);
    u.data = data;
    u.size = size;
    u.most = most;
    u.allocator = allocator;
    u.error = error;
    code = unpack_value(&u, &counted, 1);
    if (code == SHARD_OK && u.at != size) code = bad_packed(&u, "bytes follow the value");
    if (code != SHARD_OK) return code;
    count = u.values + 1;
    u.made = (shard_packed *)shardi_allocate_array(allocator, count, sizeof *u.made);
    if (!u.made) return shardi_no_memory(error, count * sizeof *u.made);
    values->data = (uint8_t *)u.made;
    values->size = (size_t)count * sizeof *u.made;
    values->allocator = allocator;
    u.at = 0;
    u.values = 0;
    code = unpack_value(&u, u.made, 1);
    if (code != SHARD_OK) shard_bytes_free(values);
    return code;
}
