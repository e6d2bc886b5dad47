/* SPDX-License-Identifier: Apache-2.0 */
#include "core/directory.h"
#include "test.h"

#include <string.h>

static struct egm_directory d;

static struct egm_bytes text(const char *s)
{
    return egm_bytes_of(s, strlen(s));
}

static uint32_t add(uint32_t tenant, const char *key, uint32_t replicas)
{
    uint32_t id;
    ck_assert_int_eq(egm_directory_new(&d, tenant, egm_directory_hash(&d, tenant, text(key)),
                                       text(key), replicas, &id),
                     0);
    return id;
}

static uint32_t find(uint32_t tenant, const char *key)
{
    return egm_directory_find(&d, tenant, egm_directory_hash(&d, tenant, text(key)), text(key));
}

static uint32_t tenant_of(const char *name)
{
    uint32_t tenant = UINT32_MAX;
    ck_assert_int_eq(egm_directory_tenant(&d, text(name), &tenant), 0);
    return tenant;
}

START_TEST(key_is_found_in_its_own_tenant_only)
{
    ck_assert_int_eq(egm_directory_init(&d, 7, NULL), 0);
    uint32_t one = tenant_of("one");
    uint32_t two = tenant_of("two");
    ck_assert_uint_ne(one, two);
    ck_assert_uint_eq(tenant_of("one"), one);
    uint32_t id = add(one, "k", 1);
    ck_assert_uint_eq(find(one, "k"), EGM_NO_OBJECT);
    ck_assert_int_eq(egm_directory_add_key(&d, id), 0);
    ck_assert_uint_eq(find(one, "k"), id);
    ck_assert_uint_eq(find(two, "k"), EGM_NO_OBJECT);
    ck_assert_uint_eq(find(one, "kk"), EGM_NO_OBJECT);
    egm_directory_remove_key(&d, id);
    ck_assert_uint_eq(find(one, "k"), EGM_NO_OBJECT);
    egm_directory_free(&d, id);
    ck_assert_uint_eq(d.object_count, 0);
    egm_directory_release(&d);
}
END_TEST

START_TEST(many_objects_are_found_by_key_window_and_generation)
{
    enum {
        COUNT = 20000
    };
    ck_assert_int_eq(egm_directory_init(&d, 1, NULL), 0);
    uint32_t tenant = tenant_of("t");
    char key[32];
    for (uint32_t i = 0; i < COUNT; i++) {
        (void)snprintf(key, sizeof key, "key-%u", i);
        uint32_t id = add(tenant, key, 1);
        ck_assert_int_eq(egm_directory_set_generation(&d, id, (UINT64_C(1) << 44) + i), 0);
        ck_assert_int_eq(egm_directory_add_key(&d, id), 0);
    }
    static char keys[EGM_FIND_WINDOW][32];
    struct egm_bytes window[EGM_FIND_WINDOW];
    uint64_t hashes[EGM_FIND_WINDOW];
    uint32_t ids[EGM_FIND_WINDOW];
    for (uint32_t i = 0; i < EGM_FIND_WINDOW; i++) { /* every second one is missing */
        (void)snprintf(keys[i], sizeof keys[i], i % 2 ? "none-%u" : "key-%u", i * 17);
        window[i] = text(keys[i]);
    }
    egm_directory_find_many(&d, tenant, window, EGM_FIND_WINDOW, hashes, ids);
    for (uint32_t i = 0; i < EGM_FIND_WINDOW; i++) {
        ck_assert_uint_eq(ids[i], find(tenant, keys[i]));
        ck_assert(i % 2 ? ids[i] == EGM_NO_OBJECT : ids[i] != EGM_NO_OBJECT);
    }
    for (uint32_t i = 0; i < COUNT; i += 97) {
        uint32_t id = egm_directory_find_generation(&d, (UINT64_C(1) << 44) + i);
        ck_assert_uint_ne(id, EGM_NO_OBJECT);
        ck_assert_uint_eq(egm_object_at(&d, id)->generation, (UINT64_C(1) << 44) + i);
    }
    ck_assert_uint_eq(egm_directory_find_generation(&d, 5), EGM_NO_OBJECT);
    egm_directory_release(&d);
}
END_TEST

START_TEST(freed_slots_are_used_again_and_forget_their_past)
{
    ck_assert_int_eq(egm_directory_init(&d, 1, NULL), 0);
    uint32_t tenant = tenant_of("t");
    uint32_t id = add(tenant, "a", 3);
    ck_assert_int_eq(egm_directory_set_generation(&d, id, 9), 0);
    egm_object_at(&d, id)->readers = 4;
    egm_directory_free(&d, id);
    ck_assert_uint_eq(egm_directory_find_generation(&d, 9), EGM_NO_OBJECT);
    uint32_t again = add(tenant, "b", 1);
    ck_assert_uint_eq(again, id);
    ck_assert_uint_eq(egm_object_at(&d, again)->readers, 0);
    ck_assert_uint_eq(egm_object_at(&d, again)->generation, 0);
    ck_assert_uint_eq(d.slot_count, 1);
    egm_directory_release(&d);
}
END_TEST

START_TEST(groups_keep_their_members_and_go_with_the_last)
{
    ck_assert_int_eq(egm_directory_init(&d, 1, NULL), 0);
    uint32_t one = tenant_of("one");
    uint32_t two = tenant_of("two");
    uint32_t a = add(one, "a", 1);
    uint32_t b = add(one, "b", 1);
    uint32_t c = add(two, "c", 1);
    ck_assert_int_eq(egm_directory_join_group(&d, a, text("g")), 0);
    ck_assert_int_eq(egm_directory_join_group(&d, b, text("g")), 0);
    ck_assert_int_eq(egm_directory_join_group(&d, c, text("g")), 0);
    ck_assert_uint_eq(egm_object_at(&d, a)->group, egm_object_at(&d, b)->group);
    ck_assert_uint_ne(egm_object_at(&d, a)->group, egm_object_at(&d, c)->group);
    uint32_t group = egm_object_at(&d, a)->group;
    ck_assert_uint_eq(d.groups[group].count, 2);
    egm_directory_free(&d, a); /* the one in the middle or at an end: both orders */
    ck_assert_uint_eq(d.groups[group].first, b);
    egm_directory_free(&d, b);
    uint32_t again = add(one, "again", 1);
    ck_assert_int_eq(egm_directory_join_group(&d, again, text("h")), 0);
    ck_assert_uint_eq(egm_object_at(&d, again)->group, group);
    ck_assert_uint_eq(d.groups[group].count, 1);
    egm_directory_free(&d, c);
    egm_directory_free(&d, again);
    egm_directory_release(&d);
}
END_TEST

static int fill(void *ctx)
{
    (void)ctx;
    struct egm_directory x;
    uint32_t tenant;
    uint32_t id;
    int r = egm_directory_init(&x, 3, NULL);
    if (r < 0) {
        return r;
    }
    r = egm_directory_tenant(&x, text("t"), &tenant);
    for (uint32_t i = 0; r == 0 && i < 20; i++) {
        char key[8] = {'k', (char)('a' + i)};
        r = egm_directory_new(&x, tenant, egm_directory_hash(&x, tenant, text(key)), text(key),
                              1 + i % 3, &id);
        r = r == 0 ? egm_directory_set_generation(&x, id, i + 1) : r;
        r = r == 0 ? egm_directory_add_key(&x, id) : r;
        r = r == 0 ? egm_directory_join_group(&x, id, text(i % 2 ? "g" : key)) : r;
    }
    egm_directory_release(&x);
    return r;
}

START_TEST(every_allocation_may_fail)
{
    egm_test_sweep(fill, NULL);
}
END_TEST

EGM_TEST_MAIN("core_directory", key_is_found_in_its_own_tenant_only,
              many_objects_are_found_by_key_window_and_generation,
              freed_slots_are_used_again_and_forget_their_past,
              groups_keep_their_members_and_go_with_the_last, every_allocation_may_fail)
