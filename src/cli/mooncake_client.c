/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mooncake_client: a provider behind the flags of Mooncake's "real client" daemon.
 *
 * Upstream's daemon also serves dummy clients on --port; that is not offered. The port is bound all
 * the same, because scripts wait for it: connections are accepted and closed, which is logged once.
 * --enable_http_server serves GET /health, 200 while the memory is mounted. Without --host
 * everything is on loopback, with one warning; a --host that is given is the published name, and
 * the data port listens on it.
 */
#include "base/assert.h"
#include "base/log.h"

#include "cli/mooncake.h"
#include "cli/provider_process.h"
#include "os/net.h"
#include "os/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOPBACK "127.0.0.1"
#define DRAIN_MS 8000
#define HTTP_CONNECTIONS 64u
#define HTTP_IDLE_S 10u

static const struct egm_option rows[] = {
    EGM_MOONCAKE_COMMON_ROWS,
    {.name = "host",
     .placeholder = "address",
     .type = EGM_OPTION_STRING,
     .max = 255,
     .help = "published name of this provider; not given or a wildcard: an address of this host",
     .group = "Network"},
    {.name = "port",
     .placeholder = "port",
     .type = EGM_OPTION_U64,
     .default_text = "50052",
     .min = 1,
     .max = 65535,
     .help = "port that shows that the daemon is up; dummy clients are not served",
     .group = "Network"},
    {.name = "master-server-address",
     .placeholder = "address",
     .type = EGM_OPTION_STRING,
     .default_text = "127.0.0.1:50051",
     .min = 1,
     .max = 300,
     .help = "the master, host:port",
     .group = "Network"},
    {.name = "enable-http-server",
     .type = EGM_OPTION_BOOL,
     .default_text = "false",
     .help = "serve GET /health",
     .group = "Network"},
    {.name = "http-port",
     .placeholder = "port",
     .type = EGM_OPTION_U64,
     .default_text = "9300",
     .min = 1,
     .max = 65535,
     .help = "port of the HTTP server",
     .group = "Network"},
    {.name = "global-segment-size",
     .placeholder = "bytes",
     .type = EGM_OPTION_SIZE,
     .default_text = "4 GB",
     .min = 1048576,
     .unit = "bytes",
     .help = "memory to lend",
     .group = "Memory"},

    EGM_IGNORED_TEXT("metadata-server", "http://127.0.0.1:8080/metadata"),
    EGM_IGNORED_TEXT("protocol", "tcp"),
    EGM_IGNORED_TEXT("device-names", ""),
    EGM_IGNORED("local-buffer-size", EGM_OPTION_SIZE, "0", "bytes"),
    EGM_IGNORED_U64("threads", "1"),
    EGM_IGNORED_TEXT("tenant-id", "default"),
    EGM_IGNORED_BOOL("enable-offload", "false"),
    EGM_IGNORED_BOOL("start-offload-rpc-server", "true"),
    EGM_MOONCAKE_GLOG_ROWS,
};

struct client {
    int listen_fd;
    int end_pipe[2]; /* written to end the thread */
    pthread_t thread;
    bool has_thread;
    int http_fd; /* -1: no HTTP wanted */
    struct MHD_Daemon *http;
    struct egm_provider *provider;
};

/* ---- the port that nobody is served on ---- */

static void *turn_away(void *arg)
{
    struct client *client = arg;
    struct pollfd p[2] = {{.fd = client->listen_fd, .events = POLLIN},
                          {.fd = client->end_pipe[0], .events = POLLIN}};
    bool was_logged = false;

    while (poll(p, 2, -1) >= 0 || errno == EINTR) {
        if (p[1].revents) {
            break;
        }
        int fd;
        int r = egm_net_accept(client->listen_fd, &fd);
        if (r == 0) {
            close(fd);
        } else if (r != -EAGAIN) {
            struct timespec pause = {.tv_nsec = 10000000}; /* out of files: it would spin */
            nanosleep(&pause, NULL);
        }
        if (r == 0 && !was_logged) {
            was_logged = true;
            egm_info("connection on the client port closed: dummy clients are not served, their "
                     "processes use the "
                     "Python package directly");
        }
    }
    return NULL;
}

/* ---- HTTP ---- */

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_size, void **state)
{
    struct client *client = arg;
    bool is_known = strcmp(path, "/health") == 0 && strcmp(method, "GET") == 0;
    bool is_ready = egm_provider_state(client->provider) == EGM_PROVIDER_READY;
    const char *text = !is_known  ? "no such page\n"
                       : is_ready ? "{\"status\":\"ok\",\"code\":0}\n"
                                  : "{\"status\":\"not ready\",\"code\":1}\n";

    (void)version;
    (void)data;
    (void)data_size;
    (void)state;
    struct MHD_Response *response = MHD_create_response_from_buffer(
        strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
    if (!response) {
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                            is_known ? "application/json" : "text/plain");
    enum MHD_Result r = MHD_queue_response(connection,
                                           !is_known  ? MHD_HTTP_NOT_FOUND
                                           : is_ready ? MHD_HTTP_OK
                                                      : MHD_HTTP_SERVICE_UNAVAILABLE,
                                           response);
    MHD_destroy_response(response);
    return r;
}

static int start_http(struct client *client)
{
    sigset_t all;
    sigset_t before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    client->http = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC, 0, NULL, NULL,
                                    on_request, client, MHD_OPTION_LISTEN_SOCKET, client->http_fd,
                                    MHD_OPTION_CONNECTION_LIMIT, HTTP_CONNECTIONS,
                                    MHD_OPTION_CONNECTION_TIMEOUT, HTTP_IDLE_S, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (client->http) {
        client->http_fd = -1; /* the server's now */
    }
    return client->http ? 0 : EGM_E_INTERNAL;
}

/* ---- life ---- */

static int started(void *arg, struct egm_provider *provider)
{
    struct client *client = arg;

    client->provider = provider;
    int r = egm_thread_start(&client->thread, "egm-port", turn_away, client);
    client->has_thread = r == 0;
    if (r == 0 && client->http_fd >= 0) {
        r = start_http(client);
    }
    if (r < 0) {
        egm_error("cannot start the threads of the client ports err=\"%s\"", egm_strerror(r));
    }
    return r < 0 ? EGM_EXIT_FAILED : EGM_EXIT_OK;
}

/* Before the provider goes: nobody may ask for its state any more. */
static void ending(void *arg)
{
    struct client *client = arg;

    if (client->http) {
        MHD_stop_daemon(client->http);
        client->http = NULL;
    }
    if (client->has_thread) {
        ssize_t n = write(client->end_pipe[1], "e", 1);
        (void)n;
        pthread_join(client->thread, NULL);
        client->has_thread = false;
    }
}

static void close_fd(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

static void release(struct client *client)
{
    ending(client);
    close_fd(client->listen_fd);
    close_fd(client->end_pipe[0]);
    close_fd(client->end_pipe[1]);
    close_fd(client->http_fd);
}

static int listen_at(const struct egm_cli *cli, const char *host, const char *option, int *ret_fd)
{
    struct egm_address address;
    char text[EGM_ADDRESS_TEXT];
    struct egm_detail detail = {0};

    if (egm_parse_address(host, &address) < 0 || address.has_port) {
        return egm_cli_misuse(cli, "bad value '%.64s' for --host: expected an address without port",
                              host);
    }
    address.port = (uint16_t)egm_options_u64(&cli->options, option);
    address.has_port = true;
    egm_ignore(egm_format_address(&address, text, sizeof(text)), "EGM_ADDRESS_TEXT suffices");
    if (egm_net_listen(text, ret_fd, NULL, 0, &detail) < 0) {
        return egm_cli_fail(cli, "%s; choose another --%s", detail.text, option);
    }
    return EGM_EXIT_OK;
}

static bool is_wildcard(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 || strcmp(host, "[::]") == 0;
}

static int run(struct egm_cli *cli)
{
    const struct egm_options *o = &cli->options;
    struct client client = {.listen_fd = -1, .end_pipe = {-1, -1}, .http_fd = -1};
    int code;

    if (!egm_mooncake_begin(cli, &code)) {
        return code;
    }
    const char *host = egm_options_text(o, "host");
    bool has_host = host && host[0];
    if (!has_host) {
        egm_warn("listening on " LOOPBACK
                 " only, because peers are not authenticated; give --host to serve other hosts, "
                 "continuing");
    }
    egm_provider_process_signals();
    code = listen_at(cli, has_host ? host : LOOPBACK, "port", &client.listen_fd);
    if (code == EGM_EXIT_OK && egm_options_bool(o, "enable-http-server")) {
        code = listen_at(cli, has_host ? host : LOOPBACK, "http-port", &client.http_fd);
    }
    if (code == EGM_EXIT_OK && pipe2(client.end_pipe, O_CLOEXEC) < 0) {
        code = egm_cli_fail(cli, "no pipe: %s", strerror(errno));
    }
    if (code == EGM_EXIT_OK) {
        struct egm_provider_process process = {
            .options = {.master = egm_options_text(o, "master-server-address"),
                        .hostname = has_host ? (is_wildcard(host) ? "" : host) : LOOPBACK,
                        .data_address = has_host ? host : NULL,
                        .size_bytes = egm_options_u64(o, "global-segment-size")},
            .drain_ms = DRAIN_MS,
            .started = started,
            .ending = ending,
            .arg = &client,
        };
        code = egm_provider_process_run(cli, &process);
    }
    release(&client);
    return code;
}

const struct egm_command egm_command_mooncake_client = {
    .name = "mooncake-client",
    .summary = "lend memory, with the flags of Mooncake's client daemon",
    .usage = "",
    .about = "Takes the flags of Mooncake's mooncake_client, in all spellings of gflags. Its "
             "memory is a provider's.",
    .examples =
        "  mooncake_client --master_server_address=127.0.0.1:50051 --global_segment_size='16 GB'\n"
        "  mooncake_client --host 10.0.0.2 --port 50052 --enable_http_server --http_port 9300\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .alias = "mooncake_client",
    .run = run,
};
