/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets that killed providers left in the runtime directory. Their names are random, so nobody
 * would ever replace them; each provider that starts removes those that nobody serves.
 *
 * A provider that is just starting has bound its path and does not listen yet, which looks the same
 * from outside: only paths older than a minute are touched.
 */
#include "provider/shell.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OLD_S 60

static bool is_left_behind(const char *path)
{
    char address[300];
    struct stat st;
    int fd;

    if (lstat(path, &st) < 0 || !S_ISSOCK(st.st_mode) || time(NULL) - st.st_mtime < OLD_S) {
        return false;
    }
    int n = snprintf(address, sizeof(address), "unix:%s", path);
    if (n < 0 || (size_t)n >= sizeof(address)) {
        return false;
    }
    /* A deadline in the past: a served path answers at once or is busy, which is served as well. */
    int r = egm_net_connect(address, 1, &fd, NULL);
    if (r == 0) {
        close(fd);
    }
    return r == -ECONNREFUSED;
}

void egm_shell_sweep(const struct egm_provider *p)
{
    DIR *dir = opendir(p->runtime_dir);
    const struct dirent *entry;
    char path[256 + sizeof(p->runtime_dir)];

    while (dir && (entry = readdir(dir))) {
        if (fnmatch("provider-????????????????.sock", entry->d_name, 0) != 0) {
            continue;
        }
        int n = snprintf(path, sizeof(path), "%s/%s", p->runtime_dir, entry->d_name);
        if (n > 0 && (size_t)n < sizeof(path) && is_left_behind(path)) {
            egm_ignore(unlink(path), "another provider may have been quicker");
        }
    }
    if (dir) {
        closedir(dir);
    }
}
