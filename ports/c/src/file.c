/* Files: what depends on the operating system. */
#include "internal.h"

#include <stdio.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#endif

/* No call reads or writes more at once: some systems refuse 2 GiB. */
#define LARGEST_CALL (1u << 30)
#define LONG_READ (64u << 20)

#if defined(_WIN32)

const char *shardi_system_error(char text[160]) {
    (void)snprintf(text, 160, "error %lu of Windows", (unsigned long)GetLastError());
    return text;
}

/* Paths are UTF-8. */
static int wide_path(const char *path, WCHAR wide[4096]) { return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, 4096) > 0; }

static int open_regular(const char *path, shardi_handle *file, uint64_t *size, int *is_regular) {
    WCHAR wide[4096];
    LARGE_INTEGER found;
    if (!wide_path(path, wide)) return 0;
    *file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (*file == SHARDI_NO_FILE) return 0;
    *is_regular = GetFileType(*file) == FILE_TYPE_DISK;
    if (!GetFileSizeEx(*file, &found)) return 0;
    *size = (uint64_t)found.QuadPart;
    return 1;
}

static const uint8_t *map_file(shardi_handle file, uint64_t size, void **mapping) {
    const uint8_t *memory;
    (void)size;
    *mapping = CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL);
    if (!*mapping) return NULL;
    memory = (const uint8_t *)MapViewOfFile(*mapping, FILE_MAP_READ, 0, 0, 0);
    if (!memory) {
        CloseHandle(*mapping);
        *mapping = NULL;
    }
    return memory;
}

static void unmap_file(const uint8_t *memory, uint64_t size, void *mapping) {
    (void)size;
    UnmapViewOfFile(memory);
    CloseHandle(mapping);
}

static OVERLAPPED place(uint64_t offset) {
    OVERLAPPED where;
    memset(&where, 0, sizeof where);
    where.Offset = (DWORD)(offset & 0xFFFFFFFFu);
    where.OffsetHigh = (DWORD)(offset >> 32);
    return where;
}

static size_t read_some(shardi_handle file, uint64_t offset, void *data, size_t size) {
    OVERLAPPED where = place(offset);
    DWORD count = 0;
    return ReadFile(file, data, (DWORD)size, &count, &where) ? count : 0;
}

static size_t write_some(shardi_handle file, uint64_t offset, const void *data, size_t size) {
    OVERLAPPED where = place(offset);
    DWORD count = 0;
    return WriteFile(file, data, (DWORD)size, &count, &where) ? count : 0;
}

static int create_new(const char *path, shardi_handle *file, int *is_taken) {
    WCHAR wide[4096];
    if (!wide_path(path, wide)) return 0;
    *file = CreateFileW(wide, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, NULL);
    *is_taken = *file == SHARDI_NO_FILE && GetLastError() == ERROR_FILE_EXISTS;
    return *file != SHARDI_NO_FILE;
}

static uint64_t unlikely_number(void) {
    LARGE_INTEGER now;
    QueryPerformanceCounter(&now);
    return (uint64_t)now.QuadPart ^ (uint64_t)GetCurrentProcessId() << 40;
}

int shardi_set_size(shardi_handle file, uint64_t size) {
    LARGE_INTEGER where;
    where.QuadPart = (LONGLONG)size;
    return SetFilePointerEx(file, where, NULL, FILE_BEGIN) && SetEndOfFile(file);
}

int shardi_keep_permissions(shardi_handle file, const char *path) {
    (void)file;
    (void)path;
    return 1; /* a new file takes those of its folder */
}

int shardi_sync(shardi_handle file) { return FlushFileBuffers(file) != 0; }
int shardi_close(shardi_handle file) { return CloseHandle(file) != 0; }

int shardi_rename(const char *from, const char *to) {
    WCHAR old_name[4096], new_name[4096];
    return wide_path(from, old_name) && wide_path(to, new_name) &&
           MoveFileExW(old_name, new_name, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
}

int shardi_sync_folder(const char *path) {
    (void)path;
    return 1; /* folders cannot be synced there */
}

void shardi_remove(const char *path) {
    WCHAR wide[4096];
    if (wide_path(path, wide)) (void)DeleteFileW(wide);
}

#else

const char *shardi_system_error(char text[160]) {
    (void)snprintf(text, 160, "%s", errno ? strerror(errno) : "unknown error");
    return text;
}

/* Does not wait for a pipe to get a writer. */
static int open_regular(const char *path, shardi_handle *file, uint64_t *size, int *is_regular) {
    struct stat status;
    *file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (*file < 0 || fstat(*file, &status) != 0) return 0;
    *is_regular = S_ISREG(status.st_mode);
    *size = (uint64_t)status.st_size;
    return 1;
}

static const uint8_t *map_file(shardi_handle file, uint64_t size, void **mapping) {
    void *memory = size <= SIZE_MAX / 2 ? mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    *mapping = memory;
    return memory == MAP_FAILED ? NULL : (const uint8_t *)memory;
}

static void unmap_file(const uint8_t *memory, uint64_t size, void *mapping) {
    (void)memory;
    (void)munmap(mapping, (size_t)size);
}

static size_t read_some(shardi_handle file, uint64_t offset, void *data, size_t size) {
    ssize_t count;
    do count = pread(file, data, size, (off_t)offset);
    while (count < 0 && errno == EINTR);
    return count > 0 ? (size_t)count : 0;
}

static size_t write_some(shardi_handle file, uint64_t offset, const void *data, size_t size) {
    ssize_t count;
    do count = pwrite(file, data, size, (off_t)offset);
    while (count < 0 && errno == EINTR);
    return count > 0 ? (size_t)count : 0;
}

static int create_new(const char *path, shardi_handle *file, int *is_taken) {
    *file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    *is_taken = *file < 0 && errno == EEXIST;
    return *file >= 0;
}

static uint64_t unlikely_number(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 40;
}

int shardi_set_size(shardi_handle file, uint64_t size) { return ftruncate(file, (off_t)size) == 0; }

/* As private as the file was before. */
int shardi_keep_permissions(shardi_handle file, const char *path) {
    struct stat status;
    if (lstat(path, &status) != 0 || !S_ISREG(status.st_mode)) return 1;
    return fchmod(file, status.st_mode & 0777) == 0;
}

int shardi_sync(shardi_handle file) { return fsync(file) == 0; }
int shardi_close(shardi_handle file) { return close(file) == 0; }
int shardi_rename(const char *from, const char *to) { return rename(from, to) == 0; }

int shardi_sync_folder(const char *path) {
    int folder = open(path, O_RDONLY | O_CLOEXEC), is_synced;
    if (folder < 0) return 0;
    is_synced = fsync(folder) == 0;
    (void)close(folder);
    return is_synced;
}

void shardi_remove(const char *path) { (void)unlink(path); }

#endif

int shardi_read_at(shardi_handle file, uint64_t offset, void *data, size_t size) {
    uint8_t *at = (uint8_t *)data;
    while (size) {
        size_t count = read_some(file, offset, at, size < LARGEST_CALL ? size : LARGEST_CALL);
        if (!count) return 0;
        at += count;
        offset += count;
        size -= count;
    }
    return 1;
}

int shardi_write_at(shardi_handle file, uint64_t offset, const void *data, size_t size) {
    const uint8_t *at = (const uint8_t *)data;
    while (size) {
        size_t count = write_some(file, offset, at, size < LARGEST_CALL ? size : LARGEST_CALL);
        if (!count) return 0;
        at += count;
        offset += count;
        size -= count;
    }
    return 1;
}

/* The number of bytes of a path up to the name of the file. */
static size_t folder_size(const char *path) {
    size_t i, size = 0;
    for (i = 0; path[i]; i++) {
        if (path[i] == '/') size = i + 1;
#if defined(_WIN32)
        if (path[i] == '\\' || path[i] == ':') size = i + 1;
#endif
    }
    return size;
}

int shardi_create_beside(const char *path, const shard_allocator *allocator, shardi_handle *file, char **name) {
    size_t size = folder_size(path);
    int attempt, is_taken = 1;
    *name = (char *)shardi_allocate(allocator, size + 64);
    if (!*name) return 0;
    memcpy(*name, path, size);
    for (attempt = 0; attempt < 100 && is_taken; attempt++) {
        (void)snprintf(*name + size, 64, ".shard-%016llx-%d.partial", (unsigned long long)unlikely_number(), attempt);
        if (create_new(*name, file, &is_taken)) return 1;
    }
    shardi_release(allocator, *name);
    *name = NULL;
    return 0;
}

/* ---- what is read ---- */

static shard_code named(shardi_input *input, const char *name, const shard_allocator *allocator, shard_error *error) {
    size_t size = strlen(name) + 1;
    memset(input, 0, sizeof *input);
    input->file = SHARDI_NO_FILE;
    input->name = (char *)shardi_allocate(allocator, size);
    if (!input->name) return shardi_no_memory(error, size);
    memcpy(input->name, name, size);
    return SHARD_OK;
}

shard_code shardi_input_open(const char *path, int map, const shard_allocator *allocator, shardi_input *input, shard_error *error) {
    char text[160];
    int is_regular = 1;
    shard_code code = named(input, path, allocator, error);
    if (code != SHARD_OK) return code;
    if (!open_regular(path, &input->file, &input->size, &is_regular)) {
        code = shardi_fail(error, SHARD_IO_ERROR, "", "cannot open: %s", shardi_system_error(text));
    } else if (!is_regular) {
        code = shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "not a regular file");
    } else if (map && input->size) {
        input->memory = map_file(input->file, input->size, &input->mapping);
        if (!input->memory) code = shardi_fail(error, SHARD_IO_ERROR, "", "cannot map: %s", shardi_system_error(text));
    }
    if (code == SHARD_OK) return code;
    shardi_locate(error, code, path, NULL, 0);
    shardi_input_close(input, allocator);
    return code;
}

shard_code shardi_input_memory(const void *data, size_t size, const shard_allocator *allocator, shardi_input *input, shard_error *error) {
    shard_code code = named(input, "", allocator, error);
    input->memory = (const uint8_t *)data;
    input->size = size;
    return code;
}

shard_code shardi_input_source(const shard_source *source, const shard_allocator *allocator, shardi_input *input, shard_error *error) {
    shard_code code = named(input, source->name ? source->name : "", allocator, error);
    input->read = source->read;
    input->context = source->context;
    input->size = source->size;
    return code;
}

void shardi_input_close(shardi_input *input, const shard_allocator *allocator) {
    if (input->memory && input->mapping) unmap_file(input->memory, input->size, input->mapping);
    if (input->file != SHARDI_NO_FILE) (void)shardi_close(input->file);
    shardi_release(allocator, input->name);
    memset(input, 0, sizeof *input);
    input->file = SHARDI_NO_FILE;
}

shard_code shardi_input_read(const shardi_input *input, uint64_t offset, void *into, uint64_t size, shard_error *error) {
    int is_read = 1;
    if (size > SIZE_MAX / 2) return shardi_no_memory(error, size);
    if (offset > input->size || size > input->size - offset) {
        shardi_fail(error, SHARD_TRUNCATED, "", "the file ends before it should: expected %llu bytes at offset %llu, found %llu in all",
                    (unsigned long long)size, (unsigned long long)offset, (unsigned long long)input->size);
        if (error) error->offset = offset;
        return SHARD_TRUNCATED;
    }
    if (!size) return SHARD_OK;
    if (input->memory) memcpy(into, input->memory + offset, (size_t)size);
    else if (input->read) is_read = input->read(input->context, offset, into, (size_t)size) == 0;
    else is_read = shardi_read_at(input->file, offset, into, (size_t)size);
    if (is_read) return SHARD_OK;
    shardi_fail(error, SHARD_IO_ERROR, "", "cannot read %llu bytes at offset %llu", (unsigned long long)size, (unsigned long long)offset);
    if (error) error->offset = offset;
    return SHARD_IO_ERROR;
}

shard_code shardi_input_borrow(const shardi_input *input, const shard_allocator *allocator, uint64_t offset, uint64_t size,
                               const uint8_t **data, shard_error *error) {
    uint8_t *made;
    uint8_t last;
    shard_code code;
    *data = NULL;
    /* The last of many bytes first: a source may claim more than it has, and memory is made only for what is there. */
    code = size && (input->memory || size > LONG_READ) ? shardi_input_read(input, offset + size - 1, &last, 1, error) : SHARD_OK;
    if (code != SHARD_OK) return code;
    if (input->memory) {
        *data = input->memory + offset;
        return SHARD_OK;
    }
    made = (uint8_t *)shardi_allocate(allocator, size);
    if (!made) return shardi_no_memory(error, size);
    code = shardi_input_read(input, offset, made, size, error);
    if (code != SHARD_OK) shardi_release(allocator, made);
    else *data = made;
    return code;
}

void shardi_input_release(const shardi_input *input, const shard_allocator *allocator, const uint8_t *data) {
    if (!input->memory) shardi_release(allocator, (void *)(uintptr_t)data);
}
