/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd.c - descriptors: closed exactly once, passed as one record with one set.
 *
 * Owns nothing and keeps no state; any thread. It must never leave a received descriptor open on an
 * error path: MSG_CTRUNC looks like success to recvmsg(2), and the descriptors that did arrive
 * would leak (the class of CVE-2020-12049).
 */
#include "shm/fd.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void kvb_fd_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void kvb_fds_close(int *fds, unsigned n_fds)
{
	for (unsigned i = 0; i < n_fds; i++)
		kvb_fd_close(&fds[i]);
}

/* The union gives the buffer the alignment that struct cmsghdr needs. */
union control_buffer {
	char bytes[CMSG_SPACE(KVB_FDS_MAX * sizeof(int))];
	struct cmsghdr align;
};

int kvb_record_send(int sock, const void *record, size_t size, const int *fds, unsigned n_fds)
{
	struct iovec iov = {.iov_base = (void *)record, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	union control_buffer control;
	ssize_t n;

	if (n_fds > KVB_FDS_MAX || size == 0)
		return -EINVAL;
	if (n_fds > 0) {
		memset(&control, 0, sizeof(control));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}
	do {
		n = sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

/* Moves the descriptors of one control message to fds; those beyond n_fds are closed.
 * Returns how many came. */
static unsigned collect_fds(struct cmsghdr *cmsg, int *fds, unsigned n_fds, unsigned n_have)
{
	unsigned n = (unsigned)((cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int));

	for (unsigned i = 0; i < n; i++) {
		int fd;
		memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));
		if (n_have + i < n_fds)
			fds[n_have + i] = fd;
		else
			kvb_fd_close(&fd);
	}
	return n;
}

int kvb_record_recv(
	int sock, void *record, size_t size, size_t *ret_size, int *ret_fds, unsigned n_fds)
{
	struct iovec iov = {.iov_base = record, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	union control_buffer control;
	unsigned n_got = 0;
	ssize_t n;
	int r = 1;

	if (n_fds > KVB_FDS_MAX)
		return -EINVAL;
	for (unsigned i = 0; i < n_fds; i++)
		ret_fds[i] = -1;
	/* Without a control buffer the kernel drops descriptors instead of installing them. */
	if (n_fds > 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
	}
	do {
		n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
		if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
			n_got += collect_fds(cmsg, ret_fds, n_fds, n_got);
		else
			r = -EPROTO;
	}
	if (n_got > n_fds)
		r = -EPROTO;
	if (msg.msg_flags & MSG_CTRUNC)
		r = n_fds > 0 ? -EMFILE : -EPROTO;
	if (msg.msg_flags & MSG_TRUNC)
		r = -EMSGSIZE;
	/* A record of 0 bytes reads like end of file; with descriptors it is a violation. */
	if (n == 0 && r > 0)
		r = n_got > 0 ? -EPROTO : 0;
	if (r <= 0)
		kvb_fds_close(ret_fds, n_fds);
	else
		*ret_size = (size_t)n;
	return r;
}
