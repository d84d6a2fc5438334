/* What the tests share. A test is a function whose name is a sentence; CHECK ends it. */
#ifndef TESTS_H
#define TESTS_H

#include "shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char *now_testing;
extern int failures;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, now_testing, #condition); \
            failures++; \
            return; \
        } \
    } while (0)

#define RUN(test) (now_testing = #test, test())

/* A file in the folder of the tests; lives until the next call but three. */
const char *in_folder(const char *name);
int files_in_folder(void);
/* Reads a file whole. */
uint8_t *load(const char *path, size_t *size);
/* Calls use for each file of spec/vectors/<folder> with this suffix. */
typedef void (*use_file)(const char *path, const uint8_t *data, size_t size);
void each_vector(const char *folder, const char *suffix, use_file use);
shard_document *parse_file(const char *path);
int text_is(const shard_json *value, const char *key, const char *text);
uint64_t number_in(const shard_json *value, const char *key);

/* Gives memory until a counter runs out. */
typedef struct failing_memory {
    shard_allocator allocator;
    long left; /* below 0: for ever */
    long live, used;
} failing_memory;

void failing_start(failing_memory *memory, long left);

void test_primitives(void);
void test_containers(void);
void test_faults(void);
void test_episodes(void);
void test_compat(void);

#endif
