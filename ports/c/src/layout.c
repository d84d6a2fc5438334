/* The header and the rows of the index: the only file with their offsets. */
#include "internal.h"

void shardi_unpack_header(const uint8_t *data, shard_head *header) {
    header->version = data[0x04];
    header->role = data[0x05];
    header->flags = shardi_u16(data + 0x06);
    header->alignment = data[0x08];
    header->compression_default = data[0x09];
    header->index_entry_size = shardi_u16(data + 0x0A);
    header->entry_count = shardi_u32(data + 0x0C);
    header->string_table_offset = shardi_u64(data + 0x10);
    header->data_section_offset = shardi_u64(data + 0x18);
    header->schema_offset = shardi_u64(data + 0x20);
    header->total_file_size = shardi_u64(data + 0x28);
}

void shardi_pack_header(const shard_head *header, uint8_t *data) {
    memset(data, 0, SHARDI_HEADER_SIZE);
    memcpy(data, SHARDI_MAGIC, 4);
    data[0x04] = header->version;
    data[0x05] = header->role;
    shardi_put16(data + 0x06, header->flags);
    data[0x08] = header->alignment;
    data[0x09] = header->compression_default;
    shardi_put16(data + 0x0A, header->index_entry_size);
    shardi_put32(data + 0x0C, header->entry_count);
    shardi_put64(data + 0x10, header->string_table_offset);
    shardi_put64(data + 0x18, header->data_section_offset);
    shardi_put64(data + 0x20, header->schema_offset);
    shardi_put64(data + 0x28, header->total_file_size);
}

int shardi_reserved_is_zero(const uint8_t *header) {
    size_t i;
    for (i = 0x30; i < SHARDI_HEADER_SIZE; i++) {
        if (header[i]) return 0;
    }
    return 1;
}

void shardi_unpack_entry(const uint8_t *data, shard_entry *entry) {
    entry->name = NULL;
    entry->name_hash = shardi_u64(data);
    entry->name_offset = shardi_u32(data + 0x08);
    entry->name_size = shardi_u16(data + 0x0C);
    entry->flags = shardi_u16(data + 0x0E);
    entry->data_offset = shardi_u64(data + 0x10);
    entry->disk_size = shardi_u64(data + 0x18);
    entry->orig_size = shardi_u64(data + 0x20);
    entry->crc32c = shardi_u32(data + 0x28);
    entry->content_type = shardi_u16(data + 0x2C);
    entry->tag_bits = shardi_u16(data + 0x2E);
}

void shardi_pack_entry(const shard_entry *entry, uint8_t *data) {
    shardi_put64(data, entry->name_hash);
    shardi_put32(data + 0x08, entry->name_offset);
    shardi_put16(data + 0x0C, entry->name_size);
    shardi_put16(data + 0x0E, entry->flags);
    shardi_put64(data + 0x10, entry->data_offset);
    shardi_put64(data + 0x18, entry->disk_size);
    shardi_put64(data + 0x20, entry->orig_size);
    shardi_put32(data + 0x28, entry->crc32c);
    shardi_put16(data + 0x2C, entry->content_type);
    shardi_put16(data + 0x2E, entry->tag_bits);
}

uint64_t shardi_align(uint64_t offset, uint64_t alignment) {
    return alignment ? (offset + alignment - 1) / alignment * alignment : offset;
}
