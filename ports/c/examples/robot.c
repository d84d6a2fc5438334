/*
 * A program on a robot: writes what the arm measured into a container, and reads one channel of an episode in place.
 *     robot CONTAINER EPISODE CHANNEL
 */
#include "shard.h"

#include <stdio.h>
#include <string.h>

#define STEPS 600
#define JOINTS 3

/* Writes joint angles and a note. The file appears under its name complete, or not at all. */
static shard_code record(const char *path, shard_error *error) {
    static float angles[STEPS][JOINTS];
    static const char note[] = "{\"robot\":\"arm\",\"rate_hz\":100}";
    shard_writer_options options = {0};
    shard_entry_options as_json = {0};
    shard_writer *writer;
    shard_code code;
    for (int t = 0; t < STEPS; t++) {
        for (int j = 0; j < JOINTS; j++) angles[t][j] = (float)(t * (j + 1)) / 100.0f;
    }
    options.alignment = 64; /* so that the floats can be used in place */
    as_json.content_type = SHARD_CONTENT_JSON;
    code = shard_writer_create(path, &options, &writer, error);
    if (code == SHARD_OK) code = shard_writer_add(writer, "joints", angles, sizeof angles, NULL, error);
    if (code == SHARD_OK) code = shard_writer_add(writer, "note", note, strlen(note), &as_json, error);
    if (code == SHARD_OK) code = shard_writer_finish(writer, error);
    shard_writer_close(writer);
    return code;
}

/* Looks at one observation where the mapped file has it: nothing is copied. */
static shard_code look(const char *path, const char *name, shard_error *error) {
    shard_options options = {0};
    shard_episode *episode;
    const uint8_t *values;
    size_t size;
    shard_code code;
    options.map = 1;
    code = shard_episode_open(path, &options, &episode, error);
    if (code == SHARD_OK) {
        const shard_channel *channel = shard_episode_find(episode, SHARD_LANE_SIGNAL, name, NULL, NULL);
        if (!channel) printf("no channel '%s'\n", name);
        else if ((code = shard_channel_view(episode, channel, &values, &size, error)) == SHARD_OK) {
            printf("%s: %lld steps of %s, %zu bytes in place\n", name, (long long)channel->length, shard_dtype_name(channel->dtype), size);
        }
        shard_episode_close(episode);
    }
    return code;
}

int main(int count, char **words) {
    shard_error error;
    if (count != 4) return fprintf(stderr, "usage: robot CONTAINER EPISODE CHANNEL\n"), 2;
    if (record(words[1], &error) == SHARD_OK && look(words[2], words[3], &error) == SHARD_OK) return 0;
    fprintf(stderr, "%s (%s %s)\n", error.message, shard_code_name(error.code), error.rule);
    return 1;
}
