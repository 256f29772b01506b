/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir.h - where the runtime directory is when nobody says. Any thread.
 */
#ifndef KVB_SHM_DIR_H
#define KVB_SHM_DIR_H

#include <stddef.h>

/* $KVBELL_DIR, else $XDG_RUNTIME_DIR/kvbell, else /run/kvbell. 0; -ENAMETOOLONG. */
int kvb_runtime_dir(char *ret_dir, size_t size);

#endif /* KVB_SHM_DIR_H */
