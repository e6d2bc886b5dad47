/* SPDX-License-Identifier: Apache-2.0 */
#include "base/list.h"

#include "test.h"

struct item {
    int value;
    struct egm_link link;
};

static int value_of(struct egm_link *link)
{
    return egm_container_of(link, struct item, link)->value;
}

START_TEST(order_follows_the_pushes)
{
    struct egm_link head;
    struct item items[3] = {{.value = 0}, {.value = 1}, {.value = 2}};
    int at = 0;
    static const int wanted[] = {2, 0, 1};

    egm_list_init(&head);
    ck_assert(egm_list_is_empty(&head));
    egm_list_push_back(&head, &items[0].link);
    egm_list_push_back(&head, &items[1].link);
    egm_list_push_front(&head, &items[2].link);
    EGM_LIST_FOR_EACH (link, &head) {
        ck_assert_int_eq(value_of(link), wanted[at++]);
    }
    ck_assert_int_eq(at, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(value_of(egm_list_pop_front(&head)), wanted[i]);
    }
    ck_assert_ptr_null(egm_list_pop_front(&head));
    ck_assert_ptr_null(egm_list_first(&head));
}
END_TEST

START_TEST(removed_link_may_be_removed_again)
{
    struct egm_link head;
    struct item item = {.value = 1};

    egm_list_init(&head);
    egm_list_push_back(&head, &item.link);
    ck_assert(egm_link_is_listed(&item.link));
    egm_list_remove(&item.link);
    ck_assert(!egm_link_is_listed(&item.link));
    egm_list_remove(&item.link);
    ck_assert(egm_list_is_empty(&head));
}
END_TEST

START_TEST(safe_walk_survives_removal_of_each_item)
{
    struct egm_link head;
    struct item items[5];
    int seen = 0;

    egm_list_init(&head);
    for (int i = 0; i < 5; i++) {
        items[i].value = i;
        egm_list_push_back(&head, &items[i].link);
    }
    EGM_LIST_FOR_EACH_SAFE (link, next, &head) {
        ck_assert_int_eq(value_of(link), seen++);
        egm_list_remove(link);
    }
    ck_assert_int_eq(seen, 5);
    ck_assert(egm_list_is_empty(&head));
}
END_TEST

EGM_TEST_MAIN("base_list", order_follows_the_pushes, removed_link_may_be_removed_again,
              safe_walk_survives_removal_of_each_item)
