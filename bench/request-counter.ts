/**
 * `node bench/request-counter.ts TARGET`: an HTTP proxy that counts requests by method and kind of
 * blob. Prints its port. GET /counts returns the counts and resets them.
 */
import { createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';

const target = new URL(process.argv[2] ?? '');
let counts: Record<string, number> = {};

/**
 * Kinds, for example `PUT p`. Packs have `p` for data and `q` for metadata. `x` is an index blob,
 * `s` a marker, `_log` a log, `kopia` any other blob.
 */
function kindOf(method: string, url: URL): string {
  if (url.searchParams.has('list-type')) return 'LIST';
  const name = url.pathname.split('/').at(-1) ?? '';
  const kind = /^(_log|kopia|p|q|s|x|n)/.exec(name)?.[1] ?? 'other';
  return `${method} ${kind}`;
}

const server = createServer((incoming, outgoing) => {
  const { method = '', url = '', headers } = incoming;
  if (url === '/counts') {
    outgoing.end(JSON.stringify(counts));
    counts = {};
    return;
  }
  const kind = kindOf(method, new URL(url, target));
  counts[kind] = (counts[kind] ?? 0) + 1;
  const { hostname, port } = target;
  const out = request({ hostname, port, method, path: url, headers }, (answer) => {
    outgoing.writeHead(answer.statusCode ?? 500, answer.headers);
    answer.pipe(outgoing);
  });
  out.once('error', () => outgoing.destroy());
  incoming.pipe(out);
});
// Commands that are waited for synchronously take longer than the default of 5 s.
server.keepAliveTimeout = 600_000;
server.listen(0, '127.0.0.1', () => {
  console.log((server.address() as AddressInfo).port);
});
