/* SPDX-License-Identifier: Apache-2.0 */
/* What options and environment become: names, ports, the master's address. */
#include "base/log.h"
#include "base/parse.h"

#include "client/internal.h"
#include "os/clock.h"
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct egm_detail detail;
static char dir[64];

static void begin(void)
{
    egm_log_set_level(EGM_LOG_ERROR);
    egm_ignore(snprintf(dir, sizeof(dir), "/tmp/egm-test-XXXXXX"), "fits");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    setenv("EGMSTORE_RUNTIME_DIR", dir, 1);
    unsetenv("MC_STORE_CLIENT_MIN_PORT");
    unsetenv("MC_STORE_CLIENT_MAX_PORT");
    detail = (struct egm_detail){0};
}

static void end(void)
{
    rmdir(dir);
}

static int init(struct egm_client_config *config, struct egm_store_options options)
{
    detail = (struct egm_detail){0};
    return egm_client_config_init(config, &options, &detail);
}

static unsigned name_port(const char *hostname)
{
    struct egm_client_config config;
    struct egm_address address;

    ck_assert_int_eq(init(&config, (struct egm_store_options){.hostname = hostname}), 0);
    ck_assert_int_eq(egm_parse_address(config.name, &address), 0);
    ck_assert(address.has_port);
    egm_client_config_release(&config);
    return address.port;
}

START_TEST(name_without_port_gets_one_of_mooncakes_range)
{
    begin();
    for (unsigned i = 0; i < 20; i++) {
        unsigned port = name_port(i % 2 ? "127.0.0.1" : NULL);
        ck_assert(port >= 12300 && port <= 14300);
    }
    ck_assert_uint_eq(name_port("127.0.0.1:17001"), 17001);
    end();
}
END_TEST

START_TEST(names_of_ipv6_have_one_pair_of_brackets)
{
    static const char *const wanted[] = {"::1", "[::1]", "[::1]:17001", "fe80::1%lo", "::1"};
    struct egm_client_config config;

    begin();
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        ck_assert_int_eq(init(&config, (struct egm_store_options){.hostname = wanted[i]}), 0);
        ck_assert(config.name[0] == '[' && config.name[1] != '[');
        ck_assert_ptr_nonnull(strstr(config.name, "]:1"));
        egm_client_config_release(&config);
    }
    end();
}
END_TEST

START_TEST(range_of_name_ports_is_the_environments)
{
    begin();
    setenv("MC_STORE_CLIENT_MIN_PORT", "15001", 1);
    setenv("MC_STORE_CLIENT_MAX_PORT", "15003", 1);
    unsigned port = name_port("127.0.0.1");
    ck_assert(port >= 15001 && port <= 15003);
    setenv("MC_STORE_CLIENT_MAX_PORT", "1", 1); /* below the first: only that one */
    ck_assert_uint_eq(name_port("127.0.0.1"), 15001);
    setenv("MC_STORE_CLIENT_MIN_PORT", "5x", 1);
    setenv("MC_STORE_CLIENT_MAX_PORT", "", 1);
    port = name_port("127.0.0.1");
    ck_assert(port >= 12300 && port <= 14300);
    end();
}
END_TEST

START_TEST(port_of_a_name_is_held_until_release)
{
    begin();
    struct egm_client_config first, second, third;
    struct egm_store_options options = {.hostname = "127.0.0.1"};

    setenv("MC_STORE_CLIENT_MIN_PORT", "15011", 1);
    setenv("MC_STORE_CLIENT_MAX_PORT", "15012", 1);
    ck_assert_int_eq(init(&first, options), 0);
    ck_assert_int_eq(init(&second, options), 0);
    ck_assert_str_ne(first.name, second.name);
    ck_assert_int_eq(init(&third, options), -EADDRINUSE);
    ck_assert_ptr_nonnull(strstr(detail.text, "15011..15012"));
    egm_client_config_release(&first);
    ck_assert_int_eq(init(&third, options), 0);
    egm_client_config_release(&second);
    egm_client_config_release(&third);
    end();
}
END_TEST

START_TEST(names_that_nobody_can_reach_are_refused)
{
    begin();
    static const char *const wrong[] = {"0.0.0.0", "::", "a b", "h:0", ":5", "1.2.3"};
    struct egm_client_config config;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ck_assert_int_eq(init(&config, (struct egm_store_options){.hostname = wrong[i]}),
                         EGM_E_INVALID);
        ck_assert_int_eq(config.name_fd, -1);
    }
    end();
}
END_TEST

START_TEST(masters_address_gets_its_port_and_its_socket)
{
    begin();
    static const char *const wrong[] = {"h:", "h:0", "a:b:c", "http://h:1", "[::1"};
    struct egm_client_config config;
    char text[EGM_ADDRESS_TEXT + 64];

    ck_assert_int_eq(init(&config, (struct egm_store_options){.master = "10.0.0.9"}), 0);
    ck_assert_str_eq(config.master, "10.0.0.9:50051");
    ck_assert_str_eq(config.unix_master, "");
    egm_client_config_release(&config);
    ck_assert_int_eq(init(&config, (struct egm_store_options){.master = NULL}), 0);
    ck_assert_str_eq(config.master, "127.0.0.1:50051");
    egm_ignore(snprintf(text, sizeof(text), "unix:%s/master-50051.sock", dir), "fits");
    ck_assert_str_eq(config.unix_master, text);
    egm_client_config_release(&config);
    ck_assert_int_eq(init(&config, (struct egm_store_options){.master = "unix:/a/b"}), 0);
    ck_assert_str_eq(config.master, "unix:/a/b");
    egm_client_config_release(&config);
    ck_assert_int_eq(init(&config, (struct egm_store_options){.master = "[::1]:7"}), 0);
    ck_assert_str_eq(config.master, "[::1]:7");
    ck_assert_str_ne(config.unix_master, "");
    egm_client_config_release(&config);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ck_assert_int_eq(init(&config, (struct egm_store_options){.master = wrong[i]}),
                         EGM_E_INVALID);
        ck_assert_ptr_nonnull(strstr(detail.text, wrong[i]));
    }
    /* a master under this host's own name is on this host; its folder may not be there to be used
     */
    ck_assert_int_eq(gethostname(text, sizeof(text)), 0);
    ck_assert_int_eq(init(&config, (struct egm_store_options){.master = text}), 0);
    ck_assert_str_ne(config.unix_master, "");
    egm_client_config_release(&config);
    setenv("EGMSTORE_RUNTIME_DIR", "/nowhere/at/all", 1);
    ck_assert_int_eq(init(&config, (struct egm_store_options){.master = "localhost"}), 0);
    ck_assert_str_eq(config.unix_master, "");
    egm_client_config_release(&config);
    end();
}
END_TEST

START_TEST(texts_that_are_too_long_are_refused_and_named)
{
    begin();
    struct egm_client_config config;
    char text[5000];

    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    ck_assert_int_eq(init(&config, (struct egm_store_options){.tenant = text}), EGM_E_INVALID);
    ck_assert_ptr_nonnull(strstr(detail.text, "tenant"));
    memcpy(text, "unix:", 5);
    ck_assert_int_eq(init(&config, (struct egm_store_options){.master = text}), EGM_E_INVALID);
    ck_assert_ptr_nonnull(strstr(detail.text, "path"));
    setenv("EGMSTORE_CLUSTER", text, 1);
    ck_assert_int_eq(init(&config, (struct egm_store_options){.tenant = "t"}), EGM_E_INVALID);
    ck_assert_ptr_nonnull(strstr(detail.text, "EGMSTORE_CLUSTER"));
    unsetenv("EGMSTORE_CLUSTER");
    end();
}
END_TEST

static uint64_t deadline_ms(uint32_t option_ms)
{
    struct egm_client_config config;

    ck_assert_int_eq(init(&config, (struct egm_store_options){.deadline_ms = option_ms}), 0);
    egm_client_config_release(&config);
    return config.deadline_ns / EGM_NS_PER_MS;
}

START_TEST(environment_wins_and_bad_values_count_as_unset)
{
    begin();
    struct egm_client_config config;

    unsetenv("EGMSTORE_DEADLINE_MS");
    unsetenv("MC_RPC_TIMEOUT_MS");
    ck_assert_uint_eq(deadline_ms(0), 30000);
    ck_assert_uint_eq(deadline_ms(700), 700);
    setenv("MC_RPC_TIMEOUT_MS", "900", 1);
    ck_assert_uint_eq(deadline_ms(700), 900);
    setenv("EGMSTORE_DEADLINE_MS", "-1", 1);
    ck_assert_uint_eq(deadline_ms(700), 900);
    setenv("EGMSTORE_DEADLINE_MS", "1000", 1);
    ck_assert_uint_eq(deadline_ms(700), 1000);
    setenv("EGMSTORE_MAP", "perhaps", 1);
    ck_assert_int_eq(init(&config, (struct egm_store_options){.tenant = "t"}), 0);
    ck_assert(config.is_map_on);
    egm_client_config_release(&config);
    setenv("EGMSTORE_MAP", "off", 1);
    ck_assert_int_eq(init(&config, (struct egm_store_options){.tenant = ""}), 0);
    ck_assert(!config.is_map_on);
    ck_assert_str_eq(config.tenant, "default");
    egm_client_config_release(&config);
    end();
}
END_TEST

START_TEST(wires_that_are_not_there_fall_back_unless_forbidden)
{
    begin();
    struct egm_client_config config;
    struct egm_store_options options = {.protocol = "rdma"};

    ck_assert_int_eq(init(&config, options), 0);
    egm_client_config_release(&config);
    options.strict_protocol = true;
    ck_assert_int_eq(init(&config, options), EGM_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(detail.text, "rdma"));
    end();
}
END_TEST

EGM_TEST_MAIN("client_config", name_without_port_gets_one_of_mooncakes_range,
              names_of_ipv6_have_one_pair_of_brackets, range_of_name_ports_is_the_environments,
              port_of_a_name_is_held_until_release, names_that_nobody_can_reach_are_refused,
              masters_address_gets_its_port_and_its_socket,
              texts_that_are_too_long_are_refused_and_named,
              environment_wins_and_bad_values_count_as_unset,
              wires_that_are_not_there_fall_back_unless_forbidden)
