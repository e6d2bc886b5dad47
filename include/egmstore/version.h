/* SPDX-License-Identifier: Apache-2.0 */
/* Version of the library; the wire protocol has its own (docs/protocol.md). */
#ifndef EGMSTORE_VERSION_H
#define EGMSTORE_VERSION_H

#define EGMSTORE_VERSION "0.1.0"

#endif
