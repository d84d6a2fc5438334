/* The blocks of an episode: sizes, values, clocks, labels (spec/wshard.md, sections 4 to 8). */
#include "internal.h"

#include <math.h>

#define LARGEST_EXACT INT64_C(9007199254740991) /* within 2^53 */

static shard_code block_size(shard_error *error, const char *rule, const char *problem, uint64_t found) {
    return shardi_fail(error, SHARD_SIZE_MISMATCH, rule, "%s: found %llu bytes", problem, (unsigned long long)found);
}

uint32_t shardi_named_block(const shard_episode *ep, const shard_channel *c, const char *field) {
    const shard_json *name = shardi_json_given(c->description, field);
    return name && name->kind == SHARD_JSON_STRING ? shard_reader_find_bytes(ep->reader, name->is.text, name->size) : SHARD_NOT_FOUND;
}

static shard_code measure_dense(const shard_episode *ep, shard_channel *c, const shard_entry *entry, int is_stated, uint64_t step, int fits, shard_error *error) {
    uint64_t steps = (uint64_t)ep->facts.length, length = (uint64_t)c->length, wanted;
    int may_have_more = c->lane == SHARD_LANE_SIGNAL || c->lane == SHARD_LANE_OMEN || c->lane == SHARD_LANE_UNCERT;
    if (fits && !step && length > (uint64_t)SHARDI_UNBACKED && length != steps && length != steps + 1) {
        return block_size(error, "W-BLK-1", "the channel claims a length without any bytes", entry->orig_size);
    }
    if (fits && shardi_multiply(length, step, &wanted) && wanted == entry->orig_size) return SHARD_OK;
    if (!is_stated && may_have_more && fits && step && shardi_multiply(steps + 1, step, &wanted) && wanted == entry->orig_size) {
        c->length = (int64_t)(steps + 1);
        return SHARD_OK;
    }
    return block_size(error, "W-BLK-1", "the block has another size than its description", entry->orig_size);
}

static shard_code measure_ragged(const shard_episode *ep, const shard_channel *c, const shard_entry *entry, uint64_t item, shard_error *error) {
    uint32_t row = shardi_named_block(ep, c, "offsets_block");
    uint64_t wanted;
    if (row == SHARD_NOT_FOUND) return shardi_fail(error, SHARD_BAD_PROFILE, "W-RAG-1", "the block of offsets, which this one needs, is not in the file");
    if (!shardi_multiply((uint64_t)c->length + 1, 8, &wanted) || shard_reader_entry(ep->reader, row).orig_size != wanted) {
        return block_size(error, "W-RAG-1", "the offsets have another length than the channel", shard_reader_entry(ep->reader, row).orig_size);
    }
    if (item ? entry->orig_size % item != 0 : entry->orig_size != 0) return block_size(error, "W-RAG-3", "the block is not a whole number of items", entry->orig_size);
    return SHARD_OK;
}

shard_code shardi_measure(const shard_episode *ep, shard_channel *c, shard_error *error) {
    shard_entry entry = shard_reader_entry(ep->reader, c->row);
    const shard_json *stated = shardi_json_given(c->description, "length");
    uint64_t step = 0;
    shard_codec codec;
    int fits;
    shard_code code;
    if (c->lane >= SHARD_LANE_REWARD && c->lane <= SHARD_LANE_TIMESTAMPS && !c->description) {
        uint64_t wanted;
        c->length = ep->facts.length;
        if (!shardi_multiply((uint64_t)c->length, shard_dtype_size(c->dtype), &wanted) || wanted != entry.orig_size) {
            return block_size(error, c->lane >= SHARD_LANE_TICKS ? "W-TIM-2" : "W-END-1", "the block does not have one value for each step", entry.orig_size);
        }
        return shardi_check_sizes(ep->reader, &entry, &codec, error);
    }
    if (!c->description) return shardi_check_sizes(ep->reader, &entry, &codec, error); /* inferred from its size */
    c->length = ep->facts.length;
    (void)shard_json_int64(stated, &c->length);
    fits = shardi_step_bytes(c->dtype, c->shape, c->dimensions, &step);
    switch (c->layout) {
        case SHARD_DENSE: code = measure_dense(ep, c, &entry, stated != NULL, step, fits, error); break;
        case SHARD_TEXT:
            if (c->dtype != SHARD_U8 || c->dimensions) return shardi_fail(error, SHARD_BAD_METADATA, "W-RAG-5", "a text channel is not described as u8 of shape []");
            code = measure_ragged(ep, c, &entry, 1, error);
            break;
        case SHARD_RAGGED:
            if (!fits) return block_size(error, "W-RAG-3", "an item has too many bytes", entry.orig_size);
            code = measure_ragged(ep, c, &entry, step, error);
            break;
        case SHARD_VIDEO: return shardi_fail(error, SHARD_UNKNOWN_LAYOUT, "W-CHN-7", "this library does not read the layout 'video'");
        default: {
            const shard_json *layout = shard_json_get(c->description, "layout");
            return shardi_fail(error, SHARD_UNKNOWN_LAYOUT, "W-CHN-7", "the channel has the layout '%.*s', which this version does not know", layout->size < 80 ? (int)layout->size : 80, layout->is.text);
        }
    }
    return code == SHARD_OK ? shardi_check_sizes(ep->reader, &entry, &codec, error) : code;
}

static shard_code in_channel(const shard_episode *ep, const shard_channel *c, shard_error *error, shard_code code) { return shardi_in_entry(ep->reader, c->row, error, code); }

/* Whether the block is what its description says. */
static shard_code check_channel(const shard_episode *ep, const shard_channel *c, shard_error *error) {
    shard_channel measured = *c;
    return shardi_measure(ep, &measured, error);
}

/* The bytes of residuals and of entries that the format does not define are given whatever describes them. */
static shard_code check_bytes(const shard_episode *ep, const shard_channel *c, shard_error *error) {
    return c->lane == SHARD_LANE_RESIDUAL || c->lane == SHARD_LANE_EXTRA ? SHARD_OK : check_channel(ep, c, error);
}

/* ---- values ---- */

shard_code shard_channel_read(const shard_episode *ep, const shard_channel *c, shard_bytes *values, shard_error *error) {
    shard_code code = check_bytes(ep, c, error);
    memset(values, 0, sizeof *values);
    return code == SHARD_OK ? shard_reader_read(ep->reader, c->row, values, error) : in_channel(ep, c, error, code);
}

shard_code shard_channel_view(const shard_episode *ep, const shard_channel *c, const uint8_t **values, size_t *size, shard_error *error) {
    shard_code code = check_bytes(ep, c, error);
    *values = NULL;
    *size = 0;
    return code == SHARD_OK ? shard_reader_view(ep->reader, c->row, values, size, error) : in_channel(ep, c, error, code);
}

shard_code shard_channel_steps(const shard_episode *ep, const shard_channel *c, int64_t start, int64_t count, shard_bytes *values, shard_error *error) {
    uint64_t step = 0;
    shard_code code = check_channel(ep, c, error);
    memset(values, 0, sizeof *values);
    if (code == SHARD_OK && (c->layout != SHARD_DENSE || !c->has_time_axis)) code = shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "only a dense channel has steps of one size");
    if (code == SHARD_OK && (start < 0 || count < 0 || start > c->length || count > c->length - start)) {
        code = shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "the steps are outside the channel: expected at most %lld, found %lld from %lld", (long long)c->length, (long long)count, (long long)start);
    }
    if (code != SHARD_OK) return in_channel(ep, c, error, code);
    (void)shardi_step_bytes(c->dtype, c->shape, c->dimensions, &step);
    return shard_reader_range(ep->reader, c->row, (uint64_t)start * step, (uint64_t)count * step, values, error);
}

/* ---- ragged and text ---- */

static shard_code check_texts(const shard_episode *ep, const shard_channel *c, const uint64_t *offsets, shard_error *error) {
    shard_bytes text;
    int64_t t;
    shard_code code = shard_reader_read(ep->reader, c->row, &text, error);
    for (t = 0; t < c->length && code == SHARD_OK; t++) {
        if (!shardi_is_utf8(text.data + offsets[t], (size_t)(offsets[t + 1] - offsets[t]))) {
            code = shardi_fail(error, SHARD_BAD_VALUE, "W-RAG-4", "the text of step %lld is not valid UTF-8", (long long)t);
        }
    }
    shard_bytes_free(&text);
    return code;
}

shard_code shard_channel_offsets(const shard_episode *ep, const shard_channel *c, shard_bytes *offsets, shard_error *error) {
    uint64_t item = 1, before = 0, *made, items;
    size_t count, i;
    shard_code code = check_channel(ep, c, error);
    memset(offsets, 0, sizeof *offsets);
    if (code == SHARD_OK && c->layout != SHARD_RAGGED && c->layout != SHARD_TEXT) code = shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "only a ragged or text channel has offsets");
    if (code == SHARD_OK) code = shard_reader_read(ep->reader, shardi_named_block(ep, c, "offsets_block"), offsets, error);
    if (code != SHARD_OK) return in_channel(ep, c, error, code);
    if (c->layout == SHARD_RAGGED) (void)shardi_step_bytes(c->dtype, c->shape, c->dimensions, &item);
    items = item ? shard_reader_entry(ep->reader, c->row).orig_size / item : 0;
    made = (uint64_t *)(void *)offsets->data;
    count = offsets->size / 8;
    for (i = 0; i < count && code == SHARD_OK; i++) {
        uint64_t position = shardi_u64(offsets->data + 8 * i);
        if (position > (uint64_t)INT64_MAX || position < before || (!i && position)) code = shardi_fail(error, SHARD_BAD_VALUE, "W-RAG-2", "the offsets do not start with 0, or they fall");
        before = position;
        made[i] = position * item;
    }
    if (code == SHARD_OK && item && before != items) {
        code = shardi_fail(error, SHARD_BAD_VALUE, "W-RAG-2", "the last offset is not the end of the block: expected %llu, found %llu", (unsigned long long)items, (unsigned long long)before);
    }
    if (code == SHARD_OK && c->layout == SHARD_TEXT) code = check_texts(ep, c, made, error);
    if (code != SHARD_OK) shard_bytes_free(offsets);
    return in_channel(ep, c, error, code);
}

/* ---- time ---- */

shard_code shard_step_time(int64_t start_ns, int64_t step, double rate_hz, int64_t *time_ns, shard_error *error) {
    /* The product, the quotient and the sum are rounded one by one (section 5). */
    double product = (double)step * 1e9, passed = rint(product / rate_hz);
    int64_t whole;
    *time_ns = 0;
    if (!(fabs(passed) < 9223372036854775808.0)) return shardi_fail(error, SHARD_BAD_VALUE, "W-TIM-2", "a time does not fit into 64 bits");
    whole = (int64_t)passed;
    if (whole > 0 ? start_ns > INT64_MAX - whole : start_ns < INT64_MIN - whole) return shardi_fail(error, SHARD_BAD_VALUE, "W-TIM-2", "a time does not fit into 64 bits");
    *time_ns = start_ns + whole;
    return SHARD_OK;
}

static shard_code regular_times(const shard_episode *ep, const shard_channel *c, shard_bytes *times, shard_error *error) {
    int64_t *made, i;
    shard_code code = SHARD_OK;
    made = (int64_t *)shardi_allocate_array(ep->allocator, (uint64_t)c->length, sizeof *made);
    if (!made) return shardi_no_memory(error, (uint64_t)c->length * sizeof *made);
    times->data = (uint8_t *)made;
    times->size = (size_t)c->length * sizeof *made;
    times->allocator = ep->allocator;
    for (i = 0; i < c->length && code == SHARD_OK; i++) code = shard_step_time(c->start_ns, i, c->sampling_rate_hz, made + i, error);
    return code;
}

shard_code shard_channel_times(const shard_episode *ep, const shard_channel *c, shard_bytes *times, shard_error *error) {
    const shard_json *named = shardi_json_given(c->description, "time_block");
    uint64_t wanted;
    size_t i;
    shard_code code = check_channel(ep, c, error);
    memset(times, 0, sizeof *times);
    if (code == SHARD_OK && named && named->size) {
        uint32_t row = shardi_named_block(ep, c, "time_block");
        if (row == SHARD_NOT_FOUND) {
            code = shardi_fail(error, SHARD_BAD_PROFILE, "W-TIM-3", "the clock of the channel is not in the file");
        } else if (!shardi_multiply((uint64_t)c->length, 8, &wanted) || shard_reader_entry(ep->reader, row).orig_size != wanted) {
            code = block_size(error, "W-TIM-3", "the clock of a channel has another length than the channel", shard_reader_entry(ep->reader, row).orig_size);
        } else {
            code = shard_reader_read(ep->reader, row, times, error);
            for (i = 0; i + 8 <= times->size; i += 8) {
                uint64_t bits = shardi_u64(times->data + i);
                memcpy(times->data + i, &bits, 8);
            }
        }
    } else if (code == SHARD_OK && c->has_start && c->sampling_rate_hz > 0) {
        code = regular_times(ep, c, times, error);
    }
    if (code != SHARD_OK) shard_bytes_free(times);
    return in_channel(ep, c, error, code);
}

/* ---- labels ---- */

static shard_code check_interval(const shard_json *row, shard_error *error) {
    const shard_json *source = shard_json_get(row, "source"), *confidence = shardi_json_given(row, "confidence"), *text = shard_json_get(row, "text");
    int64_t start, end;
    double number;
    if (row->kind != SHARD_JSON_OBJECT) return shardi_bad_field(error, "W-LAB-1", "an interval", "an object");
    if (!shard_json_int64(shard_json_get(row, "start"), &start) || !shard_json_int64(shard_json_get(row, "end"), &end) || start > end || start == INT64_MIN) {
        return shardi_bad_field(error, "W-LAB-1", "start", "an integer within 2**63, not above end");
    }
    if (!text || text->kind != SHARD_JSON_STRING) return shardi_bad_field(error, "W-LAB-1", "text", "a string");
    if (source && source->kind != SHARD_JSON_STRING) return shardi_bad_field(error, "W-LAB-1", "source", "a string");
    if (confidence && !shard_json_double(confidence, &number)) return shardi_bad_field(error, "W-LAB-1", "confidence", "a number");
    return SHARD_OK;
}

static shard_code check_label(const shard_json *label, shard_error *error) {
    const shard_json *unit = shard_json_get(label, "unit"), *intervals = shard_json_get(label, "intervals");
    size_t i;
    shard_code code = SHARD_OK;
    if (unit && !shard_json_is(unit, "steps") && !shard_json_is(unit, "ns")) return shardi_bad_field(error, "W-LAB-2", "unit", "steps or ns");
    if (!intervals || intervals->kind != SHARD_JSON_LIST) return shardi_bad_field(error, "W-LAB-1", "intervals", "a list");
    for (i = 0; i < intervals->size && code == SHARD_OK; i++) code = check_interval(intervals->is.items + i, error);
    return code;
}

shard_code shard_episode_label(const shard_episode *ep, const shard_channel *c, shard_document **label, shard_error *error) {
    shard_code code = shardi_read_json(ep->reader, c->row, "W-LAB-1", &ep->reader->limits, label, error);
    if (code != SHARD_OK) return code;
    code = check_label(shard_document_root(*label), error);
    if (code != SHARD_OK) {
        shard_document_free(*label);
        *label = NULL;
    }
    return in_channel(ep, c, error, code);
}

/* ---- checking ---- */

/* done is the union of the other ends (W-END-3). */
static shard_code check_union(const shard_episode *ep, shard_error *error) {
    static const char *const names[] = {"done", "terminated", "truncated"};
    shard_bytes ends[3];
    size_t steps = (size_t)ep->facts.length, t;
    int i;
    shard_code code = SHARD_OK;
    memset(ends, 0, sizeof ends);
    for (i = 0; i < 3 && code == SHARD_OK; i++) {
        uint32_t row = shard_reader_find(ep->reader, names[i]);
        if (row != SHARD_NOT_FOUND && shard_reader_entry(ep->reader, row).orig_size == steps && steps) code = shard_reader_read(ep->reader, row, ends + i, error);
    }
    for (t = 0; code == SHARD_OK && ends[0].data && (ends[1].data || ends[2].data) && t < steps; t++) {
        int either = (ends[1].data && ends[1].data[t]) || (ends[2].data && ends[2].data[t]);
        if (either != (ends[0].data[t] != 0)) code = shardi_fail(error, SHARD_BAD_VALUE, "W-END-3", "'done' is not the union of the other ends at step %llu", (unsigned long long)t);
    }
    for (i = 0; i < 3; i++) shard_bytes_free(ends + i);
    return code;
}

static shard_code check_provenance_fields(const shard_json *fields, shard_error *error) {
    static const char *const texts[] = {"start_state", "end_state", "prev_identity", "run_id"}, *const numbers[] = {"epoch", "first_seq", "last_seq"};
    const shard_json *value;
    int64_t number;
    size_t i;
    for (i = 0; i < 4; i++) {
        value = shard_json_get(fields, texts[i]);
        if (!value || value->kind != SHARD_JSON_STRING || (i < 3 && value->size && !shardi_is_digest(value))) {
            return shardi_bad_field(error, "W-PRV-1", texts[i], "a string, of 64 lower-case hex digits if it is a state");
        }
    }
    for (i = 0; i < 3; i++) {
        if (!shard_json_int64(shard_json_get(fields, numbers[i]), &number) || number > LARGEST_EXACT || number < -LARGEST_EXACT) {
            return shardi_bad_field(error, "W-PRV-1", numbers[i], "an integer within 2**53");
        }
    }
    value = shard_json_get(fields, "source");
    if (!value || value->kind != SHARD_JSON_OBJECT) return shardi_bad_field(error, "W-PRV-1", "source", "an object of strings");
    for (i = 0; i < value->size; i++) {
        if (value->is.items[i].kind != SHARD_JSON_STRING) return shardi_bad_field(error, "W-PRV-1", "source", "an object of strings");
    }
    if (!shard_json_int64(shard_json_get(fields, "v"), &number) || number != 1) return shardi_bad_field(error, "W-PRV-1", "v", "1");
    if (fields->size != 9) return shardi_fail(error, SHARD_BAD_METADATA, "W-PRV-1", "meta/provenance has a field that it must not have");
    return SHARD_OK;
}

static shard_code check_provenance(const shard_episode *ep, shard_error *error) {
    uint32_t row = shard_reader_find(ep->reader, "meta/provenance");
    shard_document *document;
    shard_code code;
    if (row == SHARD_NOT_FOUND) return SHARD_OK;
    code = shardi_read_json(ep->reader, row, "W-PRV-1", &ep->reader->limits, &document, error);
    if (code != SHARD_OK) return code;
    code = check_provenance_fields(shard_document_root(document), error);
    shard_document_free(document);
    return shardi_in_entry(ep->reader, row, error, code);
}

shard_code shard_episode_check(const shard_episode *ep, shard_error *error) {
    shard_code code = SHARD_OK;
    size_t i;
    for (i = 0; i < ep->count && code == SHARD_OK; i++) {
        const shard_channel *c = ep->list + i;
        shard_document *label = NULL;
        shard_bytes read;
        memset(&read, 0, sizeof read);
        if (c->layout == SHARD_VIDEO) continue;
        if (c->lane == SHARD_LANE_LABEL) code = shard_episode_label(ep, c, &label, error);
        else if (c->layout == SHARD_DENSE || c->lane >= SHARD_LANE_LABEL) code = shard_channel_read(ep, c, &read, error);
        else code = shard_channel_offsets(ep, c, &read, error);
        shard_bytes_free(&read);
        shard_document_free(label);
        if (code == SHARD_OK && c->lane < SHARD_LANE_LABEL && c->lane != SHARD_LANE_RESIDUAL) code = shard_channel_times(ep, c, &read, error);
        shard_bytes_free(&read);
    }
    if (code == SHARD_OK) code = check_union(ep, error);
    return code == SHARD_OK ? check_provenance(ep, error) : code;
}
