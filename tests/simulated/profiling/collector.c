/* A tiny ITT collector: writes one line for each call it gets. Loaded by the ITT stub that torch and ittapi link, through
   INTEL_LIBITTNOTIFY64; log to the file $ITT_LOG.<pid>. The stub finds the functions by their names when the library has
   an __itt_api_version and no __itt_api_init.

   Lines: <nanoseconds> <thread> begin|end|pause|resume <domain> <name> */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct domain { volatile int flags; const char *name; void *wide; int extra; void *data; struct domain *next; } domain;
typedef struct handle { const char *name; void *wide; int extra; void *data; struct handle *next; } handle;
typedef struct { unsigned long long a, b, c; } id;

static void line(const char *what, const char *domain_name, const char *name) {
    const char *prefix = getenv("ITT_LOG");
    if (!prefix) return;
    char path[4096], text[4096];
    snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int size = snprintf(text, sizeof text, "%lld %ld %s %s %s\n", (long long)now.tv_sec * 1000000000LL + now.tv_nsec,
                        (long)syscall(SYS_gettid), what, domain_name ? domain_name : "-", name ? name : "-");
    if (write(file, text, size) != size) abort();
    close(file);
}

EXPORT const char *__itt_api_version(void) { return "3.0 recording collector"; }

EXPORT domain *__itt_domain_create(const char *name) {
    domain *made = calloc(1, sizeof *made);
    made->flags = 1;
    made->name = strdup(name);
    return made;
}

EXPORT handle *__itt_string_handle_create(const char *name) {
    handle *made = calloc(1, sizeof *made);
    made->name = strdup(name);
    return made;
}

EXPORT void __itt_task_begin(const domain *in, id task, id parent, handle *name) {
    (void)task; (void)parent;
    line("begin", in->name, name ? name->name : 0);
}

EXPORT void __itt_task_end(const domain *in) { line("end", in->name, 0); }
EXPORT void __itt_pause(void) { line("pause", 0, 0); }
EXPORT void __itt_resume(void) { line("resume", 0, 0); }
