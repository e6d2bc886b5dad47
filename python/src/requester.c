/* SPDX-License-Identifier: Apache-2.0 */
#include "requester.h"

#include "base/parse.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#define STAGE "setup"
#define LOCAL_BUFFER_MAX_BYTES (1ull << 40)
#define SEGMENT_MIN_BYTES (1ull << 20)
#define SIZE_MIN_BYTES 1024ull
#define SIZE_DEFAULT_BYTES (16ull << 20)
#define MASTER_DEFAULT "127.0.0.1:50051"

enum entry_kind {
    ENTRY_TEXT,
    ENTRY_SIZE,
    ENTRY_BOOL,
    ENTRY_PORT, /* checked, then ignored */
    ENTRY_IGNORED
};

struct entry_row {
    const char *name;
    enum entry_kind kind;
    size_t offset;
};

#define FIELD(name) offsetof(struct egmpy_requester, name)

static const struct entry_row entry_rows[] = {
    {"local_hostname", ENTRY_TEXT, FIELD(hostname)},
    {"metadata_server", ENTRY_TEXT, FIELD(metadata_server)},
    {"global_segment_size", ENTRY_SIZE, FIELD(segment_bytes)},
    {"local_buffer_size", ENTRY_SIZE, FIELD(local_buffer_bytes)},
    {"protocol", ENTRY_TEXT, FIELD(protocol)},
    {"rdma_devices", ENTRY_IGNORED, 0},
    {"master_server_addr", ENTRY_TEXT, FIELD(master)},
    {"ipc_socket_path", ENTRY_IGNORED, 0},
    {"enable_ssd_offload", ENTRY_BOOL, FIELD(wants_ssd)},
    {"ssd_offload_path", ENTRY_IGNORED, 0},
    {"tenant_id", ENTRY_TEXT, FIELD(tenant)},
    {"enable_client_http_server", ENTRY_BOOL, FIELD(wants_http)},
    {"client_http_port", ENTRY_PORT, 0},
};

void egmpy_requester_init(struct egmpy_requester *requester)
{
    *requester = (struct egmpy_requester){.master = MASTER_DEFAULT,
                                          .protocol = "tcp",
                                          .segment_bytes = SIZE_DEFAULT_BYTES,
                                          .local_buffer_bytes = SIZE_DEFAULT_BYTES};
}

static const struct entry_row *find_entry(const char *name)
{
    for (size_t i = 0; i < sizeof(entry_rows) / sizeof(entry_rows[0]); i++) {
        if (strcmp(entry_rows[i].name, name) == 0) {
            return &entry_rows[i];
        }
    }
    return NULL;
}

static int read_size(const struct entry_row *row, const char *text, uint64_t *ret,
                     struct egm_detail *reterr)
{
    if (strcasecmp(text, "infinite") == 0) {
        *ret = UINT64_MAX;
        return 0;
    }
    if (egm_parse_size(text, 0, UINT64_MAX, ret) < 0) {
        return egm_fail(reterr, EGM_E_INVALID, STAGE,
                        "setup: %s is no size: '%.64s' (write 16777216, \"16MB\" or \"1.5GB\")",
                        row->name, text);
    }
    return 0;
}

static int read_bool(const struct entry_row *row, const char *text, int *ret,
                     struct egm_detail *reterr)
{
    bool value;

    if (egm_parse_bool(text, &value) < 0) {
        return egm_fail(reterr, EGM_E_INVALID, STAGE,
                        "setup: %s is neither true nor false: '%.64s'", row->name, text);
    }
    *ret = value;
    return 0;
}

static int check_port(const struct entry_row *row, const char *text, struct egm_detail *reterr)
{
    uint64_t port;

    if (egm_parse_u64(text, 0, UINT16_MAX, &port) < 0) {
        return egm_fail(reterr, EGM_E_INVALID, STAGE, "setup: %s is no port (0 to 65535): '%.64s'",
                        row->name, text);
    }
    return 0;
}

int egmpy_requester_set(struct egmpy_requester *requester, const char *name, const char *text,
                        struct egm_detail *reterr)
{
    const struct entry_row *row = find_entry(name);

    if (!row) {
        return egm_fail(reterr, EGM_E_NOT_FOUND, STAGE, "setup: unknown key '%.100s'", name);
    }
    void *target = (char *)requester + row->offset;
    switch (row->kind) {
    case ENTRY_TEXT:
        *(const char **)target = text;
        return 0;
    case ENTRY_SIZE:
        return read_size(row, text, target, reterr);
    case ENTRY_BOOL:
        return read_bool(row, text, target, reterr);
    case ENTRY_PORT:
        return check_port(row, text, reterr);
    case ENTRY_IGNORED:
        break;
    }
    return 0;
}

int egmpy_requester_is_whole(const struct egmpy_requester *requester, struct egm_detail *reterr)
{
    const char *missing = !requester->hostname          ? "local_hostname"
                          : !requester->metadata_server ? "metadata_server"
                                                        : NULL;

    return missing ? egm_fail(reterr, EGM_E_INVALID, STAGE, "setup: the config lacks %s", missing)
                   : 0;
}

static int check_sizes(const struct egmpy_requester *requester, struct egm_detail *reterr)
{
    if (requester->segment_bytes > 0 && requester->segment_bytes < SIZE_MIN_BYTES) {
        return egm_fail(reterr, EGM_E_INVALID, STAGE,
                        "setup: global_segment_size must be 0 or at least 1 KiB");
    }
    if (requester->local_buffer_bytes > 0 && requester->local_buffer_bytes < SIZE_MIN_BYTES) {
        return egm_fail(reterr, EGM_E_INVALID, STAGE,
                        "setup: local_buffer_size must be 0 or at least 1 KiB");
    }
    if (requester->local_buffer_bytes > LOCAL_BUFFER_MAX_BYTES) {
        return egm_fail(reterr, EGM_E_INVALID, STAGE,
                        "setup: local_buffer_size may be at most 1 TiB");
    }
    return 0;
}

static int choose_protocol(const char *name, const char **ret, struct egm_detail *reterr)
{
    static const char *const wires[] = {"tcp", "rdma", "nvlink"};

    if (name[0] == '\0' || strcasecmp(name, "rpc_only") == 0) {
        *ret = NULL;
        return 0;
    }
    for (size_t i = 0; i < sizeof(wires) / sizeof(wires[0]); i++) {
        if (strcasecmp(name, wires[i]) == 0) {
            *ret = wires[i];
            return 0;
        }
    }
    return egm_fail(reterr, EGM_E_INVALID, STAGE,
                    "setup: unknown protocol '%.64s' (tcp, rdma, nvlink, rpc_only)", name);
}

static const char *text_or_null(const char *text)
{
    return text && text[0] != '\0' ? text : NULL;
}

int egmpy_requester_options(const struct egmpy_requester *requester,
                            struct egm_store_options *ret_options, struct egm_detail *reterr)
{
    struct egm_store_options options = {
        .master = text_or_null(requester->master),
        .hostname = text_or_null(requester->hostname),
        .tenant = text_or_null(requester->tenant),
        .segment_bytes = requester->segment_bytes,
    };
    int r = check_sizes(requester, reterr);

    if (r == 0) {
        r = choose_protocol(requester->protocol, &options.protocol, reterr);
    }
    if (r < 0) {
        return r;
    }
    if (options.segment_bytes > 0 && options.segment_bytes < SEGMENT_MIN_BYTES) {
        options.segment_bytes = SEGMENT_MIN_BYTES;
    }
    *ret_options = options;
    return 0;
}
