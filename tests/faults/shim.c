/* A library for LD_PRELOAD that lets one call to the file system fail, write less, or end the process.
 *
 * It counts the calls that change files below one folder: opening for writing, writing, syncing, renaming, linking,
 * removing, making folders, cutting. `shim_arm` says which call something happens to, and what.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, KILL, FAIL, FULL, SHORT };
enum { NEEDS_ROOM = 1, IS_WRITE = 2 };

static char folder[PATH_MAX];
static size_t folder_length;
static int mode = OFF;
static int at;
static atomic_int calls;
static atomic_int fired;

void shim_arm(const char *below, int call, int what) {
    snprintf(folder, sizeof folder, "%s/", below);
    folder_length = strlen(folder);
    at = call;
    atomic_store(&calls, 0);
    atomic_store(&fired, 0);
    mode = what;
}

int shim_fired(void) { mode = OFF; return atomic_load(&fired); }

static int is_below(int dir, const char *path) {
    char link[64], whole[PATH_MAX * 2];
    ssize_t length = 0;
    if (path == NULL || path[0] != '/') {
        if (dir == AT_FDCWD)
            length = getcwd(whole, PATH_MAX) ? (ssize_t)strlen(whole) : 0;
        else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
            length = readlink(link, whole, PATH_MAX - 1);
        }
        if (length <= 0) return 0;
        whole[length] = 0;
        if (path != NULL && path[0]) snprintf(whole + length, PATH_MAX, "/%s", path);
        path = whole;
    }
    return strncmp(path, folder, folder_length) == 0;
}

/* What happens to this call: nothing (0), failure (-1), or half a write (1). */
static int fate(int dir, const char *path, int kind, int error) {
    if (mode == OFF) return 0;
    int saved = errno;
    int below = is_below(dir, path);
    errno = saved;
    if (!below) return 0;
    if (mode == SHORT && !(kind & IS_WRITE)) return 0;
    if (mode == FULL && !(kind & NEEDS_ROOM)) return 0;
    int number = atomic_fetch_add(&calls, 1) + 1;
    if (number != at && !(mode == FULL && number > at)) return 0;
    atomic_store(&fired, 1);
    if (mode == KILL) kill(getpid(), SIGKILL);
    if (mode == SHORT) return 1;
    errno = error;
    return -1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))

static mode_t rights(int flags, va_list more) {
    return (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, mode_t) : 0;
}

#define OPEN(symbol) \
    int symbol(const char *path, int flags, ...) { \
        REAL(int, #symbol, const char *, int, ...); \
        va_list more; va_start(more, flags); mode_t right = rights(flags, more); va_end(more); \
        if (WRITES(flags) && fate(AT_FDCWD, path, NEEDS_ROOM, ENOSPC)) return -1; \
        return real(path, flags, right); \
    }
#define OPENAT(symbol) \
    int symbol(int dir, const char *path, int flags, ...) { \
        REAL(int, #symbol, int, const char *, int, ...); \
        va_list more; va_start(more, flags); mode_t right = rights(flags, more); va_end(more); \
        if (WRITES(flags) && fate(dir, path, NEEDS_ROOM, ENOSPC)) return -1; \
        return real(dir, path, flags, right); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    int what = fate(file, NULL, NEEDS_ROOM | IS_WRITE, ENOSPC);
    if (what < 0) return -1;
    return real(file, data, what && size > 1 ? size / 2 : size);
}

#define PWRITE(symbol) \
    ssize_t symbol(int file, const void *data, size_t size, off_t offset) { \
        REAL(ssize_t, #symbol, int, const void *, size_t, off_t); \
        int what = fate(file, NULL, NEEDS_ROOM | IS_WRITE, ENOSPC); \
        if (what < 0) return -1; \
        return real(file, data, what && size > 1 ? size / 2 : size, offset); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    int what = fate(file, NULL, NEEDS_ROOM | IS_WRITE, ENOSPC);
    if (what < 0) return -1;
    if (what && count > 1) return real(file, parts, count / 2);
    if (what && parts[0].iov_len > 1) return write(file, parts[0].iov_base, parts[0].iov_len / 2);
    return real(file, parts, count);
}

/* Processes die here, the machine does not: what they wrote is there without waiting for the disk. */
int fsync(int file) { return fate(file, NULL, 0, EIO) ? -1 : 0; }

int fdatasync(int file) { return fate(file, NULL, 0, EIO) ? -1 : 0; }

#define CUT(symbol) \
    int symbol(int file, off_t size) { \
        REAL(int, #symbol, int, off_t); \
        return fate(file, NULL, 0, EIO) ? -1 : real(file, size); \
    }
CUT(ftruncate)
CUT(ftruncate64)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    return fate(AT_FDCWD, to, 0, EIO) ? -1 : real(from, to);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    return fate(to_dir, to, 0, EIO) ? -1 : real(from_dir, from, to_dir, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    return fate(to_dir, to, 0, EIO) ? -1 : real(from_dir, from, to_dir, to, flags);
}

int link(const char *from, const char *to) {
    REAL(int, "link", const char *, const char *);
    return fate(AT_FDCWD, to, 0, EIO) ? -1 : real(from, to);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    return fate(to_dir, to, 0, EIO) ? -1 : real(from_dir, from, to_dir, to, flags);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    return fate(AT_FDCWD, path, 0, EIO) ? -1 : real(path);
}

int unlinkat(int dir, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    return fate(dir, path, 0, EIO) ? -1 : real(dir, path, flags);
}

int rmdir(const char *path) {
    REAL(int, "rmdir", const char *);
    return fate(AT_FDCWD, path, 0, EIO) ? -1 : real(path);
}

int mkdir(const char *path, mode_t right) {
    REAL(int, "mkdir", const char *, mode_t);
    return fate(AT_FDCWD, path, NEEDS_ROOM, ENOSPC) ? -1 : real(path, right);
}

int mkdirat(int dir, const char *path, mode_t right) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    return fate(dir, path, NEEDS_ROOM, ENOSPC) ? -1 : real(dir, path, right);
}
