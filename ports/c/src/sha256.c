/* SHA-256 (FIPS 180-4). */
#include "internal.h"

static const uint32_t sha_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t value, int bits) { return value >> bits | value << (32 - bits); }

static uint32_t big_endian(const uint8_t *data) {
    return (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | data[3];
}

/* One round; the variables change their places from one to the next. */
#define SHA_ROUND(a, b, c, d, e, f, g, h, i) \
    h += (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + sha_constants[i] + w[i]; \
    d += h; \
    h += (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))

static void sha_block(uint32_t state[8], const uint8_t *data) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    int i;
    for (i = 0; i < 16; i++) w[i] = big_endian(data + 4 * i);
    for (; i < 64; i++) {
        uint32_t early = w[i - 15], late = w[i - 2];
        w[i] = w[i - 16] + (turn(early, 7) ^ turn(early, 18) ^ early >> 3) + w[i - 7] + (turn(late, 17) ^ turn(late, 19) ^ late >> 10);
    }
    for (i = 0; i < 64; i += 8) {
        SHA_ROUND(a, b, c, d, e, f, g, h, i);
        SHA_ROUND(h, a, b, c, d, e, f, g, i + 1);
        SHA_ROUND(g, h, a, b, c, d, e, f, i + 2);
        SHA_ROUND(f, g, h, a, b, c, d, e, i + 3);
        SHA_ROUND(e, f, g, h, a, b, c, d, i + 4);
        SHA_ROUND(d, e, f, g, h, a, b, c, i + 5);
        SHA_ROUND(c, d, e, f, g, h, a, b, i + 6);
        SHA_ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

void shardi_sha256_start(shardi_sha256 *hash) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, start, sizeof start);
    hash->size = 0;
}

void shardi_sha256_add(shardi_sha256 *hash, const void *data, size_t size) {
    const uint8_t *at = (const uint8_t *)data;
    size_t kept = (size_t)(hash->size % 64);
    if (!size) return;
    hash->size += size;
    if (kept) {
        size_t more = 64 - kept < size ? 64 - kept : size;
        memcpy(hash->block + kept, at, more);
        at += more;
        size -= more;
        if (kept + more < 64) return;
        sha_block(hash->state, hash->block);
    }
    for (; size >= 64; at += 64, size -= 64) sha_block(hash->state, at);
    if (size) memcpy(hash->block, at, size);
}

void shardi_sha256_hex(shardi_sha256 *hash, char hex[65]) {
    static const char digits[] = "0123456789abcdef";
    uint64_t bits = hash->size * 8;
    uint8_t end[72] = {0x80};
    size_t kept = (size_t)(hash->size % 64), pad = (kept < 56 ? 56 : 120) - kept;
    int i;
    for (i = 0; i < 8; i++) end[pad + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i) & 0xFF);
    shardi_sha256_add(hash, end, pad + 8);
    for (i = 0; i < 64; i++) hex[i] = digits[hash->state[i / 8] >> (28 - 4 * (i % 8)) & 15];
    hex[64] = 0;
}

void shard_sha256_hex(const void *data, size_t size, char hex[65]) {
    shardi_sha256 hash;
    shardi_sha256_start(&hash);
    shardi_sha256_add(&hash, data, size);
    shardi_sha256_hex(&hash, hex);
}
