/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbell/protocol.h - every layout that crosses a process boundary, in one place.
 *
 * Three things are laid out here: the records on the door (a Unix SEQPACKET socket), the session
 * segment (the shared memory of one client and the server), and the header of a control message
 * (ZMQ). docs/protocol.md is the prose beside this file; where the two disagree, this file decides.
 *
 * All integers are little-endian with fixed width. There are no pointers and no locks in shared
 * memory. Words that both sides touch while they run are marked "shared word": access them as C11
 * atomics (or the equivalent) of exactly that width. They are plain integers here, so that the
 * header stays usable from C99 and C++.
 */
#ifndef KVBELL_PROTOCOL_H
#define KVBELL_PROTOCOL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__cplusplus) && __cplusplus >= 201103L
#define KVB_LAYOUT_ASSERT(cond, text) static_assert(cond, text)
#elif !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define KVB_LAYOUT_ASSERT(cond, text) _Static_assert(cond, text)
#else
#define KVB_LAYOUT_ASSERT(cond, text) struct kvb_layout_assert_unused
#endif

/** "KVBL" read as a little-endian number; the first word of every record, header and segment. */
#define KVB_MAGIC 0x4c42564bu
/** Raised on every incompatible change of anything in this file. */
#define KVB_ABI_VERSION 1

/** Longest key in bytes. The shortest is 1. A key is any bytes, zero bytes included. */
#define KVB_KEY_MAX 1024u
/** Bytes of a cache line pair; words written by different sides are at least this far apart. */
#define KVB_LINE 128u

#define KVB_ID_BYTES   16u  /**< boot id and token: 128 random bits */
#define KVB_NAME_BYTES 32u  /**< client's name for logs and stats, zero-padded */
#define KVB_TEXT_BYTES 192u /**< human-readable reason in GOODBYE, zero-terminated */

/* ---------------------------------------------------------------------------------- the door */

/** Names of the sockets and the lock file inside the runtime directory. */
#define KVB_DOOR_SOCKET    "door.sock"
#define KVB_CONTROL_SOCKET "control.sock"
#define KVB_LOCK_FILE      "kvbelld.lock"

/** The client must send HELLO within this time after connect(2), in milliseconds. */
#define KVB_HELLO_TIMEOUT_MS 1000u

enum kvb_door_type {
	KVB_DOOR_HELLO = 1,   /**< client to server, once, first */
	KVB_DOOR_WELCOME = 2, /**< server to client, once, with KVB_WELCOME_FDS descriptors */
	KVB_DOOR_GOODBYE = 3, /**< either way, last: the session ends, or was never let in */
};

/** Who the server takes the client for, judged by SO_PEERCRED alone. */
enum kvb_client_kind {
	KVB_KIND_OWN = 1,      /**< the server's uid: ring and control */
	KVB_KIND_TRUSTED = 2,  /**< ring, no control; may map the pool read-only */
	KVB_KIND_ISOLATED = 3, /**< ring, no control; sees payload in its own staging only */
};

/** Why a session ended or a client was not let in. */
enum kvb_reason {
	KVB_REASON_NONE = 0,
	KVB_REASON_CLIENT_LEFT = 1,  /**< the client said so or closed its door */
	KVB_REASON_CLIENT_DIED = 2,  /**< its process is gone (pidfd) */
	KVB_REASON_SERVER_DRAIN = 3, /**< the server is shutting down */
	KVB_REASON_PROTOCOL = 4,     /**< the client broke this protocol; the text says how */
	KVB_REASON_NOT_ALLOWED = 5,  /**< its uid and gids are on no list */
	KVB_REASON_TOO_MANY = 6,     /**< no session slot is free */
	KVB_REASON_ABI = 7,          /**< magic or ABI version differ */
	KVB_REASON_NO_MEMORY = 8,    /**< the server cannot make the segment or a descriptor */
	KVB_REASON_BELL_BLOCKED = 9, /**< ringing the client's bell blocked the server */
	KVB_REASON_NOT_READING = 10, /**< the client does not read its control replies */
	KVB_REASON_MAX
};

enum kvb_hello_flag {
	KVB_HELLO_READER = 1u << 0, /**< asks for index, pool and lease cells */
};

/** HELLO: exactly 64 bytes. Unknown flags and non-zero reserved bytes are refused. */
struct kvb_hello {
	uint32_t magic; /**< KVB_MAGIC */
	uint16_t abi;   /**< KVB_ABI_VERSION */
	uint16_t type;  /**< KVB_DOOR_HELLO */
	uint32_t flags; /**< enum kvb_hello_flag */
	int32_t node;   /**< the client's NUMA node, or -1 when unknown */
	char name[KVB_NAME_BYTES];
	uint8_t reserved[16];
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_hello) == 64, "HELLO is 64 bytes");

/** Descriptors that come with WELCOME, in this order. */
enum kvb_welcome_fd {
	KVB_FD_SESSION = 0, /**< memfd, read-write: struct kvb_session_header and what follows */
	KVB_FD_LIFE = 1,    /**< memfd, read-only: struct kvb_life_page */
	KVB_FD_KICK = 2,    /**< eventfd: the client writes, the server waits */
	KVB_FD_BELL = 3,    /**< eventfd: the server writes, the client waits */
	KVB_WELCOME_FDS = 4,
	/* With KVB_WELCOME_READER, also: */
	KVB_FD_INDEX = 4,  /**< memfd, read-only: struct kvb_index_header and what follows */
	KVB_FD_POOL = 5,   /**< memfd, read-only: payload */
	KVB_FD_LEASES = 6, /**< memfd, read-write: struct kvb_lease_header and what follows */
	KVB_WELCOME_READER_FDS = 7
};

enum kvb_welcome_flag {
	KVB_WELCOME_READER = 1u << 0, /**< granted to those who asked and may read by themselves */
};

/** WELCOME: exactly 256 bytes. Offsets count from the start of the session segment. */
struct kvb_welcome {
	uint32_t magic;
	uint16_t abi;
	uint16_t type;                 /**< KVB_DOOR_WELCOME */
	uint8_t boot_id[KVB_ID_BYTES]; /**< differs at every start of the server */
	uint8_t token[KVB_ID_BYTES];   /**< presented once in ATTACH on the control socket */
	uint64_t session;              /**< slot in the low 32 bits, generation in the high */
	uint32_t kind;                 /**< enum kvb_client_kind */
	uint32_t flags;                /**< enum kvb_welcome_flag */
	uint64_t session_bytes;        /**< size of the session memfd */
	uint64_t life_bytes;           /**< size of the life memfd */
	uint32_t sq_entries;           /**< power of two */
	uint32_t cq_entries;  /**< power of two; also the credit: most requests in flight */
	uint64_t sq_offset;   /**< sq_entries times struct kvb_sqe */
	uint64_t cq_offset;   /**< cq_entries times struct kvb_cqe */
	uint64_t key_offset;  /**< sq_entries key cells of KVB_KEY_MAX bytes */
	uint64_t lease_bytes; /**< size of the lease memfd; 0 without KVB_WELCOME_READER */
	uint32_t lease_cells; /**< how many */
	uint32_t key_max;     /**< KVB_KEY_MAX */
	uint64_t staging_offset;
	uint64_t staging_bytes;
	uint32_t fragment_bytes; /**< most payload bytes one descriptor may carry */
	uint32_t transfers;      /**< entries of the session's transfer table */
	uint64_t payload_max;    /**< largest payload in bytes: the pool's size */
	uint64_t open_max;       /**< most bytes in open PUT transfers of this session */
	uint32_t transfer_timeout_ms;
	uint32_t reserved0;
	uint64_t index_bytes; /**< size of the index memfd; 0 without KVB_WELCOME_READER */
	uint8_t reserved[80];
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_welcome) == 256, "WELCOME is 256 bytes");

/** GOODBYE: exactly 256 bytes. */
struct kvb_goodbye {
	uint32_t magic;
	uint16_t abi;
	uint16_t type;   /**< KVB_DOOR_GOODBYE */
	uint32_t reason; /**< enum kvb_reason */
	int32_t error;   /**< the negative errno that fits the reason */
	uint8_t reserved[48];
	char text[KVB_TEXT_BYTES];
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_goodbye) == 256, "GOODBYE is 256 bytes");

/* ------------------------------------------------------------------------------ the life page */

/**
 * One page that the server shares with every client, read-only. `life` lies on the robust-futex
 * list of the server's control thread: the kernel sets KVB_LIFE_OWNER_DIED in it as soon as the
 * thread dies, long before it closes the sockets of a process with a large pool.
 */
struct kvb_life_page {
	uint32_t magic;
	uint32_t abi;
	uint8_t boot_id[KVB_ID_BYTES];
	uint8_t reserved[104];
	uint32_t life; /**< shared word: thread id while alive, 0 after an orderly stop */
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_life_page) == 132, "life page");

/** FUTEX_OWNER_DIED of <linux/futex.h>. */
#define KVB_LIFE_OWNER_DIED 0x40000000u

/* -------------------------------------------------------------------------- the session segment */

/** State of a session as its client may see it. */
enum kvb_session_state {
	KVB_SESSION_ACTIVE = 1,
	KVB_SESSION_DRAINING = 2, /**< opening requests fail with -ESHUTDOWN */
	KVB_SESSION_REVOKED = 3,  /**< the server will never look at this segment again */
};

/** Values of a sleeping word. */
enum kvb_sleeping {
	KVB_AWAKE = 0,
	KVB_SLEEPING = 1,        /**< ring once: the producer exchanges it to AWAKE and rings */
	KVB_SLEEPING_ALWAYS = 2, /**< never cleared by the producer, which rings every time */
};

/**
 * Head of the session segment. Indices run freely over 32 bits; the element is index modulo
 * entries. Every member marked "shared word" is alone on its line pair with words of the same
 * writer.
 */
struct kvb_session_header {
	uint32_t magic;
	uint32_t abi;
	uint8_t boot_id[KVB_ID_BYTES];
	uint64_t session;
	uint32_t state;  /**< shared word, written by the server: enum kvb_session_state */
	uint32_t reason; /**< shared word, written by the server before REVOKED: enum kvb_reason */
	uint8_t pad0[88];

	uint32_t sq_tail; /**< shared word, written by the client */
	uint8_t pad1[124];
	uint32_t sq_head; /**< shared word, written by the server */
	uint8_t pad2[124];
	uint32_t sq_sleeping; /**< shared word: enum kvb_sleeping, the server is the sleeper */
	uint8_t pad3[124];

	uint32_t cq_tail; /**< shared word, written by the server */
	uint8_t pad4[124];
	uint32_t cq_head; /**< shared word, written by the client */
	uint8_t pad5[124];
	uint32_t cq_sleeping; /**< shared word: enum kvb_sleeping, the client is the sleeper */
	uint8_t pad6[124];
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_session_header) == 7 * 128, "session header");

/** Ring operations. */
enum kvb_op {
	KVB_OP_NOP = 0,    /**< completes with 0: a ping */
	KVB_OP_PUT = 1,    /**< one fragment of a payload on its way into the pool */
	KVB_OP_GET = 2,    /**< one fragment of a payload on its way out */
	KVB_OP_EXISTS = 3, /**< value = the object's length, or -ENOENT */
	KVB_OP_DELETE = 4, /**< -ENOENT if it was not there */
	KVB_OP_ABORT = 5,  /**< ends `transfer`; -ESTALE if it is not open */
	KVB_OP_STATS = 6,  /**< a MessagePack map of statistics into staging */
	KVB_OP_MAX
};

enum kvb_sqe_flag {
	KVB_SQE_OPEN = 1u << 0, /**< PUT, GET: this descriptor opens the transfer; `key_len` bytes
				     of key lie in the key cell of its slot */
	KVB_SQE_IF_ABSENT = 1u << 1, /**< PUT with KVB_SQE_OPEN: -EEXIST, and nothing is stored, if
					  the key has an object by now or when the payload is
					  complete */
};

/**
 * Submission descriptor, 64 bytes. The descriptor in slot i owns key cell i.
 *
 * A payload of `total` bytes travels as fragments: the first descriptor has KVB_SQE_OPEN and
 * offset 0, each further one starts exactly where the last one ended, and the one that reaches
 * `total` completes the transfer (a PUT becomes visible then, at once). A payload that fits one
 * fragment needs no transfer: OPEN with offset 0 and length equal to total, `transfer` 0.
 *
 * `transfer` names an entry of the session's table (low 8 bits) and the use the client makes of it
 * (high 24 bits, chosen by the client, never 0 and never the same twice in a row), so a client may
 * send further fragments before the first one has completed. -ESTALE answers a descriptor whose
 * transfer is no longer open.
 */
struct kvb_sqe {
	uint8_t op;    /**< enum kvb_op */
	uint8_t flags; /**< enum kvb_sqe_flag */
	uint16_t key_len;
	uint32_t transfer;
	uint64_t user_data;   /**< returned in the completion, not interpreted */
	uint64_t offset;      /**< bytes from the start of the payload */
	uint64_t total;       /**< PUT: payload length; GET with OPEN: capacity of the reader */
	uint64_t staging;     /**< bytes from the start of staging */
	uint32_t length;      /**< bytes of this fragment; GET and STATS: room in staging */
	uint32_t reserved0;   /**< 0 */
	uint64_t reserved[2]; /**< 0 */
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_sqe) == 64, "submission descriptor is 64 bytes");

/**
 * Completion, 32 bytes. `result` is 0 or a negative errno. `value`: GET: the object's length, also
 * with -EMSGSIZE; EXISTS: the object's length; STATS: bytes written, or needed with -EMSGSIZE.
 */
struct kvb_cqe {
	uint64_t user_data;
	int32_t result;
	uint32_t flags; /**< 0 */
	uint64_t value;
	uint32_t length; /**< GET: bytes of this fragment now in staging */
	uint32_t reserved;
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_cqe) == 32, "completion is 32 bytes");

#define KVB_TRANSFER_SLOT(transfer) ((transfer)&0xffu)
#define KVB_TRANSFER_ID(slot, use)  (((uint32_t)(use) << 8) | ((uint32_t)(slot)&0xffu))

/* ------------------------------------------------------------------------- the index and the pool */

/** Longest key in the index; objects under longer ones are found through the ring alone. */
#define KVB_INDEX_KEY_MAX 200u
#define KVB_INDEX_ENTRIES 7u

/** State of a slot, in the low two bits of its state word. */
enum kvb_index_state {
	KVB_INDEX_EMPTY = 0,
	KVB_INDEX_LIVE = 1,  /**< complete and visible */
	KVB_INDEX_DYING = 2, /**< out of the index; its bytes wait for their last lease */
};

/** Head of the index memfd, which clients map read-only. Constant but for what it leads to. */
struct kvb_index_header {
	uint32_t magic;
	uint32_t abi;
	uint8_t boot_id[KVB_ID_BYTES];
	uint64_t hash_seed; /**< of XXH3_64bits_withSeed() over the key */
	uint64_t pool_bytes;
	uint64_t blocks_offset; /**< struct kvb_index_block */
	uint64_t slots_offset;  /**< struct kvb_index_slot */
	uint32_t buckets;       /**< power of two; bucket b begins with block 2 b */
	uint32_t blocks;        /**< all of them: two per bucket, and a reserve */
	uint32_t slots;
	uint32_t reserved;
	uint64_t ready_bytes; /**< shared word: bytes from the pool's start that are populated */
	uint8_t pad[48];
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_index_header) == 128, "index header");

/**
 * A line of entries. An entry is 0 or: slot + 1 in the low 32 bits, then 16 low bits of the slot's
 * generation, then the 16 high bits of the key's hash. Entries never move.
 */
struct kvb_index_block {
	uint64_t entries[KVB_INDEX_ENTRIES]; /**< shared words, written by the server */
	uint64_t next; /**< shared word: number of the chain's next block; 0 none */
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_index_block) == 64, "index block is a cache line");

/** What is known of an object. All members are shared words, written by the server. */
struct kvb_index_slot {
	uint64_t state;  /**< generation << 2 | enum kvb_index_state */
	uint64_t offset; /**< bytes from the start of the pool */
	uint64_t length; /**< bytes of payload */
	uint64_t key_len;
	uint64_t key[KVB_INDEX_KEY_MAX / 8]; /**< its bytes in memory order, padded with zeros */
	uint64_t reserved[3];
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_index_slot) == 256, "index slot is four cache lines");

/**
 * Head of the lease memfd of a session, which its client writes. The cells follow, then the touch
 * ring. A cell is 0 or: slot + 1 in the low 32 bits, 32 low bits of the slot's generation in the
 * high ones; one store sets it and one clears it.
 *
 * To take a lease: find the slot and its state word g (acquire) in LIVE, store the cell, full fence,
 * load the state word again: if it is still g the object's bytes stay until the cell is cleared (with
 * release). If not, clear the cell and look the key up again.
 */
struct kvb_lease_header {
	uint32_t magic;
	uint32_t abi;
	uint32_t cells;
	uint32_t touches; /**< entries of the touch ring, power of two */
	uint8_t pad0[112];
	uint32_t
		cells_used; /**< shared word, written by the client before a cell beyond it: cells from here
				on are 0 and are not looked at */
	uint8_t pad1[124];
	uint32_t touch_tail; /**< shared word, written by the client: runs freely */
	uint8_t pad2[124];
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_lease_header) == 384, "lease header");

/* ------------------------------------------------------------------------------ control messages */

/** Built-in message types. Types from KVB_MSG_USER on are the embedding program's. */
enum kvb_msg_type {
	KVB_MSG_ATTACH = 1, /**< body {"token": bin16}; must be the first message of a connection */
	KVB_MSG_PING = 2,   /**< any body; answered with {} */
	KVB_MSG_STATS = 3,  /**< answered with a map of name to number or text */
	KVB_MSG_LIST = 4,   /**< body {"cursor": uint, "limit": uint} */
	KVB_MSG_DELETE = 5, /**< body {"key": bin} */
	KVB_MSG_SUBMIT = 6, /**< the portable carrier: an array of requests; {"accepted": count} */
	KVB_MSG_USER = 1024
};

/** Flags of a control message's header. */
enum kvb_msg_flag {
	KVB_MSG_REFUSED = 1u << 0, /**< reply: the server refused it; no handler has seen it */
};

/** Largest body of a control message in bytes, either way. */
#define KVB_MSG_BODY_MAX (256u * 1024u)
/** Largest frame: a longer body than KVB_MSG_BODY_MAX is answered with -EMSGSIZE, a longer frame than
 *  this cuts the connection. */
#define KVB_MSG_FRAME_MAX (1024u * 1024u)

/**
 * One request of KVB_MSG_SUBMIT is a MessagePack array: the members of struct kvb_sqe that a
 * request has, in this order, and the key's bytes in place of its length. The body is an array of
 * such arrays.
 */
enum kvb_submit_field {
	KVB_SUBMIT_OP = 0,
	KVB_SUBMIT_FLAGS = 1,
	KVB_SUBMIT_TRANSFER = 2,
	KVB_SUBMIT_USER_DATA = 3,
	KVB_SUBMIT_OFFSET = 4,
	KVB_SUBMIT_TOTAL = 5,
	KVB_SUBMIT_STAGING = 6,
	KVB_SUBMIT_LENGTH = 7,
	KVB_SUBMIT_KEY = 8, /**< bin; empty where the request has no key */
	KVB_SUBMIT_FIELDS = 9
};

/**
 * First frame of every control message, 64 bytes; the second frame is the MessagePack body. A reply
 * repeats type, request, boot id and session, and carries status 0 or a negative errno; the body of
 * an error is {"error": text}.
 */
struct kvb_msg_header {
	uint32_t magic;
	uint16_t abi;
	uint16_t type;
	uint64_t request; /**< chosen by the client, repeated in the reply */
	uint8_t boot_id[KVB_ID_BYTES];
	uint64_t session;
	int32_t status; /**< requests: 0 */
	uint32_t flags; /**< requests: 0; replies: enum kvb_msg_flag */
	uint8_t reserved[16];
};
KVB_LAYOUT_ASSERT(sizeof(struct kvb_msg_header) == 64, "control header is 64 bytes");

#ifdef __cplusplus
}
#endif
#endif /* KVBELL_PROTOCOL_H */
