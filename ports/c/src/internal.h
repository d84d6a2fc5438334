/* What the files of the library share. Nothing here is public; names start with shardi_. */
#ifndef SHARD_INTERNAL_H
#define SHARD_INTERNAL_H

#if !defined(_WIN32)
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#if !defined(_FILE_OFFSET_BITS)
#define _FILE_OFFSET_BITS 64
#endif
#endif

#include "shard.h"

#include <string.h>

#if defined(__GNUC__)
#define SHARDI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define SHARDI_PRINTF(text, first)
#endif

/* ---- util.c ---- */

SHARDI_PRINTF(4, 5)
shard_code shardi_fail(shard_error *error, shard_code code, const char *rule, const char *format, ...);
shard_code shardi_no_memory(shard_error *error, uint64_t size);
/* Adds the file and the entry to a message; returns the code. */
shard_code shardi_locate(shard_error *error, shard_code code, const char *path, const char *entry, size_t size);

const shard_allocator *shardi_allocator(const shard_allocator *given);
/* NULL if the size does not fit or there is no memory. */
void *shardi_allocate(const shard_allocator *allocator, uint64_t size);
void *shardi_allocate_array(const shard_allocator *allocator, uint64_t count, uint64_t size);
void shardi_release(const shard_allocator *allocator, void *memory);
shard_limits shardi_limits(const shard_limits *given);

/* Bytes that grow. After a failed allocation nothing more is appended, and failed stays set. */
typedef struct shardi_buffer {
    const shard_allocator *allocator;
    uint8_t *data;
    size_t size, capacity;
    int failed;
} shardi_buffer;

void shardi_append(shardi_buffer *buffer, const void *data, size_t size);
void shardi_append_text(shardi_buffer *buffer, const char *text);

typedef int (*shardi_compare)(const void *a, const void *b, const void *context);
/* Heap sort: no memory and no bad case, whatever a file holds. size is at most 32. */
void shardi_sort(void *base, size_t count, size_t size, shardi_compare compare, const void *context);

int shardi_compare_bytes(const void *a, size_t a_size, const void *b, size_t b_size);
int shardi_is_utf8(const void *data, size_t size);
int shardi_is_digest(const shard_json *value);
/* 1 and the result, or 0 if it does not fit. */
int shardi_add(uint64_t a, uint64_t b, uint64_t *result);
int shardi_multiply(uint64_t a, uint64_t b, uint64_t *result);

/* Little-endian numbers. Inline, because compilers make one instruction of them. */
static inline uint16_t shardi_u16(const uint8_t *data) { return (uint16_t)(data[0] | data[1] << 8); }
static inline uint32_t shardi_u32(const uint8_t *data) { return (uint32_t)shardi_u16(data) | (uint32_t)shardi_u16(data + 2) << 16; }
static inline uint64_t shardi_u64(const uint8_t *data) { return (uint64_t)shardi_u32(data) | (uint64_t)shardi_u32(data + 4) << 32; }

static inline void shardi_put16(uint8_t *data, uint16_t value) {
    data[0] = (uint8_t)(value & 0xFF);
    data[1] = (uint8_t)(value >> 8);
}

static inline void shardi_put32(uint8_t *data, uint32_t value) {
    shardi_put16(data, (uint16_t)(value & 0xFFFF));
    shardi_put16(data + 2, (uint16_t)(value >> 16));
}

static inline void shardi_put64(uint8_t *data, uint64_t value) {
    shardi_put32(data, (uint32_t)(value & 0xFFFFFFFFu));
    shardi_put32(data + 4, (uint32_t)(value >> 32));
}

/* ---- sha256.c ---- */

typedef struct shardi_sha256 {
    uint32_t state[8];
    uint64_t size;
    uint8_t block[64];
} shardi_sha256;

void shardi_sha256_start(shardi_sha256 *hash);
void shardi_sha256_add(shardi_sha256 *hash, const void *data, size_t size);
void shardi_sha256_hex(shardi_sha256 *hash, char hex[65]);

/* ---- json.c, json_write.c ---- */

/* SHARD_BAD_METADATA with the rule if it is no valid JSON; SHARD_LIMIT_EXCEEDED for S-SCH-7 and S-SCH-8. */
shard_code shardi_parse_json(const void *text, size_t size, const char *rule, const shard_limits *limits,
                             const shard_allocator *allocator, shard_document **document, shard_error *error);
/* The same, of an object. */
shard_code shardi_parse_object(const void *text, size_t size, const char *what, const char *rule, const shard_limits *limits,
                               const shard_allocator *allocator, shard_document **document, shard_error *error);
const shard_json *shardi_json_get_bytes(const shard_json *value, const char *key, size_t size);
/* A member that is absent or null is NULL. */
const shard_json *shardi_json_given(const shard_json *value, const char *key);
int shardi_json_bool(const shard_json *value);
/* The nearest double of a valid JSON number; infinite if it is too large. The locale does not matter. */
double shardi_to_double(const char *text, size_t size);
void shardi_append_canonical(shardi_buffer *out, const shard_json *value);
void shardi_append_string(shardi_buffer *out, const char *text, size_t size);

/* ---- layout.c: the only file with the offsets of the container ---- */

#define SHARDI_HEADER_SIZE 64u
#define SHARDI_ENTRY_SIZE 48u
#define SHARDI_NAME_ROOM 64u
#define SHARDI_MAGIC "SHRD"
#define SHARDI_IDENTITY "meta/identity"
#define SHARDI_MANIFEST "meta/manifest"

enum {
    SHARDI_LITTLE_ENDIAN = 0x0002, SHARDI_BIG_ENDIAN = 0x0004, SHARDI_HAS_SCHEMA = 0x0010, SHARDI_HAS_CHECKSUMS = 0x0020,
    SHARDI_RESERVED_HEAD = 0x0040, SHARDI_HAS_CONTENT_TYPES = 0x0080, SHARDI_KNOWN_FLAGS = 0x00F7
};
enum {
    SHARDI_COMPRESSED = 0x0001, SHARDI_IS_ZSTD = 0x0002, SHARDI_IS_LZ4 = 0x0004, SHARDI_FILTERED = 0x0010,
    SHARDI_KNOWN_ENTRY_FLAGS = 0x0017
};

void shardi_unpack_header(const uint8_t *data, shard_head *header);
void shardi_pack_header(const shard_head *header, uint8_t *data);
int shardi_reserved_is_zero(const uint8_t *header);
void shardi_unpack_entry(const uint8_t *data, shard_entry *entry);
void shardi_pack_entry(const shard_entry *entry, uint8_t *data);
uint64_t shardi_align(uint64_t offset, uint64_t alignment);

/* ---- file.c: what depends on the operating system ---- */

#if defined(_WIN32)
typedef void *shardi_handle;
#define SHARDI_NO_FILE ((void *)(intptr_t)-1)
#else
typedef int shardi_handle;
#define SHARDI_NO_FILE (-1)
#endif

/* Where bytes come from: a file, a mapped file, memory, or the functions of the caller. */
typedef struct shardi_input {
    shardi_handle file;
    const uint8_t *memory; /* NULL if it is not in memory */
    void *mapping;
    shard_read_function read;
    void *context;
    uint64_t size;
    char *name; /* never NULL */
} shardi_input;

shard_code shardi_input_open(const char *path, int map, const shard_allocator *allocator, shardi_input *input, shard_error *error);
shard_code shardi_input_memory(const void *data, size_t size, const shard_allocator *allocator, shardi_input *input, shard_error *error);
shard_code shardi_input_source(const shard_source *source, const shard_allocator *allocator, shardi_input *input, shard_error *error);
void shardi_input_close(shardi_input *input, const shard_allocator *allocator);
shard_code shardi_input_read(const shardi_input *input, uint64_t offset, void *into, uint64_t size, shard_error *error);
/* Bytes in place if the input is in memory, otherwise read into memory; release with shardi_input_release. */
shard_code shardi_input_borrow(const shardi_input *input, const shard_allocator *allocator, uint64_t offset, uint64_t size,
                               const uint8_t **data, shard_error *error);
void shardi_input_release(const shardi_input *input, const shard_allocator *allocator, const uint8_t *data);

/* Files that are written. All return 1 on success. */
int shardi_create_beside(const char *path, const shard_allocator *allocator, shardi_handle *file, char **name);
int shardi_write_at(shardi_handle file, uint64_t offset, const void *data, size_t size);
int shardi_read_at(shardi_handle file, uint64_t offset, void *data, size_t size);
int shardi_set_size(shardi_handle file, uint64_t size);
int shardi_keep_permissions(shardi_handle file, const char *path);
int shardi_sync(shardi_handle file);
int shardi_close(shardi_handle file);
int shardi_rename(const char *from, const char *to);
int shardi_sync_folder(const char *path);
void shardi_remove(const char *path);
/* What the operating system says about the last failure. */
const char *shardi_system_error(char text[160]);

/* ---- codecs.c ---- */

typedef struct shardi_frame {
    size_t end;
    uint64_t content_size;
    int has_size, has_checksum;
} shardi_frame;

#define SHARDI_FRAME_MAGIC 0xFD2FB528u

/* Reads the data frame that the bytes start with; decodes nothing. */
shard_code shardi_walk_frame(const uint8_t *data, size_t size, uint64_t max_window, shardi_frame *frame, shard_error *error);
/* The state of zstd, made with the first frame. Start with zero, and end it. */
typedef struct shardi_decoder {
    void *zstd;
} shardi_decoder;

void shardi_decoder_end(shardi_decoder *decoder);
/* Decodes a frame that was walked; *count is how many bytes came out. */
shard_code shardi_decode_frame(shardi_decoder *decoder, const uint8_t *data, const shardi_frame *frame, uint8_t *out, size_t room, size_t *count, shard_error *error);
/* All of these fill memory of exactly the size of the content. */
shard_code shardi_decode_zstd(const uint8_t *data, size_t size, uint64_t max_window, uint8_t *out, size_t room, shard_error *error);
shard_code shardi_decode_lz4(const uint8_t *data, size_t size, uint8_t *out, size_t room, shard_error *error);
shard_code shardi_decode_gzip(const uint8_t *data, size_t size, uint8_t *out, size_t room, shard_error *error);
/* Whether so many stored bytes can become so large (S-CMP-8, P-ENC-4). */
int shardi_is_reachable(uint64_t content, uint64_t stored, uint64_t expansion, uint64_t slack);
/* Appends the compressed form. */
shard_code shardi_compress(shardi_buffer *out, const void *data, size_t size, shard_codec codec, int level, shard_error *error);

/* ---- seekable.c ---- */

typedef struct shardi_table {
    shard_frame *frames;
    size_t count;
    uint64_t *stored, *content; /* where each frame starts; one element more than frames */
} shardi_table;

/* The size of the seek table, from the last bytes of an entry; 0 if there is none. */
uint64_t shardi_table_size(const uint8_t *tail, size_t size, uint64_t disk_size);
/* table->frames is NULL if the bytes are something else. */
shard_code shardi_parse_table(const uint8_t *tail, size_t size, uint64_t disk_size, uint64_t orig_size, uint64_t leading,
                              const shard_allocator *allocator, shardi_table *table, shard_error *error);
void shardi_table_free(shardi_table *table, const shard_allocator *allocator);
shard_code shardi_decode_part(shardi_decoder *decoder, const shard_frame *frame, const uint8_t *stored, uint64_t max_window, uint8_t *out, shard_error *error);

/* ---- filters.c ---- */

#define SHARDI_MAX_DESCRIPTION 4096u

/* The size of the skippable frame that describes filters (S-FLT-1). */
shard_code shardi_leading_size(const uint8_t *head, size_t size, uint64_t disk_size, uint64_t *leading, shard_error *error);
shard_code shardi_parse_filters(const uint8_t *text, size_t size, const shard_allocator *allocator, shard_filters *filters, shard_error *error);
shard_code shardi_check_filtered(const shard_filters *filters, uint64_t size, shard_error *error);
/* Restores one frame; scratch has its size. */
void shardi_undo_filters(const shard_filters *filters, uint8_t *data, size_t size, uint8_t *scratch);

/* ---- index.c ---- */

typedef struct shardi_slot {
    uint64_t hash;
    uint32_t row;
} shardi_slot;

struct shard_reader {
    const shard_allocator *allocator;
    shard_limits limits;
    int checks;
    shardi_input input;
    shard_head header;
    const uint8_t *head;   /* up to the data section */
    shardi_slot *slots;    /* rows by the hash of their names; NULL if the names ascend */
    uint64_t name_bytes;   /* of all names together */
};

shard_code shardi_parse_header(const uint8_t *head, size_t size, uint64_t file_size, const shard_limits *limits,
                               shard_head *header, shard_error *error);
/* Checks the rows and prepares finding names; fills slots and name_bytes. */
shard_code shardi_parse_index(shard_reader *reader, shard_error *error);

/* ---- reader.c, content.c, metadata.c ---- */

/* All checks of an entry that need no data. */
shard_code shardi_check_sizes(const shard_reader *reader, const shard_entry *entry, shard_codec *codec, shard_error *error);
shard_code shardi_decode_entry(const shard_reader *reader, const shard_entry *entry, shard_codec codec, uint8_t *out, shard_error *error);
shard_code shardi_read_range(const shard_reader *reader, const shard_entry *entry, uint64_t start, uint64_t length, uint8_t *out, shard_error *error);
shard_code shardi_read_filters(const shard_reader *reader, const shard_entry *entry, shard_filters *filters, uint64_t *leading, shard_error *error);
shard_code shardi_read_table(const shard_reader *reader, const shard_entry *entry, shard_codec codec, uint64_t leading, shardi_table *table, shard_error *error);
int shardi_has_checksum(const shard_reader *reader, const shard_entry *entry);
shard_code shardi_in_entry(const shard_reader *reader, uint32_t row, shard_error *error, shard_code code);
/* Reads and checks an entry, and hashes it if hash is not NULL. */
shard_code shardi_scan(const shard_reader *reader, uint32_t row, shardi_sha256 *hash, shard_error *error);
shard_code shardi_read_json(const shard_reader *reader, uint32_t row, const char *rule, const shard_limits *limits, shard_document **document, shard_error *error);
shard_code shardi_check_schema(const shard_json *schema, shard_error *error);
shard_code shardi_find_manifest(const shard_reader *reader, shard_document **document, const shard_json **rows, shard_error *error);

/* ---- identity.c ---- */

typedef struct shardi_digest {
    const char *name;
    size_t size;
    char hex[65];
} shardi_digest;

/* Appends the canonical text of an identity; sorts the digests by name. schema may be NULL. */
shard_code shardi_identity_text(shardi_buffer *out, shardi_digest *digests, size_t count, int version, unsigned role, const char *schema_hex);
void shardi_schema_digest(const shard_json *schema, shardi_buffer *scratch, char hex[65]);
/* Checks S-MAN-7 of a file that stores an identity. */
shard_code shardi_check_stored_identity(const shard_reader *reader, shard_error *error);

/* ---- pack_layout.c: the only file with the offsets of ShardPack ---- */

enum { SHARDI_BLOCK_START = 12, SHARDI_FIXED_HEAD = 32, SHARDI_ROW = 24, SHARDI_INDEX_HEAD = 32, SHARDI_FOOTER = 64, SHARDI_SMALLEST_PACK = 104 };

typedef struct shardi_record_head {
    uint64_t record_size;
    uint8_t marker[4];
    uint8_t version, metadata_encoding, alignment, flags;
    uint32_t entry_count, kinds_size, key_size, metadata_size;
} shardi_record_head;

typedef struct shardi_footer {
    uint64_t index_offset, record_count, metadata_size, total_size;
    uint32_t offsets_crc, lookup_crc, metadata_crc;
} shardi_footer;

enum { SHARDI_NO_BLOCK, SHARDI_RECORD_BLOCK, SHARDI_INDEX_BLOCK };

/* How a block starts: its size and which it is. */
int shardi_block_start(const uint8_t *data, uint64_t *size);
void shardi_unpack_record_head(const uint8_t *data, shardi_record_head *head);
uint64_t shardi_kinds_at(const shardi_record_head *head);
uint64_t shardi_key_at(const shardi_record_head *head);
uint64_t shardi_metadata_at(const shardi_record_head *head);
uint64_t shardi_head_size(const shardi_record_head *head);
void shardi_unpack_row(const uint8_t *data, shard_record_entry *entry);
/* tail ends with the footer; start is how the file starts, or NULL (P-FTR). */
shard_code shardi_parse_footer(const uint8_t *tail, size_t size, uint64_t file_size, const uint8_t *start, shardi_footer *footer, shard_error *error);
/* The index from its head on: P-IDX-1 and P-IDX-2. */
shard_code shardi_check_index_size(const shardi_footer *footer, uint64_t most, shard_error *error);
shard_code shardi_check_index_head(const uint8_t *index, const shardi_footer *footer, shard_error *error);
uint64_t shardi_hashes_at(const shardi_footer *footer);
uint64_t shardi_numbers_at(const shardi_footer *footer);
uint64_t shardi_index_metadata_at(const shardi_footer *footer);

/* ---- record.c ---- */

/* Opens the record that takes size bytes from an offset on. block has its first bytes and is taken over; the rest is read
 * from the input, which is NULL if the block is the whole record. */
shard_code shardi_open_record(const shardi_input *input, const shard_allocator *allocator, const shard_limits *limits, uint64_t offset, uint64_t size,
                              uint8_t *block, size_t block_size, shard_record **record, shard_error *error);
shard_code shardi_parse_packed(const uint8_t *data, size_t size, uint64_t most, const shard_allocator *allocator, shard_bytes *values, shard_error *error);

/* ---- episode_facts.c, episode_rows.c, episode.c, episode_read.c ---- */

#define SHARDI_UNBACKED (INT64_C(1) << 20) /* steps that a file may claim without an entry of as many bytes */

/* A checked row of meta/channels. */
typedef struct shardi_row {
    const char *id, *block;
    size_t id_size, block_size;
    shard_dtype dtype;
    shard_layout layout;
    const uint64_t *shape;
    uint32_t dimensions;
    const shard_json *fields;
} shardi_row;

/* Rows by one of their names, sorted. */
typedef struct shardi_rows {
    shardi_row *rows;
    size_t count;
} shardi_rows;

struct shard_episode {
    const shard_reader *reader;
    shard_reader *own; /* closed with the episode; NULL if the caller's */
    const shard_allocator *allocator;
    shard_document *episode, *wshard, *channels;
    shard_facts facts;
    shardi_rows placed, unplaced, hints; /* by block, by id, by block */
    uint64_t *shapes;
    size_t shape_count;
    shard_channel *list;
    size_t count;
    uint64_t *own_shapes; /* of inferred channels, one for each row of the file */
};

shard_code shardi_parse_facts(shard_episode *episode, shard_error *error);
/* Reads meta/channels, omen_channels and action_spaces. */
shard_code shardi_parse_rows(shard_episode *episode, shard_error *error);
const shardi_row *shardi_find_row(const shardi_rows *rows, const char *name, size_t size, int by_id);
/* 1 and the bytes of a step; 0 if they do not fit into 63 bits. */
int shardi_step_bytes(shard_dtype dtype, const uint64_t *shape, uint32_t dimensions, uint64_t *size);
/* Finds the length of a channel that has a row or is one of steps, and checks its sizes. */
shard_code shardi_measure(const shard_episode *episode, shard_channel *channel, shard_error *error);
shard_code shardi_bad_field(shard_error *error, const char *rule, const char *field, const char *expected);
/* The row of the block that a field of a description names; SHARD_NOT_FOUND if there is none. */
uint32_t shardi_named_block(const shard_episode *episode, const shard_channel *channel, const char *field);

#endif
