/*
 * Shard, WShard and ShardPack files in C.
 *
 * A function that can fail returns a shard_code, SHARD_OK (0) on success, and explains a failure in the shard_error of
 * its caller, which may be NULL. The library has no global state. Any number of threads may use one reader at once;
 * a writer belongs to one thread. Text of files (names, keys) has a length and no NUL at its end.
 */
#ifndef SHARD_H
#define SHARD_H

#include <stddef.h>
#include <stdint.h>

#include "shard_registry.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHARD_VERSION "0.1.0"

#if defined(_WIN32) && defined(SHARD_SHARED)
#define SHARD_API __declspec(dllexport)
#elif defined(__GNUC__)
#define SHARD_API __attribute__((visibility("default")))
#else
#define SHARD_API
#endif

/* ---- errors ---- */

#define SHARD_NO_OFFSET UINT64_MAX

typedef struct shard_error {
    shard_code code;
    char rule[12];    /* of the specification, such as "S-HDR-7"; empty if it is about no rule */
    uint64_t offset;  /* byte of the file, or of the text that was parsed; SHARD_NO_OFFSET if it has no place */
    char entry[128];  /* the entry or record that it is about, cut to fit; empty if none */
    char message[512]; /* one sentence: file, entry, what is wrong, what was expected and found */
} shard_error;

/* The name of a code in the specification, such as "bad_magic"; "ok" for SHARD_OK. */
SHARD_API const char *shard_code_name(shard_code code);

/* ---- memory and limits ---- */

/* Where memory comes from. allocate returns NULL if there is none; release accepts NULL. Both are called by several
 * threads at once if the reader is used so. */
typedef struct shard_allocator {
    void *(*allocate)(void *context, size_t size);
    void (*release)(void *context, void *memory);
    void *context;
} shard_allocator;

/* What a file may ask for. 0 is the default of spec/shard.md, section 14. */
typedef struct shard_limits {
    uint64_t max_entries;
    uint64_t max_index_bytes;
    uint64_t max_string_table_bytes;
    uint64_t max_decompressed_bytes;
    uint64_t max_window_bytes;
    uint64_t max_json_bytes;
    uint64_t max_json_nodes;
} shard_limits;

/* How to read; NULL or all zero is right for most. */
typedef struct shard_options {
    const shard_allocator *allocator; /* NULL: malloc and free. Must live as long as what was made with it */
    shard_limits limits;
    int map;         /* map files into memory, so that raw entries can be used in place */
    int skip_checks; /* leave out the checksums of entries; structure is always checked */
} shard_options;

/* Bytes that a function made. Give them back with shard_bytes_free. */
typedef struct shard_bytes {
    uint8_t *data;
    size_t size;
    const shard_allocator *allocator;
} shard_bytes;

SHARD_API void shard_bytes_free(shard_bytes *bytes);

/* ---- where a file is ---- */

/* Reads length bytes at an offset; returns 0, or anything else if it cannot. Called by several threads at once. */
typedef int (*shard_read_function)(void *context, uint64_t offset, void *into, size_t length);

typedef struct shard_source {
    shard_read_function read;
    void *context;
    uint64_t size;
    const char *name; /* for messages; may be NULL */
} shard_source;

/* ---- JSON: the strict subset of spec/registry.md ---- */

typedef enum shard_json_kind {
    SHARD_JSON_NULL,
    SHARD_JSON_FALSE,
    SHARD_JSON_TRUE,
    SHARD_JSON_INTEGER, /* text has the digits; exact at any length */
    SHARD_JSON_FLOAT,   /* text as it stands in the file */
    SHARD_JSON_STRING,  /* text is unescaped UTF-8; may contain NUL */
    SHARD_JSON_LIST,
    SHARD_JSON_OBJECT   /* members in ascending order of the bytes of their keys */
} shard_json_kind;

/* A value. A document owns all its values. */
typedef struct shard_json {
    shard_json_kind kind;
    uint32_t key_size;
    const char *key; /* of a member of an object */
    size_t size;     /* bytes of text, or number of items */
    union {
        const char *text;
        const struct shard_json *items;
    } is;
} shard_json;

typedef struct shard_document shard_document;

SHARD_API shard_code shard_json_parse(const void *text, size_t size, const shard_options *options,
                                      shard_document **document, shard_error *error);
SHARD_API const shard_json *shard_document_root(const shard_document *document);
SHARD_API void shard_document_free(shard_document *document);

/* The member of an object; NULL if value is NULL, is not an object or has no such member. */
SHARD_API const shard_json *shard_json_get(const shard_json *value, const char *key);
/* 1 and the integer if the value is one that fits; otherwise 0. */
SHARD_API int shard_json_int64(const shard_json *value, int64_t *integer);
/* 1 and the nearest double if the value is a number in range; otherwise 0. */
SHARD_API int shard_json_double(const shard_json *value, double *number);
/* 1 if the value is a string with exactly this text. */
SHARD_API int shard_json_is(const shard_json *value, const char *text);
/* The canonical form of a value. */
SHARD_API shard_code shard_json_canonical(const shard_json *value, const shard_allocator *allocator, shard_bytes *text,
                                          shard_error *error);
/* A double as canonical JSON has it: at most 25 characters and NUL. Returns the length; 0 for NaN and infinities. */
SHARD_API size_t shard_json_number(double number, char text[32]);

/* ---- hashes ---- */

/* CRC-32C of some bytes and those before them, whose checksum is crc; 0 to start. */
SHARD_API uint32_t shard_crc32c(uint32_t crc, const void *data, size_t size);
SHARD_API uint64_t shard_xxh64(const void *data, size_t size, uint64_t seed);
/* SHA-256 as 64 hex digits and NUL. */
SHARD_API void shard_sha256_hex(const void *data, size_t size, char hex[65]);

/* ---- reading a container ---- */

typedef struct shard_head {
    uint8_t version, role;
    uint16_t flags;
    uint8_t alignment, compression_default;
    uint16_t index_entry_size;
    uint32_t entry_count;
    uint64_t string_table_offset, data_section_offset, schema_offset, total_file_size;
} shard_head;

typedef enum shard_codec { SHARD_NONE = 0, SHARD_ZSTD = 1, SHARD_LZ4 = 2 } shard_codec;

/* What the index says about an entry. name points into the reader. */
typedef struct shard_entry {
    const char *name;
    uint64_t name_hash;
    uint32_t name_offset;
    uint16_t name_size, flags;
    uint64_t data_offset, disk_size, orig_size;
    uint32_t crc32c;
    uint16_t content_type, tag_bits;
} shard_entry;

typedef struct shard_frame {
    uint32_t compressed_size, decompressed_size, checksum;
    int has_checksum;
} shard_frame;

/* What was done to each frame of an entry before it was compressed: delta, then planes. A width of 0: not applied. */
typedef struct shard_filters {
    uint32_t delta_order, delta_width;
    uint64_t delta_row;
    uint32_t planes_width;
} shard_filters;

typedef struct shard_reader shard_reader;

#define SHARD_NOT_FOUND UINT32_MAX

SHARD_API shard_code shard_reader_open(const char *path, const shard_options *options, shard_reader **reader, shard_error *error);
/* The memory must live as long as the reader. */
SHARD_API shard_code shard_reader_open_memory(const void *data, size_t size, const shard_options *options,
                                              shard_reader **reader, shard_error *error);
SHARD_API shard_code shard_reader_open_source(const shard_source *source, const shard_options *options,
                                              shard_reader **reader, shard_error *error);
SHARD_API void shard_reader_close(shard_reader *reader);

SHARD_API const shard_head *shard_reader_header(const shard_reader *reader);
SHARD_API uint32_t shard_reader_count(const shard_reader *reader);
/* The row of a name; SHARD_NOT_FOUND if there is none. */
SHARD_API uint32_t shard_reader_find(const shard_reader *reader, const char *name);
SHARD_API uint32_t shard_reader_find_bytes(const shard_reader *reader, const void *name, size_t size);
/* A row of the index. row must be below the count. */
SHARD_API shard_entry shard_reader_entry(const shard_reader *reader, uint32_t row);
/* How an entry is stored; fails with unknown_codec. */
SHARD_API shard_code shard_reader_codec(const shard_reader *reader, uint32_t row, shard_codec *codec, shard_error *error);

/* All bytes of an entry, decompressed and checked. */
SHARD_API shard_code shard_reader_read(const shard_reader *reader, uint32_t row, shard_bytes *content, shard_error *error);
/* The same into memory of exactly the size of the entry. After an error it may hold anything. */
SHARD_API shard_code shard_reader_read_into(const shard_reader *reader, uint32_t row, void *into, size_t size, shard_error *error);
/* length bytes of an entry from start. Of a seekable entry only the frames that hold them are read and checked; of a raw
 * entry only the bytes themselves, unchecked. */
SHARD_API shard_code shard_reader_range(const shard_reader *reader, uint32_t row, uint64_t start, uint64_t length,
                                        shard_bytes *content, shard_error *error);
/* A raw entry in place, valid until the reader is closed. Compares its checksum each time: keep the pointer.
 * not_viewable if the entry is compressed or the source is not memory. */
SHARD_API shard_code shard_reader_view(const shard_reader *reader, uint32_t row, const uint8_t **data, size_t *size, shard_error *error);
/* The frames of a seekable entry as an array in frames->data; size 0 and data NULL for any other. */
SHARD_API shard_code shard_reader_frames(const shard_reader *reader, uint32_t row, shard_bytes *frames, size_t *count, shard_error *error);
/* 1 in is_filtered and the filters of a filtered entry; 0 for any other. */
SHARD_API shard_code shard_reader_filters(const shard_reader *reader, uint32_t row, shard_filters *filters, int *is_filtered, shard_error *error);

/* The schema section; *schema is NULL if the file has none. */
SHARD_API shard_code shard_reader_schema(const shard_reader *reader, shard_document **schema, shard_error *error);
/* An entry that must be a JSON object. */
SHARD_API shard_code shard_reader_json(const shard_reader *reader, uint32_t row, shard_document **document, shard_error *error);
/* The manifest of a file of role 4. rows is its list of files, checked; it lives in the document. */
SHARD_API shard_code shard_reader_manifest(const shard_reader *reader, shard_document **document, const shard_json **rows, shard_error *error);
/* The identity of version 1 or 2: 64 hex digits and NUL. Reads every entry. */
SHARD_API shard_code shard_reader_identity(const shard_reader *reader, int version, char hex[65], shard_error *error);
/* Compares the stored meta/identity with the file, and tells its version. Finds damage, not forgery. */
SHARD_API shard_code shard_reader_verify_identity(const shard_reader *reader, int *version, shard_error *error);
/* Reads and checks every entry, the schema section and what the role promises. */
SHARD_API shard_code shard_reader_verify(const shard_reader *reader, shard_error *error);
/* Bits SHARD_WARN_… about a file that can be read. */
SHARD_API shard_code shard_reader_warnings(const shard_reader *reader, unsigned *warnings, shard_error *error);

/* ---- writing a container ---- */

typedef struct shard_writer shard_writer;

/* How to write; all zero writes role 0, unaligned, uncompressed, in the canonical layout. */
typedef struct shard_writer_options {
    const shard_allocator *allocator;
    uint8_t role, alignment;       /* alignment: 0, 16, 32 or 64 */
    shard_codec compression;
    int level;                     /* of zstd; 0 for 3 */
    uint32_t max_entries;          /* not 0: the reserved layout, for at most so many entries */
    const char *const *names;      /* not NULL: the declared layout, with all names in order */
    size_t name_count;
    int identity;                  /* add the entry meta/identity at the end */
    const char *schema;            /* JSON text of the schema section; NULL for none */
    size_t schema_size;
    int no_sync;                   /* do not sync to disk: faster, but a power failure can lose the file */
} shard_writer_options;

typedef struct shard_entry_options {
    uint16_t content_type, tag_bits;
    int has_codec; /* codec replaces the one of the file */
    shard_codec codec;
} shard_entry_options;

/* Starts a file. It appears under its name when shard_writer_finish returns; until then, and after an error, what was
 * there before stays. Always call shard_writer_close. */
SHARD_API shard_code shard_writer_create(const char *path, const shard_writer_options *options, shard_writer **writer, shard_error *error);
/* options may be NULL. */
SHARD_API shard_code shard_writer_add(shard_writer *writer, const char *name, const void *data, size_t size,
                                      const shard_entry_options *options, shard_error *error);
SHARD_API shard_code shard_writer_finish(shard_writer *writer, shard_error *error);
/* Frees the writer, and removes what it wrote unless it is finished. */
SHARD_API void shard_writer_close(shard_writer *writer);

/* ---- WShard: reading an episode ---- */

typedef struct shard_episode shard_episode;

/* What meta/episode and meta/wshard say. Texts and values live in the episode. */
typedef struct shard_facts {
    const char *id, *env_id;
    size_t id_size, env_id_size;
    int64_t length;             /* T, the number of steps */
    int has_timestamps;         /* the type of the timebase: timestamps_ns instead of ticks */
    double tick_hz;             /* steps per second; 0 if it is not known */
    int64_t epoch_ns;
    const shard_json *metadata; /* an object, or NULL */
    int64_t chunk_index, total_chunks; /* -1 if they are not stated */
    int has_range;
    int64_t first_step, last_step;
} shard_facts;

typedef enum shard_lane {
    SHARD_LANE_SIGNAL, SHARD_LANE_ACTION,
    SHARD_LANE_OMEN,     /* predictions: id and model */
    SHARD_LANE_UNCERT,   /* uncertainties: id, model and type */
    SHARD_LANE_RESIDUAL, /* their bytes only */
    SHARD_LANE_REWARD, SHARD_LANE_TERMINATIONS, SHARD_LANE_TRUNCATIONS, SHARD_LANE_TICKS, SHARD_LANE_TIMESTAMPS,
    SHARD_LANE_LABEL,    /* shard_episode_label reads it */
    SHARD_LANE_EXTRA     /* an entry that the format does not define */
} shard_lane;

typedef enum shard_layout { SHARD_DENSE, SHARD_RAGGED, SHARD_TEXT, SHARD_VIDEO, SHARD_OTHER_LAYOUT } shard_layout;

/* One block of an episode and what describes it. Texts live in the episode. */
typedef struct shard_channel {
    shard_lane lane;
    shard_layout layout;
    shard_dtype dtype;
    uint32_t row;                 /* of the block in the reader */
    const char *id, *model, *type; /* of the lane; model and type may be empty */
    size_t id_size, model_size, type_size;
    const uint64_t *shape;        /* of one step, without the time axis */
    uint32_t dimensions;
    int is_inferred;              /* nothing describes it: dtype and shape are a guess */
    int has_time_axis;            /* 0: bytes of which nothing is known */
    int64_t length;               /* entries along the first axis */
    int64_t horizon;              /* 0 if it has none */
    int64_t start_ns;
    int has_start;
    double sampling_rate_hz;      /* 0 if it is not stated */
    const shard_json *description; /* its row of meta/channels, or NULL */
} shard_channel;

SHARD_API shard_code shard_episode_open(const char *path, const shard_options *options, shard_episode **episode, shard_error *error);
/* The episode in an open file, which must stay open. Chunks and sidecars are not read. */
SHARD_API shard_code shard_episode_from_reader(const shard_reader *reader, shard_episode **episode, shard_error *error);
SHARD_API void shard_episode_close(shard_episode *episode);
SHARD_API const shard_reader *shard_episode_reader(const shard_episode *episode);
SHARD_API const shard_facts *shard_episode_facts(const shard_episode *episode);
/* All channels, by lane and name. */
SHARD_API size_t shard_episode_count(const shard_episode *episode);
SHARD_API const shard_channel *shard_episode_channel(const shard_episode *episode, size_t number);
/* A channel by its names; NULL if there is none. model and type may be NULL. */
SHARD_API const shard_channel *shard_episode_find(const shard_episode *episode, shard_lane lane, const char *id, const char *model, const char *type);

SHARD_API const char *shard_dtype_name(shard_dtype dtype);
SHARD_API size_t shard_dtype_size(shard_dtype dtype);

/* The stored values of a channel: little-endian, C order, time first. */
SHARD_API shard_code shard_channel_read(const shard_episode *episode, const shard_channel *channel, shard_bytes *values, shard_error *error);
/* The same in place, if the block is raw and the file in memory. Look at the alignment before you cast. */
SHARD_API shard_code shard_channel_view(const shard_episode *episode, const shard_channel *channel, const uint8_t **values, size_t *size, shard_error *error);
/* The steps from start on: a part of a dense channel. */
SHARD_API shard_code shard_channel_steps(const shard_episode *episode, const shard_channel *channel, int64_t start, int64_t count, shard_bytes *values, shard_error *error);
/* Where the items of each step of a ragged or text channel start, in bytes: length + 1 of uint64_t in offsets->data. */
SHARD_API shard_code shard_channel_offsets(const shard_episode *episode, const shard_channel *channel, shard_bytes *offsets, shard_error *error);
/* The channel's own clock, int64_t nanoseconds; data NULL if it follows the steps. */
SHARD_API shard_code shard_channel_times(const shard_episode *episode, const shard_channel *channel, shard_bytes *times, shard_error *error);
/* The time of a step from the rate of the episode; bad_value if it does not fit. */
SHARD_API shard_code shard_step_time(int64_t start_ns, int64_t step, double rate_hz, int64_t *time_ns, shard_error *error);
/* A label: an object with intervals and perhaps unit, checked. */
SHARD_API shard_code shard_episode_label(const shard_episode *episode, const shard_channel *channel, shard_document **label, shard_error *error);
/* Reads and checks every channel that this library reads, the ends and the provenance. */
SHARD_API shard_code shard_episode_check(const shard_episode *episode, shard_error *error);

/* ---- ShardPack: reading shards of samples ---- */

typedef struct shard_pack shard_pack;
typedef struct shard_record shard_record;
typedef struct shard_stream shard_stream;

typedef enum shard_encoding { SHARD_ENCODING_NONE = 0, SHARD_ENCODING_GZIP = 1, SHARD_ENCODING_LZ4 = 2, SHARD_ENCODING_ZSTD = 3 } shard_encoding;
typedef enum shard_metadata_encoding { SHARD_METADATA_NONE = 0, SHARD_METADATA_JSON = 1, SHARD_METADATA_MESSAGEPACK = 2 } shard_metadata_encoding;

/* What a record says about one of its entries. The texts point into the record. */
typedef struct shard_record_entry {
    const char *name, *content_type;
    uint16_t name_size, content_type_size;
    uint64_t offset; /* of the stored bytes in the shard; SHARD_NO_OFFSET if the entry leaves its record */
    uint64_t stored_size, original_size;
    uint32_t crc32c; /* of the stored bytes */
    uint8_t encoding; /* as stored: it may be unknown */
} shard_record_entry;

SHARD_API shard_code shard_pack_open(const char *path, const shard_options *options, shard_pack **pack, shard_error *error);
SHARD_API shard_code shard_pack_open_memory(const void *data, size_t size, const shard_options *options, shard_pack **pack, shard_error *error);
SHARD_API shard_code shard_pack_open_source(const shard_source *source, const shard_options *options, shard_pack **pack, shard_error *error);
/* Close its records first. */
SHARD_API void shard_pack_close(shard_pack *pack);
SHARD_API uint64_t shard_pack_count(const shard_pack *pack);
SHARD_API uint64_t shard_pack_index_offset(const shard_pack *pack);
/* The metadata of the shard: created, schema, user, version and others. */
SHARD_API shard_code shard_pack_metadata(const shard_pack *pack, shard_document **document, shard_error *error);
/* Whether the offsets, and the hashes of keys, can be used. Functions that need them check this themselves. */
SHARD_API shard_code shard_pack_check_offsets(const shard_pack *pack, shard_error *error);
SHARD_API shard_code shard_pack_check_lookup(const shard_pack *pack, shard_error *error);
/* Opens the record of a number, from 0 on. */
SHARD_API shard_code shard_pack_record(const shard_pack *pack, uint64_t number, shard_record **record, shard_error *error);
/* Opens the record of a key; entry_not_found if there is none. */
SHARD_API shard_code shard_pack_record_by_key(const shard_pack *pack, const void *key, size_t size, shard_record **record, shard_error *error);

/* Gives up to size bytes, fewer only at the end; (size_t)-1 if it cannot read. */
typedef size_t (*shard_stream_function)(void *context, void *into, size_t size);
/* Reads a shard from start to end, from anything that can only be read forwards. */
SHARD_API shard_code shard_stream_open(shard_stream_function read, void *context, const shard_options *options, shard_stream **stream, shard_error *error);
/* The next record; *record is NULL after a complete index. A record stays valid after the stream is closed. */
SHARD_API shard_code shard_stream_next(shard_stream *stream, shard_record **record, shard_error *error);
SHARD_API void shard_stream_close(shard_stream *stream);

SHARD_API void shard_record_free(shard_record *record);
SHARD_API const char *shard_record_key(const shard_record *record, size_t *size);
SHARD_API uint64_t shard_record_offset(const shard_record *record);
SHARD_API uint64_t shard_record_size(const shard_record *record);
SHARD_API unsigned shard_record_alignment(const shard_record *record);
SHARD_API uint32_t shard_record_count(const shard_record *record);
SHARD_API shard_record_entry shard_record_entry_at(const shard_record *record, uint32_t number);
/* The number of an entry; SHARD_NOT_FOUND if there is none of that name. */
SHARD_API uint32_t shard_record_find(const shard_record *record, const void *name, size_t size);
/* The content of an entry, decompressed and checked. */
SHARD_API shard_code shard_record_read(const shard_record *record, uint32_t number, shard_bytes *content, shard_error *error);
/* The metadata as it is stored, unchecked. */
SHARD_API shard_metadata_encoding shard_record_stored_metadata(const shard_record *record, const uint8_t **data, size_t *size);
/* JSON metadata; *document is NULL if the record has none. invalid_argument for MessagePack. */
SHARD_API shard_code shard_record_metadata(const shard_record *record, shard_document **document, shard_error *error);

/* ---- MessagePack of records ---- */

typedef enum shard_packed_kind {
    SHARD_PACKED_NIL, SHARD_PACKED_FALSE, SHARD_PACKED_TRUE,
    SHARD_PACKED_INT,  /* signed */
    SHARD_PACKED_UINT, /* only above the range of signed ones */
    SHARD_PACKED_FLOAT, SHARD_PACKED_TEXT, SHARD_PACKED_BIN,
    SHARD_PACKED_EXT,  /* code has its type */
    SHARD_PACKED_LIST,
    SHARD_PACKED_MAP   /* size pairs: a key and a value each */
} shard_packed_kind;

typedef struct shard_packed {
    shard_packed_kind kind;
    int8_t code;
    size_t size;
    union {
        int64_t integer;
        uint64_t natural;
        double number;
        const uint8_t *data; /* points into the bytes that were parsed */
        const struct shard_packed *items;
    } is;
} shard_packed;

/* The metadata of a record, which must be a map. values->data holds shard_packed, of which the first is the map. */
SHARD_API shard_code shard_record_messagepack(const shard_record *record, shard_bytes *values, shard_error *error);

#ifdef __cplusplus
}
#endif

#ifdef SHARD_COMPAT
#include "shard_compat.h"
#endif

#endif
