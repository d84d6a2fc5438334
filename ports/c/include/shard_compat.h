/*
 * The names of the earlier C library, for programs that are not changed yet: define SHARD_COMPAT before you include
 * shard.h. They return 0, -1 or NULL. shard_last_error and its sisters say why.
 */
#ifndef SHARD_COMPAT_H
#define SHARD_COMPAT_H

#include "shard.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Macros without a prefix. */
#define ROLE_UNKNOWN SHARD_ROLE_UNKNOWN
#define ROLE_MOSH SHARD_ROLE_MODEL_WEIGHTS
#define ROLE_SAMPLE SHARD_ROLE_SAMPLES
#define ROLE_GEMM_PANEL SHARD_ROLE_GEMM_PANELS
#define ROLE_MANIFEST SHARD_ROLE_MANIFEST
#define ROLE_WSHARD SHARD_ROLE_WSHARD
#define ROLE_UMSH SHARD_ROLE_MODEL_VARIANT
#define ROLE_COLUMN SHARD_ROLE_COLUMNS
#define ALIGN_NONE 0
#define ALIGN_16 16
#define ALIGN_32 32
#define ALIGN_64 64
#define COMPRESS_NONE SHARD_NONE
#define COMPRESS_ZSTD SHARD_ZSTD
#define COMPRESS_LZ4 SHARD_LZ4
#define FLAG_COMPRESSED 0x0001
#define FLAG_LITTLE_ENDIAN 0x0002
#define FLAG_HAS_SCHEMA 0x0010
#define FLAG_HAS_CHECKSUMS 0x0020
#define FLAG_STREAMING 0x0040
#define FLAG_HAS_CONTENT_TYPES 0x0080
#define MAX_INDEX_SIZE SHARD_DEFAULT_MAX_INDEX_BYTES
#define MAX_STRING_TABLE_SIZE SHARD_DEFAULT_MAX_STRING_TABLE_BYTES
#define MAX_ENTRY_COUNT SHARD_DEFAULT_MAX_ENTRIES
#define MAX_DECOMPRESS_SIZE SHARD_DEFAULT_MAX_DECOMPRESSED_BYTES

/* An open file. What it gives lives until it is closed. One thread at a time: it keeps what was read. */
typedef struct shard_file shard_file;

SHARD_API shard_file *shard_open(const char *path);
SHARD_API shard_file *shard_open_mmap(const char *path);
SHARD_API shard_file *shard_from_buffer(const void *data, size_t size);
SHARD_API void shard_close(shard_file *file);
SHARD_API const shard_head *shard_header(const shard_file *file);
SHARD_API uint32_t shard_entry_count(const shard_file *file);
/* NUL-terminated; NULL if there is no such entry. */
SHARD_API const char *shard_entry_name(shard_file *file, uint32_t number);
SHARD_API const shard_entry *shard_get_entry(shard_file *file, uint32_t number);
SHARD_API int32_t shard_lookup(const shard_file *file, const char *name);
SHARD_API int shard_has_entry(const shard_file *file, const char *name);
SHARD_API const uint8_t *shard_read_entry(shard_file *file, uint32_t number, size_t *size);
SHARD_API const uint8_t *shard_read_entry_by_name(shard_file *file, const char *name, size_t *size);
SHARD_API const uint8_t *shard_read_entry_prefix(shard_file *file, uint32_t number, size_t most, size_t *size);
SHARD_API uint16_t shard_content_type(const shard_file *file, uint32_t number);
SHARD_API int shard_is_compressed(const shard_file *file, uint32_t number);
/* The parts that follow a prefix, each once. Free them with shard_list_free. */
SHARD_API char **shard_list_children(shard_file *file, const char *prefix, size_t *count);
SHARD_API void shard_list_free(char **list, size_t count);
/* Why the last call failed. */
SHARD_API void shard_last_error(const shard_file *file, shard_error *error);

/* Both earlier writers. They need their path and options before the first entry. */
typedef struct shard_old_writer shard_old_writer;

SHARD_API shard_old_writer *shard_writer_new(uint8_t role);
SHARD_API int shard_writer_set_alignment(shard_old_writer *writer, uint8_t alignment);
SHARD_API int shard_writer_set_compression(shard_old_writer *writer, uint8_t compression);
SHARD_API int shard_writer_add_entry(shard_old_writer *writer, const char *name, const void *data, size_t size);
SHARD_API int shard_writer_add_entry_typed(shard_old_writer *writer, const char *name, const void *data, size_t size, uint16_t content_type);
SHARD_API int shard_writer_add_entry_compressed(shard_old_writer *writer, const char *name, const void *data, size_t size, uint8_t compression);
SHARD_API int shard_writer_write(shard_old_writer *writer, const char *path);
SHARD_API void shard_writer_free(shard_old_writer *writer);
SHARD_API shard_old_writer *shard_stream_writer_new(const char *path, uint8_t role, uint32_t max_entries);
SHARD_API int shard_stream_writer_set_alignment(shard_old_writer *writer, uint8_t alignment);
SHARD_API int shard_stream_writer_set_compression(shard_old_writer *writer, uint8_t compression);
SHARD_API int shard_stream_writer_begin_data(shard_old_writer *writer);
SHARD_API int shard_stream_writer_write_entry(shard_old_writer *writer, const char *name, const void *data, size_t size);
SHARD_API int shard_stream_writer_write_entry_typed(shard_old_writer *writer, const char *name, const void *data, size_t size, uint16_t content_type);
SHARD_API int shard_stream_writer_finalize(shard_old_writer *writer);
SHARD_API void shard_stream_writer_free(shard_old_writer *writer);
SHARD_API void shard_writer_last_error(const shard_old_writer *writer, shard_error *error);

#define shard_xxhash64(data, size) shard_xxh64(data, size, 0)

#ifdef __cplusplus
}
#endif

#endif
