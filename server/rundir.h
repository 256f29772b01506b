/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rundir.h - the runtime directory: made, locked for the server's life, its sockets bound and
 * removed.
 */
#ifndef KVB_SERVER_RUNDIR_H
#define KVB_SERVER_RUNDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/un.h>

#include "server/log.h"

struct kvb_rundir_socket {
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	dev_t dev; /* identity of what we bound: only that is unlinked */
	ino_t ino;
	bool bound;
};

struct kvb_rundir {
	const struct kvb_log *log;
	char dir[sizeof(((struct sockaddr_un *)0)->sun_path)];
	int lock_fd; /* -1: not locked */
	struct kvb_rundir_socket door;
	struct kvb_rundir_socket control;
};

/*
 * Makes the directory if it is missing, checks that it is ours, sets its mode (0711 when
 * `open_to_others`, else 0700) and takes the lock. A lock whose owner is dying is waited for, up to
 * wait_ms, or until cancel_fd (-1: none) is readable. 0; -EINTR cancelled; -ENAMETOOLONG; -EBUSY a
 * live server has the directory; -EPERM it is somebody else's or holds foreign files; -EEXIST a
 * socket's path is taken by something that is no socket; other -errno. Each failure is logged with
 * its remedy.
 */
int kvb_rundir_open(struct kvb_rundir *rundir, const char *dir, bool open_to_others,
	uint32_t wait_ms, int cancel_fd, const struct kvb_log *log);

/* Binds and listens; a stale socket is replaced. The mode is set before anybody can connect. */
int kvb_rundir_bind(struct kvb_rundir *rundir, struct kvb_rundir_socket *where, int type,
	mode_t mode, int *ret_fd);

/* Removes our sockets, if they are still ours. The lock stays. */
void kvb_rundir_unlink(struct kvb_rundir *rundir);
void kvb_rundir_close(struct kvb_rundir *rundir);

#endif /* KVB_SERVER_RUNDIR_H */
