/* The rows of meta/channels, and older descriptions (spec/wshard.md, section 3). */
#include "internal.h"

#define MOST_DIMENSIONS 31u
#define MOST_BESIDE_ZERO INT64_C(2147483647)

typedef enum field_kind { TEXT_FIELD, COUNT_FIELD, POSITIVE_FIELD, INTEGER_FIELD, RATE_FIELD, OBJECT_FIELD } field_kind;

/* Fields that every row may have (W-CHN-2). */
static const struct {
    const char *name;
    field_kind kind;
    const char *expected;
} known_fields[] = {
    {"channel", TEXT_FIELD, "a string"}, {"content_type", TEXT_FIELD, "a string"}, {"description", TEXT_FIELD, "a string"},
    {"extradata", TEXT_FIELD, "a string"}, {"frames_block", TEXT_FIELD, "a string"}, {"horizon", POSITIVE_FIELD, "an integer above 0"},
    {"layout", TEXT_FIELD, "a string"}, {"length", COUNT_FIELD, "an integer of 0 or more"}, {"lossy", OBJECT_FIELD, "an object"},
    {"modality", TEXT_FIELD, "a string"}, {"model", TEXT_FIELD, "a string"}, {"offsets_block", TEXT_FIELD, "a string"},
    {"sampling_rate_hz", RATE_FIELD, "a number above 0"}, {"semantics", TEXT_FIELD, "a string"}, {"start_ns", INTEGER_FIELD, "an integer within 2**63"},
    {"time_block", TEXT_FIELD, "a string"}, {"type", TEXT_FIELD, "a string"}, {"unit", TEXT_FIELD, "a string"},
    {"window", POSITIVE_FIELD, "an integer above 0"},
};

static int field_fits(const shard_json *value, field_kind kind) {
    int64_t number;
    double rate;
    switch (kind) {
        case TEXT_FIELD: return value->kind == SHARD_JSON_STRING;
        case COUNT_FIELD: return shard_json_int64(value, &number) && number >= 0;
        case POSITIVE_FIELD: return shard_json_int64(value, &number) && number > 0;
        case INTEGER_FIELD: return shard_json_int64(value, &number) && number != INT64_MIN;
        case RATE_FIELD: return shard_json_double(value, &rate) && rate > 0;
        default: return value->kind == SHARD_JSON_OBJECT;
    }
}

static shard_dtype parse_dtype(const shard_json *value) {
    char name[12];
    size_t i;
    if (!value || value->kind != SHARD_JSON_STRING || value->size >= sizeof name) return SHARD_DTYPE_NONE;
    for (i = 0; i < value->size; i++) {
        char c = value->is.text[i];
        name[i] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    }
    name[i] = 0;
    if (strlen(name) != value->size) return SHARD_DTYPE_NONE;
#define MATCH_DTYPE(kind, text, bytes, other) if (strcmp(name, text) == 0 || strcmp(name, other) == 0) return kind;
    SHARD_DTYPES(MATCH_DTYPE)
#undef MATCH_DTYPE
    return SHARD_DTYPE_NONE;
}

const char *shard_dtype_name(shard_dtype dtype) {
#define NAME_DTYPE(kind, text, bytes, other) if (dtype == kind) return text;
    SHARD_DTYPES(NAME_DTYPE)
#undef NAME_DTYPE
    return "";
}

size_t shard_dtype_size(shard_dtype dtype) {
#define SIZE_DTYPE(kind, text, bytes, other) if (dtype == kind) return bytes;
    SHARD_DTYPES(SIZE_DTYPE)
#undef SIZE_DTYPE
    return 0;
}

int shardi_step_bytes(shard_dtype dtype, const uint64_t *shape, uint32_t dimensions, uint64_t *size) {
    uint32_t i;
    int fits = 1;
    *size = shard_dtype_size(dtype);
    for (i = 0; i < dimensions; i++) {
        if (!shape[i]) {
            *size = 0;
            return 1;
        }
        if (fits) fits = shardi_multiply(*size, shape[i], size) && *size <= (uint64_t)INT64_MAX;
    }
    return fits;
}

/* The shape of one step (W-CHN-2, W-CHN-4). */
static shard_code parse_shape(shard_episode *ep, const shard_json *value, shardi_row *row, shard_error *error) {
    uint64_t product = 1;
    int has_zero = 0, fits = 1;
    uint64_t *shape = ep->shapes + ep->shape_count;
    size_t i;
    row->shape = shape;
    if (!value) return SHARD_OK;
    if (value->kind != SHARD_JSON_LIST) return shardi_bad_field(error, "W-CHN-2", "shape", "a list of integers of 0 or more");
    for (i = 0; i < value->size; i++) {
        const shard_json *item = value->is.items + i;
        int64_t size;
        if (item->kind != SHARD_JSON_INTEGER || (item->is.text[0] == '-' && item->is.text[1] != '0')) return shardi_bad_field(error, "W-CHN-2", "shape", "a list of integers of 0 or more");
        if (!shard_json_int64(item, &size)) return shardi_bad_field(error, "W-CHN-4", "shape", "a list of integers below 2**63");
        if (i < MOST_DIMENSIONS) shape[i] = (uint64_t)size;
        if (!size) has_zero = 1;
        else if (fits) fits = shardi_multiply(product, (uint64_t)size, &product) && product <= (uint64_t)INT64_MAX;
    }
    if (value->size > MOST_DIMENSIONS) return shardi_bad_field(error, "W-CHN-4", "shape", "a list of at most 31 integers");
    if (has_zero && (!fits || product > MOST_BESIDE_ZERO)) return shardi_bad_field(error, "W-CHN-4", "shape", "at most 2**31 - 1 in all beside its 0");
    row->dimensions = (uint32_t)value->size;
    ep->shape_count += value->size;
    return SHARD_OK;
}

static shard_layout parse_layout(const shard_json *value) {
    if (!value || shard_json_is(value, "dense")) return SHARD_DENSE;
    if (shard_json_is(value, "ragged")) return SHARD_RAGGED;
    if (shard_json_is(value, "text")) return SHARD_TEXT;
    return shard_json_is(value, "video") ? SHARD_VIDEO : SHARD_OTHER_LAYOUT;
}

/* Everything of a row but its names (W-CHN-2 to W-CHN-4, W-CHN-8). */
static shard_code check_row_fields(shard_episode *ep, shardi_row *row, shard_error *error) {
    const shard_json *fields = row->fields, *horizon;
    int64_t number;
    size_t i;
    shard_code code;
    row->dtype = parse_dtype(shard_json_get(fields, "dtype"));
    if (!row->dtype) return shardi_bad_field(error, "W-CHN-3", "dtype", "a known data type");
    code = parse_shape(ep, shardi_json_given(fields, "shape"), row, error);
    if (code != SHARD_OK) return code;
    for (i = 0; i < sizeof known_fields / sizeof *known_fields; i++) {
        const shard_json *value = shardi_json_given(fields, known_fields[i].name);
        if (value && !field_fits(value, known_fields[i].kind)) return shardi_bad_field(error, "W-CHN-2", known_fields[i].name, known_fields[i].expected);
    }
    row->layout = parse_layout(shardi_json_given(fields, "layout"));
    horizon = shardi_json_given(fields, "horizon");
    if (shard_json_int64(horizon, &number) && (!row->dimensions || row->shape[0] != (uint64_t)number || row->layout != SHARD_DENSE)) {
        return shardi_fail(error, SHARD_BAD_METADATA, "W-CHN-8", "a row with a horizon is not dense, or its shape does not start with that number");
    }
    return SHARD_OK;
}

/* The id in the row of a block: its name, in signal/ and action/ without the prefix. */
static void id_of_block(shardi_row *row) {
    row->id = row->block;
    row->id_size = row->block_size;
    if (row->block_size >= 7 && (memcmp(row->block, "signal/", 7) == 0 || memcmp(row->block, "action/", 7) == 0)) {
        row->id += 7;
        row->id_size -= 7;
    }
}

/* Rows of older files have their block from outside; it is NULL otherwise. */
static shard_code parse_row(shard_episode *ep, const shard_json *value, const char *block, size_t block_size, shardi_row *row, shard_error *error) {
    shard_code code;
    memset(row, 0, sizeof *row);
    row->fields = value;
    if (value->kind != SHARD_JSON_OBJECT) return shardi_bad_field(error, "W-CHN-1", "a row", "an object");
    if (block) {
        row->block = block;
        row->block_size = block_size;
        id_of_block(row);
    } else {
        const shard_json *id = shard_json_get(value, "id"), *given = shardi_json_given(value, "signal_block");
        if (!id || id->kind != SHARD_JSON_STRING || !id->size) return shardi_bad_field(error, "W-CHN-2", "id", "a string with something in it");
        if (given && given->kind != SHARD_JSON_STRING) return shardi_bad_field(error, "W-CHN-2", "signal_block", "a string");
        row->id = id->is.text;
        row->id_size = id->size;
        if (given) {
            row->block = given->is.text;
            row->block_size = given->size;
        }
    }
    if (!row->id_size) return shardi_bad_field(error, "W-CHN-2", "id", "a string with something in it");
    code = check_row_fields(ep, row, error);
    return shardi_locate(error, code, "", row->id, row->id_size);
}

/* ---- tables ---- */

/* signal/<id> need not be stored anywhere, so a row compares as its prefix and its id. */
static int compare_blocks_of(const shardi_row *a, const shardi_row *b) {
    static const char prefix[] = "signal/";
    const shardi_row *one;
    int order, sign = 1;
    if (a->block && b->block) return shardi_compare_bytes(a->block, a->block_size, b->block, b->block_size);
    if (!a->block && !b->block) return shardi_compare_bytes(a->id, a->id_size, b->id, b->id_size);
    if (!b->block) {
        one = a;
        a = b;
        b = one;
        sign = -1;
    }
    /* a is prefix and id, b has a block. */
    if (b->block_size < 7) order = memcmp(prefix, b->block, b->block_size) < 0 ? -1 : 1;
    else order = memcmp(prefix, b->block, 7);
    if (!order) order = shardi_compare_bytes(a->id, a->id_size, b->block + 7, b->block_size - 7);
    return order * sign;
}

static int compare_rows_by_block(const void *a, const void *b, const void *context) {
    (void)context;
    return compare_blocks_of((const shardi_row *)*(const void *const *)a, (const shardi_row *)*(const void *const *)b);
}

static int compare_rows_by_id(const void *a, const void *b, const void *context) {
    const shardi_row *x = (const shardi_row *)*(const void *const *)a, *y = (const shardi_row *)*(const void *const *)b;
    int order = shardi_compare_bytes(x->id, x->id_size, y->id, y->id_size);
    (void)context;
    return order ? order : (x < y ? 1 : -1); /* the last of one id comes first */
}

const shardi_row *shardi_find_row(const shardi_rows *rows, const char *name, size_t size, int by_id) {
    size_t low = 0, high = rows->count;
    shardi_row wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.block = name;
    wanted.block_size = size;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const shardi_row *row = rows->rows + middle;
        int order = by_id ? shardi_compare_bytes(row->id, row->id_size, name, size) : compare_blocks_of(row, &wanted);
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    if (low == rows->count) return NULL;
    if (by_id) return shardi_compare_bytes(rows->rows[low].id, rows->rows[low].id_size, name, size) == 0 ? rows->rows + low : NULL;
    return compare_blocks_of(rows->rows + low, &wanted) == 0 ? rows->rows + low : NULL;
}

/* Sorts rows and takes over their memory. */
static shard_code sort_rows(shard_episode *ep, shardi_rows *table, shardi_compare compare, shard_error *error) {
    const shardi_row **order = (const shardi_row **)shardi_allocate_array(ep->allocator, table->count, sizeof *order);
    shardi_row *sorted = (shardi_row *)shardi_allocate_array(ep->allocator, table->count, sizeof *sorted);
    size_t i;
    if (!order || !sorted) {
        shardi_release(ep->allocator, (void *)order);
        shardi_release(ep->allocator, sorted);
        return shardi_no_memory(error, (uint64_t)table->count * sizeof *sorted);
    }
    for (i = 0; i < table->count; i++) order[i] = table->rows + i;
    shardi_sort(order, table->count, sizeof *order, compare, NULL);
    for (i = 0; i < table->count; i++) sorted[i] = *order[i];
    shardi_release(ep->allocator, (void *)order);
    shardi_release(ep->allocator, table->rows);
    table->rows = sorted;
    return SHARD_OK;
}

static int is_in_file(const shard_episode *ep, const shardi_row *row) {
    char *name;
    int is_there;
    if (row->block) return shard_reader_find_bytes(ep->reader, row->block, row->block_size) != SHARD_NOT_FOUND;
    name = (char *)shardi_allocate(ep->allocator, (uint64_t)row->id_size + 7);
    if (!name) return 0;
    memcpy(name, "signal/", 7);
    memcpy(name + 7, row->id, row->id_size);
    is_there = shard_reader_find_bytes(ep->reader, name, row->id_size + 7) != SHARD_NOT_FOUND;
    shardi_release(ep->allocator, name);
    return is_there;
}

/* Rows that make no sense are no help; of two for one block the first counts. */
static void add_hints(shard_episode *ep, const shard_json *list, const char *name_field) {
    size_t i;
    if (!list || list->kind != SHARD_JSON_LIST) return;
    for (i = 0; i < list->size; i++) {
        const shard_json *item = list->is.items + i, *block = shard_json_get(item, name_field);
        if (!block || block->kind != SHARD_JSON_STRING || !block->size) continue;
        if (parse_row(ep, item, block->is.text, block->size, ep->hints.rows + ep->hints.count, NULL) == SHARD_OK) ep->hints.count++;
    }
}

static int compare_hints(const void *a, const void *b, const void *context) {
    int order = compare_rows_by_block(a, b, context);
    return order ? order : (*(const void *const *)a < *(const void *const *)b ? -1 : 1);
}

static shard_code parse_all(shard_episode *ep, const shard_json *fields, shardi_rows *all, shard_error *error) {
    const shard_json *listed = shard_json_get(fields, "channels"), *from = listed ? listed : fields;
    size_t i;
    shard_code code;
    if (listed && listed->kind != SHARD_JSON_LIST) return shardi_bad_field(error, "W-CHN-1", "channels", "a list");
    for (i = 0; i < from->size; i++) {
        const shard_json *item = from->is.items + i;
        if (!listed && item->key_size == 15 && memcmp(item->key, "modality_groups", 15) == 0) continue;
        code = parse_row(ep, item, listed ? NULL : item->key, listed ? 0 : item->key_size, all->rows + all->count, error);
        if (code != SHARD_OK) return code;
        all->count++;
    }
    code = sort_rows(ep, all, compare_rows_by_block, error);
    for (i = 1; i < all->count && code == SHARD_OK; i++) {
        if (compare_blocks_of(all->rows + i - 1, all->rows + i) == 0) {
            code = shardi_fail(error, SHARD_BAD_METADATA, "W-CHN-5", "two rows describe the same block");
            return shardi_locate(error, code, "", all->rows[i].id, all->rows[i].id_size);
        }
    }
    return code;
}

static size_t items_of(const shard_json *value) { return value && (value->kind == SHARD_JSON_LIST || value->kind == SHARD_JSON_OBJECT) ? value->size : 0; }

static uint64_t values_in(const shard_json *value) {
    uint64_t count = 1;
    size_t i;
    for (i = 0; i < items_of(value); i++) count += values_in(value->is.items + i);
    return count;
}

shard_code shardi_parse_rows(shard_episode *ep, shard_error *error) {
    const shard_json *fields = ep->channels ? shard_document_root(ep->channels) : NULL;
    const shard_json *omens = ep->wshard ? shard_json_get(shard_document_root(ep->wshard), "omen_channels") : NULL;
    const shard_json *actions = shard_json_get(shard_document_root(ep->episode), "action_spaces");
    size_t most = items_of(fields) + items_of(shard_json_get(fields, "channels")), hints = items_of(omens) + items_of(actions), i;
    /* Dimensions are values of JSON, so there are never more. */
    uint64_t dimensions = (fields ? values_in(fields) : 0) + (omens ? values_in(omens) : 0) + (actions ? values_in(actions) : 0) + MOST_DIMENSIONS;
    shardi_rows all;
    shard_code code = SHARD_OK;
    memset(&all, 0, sizeof all);
    all.rows = (shardi_row *)shardi_allocate_array(ep->allocator, most, sizeof *all.rows);
    ep->unplaced.rows = (shardi_row *)shardi_allocate_array(ep->allocator, most, sizeof *all.rows);
    ep->hints.rows = (shardi_row *)shardi_allocate_array(ep->allocator, hints, sizeof *all.rows);
    ep->shapes = (uint64_t *)shardi_allocate_array(ep->allocator, dimensions, sizeof *ep->shapes);
    if (!all.rows || !ep->unplaced.rows || !ep->hints.rows || !ep->shapes) code = shardi_no_memory(error, (uint64_t)most * sizeof *all.rows);
    if (code == SHARD_OK && fields) code = parse_all(ep, fields, &all, error);
    ep->placed.rows = all.rows;
    if (code != SHARD_OK) return code;
    for (i = 0; i < all.count; i++) {
        if (is_in_file(ep, all.rows + i)) ep->placed.rows[ep->placed.count++] = all.rows[i];
        else ep->unplaced.rows[ep->unplaced.count++] = all.rows[i];
    }
    add_hints(ep, omens, "block");
    add_hints(ep, actions, "name");
    code = sort_rows(ep, &ep->unplaced, compare_rows_by_id, error);
    return code == SHARD_OK ? sort_rows(ep, &ep->hints, compare_hints, error) : code;
}
