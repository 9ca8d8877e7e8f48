// The lab guest: process 1 of a virtual machine that notices when its memory, its disk or its network is harmed.
// Parameters come on the kernel command line; docs/lab.md lists them.
#define _GNU_SOURCE
#include "guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char parameters[4096];

// The value of a parameter as a string of its own, or NULL.
static char *text(const char *key) {
    size_t length = strlen(key);
    for (const char *at = parameters; (at = strstr(at, key)); at += length) {
        int starts = at == parameters || at[-1] == ' ';
        if (starts && at[length] == '=') return strndup(at + length + 1, strcspn(at + length + 1, " \n"));
    }
    return NULL;
}

static long number(const char *key, long otherwise) {
    char *value = text(key), *end;
    if (!value) return otherwise;
    long result = strtol(value, &end, 0);
    if (*end || end == value) give_up("GUESTERR %s=%s is not a number", key, value);
    return result;
}

static void load_module(const char *name) {
    char path[300];
    snprintf(path, sizeof path, "/modules/%s", name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    if (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST) report("GUESTERR module %s: errno %d", name, errno);
    close(file);
}

// The file names begin with numbers in load order.
static void load_modules(void) {
    struct dirent **names;
    int count = scandir("/modules", &names, NULL, alphasort);
    for (int i = 0; i < count; i++)
        if (names[i]->d_name[0] != '.') load_module(names[i]->d_name);
}

static long total_mb(void) {
    long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file || fscanf(file, "MemTotal: %ld", &kib) != 1) give_up("GUESTERR no MemTotal in /proc/meminfo");
    fclose(file);
    return kib / 1024;
}

// Memory of a virtio-mem device comes some time after its module.
static void wait_for_memory(long least_mb) {
    while (total_mb() < least_mb) usleep(100000);
}

static void mount_all(void) {
    mount("proc", "/proc", "proc", 0, NULL);
    mount("sysfs", "/sys", "sysfs", 0, NULL);
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    int console = open("/dev/console", O_RDWR);
    for (int i = 0; console >= 0 && i < 3; i++) dup2(console, i);
    int file = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    if (file < 0 || read(file, parameters, sizeof parameters - 1) < 0) give_up("GUESTERR no /proc/cmdline");
    close(file);
}

static void start_disk(void) {
    char *kind = text("disk");
    if (!kind || !strcmp(kind, "none")) return;
    struct disk_options options = {!strcmp(kind, "direct"), number("disk_threads", 2), number("disk_mbps", 16), number("disk_gen", -1)};
    if (!options.direct && strcmp(kind, "buffered")) give_up("GUESTERR disk=%s is not direct, buffered or none", kind);
    if (options.threads < 1 || options.threads > 64) give_up("GUESTERR disk_threads is not 1 to 64");
    disk_start(&options);
}

static void *shell_thread(void *argument) {
    (void)argument;
    for (;;) {
        pid_t child = fork();
        if (child == 0) {
            setsid();
            execl("/bin/busybox", "sh", (char *)NULL);
            _exit(127);
        }
        waitpid(child, NULL, 0);
        sleep(1);
    }
    return NULL;
}

int main(void) {
    mount_all();
    report("BOOTED up=%.3f", uptime());
    long before = total_mb();
    load_modules();
    wait_for_memory(before + number("plugged_mb", 0) * 3 / 4);

    char *net = text("net");
    if (net) heartbeat_start(net);
    if (number("tcp", 0)) echo_start(number("tcp", 0));
    start_disk();
    if (number("screen_mbps", -1) >= 0) screen_start(number("screen_mbps", 0));
    if (number("work", 0)) work_start();
    if (number("shell", 0)) start_thread(shell_thread, NULL);

    long total = number("mem_mb", 64), hot = number("dirty_ws_mb", total);
    if (total < 1 || hot < 0) give_up("GUESTERR mem_mb and dirty_ws_mb are sizes in MiB");
    struct memory_options options = {
        .total_bytes = total * MIB,
        .hot_bytes = (hot < total ? hot : total) * MIB,
        .dirty_mib_s = number("dirty_mbps", 0),
        .verify_mib_s = number("verify_mbps", 64),
    };
    memory_run(&options);
}
