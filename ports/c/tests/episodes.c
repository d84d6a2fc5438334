/* Episodes: channels in place, steps, times, and what does not fit. */
#include "tests.h"

static shard_code write_episode(const char *path, const char *channels, const float *state, size_t bytes) {
    static const char episode[] = "{\"episode_id\":\"e\",\"length_T\":4,\"timebase\":{\"tick_hz\":10,\"type\":\"ticks\"}}";
    shard_writer_options options;
    shard_writer *w;
    shard_code code;
    memset(&options, 0, sizeof options);
    options.role = SHARD_ROLE_WSHARD;
    options.alignment = 32;
    options.no_sync = 1;
    code = shard_writer_create(path, &options, &w, NULL);
    if (code == SHARD_OK) code = shard_writer_add(w, "meta/episode", episode, strlen(episode), NULL, NULL);
    if (code == SHARD_OK) code = shard_writer_add(w, "meta/channels", channels, strlen(channels), NULL, NULL);
    if (code == SHARD_OK) code = shard_writer_add(w, "signal/state", state, bytes, NULL, NULL);
    if (code == SHARD_OK) code = shard_writer_add(w, "action/move", state, 4 * sizeof *state, NULL, NULL);
    if (code == SHARD_OK) code = shard_writer_finish(w, NULL);
    shard_writer_close(w);
    return code;
}

static void a_channel_is_used_in_place(void) {
    static const float state[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    shard_options options;
    shard_error error;
    shard_episode *ep;
    const shard_channel *c;
    const uint8_t *values;
    shard_bytes bytes;
    size_t size;
    CHECK(write_episode(in_folder("e.wshard"), "{\"channels\":[{\"id\":\"state\",\"dtype\":\"F32\",\"shape\":[2],\"start_ns\":5,\"sampling_rate_hz\":10}]}", state, sizeof state) == SHARD_OK);
    memset(&options, 0, sizeof options);
    options.map = 1;
    CHECK(shard_episode_open(in_folder("e.wshard"), &options, &ep, &error) == SHARD_OK);
    CHECK(shard_episode_facts(ep)->length == 4 && shard_episode_facts(ep)->tick_hz == 10);
    c = shard_episode_find(ep, SHARD_LANE_SIGNAL, "state", NULL, NULL);
    CHECK(c && c->dtype == SHARD_F32 && c->dimensions == 1 && c->shape[0] == 2 && c->length == 4 && !c->is_inferred);
    CHECK(shard_channel_view(ep, c, &values, &size, &error) == SHARD_OK && size == sizeof state && memcmp(values, state, size) == 0);
    CHECK(shard_channel_steps(ep, c, 1, 2, &bytes, &error) == SHARD_OK && bytes.size == 16 && memcmp(bytes.data, state + 2, 16) == 0);
    shard_bytes_free(&bytes);
    CHECK(shard_channel_steps(ep, c, 3, 2, &bytes, &error) == SHARD_INVALID_ARGUMENT);
    CHECK(shard_channel_offsets(ep, c, &bytes, &error) == SHARD_INVALID_ARGUMENT);
    CHECK(shard_channel_times(ep, c, &bytes, &error) == SHARD_OK && ((int64_t *)(void *)bytes.data)[3] == 300000005);
    shard_bytes_free(&bytes);
    c = shard_episode_find(ep, SHARD_LANE_ACTION, "move", "", "");
    CHECK(c && c->is_inferred && c->dtype == SHARD_F32);
    CHECK(!shard_episode_find(ep, SHARD_LANE_OMEN, "state", "m", NULL));
    CHECK(shard_episode_check(ep, &error) == SHARD_OK && shard_episode_count(ep) == 2);
    shard_episode_close(ep);
    shard_episode_close(NULL);
}

static void a_bad_channel_does_not_hide_the_others(void) {
    static const float state[8] = {0};
    shard_error error;
    shard_episode *ep;
    shard_bytes bytes;
    CHECK(write_episode(in_folder("bad.wshard"), "{\"channels\":[{\"id\":\"state\",\"dtype\":\"f64\",\"shape\":[3]}]}", state, sizeof state) == SHARD_OK);
    CHECK(shard_episode_open(in_folder("bad.wshard"), NULL, &ep, &error) == SHARD_OK);
    CHECK(shard_channel_read(ep, shard_episode_find(ep, SHARD_LANE_SIGNAL, "state", NULL, NULL), &bytes, &error) == SHARD_SIZE_MISMATCH);
    CHECK(!strcmp(error.rule, "W-BLK-1") && !strcmp(error.entry, "signal/state"));
    CHECK(shard_channel_read(ep, shard_episode_find(ep, SHARD_LANE_ACTION, "move", NULL, NULL), &bytes, &error) == SHARD_OK);
    shard_bytes_free(&bytes);
    CHECK(shard_episode_check(ep, &error) == SHARD_SIZE_MISMATCH);
    shard_episode_close(ep);
    CHECK(shard_episode_open(in_folder("moved"), NULL, &ep, &error) == SHARD_BAD_PROFILE && !ep);
    CHECK(shard_episode_open("/no/such/file", NULL, &ep, &error) == SHARD_IO_ERROR);
}

static int checked;

static void check_vector(const char *path, const uint8_t *data, size_t size) {
    shard_reader *r;
    shard_episode *ep;
    shard_error error;
    now_testing = path;
    CHECK(shard_reader_open_memory(data, size, NULL, &r, &error) == SHARD_OK);
    if (shard_reader_header(r)->role == SHARD_ROLE_WSHARD && shard_episode_from_reader(r, &ep, &error) == SHARD_OK) {
        shard_code code = shard_episode_check(ep, &error);
        CHECK(code == SHARD_OK || code == SHARD_MISSING_EXTRA);
        checked++;
        shard_episode_close(ep);
    }
    shard_reader_close(r);
}

static void every_valid_episode_passes_its_check(void) {
    each_vector("valid", ".wshard", check_vector);
    now_testing = "every_valid_episode_passes_its_check";
    CHECK(checked > 50);
}

void test_episodes(void) {
    RUN(a_channel_is_used_in_place);
    RUN(a_bad_channel_does_not_hide_the_others);
    RUN(every_valid_episode_passes_its_check);
}
