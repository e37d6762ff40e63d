/* Makes one file operation of a process fail, or kills the process at that operation: see faults.py.
 *
 * Loaded with LD_PRELOAD. It counts the operations below one folder that change files. The chosen one fails before it
 * has any effect; only close has closed the file. EROFS is returned from then on, any other error once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* Shared with forked processes, so that their parent can read the count. */
static struct state { long at, count; int error; char root[PATH_MAX], what[64]; } *shared;

__attribute__((constructor)) static void begin(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* From now on operation number `at` below root (from 1; 0: none) fails with error; error -1 kills the process. */
void fault_arm(const char *root, long at, int error) {
    strncpy(shared->root, root, sizeof shared->root - 1);
    shared->at = at, shared->error = error, shared->count = 0, shared->what[0] = 0;
}
long fault_count(void) { return shared->count; }
const char *fault_what(void) { return shared->what; }

static int below(const char *path) {
    size_t length = strlen(shared->root);
    return length && !strncmp(path, shared->root, length) && (path[length] == '/' || !path[length]);
}
static int path_is_below(int folder, const char *path) {
    char link[32], full[PATH_MAX * 2];
    ssize_t length;
    if (!path || !shared || !shared->root[0]) return 0;
    if (path[0] == '/') return below(path);
    if (folder == AT_FDCWD) return getcwd(full, sizeof full) && below(full);
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    if ((length = readlink(link, full, sizeof full - 1)) < 0) return 0;
    full[length] = 0;
    return below(full);
}
static int file_is_below(int file) { return file > 2 && path_is_below(file, "."); }

/* Counts an operation. Returns 1 and sets errno if it must fail. */
static int fails(const char *what) {
    long number = __sync_add_and_fetch(&shared->count, 1);
    if (!shared->at || number < shared->at || (number > shared->at && shared->error != EROFS)) return 0;
    strncpy(shared->what, what, sizeof shared->what - 1);
    if (shared->error < 0) kill(getpid(), SIGKILL);
    errno = shared->error;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRITES (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)
#define ON_PATH(type, name, folder, path, declared, given) \
    type name declared { if (path_is_below(folder, path) && fails(#name)) return -1; return REAL(name) given; }
#define ON_FILE(type, name, file, declared, given) \
    type name declared { if (file_is_below(file) && fails(#name)) return -1; return REAL(name) given; }
#define OPEN(name, folder, declared, given) \
    int name declared { \
        va_list rest; va_start(rest, flags); mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; va_end(rest); \
        if (flags & WRITES && path_is_below(folder, path) && fails(#name)) return -1; \
        return REAL(name) given; }
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        if (mode[0] != 'r' && path_is_below(AT_FDCWD, path) && fails(#name)) return NULL; \
        return REAL(name)(path, mode); }

OPEN(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPEN(openat64, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
FOPEN(fopen)
FOPEN(fopen64)
ON_FILE(ssize_t, write, file, (int file, const void *bytes, size_t size), (file, bytes, size))
ON_FILE(ssize_t, writev, file, (int file, const struct iovec *parts, int count), (file, parts, count))
ON_FILE(ssize_t, pwrite, file, (int file, const void *bytes, size_t size, off_t at), (file, bytes, size, at))
ON_FILE(ssize_t, pwrite64, file, (int file, const void *bytes, size_t size, off64_t at), (file, bytes, size, at))
ON_FILE(ssize_t, sendfile, out, (int out, int in, off_t *at, size_t size), (out, in, at, size))
ON_FILE(ssize_t, sendfile64, out, (int out, int in, off64_t *at, size_t size), (out, in, at, size))
ON_FILE(ssize_t, copy_file_range, out,
        (int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags), (in, from, out, to, size, flags))
ON_FILE(int, fsync, file, (int file), (file))
ON_FILE(int, fdatasync, file, (int file), (file))
ON_FILE(int, syncfs, file, (int file), (file))
ON_FILE(int, ftruncate, file, (int file, off_t size), (file, size))
ON_FILE(int, ftruncate64, file, (int file, off64_t size), (file, size))
ON_PATH(int, rename, AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(int, renameat, there, to, (int here, const char *from, int there, const char *to), (here, from, there, to))
ON_PATH(int, renameat2, there, to,
        (int here, const char *from, int there, const char *to, unsigned flags), (here, from, there, to, flags))
ON_PATH(int, link, AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(int, linkat, there, to,
        (int here, const char *from, int there, const char *to, int flags), (here, from, there, to, flags))
ON_PATH(int, symlink, AT_FDCWD, path, (const char *to, const char *path), (to, path))
ON_PATH(int, unlink, AT_FDCWD, path, (const char *path), (path))
ON_PATH(int, unlinkat, folder, path, (int folder, const char *path, int flags), (folder, path, flags))
ON_PATH(int, remove, AT_FDCWD, path, (const char *path), (path))
ON_PATH(int, mkdir, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
ON_PATH(int, mkdirat, folder, path, (int folder, const char *path, mode_t mode), (folder, path, mode))
ON_PATH(int, rmdir, AT_FDCWD, path, (const char *path), (path))

/* Only for a file that is open for writing: an error of close after reading changes no file. */
int close(int file) {
    int counted = file_is_below(file) && (fcntl(file, F_GETFL) & O_ACCMODE) != O_RDONLY && fails("close");
    int status = REAL(close)(file);
    if (counted) { errno = shared->error; return -1; }
    return status;
}
