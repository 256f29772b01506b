/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd.h - closing descriptors and passing them over a SEQPACKET socket.
 */
#ifndef KVB_SHM_FD_H
#define KVB_SHM_FD_H

#include <stddef.h>

/* Most descriptors one record may carry here; the kernel's own limit is 253. */
#define KVB_FDS_MAX 8u

/* Closes once, never retries (close(2): the number is gone even on EINTR), leaves -1 behind. */
void kvb_fd_close(int *fd);
void kvb_fds_close(int *fds, unsigned n_fds);

/* Sends one whole record, with descriptors if n_fds > 0, without blocking and without SIGPIPE.
 * 0; -EAGAIN; -EPIPE; -ETOOMANYREFS; other -errno. */
int kvb_record_send(int sock, const void *record, size_t size, const int *fds, unsigned n_fds);

/*
 * Receives one record of at most `size` bytes and up to n_fds descriptors, all CLOEXEC; slots that
 * no descriptor came for are -1. 1 and the record's size; 0 the peer closed; -EAGAIN; -EMSGSIZE
 * record too long; -EMFILE the kernel dropped descriptors, for want of room here or in this
 * process; -EPROTO more control data than agreed. On every error all received descriptors are
 * closed.
 */
int kvb_record_recv(
	int sock, void *record, size_t size, size_t *ret_size, int *ret_fds, unsigned n_fds);

#endif /* KVB_SHM_FD_H */
