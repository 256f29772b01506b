/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strerror.c - what an error of this library means, and what helps. Owns nothing; any thread.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "kvbell/kvbell.h"

const char *kvb_strerror(int error)
{
	const char *text;

	switch (error < 0 ? -error : error) {
	case 0:
		return "success";
	case EINVAL:
		return "the key is empty or an argument makes no sense; keys have 1 to 1024 bytes";
	case ENAMETOOLONG:
		return "the key is longer than 1024 bytes, or the directory's path is too long for a "
		       "socket (107 bytes with the socket's name)";
	case EFBIG:
		return "the payload is larger than the server's pool; raise --pool of kvbelld";
	case ENOSPC:
		return "the payload does not fit now: what is in its way is in use, or the pool is "
		       "still being populated; try again later";
	case EDQUOT:
		return "this client's unfinished puts hold too many bytes; let some finish, or raise "
		       "--max-open of kvbelld";
	case ENOENT:
		return "there is no object under this key";
	case EMSGSIZE:
		return "the object is longer than the buffer; the length says how much is needed";
	case ETIMEDOUT:
		return "the deadline passed; is the server overloaded or stopped?";
	case ESHUTDOWN:
		return "the server is shutting down and takes no new work";
	case ECONNREFUSED:
		return "no server is listening in this directory; start kvbelld, or check --dir or "
		       "$KVBELL_DIR";
	case ECONNRESET:
		return "the server went away during the call; the client attaches again by itself";
	case ENOTCONN:
		return "there is no server now; the client attaches again once there is one";
	case EACCES:
		return "this user may not use the server; see --trust-uid and --allow-uid of kvbelld";
	case EPERM:
		return "only clients of the server's own user may do this";
	case EUSERS:
		return "the server has no free session; raise --max-sessions of kvbelld";
	case EPROTONOSUPPORT:
		return "server and library have different protocol versions; update the older one";
	case EPROTO:
		return "the answer makes no sense; is it a kvbell server of this version?";
	case EMFILE:
	case ENFILE:
		return "the limit of open files is reached; raise it (ulimit -n)";
	case ENOMEM:
		return "out of memory, here or on the server";
	case EOPNOTSUPP:
		return "the server has no handler for this message type";
	case EAGAIN:
		return "as many calls wait on the server as its queue holds; try again later";
	case ENODATA:
		return "the server's handler gave no reply";
	case EBADMSG:
		return "the server's handler gave more than one reply";
	case ECHILD:
		return "a forked child cannot use its parent's client; open one of its own";
	default:
		break;
	}
	text = strerrordesc_np(error < 0 ? -error : error);
	return text ? text : "unknown error";
}
