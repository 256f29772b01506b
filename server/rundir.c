/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rundir.c - the runtime directory.
 *
 * Owns the lock file's descriptor and the names of our two sockets. Runs in the thread that starts
 * the server, and at the end in the control thread. It must never unlink what is not a socket, or a
 * socket that is not ours while its server lives: hence lock first, then bind.
 */
#include "server/rundir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvbell/protocol.h"
#include "server/life.h"
#include "shm/fd.h"
#include "shm/util.h"

#define LOCK_RETRY_MS 20

static bool is_our_name(const char *name)
{
	static const char *const names[] = {
		".", "..", KVB_DOOR_SOCKET, KVB_CONTROL_SOCKET, KVB_LOCK_FILE};

	for (size_t i = 0; i < KVB_ARRAY_SIZE(names); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

/* True when the directory holds nothing but what a server leaves there. */
static bool holds_only_ours(const char *dir)
{
	DIR *stream = opendir(dir);
	bool only_ours = true;

	if (!stream)
		return false;
	for (struct dirent *entry = readdir(stream); entry && only_ours; entry = readdir(stream))
		only_ours = is_our_name(entry->d_name);
	closedir(stream);
	return only_ours;
}

static int check_dir(struct kvb_rundir *rundir, mode_t mode)
{
	struct stat st;

	if (lstat(rundir->dir, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode)) {
		kvb_log(rundir->log, KVB_LOG_ERR, "%s is not a directory; give another with --dir",
			rundir->dir);
		return -ENOTDIR;
	}
	if (st.st_uid != geteuid()) {
		kvb_log(rundir->log, KVB_LOG_ERR,
			"%s belongs to uid %u, not to this server's uid %u; give a directory "
			"of its own with --dir",
			rundir->dir, st.st_uid, geteuid());
		return -EPERM;
	}
	if ((st.st_mode & 07777) == mode)
		return 0;
	/* Changing the mode of, say, a home directory would be a disaster. */
	if (!holds_only_ours(rundir->dir)) {
		kvb_log(rundir->log, KVB_LOG_ERR,
			"%s has mode %04o instead of %04o and holds other files; give an "
			"empty or new directory with --dir",
			rundir->dir, st.st_mode & 07777, mode);
		return -EPERM;
	}
	return chmod(rundir->dir, mode) < 0 ? -errno : 0;
}

/* Takes the lock, or tells why not. A dying owner is waited for: the kernel tears down its memory
 * before it drops its locks, which takes long for a large pool. */
static int take_lock(struct kvb_rundir *rundir, uint32_t wait_ms, int cancel_fd)
{
	struct pollfd cancel = {.fd = cancel_fd, .events = POLLIN};
	uint64_t deadline = kvb_now_ns() + wait_ms * KVB_NS_PER_MS;
	bool told = false;

	while (flock(rundir->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK)
			return -errno;
		if (!kvb_life_lock_owner_gone(rundir->lock_fd)) {
			kvb_log(rundir->log, KVB_LOG_ERR,
				"another server is running in %s; stop it first, or give "
				"another directory with --dir",
				rundir->dir);
			return -EBUSY;
		}
		if (kvb_now_ns() > deadline) {
			kvb_log(rundir->log, KVB_LOG_ERR,
				"the dead or ending server of %s still holds its lock; try again later",
				rundir->dir);
			return -EBUSY;
		}
		if (!told)
			kvb_log(rundir->log, KVB_LOG_INFO,
				"waiting for the kernel to clear away the dead server of %s",
				rundir->dir);
		told = true;
		if (poll(&cancel, 1, LOCK_RETRY_MS) > 0)
			return -EINTR;
	}
	return 0;
}

static int check_socket_path(struct kvb_rundir *rundir, const struct kvb_rundir_socket *where)
{
	struct stat st;

	if (lstat(where->path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (S_ISSOCK(st.st_mode))
		return 0;
	kvb_log(rundir->log, KVB_LOG_ERR,
		"%s exists and is not a socket; move it away, or give another directory with "
		"--dir",
		where->path);
	return -EEXIST;
}

static int set_paths(struct kvb_rundir *rundir, const char *dir, char *lock_path, size_t size)
{
	size_t room = sizeof(rundir->dir);
	int n = snprintf(rundir->dir, room, "%s", dir);
	int n_door = snprintf(rundir->door.path, room, "%s/%s", dir, KVB_DOOR_SOCKET);
	int n_control = snprintf(rundir->control.path, room, "%s/%s", dir, KVB_CONTROL_SOCKET);

	snprintf(lock_path, size, "%s/%s", dir, KVB_LOCK_FILE);
	if (n < (int)room && n_door < (int)room && n_control < (int)room)
		return 0;
	kvb_log(rundir->log, KVB_LOG_ERR,
		"the path %s/%s has %d bytes, and a socket's path at most %zu; give a shorter "
		"directory with --dir",
		dir, KVB_CONTROL_SOCKET, n_control, room - 1);
	return -ENAMETOOLONG;
}

int kvb_rundir_open(struct kvb_rundir *rundir, const char *dir, bool open_to_others,
	uint32_t wait_ms, int cancel_fd, const struct kvb_log *log)
{
	char lock_path[sizeof(rundir->dir) + sizeof(KVB_LOCK_FILE) + 1];
	mode_t mode = open_to_others ? 0711 : 0700;
	int r;

	*rundir = (struct kvb_rundir){.log = log, .lock_fd = -1};
	r = set_paths(rundir, dir, lock_path, sizeof(lock_path));
	if (r < 0)
		return r;
	if (mkdir(dir, mode) < 0 && errno != EEXIST) {
		r = -errno;
		kvb_log(log, KVB_LOG_ERR, "cannot make the runtime directory %s: %s", dir,
			strerror(-r));
		return r;
	}
	r = check_dir(rundir, mode);
	if (r < 0)
		return r;
	rundir->lock_fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (rundir->lock_fd < 0) {
		r = -errno;
		kvb_log(log, KVB_LOG_ERR, "cannot open %s: %s", lock_path, strerror(-r));
		return r;
	}
	r = take_lock(rundir, wait_ms, cancel_fd);
	if (r == 0)
		r = check_socket_path(rundir, &rundir->door);
	if (r == 0)
		r = check_socket_path(rundir, &rundir->control);
	if (r < 0)
		kvb_fd_close(&rundir->lock_fd);
	return r;
}

static int bind_and_listen(struct kvb_rundir_socket *where, int fd, mode_t mode)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct stat st;

	memcpy(address.sun_path, where->path, sizeof(address.sun_path));
	/* On Linux the file that bind(2) makes gets the socket's own mode, less the umask; the mode
	 * is there before the name is. */
	if (fchmod(fd, mode) < 0)
		return -errno;
	if (unlink(where->path) < 0 && errno != ENOENT)
		return -errno;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	if (lstat(where->path, &st) < 0)
		return -errno;
	where->dev = st.st_dev;
	where->ino = st.st_ino;
	where->bound = true;
	if ((st.st_mode & 07777) != mode && chmod(where->path, mode) < 0)
		return -errno;
	return listen(fd, SOMAXCONN) < 0 ? -errno : 0;
}

int kvb_rundir_bind(struct kvb_rundir *rundir, struct kvb_rundir_socket *where, int type,
	mode_t mode, int *ret_fd)
{
	int r = 0;
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	r = fd < 0 ? -errno : bind_and_listen(where, fd, mode);
	if (r < 0) {
		kvb_log(rundir->log, KVB_LOG_ERR, "cannot listen on %s: %s", where->path,
			strerror(-r));
		kvb_fd_close(&fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

static void unlink_socket(struct kvb_rundir *rundir, struct kvb_rundir_socket *where)
{
	struct stat st;

	if (!where->bound)
		return;
	where->bound = false;
	if (lstat(where->path, &st) < 0 || st.st_dev != where->dev || st.st_ino != where->ino)
		return;
	kvb_log(rundir->log, KVB_LOG_DEBUG, "step: unlink %s", where->path);
	unlink(where->path);
}

void kvb_rundir_unlink(struct kvb_rundir *rundir)
{
	unlink_socket(rundir, &rundir->door);
	unlink_socket(rundir, &rundir->control);
}

void kvb_rundir_close(struct kvb_rundir *rundir)
{
	kvb_fd_close(&rundir->lock_fd);
}
