/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target's entry point over files and folders of files, without libFuzzer: the corpora
 * are tests of every build, whatever its compiler and sanitizers. Each input lies in a block of its
 * exact size, so that a byte beyond it is seen. */
#include "base/assert.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    return 0;
}

#define INPUT_MAX (1u << 20)

static unsigned run_file(const char *path)
{
    FILE *file = fopen(path, "re");
    uint8_t *whole = malloc(INPUT_MAX);

    if (!file || !whole) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        exit(1);
    }
    size_t size = fread(whole, 1, INPUT_MAX, file);
    fclose(file);
    uint8_t *exact = malloc(size ? size : 1);
    EGM_ASSERT(exact);
    memcpy(exact, whole, size);
    free(whole);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return 1;
}

static unsigned run_path(const char *path)
{
    DIR *dir = opendir(path);
    unsigned count = 0;

    if (!dir) {
        return run_file(path);
    }
    for (const struct dirent *entry; (entry = readdir(dir));) {
        char name[4096];
        int n = snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.' && n > 0 && (size_t)n < sizeof(name)) {
            count += run_file(name);
        }
    }
    closedir(dir);
    return count;
}

int main(int argc, char **argv)
{
    unsigned count = 0;

    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        count += run_path(argv[i]);
    }
    printf("%u inputs\n", count);
    return count > 0 ? 0 : 1;
}
