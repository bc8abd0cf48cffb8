/* A file system that becomes read-only while files are open for writing, as ext4 does after an error (errors=remount-ro).
 *
 * No command makes one so: `mount -o remount,ro` is refused (EBUSY) while somebody has a file open to write. So this library is
 * loaded before the C library (LD_PRELOAD). While the file READONLY_WHEN exists, everything that would change something below
 * READONLY_BELOW fails with EROFS, in open files too, and statvfs says that the file system is read-only.
 *
 *     cc -shared -fPIC -O1 -o readonly_disk.so readonly_disk.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_on(void) {
    const char *flag = getenv("READONLY_WHEN");
    return flag != NULL && access(flag, F_OK) == 0;
}

static int is_below(const char *path) {
    const char *root = getenv("READONLY_BELOW");
    return root != NULL && path != NULL && strncmp(path, root, strlen(root)) == 0;
}

static int refuses_path(const char *path) {
    int kept = errno;
    if (is_below(path) && is_on()) {
        errno = EROFS;
        return 1;
    }
    errno = kept;
    return 0;
}

static int refuses_file(int fd) {
    char link[64], path[4096];
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = kept;
    if (length < 0) return 0;
    path[length] = 0;
    return refuses_path(path);
}

ssize_t write(int fd, const void *data, size_t size) {
    return refuses_file(fd) ? -1 : NEXT(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return refuses_file(fd) ? -1 : NEXT(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return refuses_file(fd) ? -1 : NEXT(pwrite64)(fd, data, size, at);
}
int ftruncate(int fd, off_t size) { return refuses_file(fd) ? -1 : NEXT(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return refuses_file(fd) ? -1 : NEXT(ftruncate64)(fd, size); }
int mkdir(const char *path, mode_t mode) { return refuses_path(path) ? -1 : NEXT(mkdir)(path, mode); }
int unlink(const char *path) { return refuses_path(path) ? -1 : NEXT(unlink)(path); }
int rename(const char *from, const char *to) { return refuses_path(to) ? -1 : NEXT(rename)(from, to); }

#define WRITES(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & (O_CREAT | O_TRUNC)))
#define OPEN(name)                                                                   \
    int name(const char *path, int flags, ...) {                                     \
        va_list rest;                                                                \
        va_start(rest, flags);                                                       \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;    \
        va_end(rest);                                                                \
        return WRITES(flags) && refuses_path(path) ? -1 : NEXT(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

int statvfs(const char *path, struct statvfs *found) {
    int code = NEXT(statvfs)(path, found);
    if (code == 0 && is_below(path) && is_on()) found->f_flag |= ST_RDONLY;
    return code;
}
int statvfs64(const char *path, struct statvfs64 *found) {
    int code = NEXT(statvfs64)(path, found);
    if (code == 0 && is_below(path) && is_on()) found->f_flag |= ST_RDONLY;
    return code;
}
