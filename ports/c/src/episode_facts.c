/* What meta/episode and meta/wshard say about an episode (spec/wshard.md, sections 3 and 5). */
#include "internal.h"

#define DEFAULT_RATE 30.0
#define NANOSECONDS 1e9

shard_code shardi_bad_field(shard_error *error, const char *rule, const char *field, const char *expected) {
    return shardi_fail(error, SHARD_BAD_METADATA, rule, "'%s' is not %s", field, expected);
}

/* An integer within ±(2^63 - 1). */
static int is_integer(const shard_json *value, int64_t *number) { return shard_json_int64(value, number) && *number != INT64_MIN; }
static int is_count(const shard_json *value, int64_t *number) { return shard_json_int64(value, number) && *number >= 0; }

static shard_code parse_names(const shard_json *episode, shard_facts *facts, shard_error *error) {
    const shard_json *id = shard_json_get(episode, "episode_id"), *env = shard_json_get(episode, "env_id");
    if (!id) id = shard_json_get(episode, "id");
    if (!id || id->kind != SHARD_JSON_STRING) return shardi_bad_field(error, "W-EPI-1", "episode_id", "a string");
    if (env && env->kind != SHARD_JSON_STRING) return shardi_bad_field(error, "W-EPI-1", "env_id", "a string");
    facts->id = id->is.text;
    facts->id_size = id->size;
    facts->env_id = env ? env->is.text : "";
    facts->env_id_size = env ? env->size : 0;
    return SHARD_OK;
}

static shard_code parse_place(const shard_json *episode, shard_facts *facts, shard_error *error) {
    const shard_json *index = shardi_json_given(episode, "chunk_index"), *total = shardi_json_given(episode, "total_chunks");
    const shard_json *range = shardi_json_given(episode, "timestep_range");
    facts->chunk_index = facts->total_chunks = -1;
    if (index && !is_count(index, &facts->chunk_index)) return shardi_bad_field(error, "W-EPI-4", "chunk_index", "an integer of 0 or more");
    if (total && !is_count(total, &facts->total_chunks)) return shardi_bad_field(error, "W-EPI-4", "total_chunks", "an integer of 0 or more");
    if (index && facts->total_chunks > 0 && facts->chunk_index >= facts->total_chunks) return shardi_bad_field(error, "W-EPI-4", "chunk_index", "below total_chunks");
    if (!range) return SHARD_OK;
    if (range->kind != SHARD_JSON_LIST || range->size != 2 || !is_integer(range->is.items, &facts->first_step) || !is_integer(range->is.items + 1, &facts->last_step) ||
        facts->first_step > facts->last_step) {
        return shardi_bad_field(error, "W-EPI-4", "timestep_range", "a list of two integers in order");
    }
    /* [0, 0] is what some writers store where nothing was set. */
    facts->has_range = facts->first_step || facts->last_step || facts->length == 1;
    return SHARD_OK;
}

/* One of the two places that may state a timebase. rates are those of tick_hz and dt_ns; 0 if absent. */
static shard_code parse_timebase(const shard_json *value, shard_facts *facts, double rates[2], shard_error *error) {
    const shard_json *type, *epoch, *rate, *step;
    int64_t number;
    rates[0] = rates[1] = 0;
    if (!value) return SHARD_OK;
    if (value->kind != SHARD_JSON_OBJECT) return shardi_bad_field(error, "W-EPI-3", "timebase", "an object");
    type = shardi_json_given(value, "type");
    epoch = shardi_json_given(value, "epoch_ns");
    rate = shardi_json_given(value, "tick_hz");
    step = shardi_json_given(value, "dt_ns");
    if (type && type->kind != SHARD_JSON_STRING) return shardi_bad_field(error, "W-TIM-1", "timebase.type", "a string");
    if (shard_json_is(type, "ticks")) facts->has_timestamps = 0;
    if (shard_json_is(type, "timestamps_ns")) facts->has_timestamps = 1;
    if (epoch && !is_integer(epoch, &facts->epoch_ns)) return shardi_bad_field(error, "W-TIM-1", "timebase.epoch_ns", "an integer within 2**63");
    if (rate && !shard_json_double(rate, &rates[0])) return shardi_bad_field(error, "W-TIM-1", "timebase.tick_hz", "a number");
    if (step) {
        if (!is_integer(step, &number)) return shardi_bad_field(error, "W-TIM-1", "timebase.dt_ns", "an integer within 2**63");
        if (number > 0) rates[1] = NANOSECONDS / (double)number;
    }
    return SHARD_OK;
}

static shard_code parse_rate(const shard_json *episode, const shard_json *wshard, shard_facts *facts, shard_error *error) {
    double general[2], own[2], ranked[4];
    const shard_json *base = shardi_json_given(episode, "timebase"), *said;
    int i;
    /* meta/episode is read last, so that it has the last word. */
    shard_code code = parse_timebase(shardi_json_given(wshard, "timebase"), facts, general, error);
    if (code == SHARD_OK) code = parse_timebase(base, facts, own, error);
    if (code != SHARD_OK) return code;
    ranked[0] = own[0];
    ranked[1] = general[0];
    ranked[2] = own[1];
    ranked[3] = general[1];
    for (i = 0; i < 4; i++) {
        if (ranked[i] > 0) {
            facts->tick_hz = ranked[i];
            return SHARD_OK;
        }
    }
    /* A writer of today says null for a rate that it does not know; those before it left the field out (W-TIM-5). */
    said = shard_json_get(base, "tick_hz");
    if (!said || said->kind != SHARD_JSON_NULL) facts->tick_hz = DEFAULT_RATE;
    return SHARD_OK;
}

/* Whether an entry has as many bytes as there are steps (W-EPI-5). */
static int is_backed(const shard_reader *reader, int64_t steps) {
    uint32_t i;
    for (i = 0; i < shard_reader_count(reader); i++) {
        shard_entry entry = shard_reader_entry(reader, i);
        shard_codec codec;
        if (entry.orig_size >= (uint64_t)steps && shardi_check_sizes(reader, &entry, &codec, NULL) == SHARD_OK) return 1;
    }
    return 0;
}

shard_code shardi_parse_facts(shard_episode *ep, shard_error *error) {
    const shard_json *episode = shard_document_root(ep->episode), *wshard = ep->wshard ? shard_document_root(ep->wshard) : NULL, *value;
    shard_facts *facts = &ep->facts;
    shard_code code = parse_names(episode, facts, error);
    if (code != SHARD_OK) return code;
    value = shard_json_get(episode, "length_T");
    if (!value) value = shard_json_get(episode, "length_t");
    if (!is_count(value, &facts->length)) return shardi_bad_field(error, "W-EPI-2", "length_T", "an integer from 0 to 2**63 - 1");
    facts->metadata = shardi_json_given(episode, "metadata");
    if (facts->metadata && facts->metadata->kind != SHARD_JSON_OBJECT) return shardi_bad_field(error, "W-EPI-3", "metadata", "an object");
    code = parse_place(episode, facts, error);
    if (code == SHARD_OK) code = parse_rate(episode, wshard, facts, error);
    if (code == SHARD_OK && facts->length > SHARDI_UNBACKED && !is_backed(ep->reader, facts->length)) {
        code = shardi_fail(error, SHARD_SIZE_MISMATCH, "W-EPI-5", "the episode claims more steps than its file has bytes for: %lld", (long long)facts->length);
    }
    return code;
}
