/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"

#include "client/internal.h"

#include <errno.h>

/* All of these but the public entry points run under store->lock. */

static void attachment_unref(struct egm_store *store, struct egm_attachment *attachment)
{
    if (attachment && --attachment->ref_count == 0) {
        egm_list_push_back(&store->retired, &attachment->link);
        store->is_woken = true;
        pthread_cond_signal(&store->wake);
    }
}

static void view_unref(struct egm_store *store, struct egm_view *view)
{
    if (!view || --view->ref_count > 0) {
        return;
    }
    for (uint32_t i = 0; i < view->layout->provider_count; i++) {
        attachment_unref(store, view->attachments[i]);
    }
    egm_layout_unref(view->layout);
    egm_free(view->attachments);
    egm_free(view);
}

struct egm_view *egm_view_acquire(struct egm_store *store)
{
    pthread_mutex_lock(&store->lock);
    struct egm_view *view = store->view;
    if (view) {
        view->ref_count++;
    }
    pthread_mutex_unlock(&store->lock);
    return view;
}

void egm_view_release(struct egm_store *store, struct egm_view *view)
{
    pthread_mutex_lock(&store->lock);
    view_unref(store, view);
    pthread_mutex_unlock(&store->lock);
}

int egm_view_publish(struct egm_store *store, struct egm_layout_snapshot *layout,
                     struct egm_attachment *const *attachments)
{
    struct egm_view *view = NULL;

    if (layout) {
        view = egm_calloc(1, sizeof(*view));
        struct egm_attachment **own = egm_calloc(layout->provider_count, sizeof(*own));
        if (!view || !own) {
            egm_free(view);
            egm_free(own);
            return -ENOMEM;
        }
        *view =
            (struct egm_view){.ref_count = 1, .layout = egm_layout_ref(layout), .attachments = own};
    }
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; layout && i < layout->provider_count; i++) {
        view->attachments[i] = attachments[i];
        if (attachments[i]) {
            attachments[i]->ref_count++;
        }
    }
    struct egm_view *old = store->view;
    store->view = view;
    store->view_number++;
    view_unref(store, old);
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
    return 0;
}

struct egm_attachment *egm_view_find(const struct egm_view *view, uint32_t mount)
{
    const struct egm_layout_mount *found = egm_layout_find(view->layout, mount);

    return found ? view->attachments[found->provider_index] : NULL;
}
