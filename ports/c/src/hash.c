/* CRC-32C and XXH64. */
#include "internal.h"

/* ---- CRC-32C ---- */

#if (defined(__x86_64__) || defined(_M_X64)) && !defined(SHARD_PORTABLE_CRC)
#define CRC_X86 1
#include <nmmintrin.h>
#if defined(_MSC_VER)
#include <intrin.h>
#endif
#elif (defined(__aarch64__) || defined(_M_ARM64)) && !defined(SHARD_PORTABLE_CRC)
#define CRC_ARM 1
#if defined(_MSC_VER)
#include <intrin.h>
#include <windows.h>
#else
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif
#endif

/* What a nibble does to a checksum: two tables for each of eight bytes. They are small, and need no start. */
static const uint32_t nibbles[16][16] = {
    {0x00000000, 0x493C7D27, 0x9278FA4E, 0xDB448769, 0x211D826D, 0x6821FF4A, 0xB3657823, 0xFA590504,
     0x423B04DA, 0x0B0779FD, 0xD043FE94, 0x997F83B3, 0x632686B7, 0x2A1AFB90, 0xF15E7CF9, 0xB86201DE},
    {0x00000000, 0x847609B4, 0x0D006599, 0x89766C2D, 0x1A00CB32, 0x9E76C286, 0x1700AEAB, 0x9376A71F,
     0x34019664, 0xB0779FD0, 0x3901F3FD, 0xBD77FA49, 0x2E015D56, 0xAA7754E2, 0x230138CF, 0xA777317B},
    {0x00000000, 0x68032CC8, 0xD0065990, 0xB8057558, 0xA5E0C5D1, 0xCDE3E919, 0x75E69C41, 0x1DE5B089,
     0x4E2DFD53, 0x262ED19B, 0x9E2BA4C3, 0xF628880B, 0xEBCD3882, 0x83CE144A, 0x3BCB6112, 0x53C84DDA},
    {0x00000000, 0x9C5BFAA6, 0x3D5B83BD, 0xA100791B, 0x7AB7077A, 0xE6ECFDDC, 0x47EC84C7, 0xDBB77E61,
     0xF56E0EF4, 0x6935F452, 0xC8358D49, 0x546E77EF, 0x8FD9098E, 0x1382F328, 0xB2828A33, 0x2ED97095},
    {0x00000000, 0xEF306B19, 0xDB8CA0C3, 0x34BCCBDA, 0xB2F53777, 0x5DC55C6E, 0x697997B4, 0x8649FCAD,
     0x6006181F, 0x8F367306, 0xBB8AB8DC, 0x54BAD3C5, 0xD2F32F68, 0x3DC34471, 0x097F8FAB, 0xE64FE4B2},
    {0x00000000, 0xC00C303E, 0x85F4168D, 0x45F826B3, 0x0E045BEB, 0xCE086BD5, 0x8BF04D66, 0x4BFC7D58,
     0x1C08B7D6, 0xDC0487E8, 0x99FCA15B, 0x59F09165, 0x120CEC3D, 0xD200DC03, 0x97F8FAB0, 0x57F4CA8E},
    {0x00000000, 0x38116FAC, 0x7022DF58, 0x4833B0F4, 0xE045BEB0, 0xD854D11C, 0x906761E8, 0xA8760E44,
     0xC5670B91, 0xFD76643D, 0xB545D4C9, 0x8D54BB65, 0x2522B521, 0x1D33DA8D, 0x55006A79, 0x6D1105D5},
    {0x00000000, 0x8F2261D3, 0x1BA8B557, 0x948AD484, 0x37516AAE, 0xB8730B7D, 0x2CF9DFF9, 0xA3DBBE2A,
     0x6EA2D55C, 0xE180B48F, 0x750A600B, 0xFA2801D8, 0x59F3BFF2, 0xD6D1DE21, 0x425B0AA5, 0xCD796B76},
    {0x00000000, 0xDD45AAB8, 0xBF672381, 0x62228939, 0x7B2231F3, 0xA6679B4B, 0xC4451272, 0x1900B8CA,
     0xF64463E6, 0x2B01C95E, 0x49234067, 0x9466EADF, 0x8D665215, 0x5023F8AD, 0x32017194, 0xEF44DB2C},
    {0x00000000, 0xE964B13D, 0xD725148B, 0x3E41A5B6, 0xABA65FE7, 0x42C2EEDA, 0x7C834B6C, 0x95E7FA51,
     0x52A0C93F, 0xBBC47802, 0x8585DDB4, 0x6CE16C89, 0xF90696D8, 0x106227E5, 0x2E238253, 0xC747336E},
    {0x00000000, 0xA541927E, 0x4F6F520D, 0xEA2EC073, 0x9EDEA41A, 0x3B9F3664, 0xD1B1F617, 0x74F06469,
     0x38513EC5, 0x9D10ACBB, 0x773E6CC8, 0xD27FFEB6, 0xA68F9ADF, 0x03CE08A1, 0xE9E0C8D2, 0x4CA15AAC},
    {0x00000000, 0x70A27D8A, 0xE144FB14, 0x91E6869E, 0xC76580D9, 0xB7C7FD53, 0x26217BCD, 0x56830647,
     0x8B277743, 0xFB850AC9, 0x6A638C57, 0x1AC1F1DD, 0x4C42F79A, 0x3CE08A10, 0xAD060C8E, 0xDDA47104},
    {0x00000000, 0x13A29877, 0x274530EE, 0x34E7A899, 0x4E8A61DC, 0x5D28F9AB, 0x69CF5132, 0x7A6DC945,
     0x9D14C3B8, 0x8EB65BCF, 0xBA51F356, 0xA9F36B21, 0xD39EA264, 0xC03C3A13, 0xF4DB928A, 0xE7790AFD},
    {0x00000000, 0x3FC5F181, 0x7F8BE302, 0x404E1283, 0xFF17C604, 0xC0D23785, 0x809C2506, 0xBF59D487,
     0xFBC3FAF9, 0xC4060B78, 0x844819FB, 0xBB8DE87A, 0x04D43CFD, 0x3B11CD7C, 0x7B5FDFFF, 0x449A2E7E},
    {0x00000000, 0xF26B8303, 0xE13B70F7, 0x1350F3F4, 0xC79A971F, 0x35F1141C, 0x26A1E7E8, 0xD4CA64EB,
     0x8AD958CF, 0x78B2DBCC, 0x6BE22838, 0x9989AB3B, 0x4D43CFD0, 0xBF284CD3, 0xAC78BF27, 0x5E133C24},
    {0x00000000, 0x105EC76F, 0x20BD8EDE, 0x30E349B1, 0x417B1DBC, 0x5125DAD3, 0x61C69362, 0x7198540D,
     0x82F63B78, 0x92A8FC17, 0xA24BB5A6, 0xB21572C9, 0xC38D26C4, 0xD3D3E1AB, 0xE330A81A, 0xF36E6F75},
};

static uint32_t crc_portable(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = shardi_u32(data) ^ crc, high = shardi_u32(data + 4);
        int i;
        crc = 0;
        for (i = 0; i < 8; i++) {
            crc ^= nibbles[i][low >> (4 * i) & 15] ^ nibbles[8 + i][high >> (4 * i) & 15];
        }
    }
    for (; size; data++, size--) {
        uint32_t low = (crc ^ *data) & 0xFF;
        crc = crc >> 8 ^ nibbles[14][low & 15] ^ nibbles[15][low >> 4];
    }
    return crc;
}

#if defined(CRC_X86)
#if defined(__GNUC__)
__attribute__((target("sse4.2")))
#endif
static uint32_t crc_hardware(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t wide = crc;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    for (; size; data++, size--) crc = _mm_crc32_u8(crc, *data);
    return crc;
}

static int has_crc_hardware(void) {
#if defined(_MSC_VER)
    int found[4];
    __cpuid(found, 1);
    return (found[2] >> 20) & 1;
#else
    return __builtin_cpu_supports("sse4.2") != 0;
#endif
}
#elif defined(CRC_ARM)
#if defined(__GNUC__)
__attribute__((target("+crc")))
#endif
static uint32_t crc_hardware(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) crc = __crc32cd(crc, shardi_u64(data));
    for (; size; data++, size--) crc = __crc32cb(crc, *data);
    return crc;
}

static int has_crc_hardware(void) {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) >> 7 & 1) != 0; /* HWCAP_CRC32 */
#elif defined(_WIN32)
    return IsProcessorFeaturePresent(PF_ARM_V8_CRC32_INSTRUCTIONS_AVAILABLE) != 0;
#else
    return 1; /* every 64-bit Apple processor */
#endif
}
#endif

uint32_t shard_crc32c(uint32_t crc, const void *data, size_t size) {
#if defined(CRC_X86) || defined(CRC_ARM)
    if (size >= 16 && has_crc_hardware()) return ~crc_hardware(~crc, (const uint8_t *)data, size);
#endif
    return ~crc_portable(~crc, (const uint8_t *)data, size);
}

/* ---- XXH64 ---- */

#define XXH_1 UINT64_C(0x9E3779B185EBCA87)
#define XXH_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define XXH_3 UINT64_C(0x165667B19E3779F9)
#define XXH_4 UINT64_C(0x85EBCA77C2B2AE63)
#define XXH_5 UINT64_C(0x27D4EB2F165667C5)

static uint64_t rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

static uint64_t xxh_round(uint64_t lane, uint64_t input) { return rotate(lane + input * XXH_2, 31) * XXH_1; }

static uint64_t xxh_merge(uint64_t hash, uint64_t lane) { return (hash ^ xxh_round(0, lane)) * XXH_1 + XXH_4; }

uint64_t shard_xxh64(const void *data, size_t size, uint64_t seed) {
    const uint8_t *at = (const uint8_t *)data;
    size_t left = size;
    uint64_t hash = seed + XXH_5;
    if (left >= 32) {
        uint64_t a = seed + XXH_1 + XXH_2, b = seed + XXH_2, c = seed, d = seed - XXH_1;
        for (; left >= 32; at += 32, left -= 32) {
            a = xxh_round(a, shardi_u64(at));
            b = xxh_round(b, shardi_u64(at + 8));
            c = xxh_round(c, shardi_u64(at + 16));
            d = xxh_round(d, shardi_u64(at + 24));
        }
        hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        hash = xxh_merge(xxh_merge(xxh_merge(xxh_merge(hash, a), b), c), d);
    }
    hash += (uint64_t)size;
    for (; left >= 8; at += 8, left -= 8) hash = rotate(hash ^ xxh_round(0, shardi_u64(at)), 27) * XXH_1 + XXH_4;
    if (left >= 4) {
        hash = rotate(hash ^ shardi_u32(at) * XXH_1, 23) * XXH_2 + XXH_3;
        at += 4;
        left -= 4;
    }
    for (; left; at++, left--) hash = rotate(hash ^ *at * XXH_5, 11) * XXH_1;
    hash = (hash ^ hash >> 33) * XXH_2;
    hash = (hash ^ hash >> 29) * XXH_3;
    return hash ^ hash >> 32;
}
