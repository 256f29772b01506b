/* SPDX-License-Identifier: Apache-2.0 */
/*
 * consumer.cpp - somebody else's C++17 program: knows kvbell by its installed header and library
 * only.
 *
 * consumer DIRECTORY: puts, gets, compares with the server there; prints "ok".
 */
#include <iostream>
#include <kvbell/kvbell.h>
#include <memory>
#include <string>

namespace
{

struct Close {
	void operator()(kvb_client *client) const
	{
		kvb_close(client);
	}
};
using Client = std::unique_ptr<kvb_client, Close>;

int put_and_get(kvb_client *client)
{
	const std::string key("c++\0with a zero byte", 20), sent = "from C++";
	std::string received(sent.size(), '\0');
	size_t len = 0;

	int r = kvb_put(client, key.data(), key.size(), sent.data(), sent.size());
	if (r == 0)
		r = kvb_get(client, key.data(), key.size(), received.data(), received.size(), &len);
	if (r == 0 && (len != sent.size() || received != sent))
		r = -1;
	return r;
}

} // namespace

int main(int argc, char *argv[])
{
	kvb_options options = KVB_OPTIONS_INIT;
	kvb_client *opened = nullptr;

	options.dir = argc > 1 ? argv[1] : nullptr;
	int r = kvb_open(&options, &opened);
	const Client client(opened);
	if (r == 0)
		r = put_and_get(client.get());
	if (r < 0) {
		std::cerr << "consumer: " << kvb_strerror(r) << '\n';
		return 1;
	}
	std::cout << "ok\n";
	return 0;
}
