/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores two objects, each made of two pieces of memory, and reads them back in one piece.
 *
 *     cc put_get.c -legmstore -o put_get && ./put_get [master]
 *
 * master: "host:port", default 127.0.0.1:50051. This process lends 64 MiB itself, so a master is
 * all it needs.
 */
#include <egmstore/egmstore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 2
#define PIECE 1000000

static int fail(const char *what, const struct egm_detail *detail)
{
    fprintf(stderr, "%s: %s (%s)\n", what, detail->text, egm_error_name(detail->code));
    return EXIT_FAILURE;
}

static int put_and_get(struct egm_store *store, unsigned char *memory)
{
    static const char *const keys[COUNT] = {"example/1", "example/2"};
    unsigned char *copies = memory + COUNT * 2 * PIECE;
    struct egm_detail detail = {0};
    struct iovec pieces[COUNT][2];
    struct iovec wholes[COUNT];
    struct egm_item items[COUNT];
    int64_t results[COUNT];

    for (int i = 0; i < COUNT; i++) {
        /* the value is the second piece, then the first */
        pieces[i][0] = (struct iovec){memory + (2 * i + 1) * PIECE, PIECE};
        pieces[i][1] = (struct iovec){memory + 2 * i * PIECE, PIECE};
        items[i] = (struct egm_item){
            .key = {keys[i], strlen(keys[i])}, .segments = pieces[i], .segment_count = 2};
    }
    if (egm_put(store, NULL, COUNT, items, results, &detail) < 0 || results[0] || results[1]) {
        return fail("put", &detail);
    }
    for (int i = 0; i < COUNT; i++) {
        wholes[i] = (struct iovec){copies + 2 * i * PIECE, 2 * PIECE};
        items[i].segments = &wholes[i];
        items[i].segment_count = 1;
    }
    if (egm_get(store, false, COUNT, items, results, &detail) < 0) {
        return fail("get", &detail);
    }
    for (int i = 0; i < COUNT; i++) {
        const unsigned char *copy = wholes[i].iov_base;
        if (results[i] != 2 * PIECE || memcmp(copy, pieces[i][0].iov_base, PIECE) != 0 ||
            memcmp(copy + PIECE, pieces[i][1].iov_base, PIECE) != 0) {
            return fail("get", &detail);
        }
        printf("%s: %lld bytes, as stored\n", keys[i], (long long)results[i]);
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    struct egm_store_options options = {.master = argc > 1 ? argv[1] : NULL,
                                        .segment_bytes = 64u << 20};
    struct egm_detail detail = {0};
    struct egm_store *store;
    size_t size = COUNT * 4 * PIECE;
    unsigned char *memory = malloc(size);
    int status = EXIT_FAILURE;

    if (!memory) {
        return status;
    }
    for (size_t i = 0; i < size / 2; i++) {
        memory[i] = (unsigned char)(i * i >> 7);
    }
    if (egm_store_open(&options, &store, &detail) < 0) {
        status = fail("open", &detail);
    } else {
        /* data calls touch registered memory only */
        status = egm_register(store, memory, size, &detail) < 0 ? fail("register", &detail)
                                                                : put_and_get(store, memory);
        egm_store_close(store);
    }
    free(memory);
    return status;
}
