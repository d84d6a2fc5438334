/* Episodes: reading and steps of invalid vectors. */
#include "conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST_HEX 512

static int is_text(const char *text, size_t size, const char *other) { return size == strlen(other) && memcmp(text, other, size) == 0; }

static void put_integers(answer *out, const int64_t *values, size_t count) {
    char text[32];
    size_t i;
    put(out, "[");
    for (i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s\"%lld\"", i ? "," : "", (long long)values[i]);
        put(out, text);
    }
    put(out, "]");
}

/* ---- channels ---- */

/* Truth values as 00 and 01. */
static shard_code read_values(const shard_episode *ep, const shard_channel *c, shard_bytes *values, shard_error *error) {
    shard_code code = shard_channel_read(ep, c, values, error);
    size_t i;
    if (code == SHARD_OK && c->dtype == SHARD_BOOL) {
        for (i = 0; i < values->size; i++) values->data[i] = values->data[i] != 0;
    }
    return code;
}

static shard_code tell_values(answer *out, const shard_episode *ep, const shard_channel *c, shard_error *error) {
    shard_bytes values;
    char hex[65];
    shard_code code = read_values(ep, c, &values, error);
    if (code != SHARD_OK) return code;
    if (values.size <= LONGEST_HEX) {
        put_key(out, "hex");
        put_hex(out, values.data, values.size);
    } else {
        shard_sha256_hex(values.data, values.size, hex);
        put_text(out, "sha256", hex);
    }
    shard_bytes_free(&values);
    return code;
}

static shard_code tell_items(answer *out, const shard_episode *ep, const shard_channel *c, shard_error *error) {
    shard_bytes offsets, values;
    const uint64_t *starts;
    int64_t t;
    shard_code code = shard_channel_offsets(ep, c, &offsets, error);
    if (code != SHARD_OK) return code;
    code = shard_channel_read(ep, c, &values, error);
    starts = (const uint64_t *)(const void *)offsets.data;
    put_key(out, c->layout == SHARD_TEXT ? "text" : "items");
    put(out, "[");
    for (t = 0; t < c->length && code == SHARD_OK; t++) {
        size_t size = (size_t)(starts[t + 1] - starts[t]);
        if (t) put(out, ",");
        if (c->layout == SHARD_TEXT) put_string(out, (const char *)values.data + starts[t], size);
        else put_hex(out, values.data + starts[t], size);
    }
    put(out, "]");
    shard_bytes_free(&offsets);
    shard_bytes_free(&values);
    return code;
}

static shard_code tell_clock(answer *out, const shard_episode *ep, const shard_channel *c, shard_error *error) {
    shard_bytes times;
    char number[32];
    shard_code code = shard_channel_times(ep, c, &times, error);
    if (code != SHARD_OK) return code;
    if (c->horizon) put_integer(out, "horizon", c->horizon);
    if (c->has_start) put_integer(out, "start_ns", c->start_ns);
    if (c->sampling_rate_hz > 0) {
        put_key(out, "sampling_rate_hz");
        put_bytes(out, number, shard_json_number(c->sampling_rate_hz, number));
    }
    if (times.data) {
        put_key(out, c->has_start && c->sampling_rate_hz > 0 ? "times_ns" : "timestamps_ns");
        put_integers(out, (const int64_t *)(const void *)times.data, times.size / 8);
    }
    shard_bytes_free(&times);
    return code;
}

static shard_code tell_channel(answer *out, const shard_episode *ep, const shard_channel *c, shard_error *error) {
    static const char *const layouts[] = {"dense", "ragged", "text", "video", "other"};
    shard_entry entry = shard_reader_entry(shard_episode_reader(ep), c->row);
    char number[32];
    uint32_t i;
    shard_code code;
    put(out, "{");
    put_key(out, "block");
    put_string(out, entry.name, entry.name_size);
    put_text(out, "dtype", shard_dtype_name(c->dtype));
    put_key(out, "inferred");
    put(out, c->is_inferred ? "true" : "false");
    put_text(out, "layout", layouts[c->layout]);
    put_integer(out, "length", c->length);
    put_key(out, "shape");
    put(out, "[");
    for (i = 0; i < c->dimensions; i++) {
        snprintf(number, sizeof number, "%s\"%llu\"", i ? "," : "", (unsigned long long)c->shape[i]);
        put(out, number);
    }
    put(out, "]");
    code = c->layout == SHARD_DENSE ? tell_values(out, ep, c, error) : tell_items(out, ep, c, error);
    if (code == SHARD_OK) code = tell_clock(out, ep, c, error);
    put(out, "}");
    return code;
}

/* ---- lanes ---- */

/* Channels of a lane; those of one id, and of one model, come together. depth is how many names a channel has. */
static shard_code tell_lane(answer *out, const shard_episode *ep, const char *key, shard_lane lane, int depth, shard_error *error) {
    const shard_channel *before = NULL;
    size_t i;
    shard_code code = SHARD_OK;
    put_key(out, key);
    put(out, "{");
    for (i = 0; i < shard_episode_count(ep) && code == SHARD_OK; i++) {
        const shard_channel *c = shard_episode_channel(ep, i);
        int same = 0;
        if (c->lane != lane) continue;
        if (before && depth > 1 && before->id_size == c->id_size && memcmp(before->id, c->id, c->id_size) == 0) {
            same = 1;
            if (depth > 2 && before->model_size == c->model_size && memcmp(before->model, c->model, c->model_size) == 0) same = 2;
        }
        if (before && depth > 2 && same < 2) put(out, "}");
        if (before && depth > 1 && same < 1) put(out, "}");
        if (before) put(out, ",");
        if (same < 1) {
            put_string(out, c->id, c->id_size);
            put(out, depth > 1 ? ":{" : ":");
        }
        if (depth > 1 && same < 2) {
            put_string(out, c->model, c->model_size);
            put(out, depth > 2 ? ":{" : ":");
        }
        if (depth > 2) {
            put_string(out, c->type, c->type_size);
            put(out, ":");
        }
        code = tell_channel(out, ep, c, error);
        before = c;
    }
    if (before && depth > 2) put(out, "}");
    if (before && depth > 1) put(out, "}");
    put(out, "}");
    return code;
}

static shard_code tell_ends(answer *out, const shard_episode *ep, const char *key, shard_lane lane, shard_error *error) {
    const shard_channel *c = shard_episode_find(ep, lane, "", NULL, NULL);
    shard_entry entry;
    shard_bytes values;
    shard_code code;
    put_key(out, key);
    if (!c) {
        put(out, "null");
        return SHARD_OK;
    }
    code = read_values(ep, c, &values, error);
    if (code != SHARD_OK) return code;
    entry = shard_reader_entry(shard_episode_reader(ep), c->row);
    put(out, "{");
    put_key(out, "block");
    put_string(out, entry.name, entry.name_size);
    put_number(out, "length", values.size);
    put_key(out, "hex");
    put_hex(out, values.data, values.size);
    put(out, "}");
    shard_bytes_free(&values);
    return code;
}

static shard_code tell_steps(answer *out, const shard_episode *ep, const char *key, shard_lane lane, shard_error *error) {
    const shard_channel *c = shard_episode_find(ep, lane, "", NULL, NULL);
    shard_bytes values;
    int64_t *wide;
    size_t count, i;
    shard_code code;
    put_key(out, key);
    if (!c) {
        put(out, "null");
        return SHARD_OK;
    }
    code = shard_channel_read(ep, c, &values, error);
    if (code != SHARD_OK) return code;
    count = values.size / shard_dtype_size(c->dtype);
    wide = (int64_t *)malloc(count * 8 + 8);
    if (!wide) exit(3);
    for (i = 0; i < count; i++) {
        int32_t narrow = 0;
        if (c->dtype == SHARD_I64) memcpy(wide + i, values.data + 8 * i, 8);
        else memcpy(&narrow, values.data + 4 * i, 4);
        if (c->dtype == SHARD_I32) wide[i] = narrow;
    }
    put_integers(out, wide, count);
    free(wide);
    shard_bytes_free(&values);
    return code;
}

static shard_code tell_label(answer *out, const shard_episode *ep, const shard_channel *c, shard_error *error) {
    shard_document *document;
    const shard_json *label, *intervals, *unit;
    size_t i;
    int64_t number;
    shard_code code = shard_episode_label(ep, c, &document, error);
    if (code != SHARD_OK) return code;
    label = shard_document_root(document);
    unit = shard_json_get(label, "unit");
    intervals = shard_json_get(label, "intervals");
    put(out, "{");
    put_text(out, "unit", shard_json_is(unit, "ns") ? "ns" : "steps");
    put_key(out, "intervals");
    put(out, "[");
    for (i = 0; i < intervals->size; i++) {
        const shard_json *row = intervals->is.items + i, *source = shard_json_get(row, "source"), *confidence = shard_json_get(row, "confidence");
        put(out, i ? ",{" : "{");
        shard_json_int64(shard_json_get(row, "start"), &number);
        put_integer(out, "start", number);
        shard_json_int64(shard_json_get(row, "end"), &number);
        put_integer(out, "end", number);
        put_key(out, "text");
        put_json(out, shard_json_get(row, "text"));
        put_key(out, "source");
        if (source && source->size) put_json(out, source);
        else put(out, "null");
        put_key(out, "confidence");
        if (confidence) put_json(out, confidence);
        else put(out, "null");
        put(out, "}");
    }
    put(out, "]}");
    shard_document_free(document);
    return code;
}

static shard_code tell_rest(answer *out, const shard_episode *ep, const char *key, shard_lane lane, shard_error *error) {
    size_t i;
    int count = 0;
    char hex[65];
    shard_bytes content;
    shard_code code = SHARD_OK;
    put_key(out, key);
    put(out, "{");
    for (i = 0; i < shard_episode_count(ep) && code == SHARD_OK; i++) {
        const shard_channel *c = shard_episode_channel(ep, i);
        if (c->lane != lane) continue;
        if (count++) put(out, ",");
        put_string(out, c->id, c->id_size);
        put(out, ":");
        if (lane == SHARD_LANE_LABEL) {
            code = tell_label(out, ep, c, error);
            continue;
        }
        code = shard_reader_read(shard_episode_reader(ep), c->row, &content, error);
        if (code != SHARD_OK) break;
        shard_sha256_hex(content.data, content.size, hex);
        put_string(out, hex, 64);
        shard_bytes_free(&content);
    }
    put(out, "}");
    return code;
}

/* ---- the episode ---- */

static void tell_facts(answer *out, const shard_facts *f) {
    char number[32];
    int64_t range[2] = {f->first_step, f->last_step};
    put_key(out, "id");
    put_string(out, f->id, f->id_size);
    put_key(out, "env_id");
    put_string(out, f->env_id, f->env_id_size);
    put_integer(out, "length", f->length);
    put_key(out, "metadata");
    if (f->metadata) put_json(out, f->metadata);
    else put(out, "{}");
    put_key(out, "timebase");
    put(out, "{");
    put_integer(out, "epoch_ns", f->epoch_ns);
    put_key(out, "tick_hz");
    if (f->tick_hz > 0) put_bytes(out, number, shard_json_number(f->tick_hz, number));
    else put(out, "null");
    put_text(out, "type", f->has_timestamps ? "timestamps_ns" : "ticks");
    put(out, "}");
    if (f->chunk_index >= 0) put_integer(out, "chunk_index", f->chunk_index);
    else put(out, ",\"chunk_index\":null");
    if (f->total_chunks >= 0) put_integer(out, "total_chunks", f->total_chunks);
    else put(out, ",\"total_chunks\":null");
    put_key(out, "timestep_range");
    if (f->has_range) put_integers(out, range, 2);
    else put(out, "null");
}

static shard_code tell_episode(answer *out, const shard_episode *ep, shard_error *error) {
    const shard_channel *rewards = shard_episode_find(ep, SHARD_LANE_REWARD, "", NULL, NULL);
    shard_code code;
    put(out, "{");
    tell_facts(out, shard_episode_facts(ep));
    code = tell_lane(out, ep, "observations", SHARD_LANE_SIGNAL, 1, error);
    if (code == SHARD_OK) code = tell_lane(out, ep, "actions", SHARD_LANE_ACTION, 1, error);
    if (code == SHARD_OK) code = tell_lane(out, ep, "omens", SHARD_LANE_OMEN, 2, error);
    if (code == SHARD_OK) code = tell_lane(out, ep, "uncerts", SHARD_LANE_UNCERT, 3, error);
    put_key(out, "rewards");
    if (code == SHARD_OK && rewards) code = tell_channel(out, ep, rewards, error);
    else put(out, "null");
    if (code == SHARD_OK) code = tell_ends(out, ep, "terminations", SHARD_LANE_TERMINATIONS, error);
    if (code == SHARD_OK) code = tell_ends(out, ep, "truncations", SHARD_LANE_TRUNCATIONS, error);
    if (code == SHARD_OK) code = tell_steps(out, ep, "ticks", SHARD_LANE_TICKS, error);
    if (code == SHARD_OK) code = tell_steps(out, ep, "timestamps_ns", SHARD_LANE_TIMESTAMPS, error);
    if (code == SHARD_OK) code = tell_rest(out, ep, "labels", SHARD_LANE_LABEL, error);
    if (code == SHARD_OK) code = tell_rest(out, ep, "extras", SHARD_LANE_EXTRA, error);
    put(out, ",\"residuals\":{}}"); /* not claimed */
    return code;
}

shard_code read_episode(answer *out, const char *file, shard_error *error) {
    shard_options options;
    shard_episode *ep;
    shard_code code;
    memset(&options, 0, sizeof options);
    options.map = 1;
    code = shard_episode_open(file, &options, &ep, error);
    if (code == SHARD_OK) code = tell_episode(out, ep, error);
    shard_episode_close(ep);
    return code;
}

/* ---- steps ---- */

static shard_code touch(answer *out, const shard_episode *ep, const shard_json *path, shard_error *error) {
    static const struct {
        const char *name;
        shard_lane lane;
    } lanes[] = {
        {"observations", SHARD_LANE_SIGNAL}, {"actions", SHARD_LANE_ACTION}, {"omens", SHARD_LANE_OMEN}, {"uncerts", SHARD_LANE_UNCERT},
        {"rewards", SHARD_LANE_REWARD}, {"terminations", SHARD_LANE_TERMINATIONS}, {"truncations", SHARD_LANE_TRUNCATIONS},
        {"ticks", SHARD_LANE_TICKS}, {"timestamps_ns", SHARD_LANE_TIMESTAMPS}, {"labels", SHARD_LANE_LABEL},
    };
    char names[3][128] = {"", "", ""};
    const shard_channel *c = NULL;
    size_t i;
    for (i = 1; i < path->size && i < 4; i++) {
        const shard_json *one = path->is.items + i;
        if (one->size < sizeof names[0]) memcpy(names[i - 1], one->is.text, one->size);
    }
    for (i = 0; i < sizeof lanes / sizeof *lanes; i++) {
        if (is_text(path->is.items->is.text, path->is.items->size, lanes[i].name)) c = shard_episode_find(ep, lanes[i].lane, names[0], names[1], names[2]);
    }
    if (!c) return program_error(error, "no such lane");
    return c->lane == SHARD_LANE_LABEL ? tell_label(out, ep, c, error) : tell_channel(out, ep, c, error);
}

shard_code step_episode(answer *out, const char *file, const shard_json *told, shard_error *error) {
    shard_episode *ep;
    char when[16];
    shard_options options = case_options(told);
    shard_code code = shard_episode_open(file, &options, &ep, error);
    case_text(told, "when", when, sizeof when);
    if (code == SHARD_OK && !strcmp(when, "touch")) code = touch(out, ep, shard_json_get(told, "touch"), error);
    if (code == SHARD_OK && !strcmp(when, "check")) code = shard_episode_check(ep, error);
    if (code == SHARD_OK) {
        out->size = 0;
        put(out, "{\"done\":true}");
    }
    shard_episode_close(ep);
    return code;
}
