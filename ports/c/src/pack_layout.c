/* Records, index and footer of ShardPack: the only file with their offsets (spec/shardpack.md, sections 2, 4, 7 and 8). */
#include "internal.h"

#define RECORD_MARKER "SPR1"
#define INDEX_MARKER "SPI1"
#define FOOTER_MAGIC "SHRDPACK"
#define MOST_RECORDS UINT64_C(0xFFFFFFFF)
#define PER_RECORD 20u

int shardi_block_start(const uint8_t *data, uint64_t *size) {
    *size = shardi_u64(data);
    if (memcmp(data + 8, RECORD_MARKER, 4) == 0) return SHARDI_RECORD_BLOCK;
    return memcmp(data + 8, INDEX_MARKER, 4) == 0 ? SHARDI_INDEX_BLOCK : SHARDI_NO_BLOCK;
}

void shardi_unpack_record_head(const uint8_t *data, shardi_record_head *head) {
    head->record_size = shardi_u64(data);
    memcpy(head->marker, data + 0x08, 4);
    head->version = data[0x0C];
    head->metadata_encoding = data[0x0D];
    head->alignment = data[0x0E];
    head->flags = data[0x0F];
    head->entry_count = shardi_u32(data + 0x10);
    head->kinds_size = shardi_u32(data + 0x14);
    head->key_size = shardi_u32(data + 0x18);
    head->metadata_size = shardi_u32(data + 0x1C);
}

uint64_t shardi_kinds_at(const shardi_record_head *head) { return SHARDI_FIXED_HEAD + (uint64_t)SHARDI_ROW * head->entry_count; }
uint64_t shardi_key_at(const shardi_record_head *head) { return shardi_kinds_at(head) + head->kinds_size; }
uint64_t shardi_metadata_at(const shardi_record_head *head) { return shardi_key_at(head) + head->key_size; }
uint64_t shardi_head_size(const shardi_record_head *head) { return shardi_metadata_at(head) + head->metadata_size + 4; }

void shardi_unpack_row(const uint8_t *data, shard_record_entry *entry) {
    entry->stored_size = shardi_u64(data);
    entry->original_size = shardi_u64(data + 0x08);
    entry->crc32c = shardi_u32(data + 0x10);
    entry->encoding = data[0x14];
}

static int adds_up(const shardi_footer *f) {
    uint64_t sum;
    return shardi_multiply(f->record_count, PER_RECORD, &sum) && shardi_add(sum, f->index_offset, &sum) && shardi_add(sum, SHARDI_SMALLEST_PACK, &sum) &&
           shardi_add(sum, f->metadata_size, &sum) && sum == f->total_size;
}

shard_code shardi_parse_footer(const uint8_t *tail, size_t size, uint64_t file_size, const uint8_t *start, shardi_footer *f, shard_error *error) {
    const uint8_t *b;
    uint64_t ignored;
    uint32_t crc;
    if (file_size < SHARDI_SMALLEST_PACK || size < SHARDI_FOOTER) {
        return shardi_fail(error, SHARD_TRUNCATED, "P-FTR-1", "too short for a shard: expected at least %d bytes, found %llu", SHARDI_SMALLEST_PACK, (unsigned long long)file_size);
    }
    b = tail + size - SHARDI_FOOTER;
    if (memcmp(b + 0x38, FOOTER_MAGIC, 8) != 0) {
        if (start && shardi_block_start(start, &ignored) != SHARDI_NO_BLOCK) return shardi_fail(error, SHARD_TRUNCATED, "P-FTR-2", "the shard has lost its end");
        return shardi_fail(error, SHARD_BAD_MAGIC, "P-FTR-2", "not a ShardPack file: expected it to end with " FOOTER_MAGIC);
    }
    crc = shard_crc32c(0, b, 0x34);
    if (crc != shardi_u32(b + 0x34)) {
        return shardi_fail(error, SHARD_CHECKSUM_MISMATCH, "P-FTR-3", "the footer is damaged: expected %08lx, found %08lx", (unsigned long)shardi_u32(b + 0x34), (unsigned long)crc);
    }
    if (b[0x2C] != 1) return shardi_fail(error, SHARD_UNSUPPORTED_VERSION, "P-FTR-4", "unknown version of the format: expected 1, found %d", b[0x2C]);
    f->index_offset = shardi_u64(b);
    f->record_count = shardi_u64(b + 0x08);
    f->metadata_size = shardi_u64(b + 0x10);
    f->total_size = shardi_u64(b + 0x18);
    f->offsets_crc = shardi_u32(b + 0x20);
    f->lookup_crc = shardi_u32(b + 0x24);
    f->metadata_crc = shardi_u32(b + 0x28);
    if (f->total_size != file_size) {
        return shardi_fail(error, file_size < f->total_size ? SHARD_TRUNCATED : SHARD_TRAILING_DATA, "P-FTR-5", "the file does not have the size that its footer states: expected %llu, found %llu",
                           (unsigned long long)f->total_size, (unsigned long long)file_size);
    }
    if (!adds_up(f)) return shardi_fail(error, SHARD_BAD_OFFSET, "P-FTR-6", "the parts of the index do not fill the space between records and footer");
    return SHARD_OK;
}

uint64_t shardi_hashes_at(const shardi_footer *f) { return SHARDI_INDEX_HEAD + 8 * (f->record_count + 1); }
uint64_t shardi_numbers_at(const shardi_footer *f) { return shardi_hashes_at(f) + 8 * f->record_count; }
uint64_t shardi_index_metadata_at(const shardi_footer *f) { return shardi_numbers_at(f) + 4 * f->record_count; }

shard_code shardi_check_index_size(const shardi_footer *f, uint64_t most, shard_error *error) {
    unsigned long long size = f->total_size - f->index_offset;
    if (f->record_count > MOST_RECORDS) return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "P-IDX-1", "the shard has too many records: %llu", (unsigned long long)f->record_count);
    if (size > most) return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "P-IDX-1", "the index is too large: expected at most %llu bytes, found %llu", (unsigned long long)most, size);
    return SHARD_OK;
}

shard_code shardi_check_index_head(const uint8_t *index, const shardi_footer *f, shard_error *error) {
    uint8_t wanted[SHARDI_INDEX_HEAD] = {0};
    shardi_put64(wanted, f->total_size - f->index_offset);
    memcpy(wanted + 0x08, INDEX_MARKER, 4);
    wanted[0x0C] = 1;
    shardi_put64(wanted + 0x10, f->record_count);
    shardi_put64(wanted + 0x18, f->metadata_size);
    if (memcmp(index, wanted, sizeof wanted) == 0) return SHARD_OK;
    return shardi_fail(error, SHARD_SIZE_MISMATCH, "P-IDX-2", "the head of the index contradicts the footer");
}
