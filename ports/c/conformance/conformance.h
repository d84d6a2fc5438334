/* The parts of the conformance program. Every question has a function that writes one JSON object, or fails. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "shard.h"

/* An answer that grows. */
typedef struct answer {
    char *text;
    size_t size, capacity;
} answer;

void put(answer *out, const char *text);
void put_bytes(answer *out, const void *data, size_t size);
void put_string(answer *out, const char *text, size_t size);
void put_hex(answer *out, const void *data, size_t size);
/* "key": and a decimal string, with a comma before it unless it is the first of its object. */
void put_key(answer *out, const char *key);
void put_number(answer *out, const char *key, uint64_t number);
void put_integer(answer *out, const char *key, int64_t number);
void put_text(answer *out, const char *key, const char *text);
void put_format(answer *out, const char *key, const char *format, ...);
void put_json(answer *out, const shard_json *value);

/* Reads a file whole; fails with io_error. */
shard_code load_file(const char *path, shard_bytes *content, shard_error *error);
/* The JSON of a vector or a case, which may have a million values. */
shard_code load_case(const char *path, shard_document **document, shard_error *error);
/* A string of a case as a number, or a copy of it as C text; 0 and "" if it is not there. */
uint64_t case_number(const shard_json *value, const char *key);
const char *case_text(const shard_json *value, const char *key, char *room, size_t size);
/* How to read the file of a vector, which may lower limits. */
shard_options case_options(const shard_json *told);
/* An error of this program itself. */
shard_code program_error(shard_error *error, const char *message);
/* sha256 and identity of a container that was written. */
shard_code tell_written(answer *out, const char *path, shard_error *error);

shard_code read_container(answer *out, const char *file, shard_error *error);
shard_code step_container(answer *out, const char *file, const shard_json *told, shard_error *error);
shard_code write_container(answer *out, const shard_json *told, const char *path, shard_error *error);
shard_code rewrite_container(answer *out, const char *in, const char *path, shard_error *error);

shard_code read_episode(answer *out, const char *file, shard_error *error);
shard_code step_episode(answer *out, const char *file, const shard_json *told, shard_error *error);

shard_code read_pack(answer *out, const char *file, shard_error *error);
shard_code step_pack(answer *out, const char *file, const shard_json *told, shard_error *error);
shard_code stream_pack(answer *out, const char *file, shard_error *error);

#endif
