/* Filters of zstd entries (spec/shard.md, "Filtered entries"). */
#include "internal.h"

#define FILTER_MAGIC 0x184D2A5Du
#define MAX_FILTERED_FRAME (64u << 20)

static shard_code bad_filter(shard_error *error, const char *rule, const char *problem) {
    return shardi_fail(error, SHARD_BAD_FILTER, rule, "%s", problem);
}

shard_code shardi_leading_size(const uint8_t *head, size_t size, uint64_t disk_size, uint64_t *leading, shard_error *error) {
    uint32_t found;
    *leading = 0;
    if (size < 8 || shardi_u32(head) != FILTER_MAGIC) return bad_filter(error, "S-FLT-1", "a filtered entry does not start with a description of its filters");
    found = shardi_u32(head + 4);
    if (found < 1 || found > SHARDI_MAX_DESCRIPTION || found > disk_size - 8) {
        return shardi_fail(error, SHARD_BAD_FILTER, "S-FLT-1", "the description of the filters has a size that is not allowed: %lu bytes", (unsigned long)found);
    }
    *leading = 8 + (uint64_t)found;
    return SHARD_OK;
}

/* A field that is one of some small integers; 0 if it is not. */
static uint32_t small_field(const shard_json *fields, const char *key, unsigned allowed) {
    int64_t value;
    if (!shard_json_int64(shard_json_get(fields, key), &value) || value < 1 || value > 8 || !(allowed >> value & 1)) return 0;
    return (uint32_t)value;
}

static shard_code parse_list(const shard_json *list, shard_filters *filters, shard_error *error) {
    size_t i;
    int deltas = 0, planes = 0, in_order = 1;
    if (!list || list->kind != SHARD_JSON_LIST || list->size < 1 || list->size > 2) {
        return bad_filter(error, "S-FLT-2", "the description is not an object with a list of one or two filters");
    }
    for (i = 0; i < list->size; i++) {
        const shard_json *fields = list->is.items + i, *name = shard_json_get(fields, "name");
        if (!name || name->kind != SHARD_JSON_STRING) return bad_filter(error, "S-FLT-2", "a filter has no name");
        if (shard_json_is(name, "delta")) {
            int64_t row;
            filters->delta_order = small_field(fields, "order", 1u << 1 | 1u << 2);
            filters->delta_width = small_field(fields, "width", 1u << 1 | 1u << 2 | 1u << 4 | 1u << 8);
            if (!filters->delta_order || !filters->delta_width || fields->size != 4 || !shard_json_int64(shard_json_get(fields, "row"), &row) ||
                row < 1 || row % (int64_t)filters->delta_width) {
                return bad_filter(error, "S-FLT-2", "the filter delta has wrong fields");
            }
            filters->delta_row = (uint64_t)row;
            in_order &= !planes;
            deltas++;
        } else if (shard_json_is(name, "planes")) {
            filters->planes_width = small_field(fields, "width", 1u << 2 | 1u << 4 | 1u << 8);
            if (!filters->planes_width || fields->size != 2) return bad_filter(error, "S-FLT-2", "the filter planes has wrong fields");
            planes++;
        } else {
            return shardi_fail(error, SHARD_UNKNOWN_FILTER, "S-FLT-3", "this version does not know the filter '%.*s'", name->size < 80 ? (int)name->size : 80, name->is.text);
        }
    }
    if (deltas > 1 || planes > 1 || !in_order || (deltas && planes && filters->delta_width != filters->planes_width)) {
        return bad_filter(error, "S-FLT-4", "these filters do not go together");
    }
    return SHARD_OK;
}

shard_code shardi_parse_filters(const uint8_t *text, size_t size, const shard_allocator *allocator, shard_filters *filters, shard_error *error) {
    shard_limits limits = shardi_limits(NULL);
    shard_document *document;
    shard_code code;
    memset(filters, 0, sizeof *filters);
    limits.max_json_nodes = SHARDI_MAX_DESCRIPTION;
    code = shardi_parse_json(text, size, "S-FLT-2", &limits, allocator, &document, error);
    if (code == SHARD_BAD_METADATA) return bad_filter(error, "S-FLT-2", "the description of the filters is not valid JSON");
    if (code != SHARD_OK) return code;
    code = parse_list(shard_json_get(shard_document_root(document), "filters"), filters, error);
    shard_document_free(document);
    return code;
}

shard_code shardi_check_filtered(const shard_filters *filters, uint64_t size, shard_error *error) {
    uint64_t multiple = filters->delta_width ? filters->delta_row : filters->planes_width;
    if (size <= MAX_FILTERED_FRAME && size % multiple == 0) return SHARD_OK;
    return shardi_fail(error, SHARD_BAD_FILTER, "S-FLT-5", "a filtered frame has a size that is not allowed: expected a multiple of %llu bytes, at most %u, found %llu",
                       (unsigned long long)multiple, MAX_FILTERED_FRAME, (unsigned long long)size);
}

static void undo_planes(uint8_t *data, size_t size, size_t width, uint8_t *scratch) {
    size_t count = size / width, plane, i;
    memcpy(scratch, data, size);
    for (plane = 0; plane < width; plane++) {
        const uint8_t *from = scratch + plane * count;
        for (i = 0; i < count; i++) data[i * width + plane] = from[i];
    }
}

static uint64_t load(const uint8_t *data, size_t width) {
    switch (width) {
        case 1: return data[0];
        case 2: return shardi_u16(data);
        case 4: return shardi_u32(data);
        default: return shardi_u64(data);
    }
}

/* Adds the row before to each row but the first. */
static void undo_delta(uint8_t *data, size_t size, size_t width, size_t row) {
    size_t i;
    for (i = row; i + width <= size; i += width) {
        uint64_t sum = load(data + i, width) + load(data + i - row, width);
        switch (width) {
            case 1: data[i] = (uint8_t)(sum & 0xFF); break;
            case 2: shardi_put16(data + i, (uint16_t)(sum & 0xFFFF)); break;
            case 4: shardi_put32(data + i, (uint32_t)(sum & 0xFFFFFFFFu)); break;
            default: shardi_put64(data + i, sum); break;
        }
    }
}

void shardi_undo_filters(const shard_filters *filters, uint8_t *data, size_t size, uint8_t *scratch) {
    uint32_t i;
    if (!size) return;
    if (filters->planes_width) undo_planes(data, size, filters->planes_width, scratch);
    for (i = 0; i < filters->delta_order && filters->delta_row < size; i++) undo_delta(data, size, filters->delta_width, (size_t)filters->delta_row);
}
