import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** A request's change. `put`: after a put, a copy, or a completed multipart upload. */
export type Change = 'put' | 'part' | 'delete' | 'lock';

export interface LoggedChange {
  readonly change: Change;
  /** `BUCKET/KEY`; `BUCKET` for a deletion of several keys. */
  readonly key: string;
  readonly status: number;
}

export interface S3Log extends AsyncDisposable {
  readonly endpoint: string;
  /** In the order of their answers, even if the client did not wait for the answer. */
  readonly changes: readonly LoggedChange[];
  /** Keys below a prefix, once for each confirmed put. */
  puts(prefix: string): string[];
  /** Keys below a prefix that were put more than once, even if they were deleted meanwhile. */
  putTwice(prefix: string): string[];
}

/** An HTTP proxy for a real S3 server that records changes. The signed `Host` header is kept. */
export async function startS3Log(
  target: string,
  address: { readonly host: string; readonly port: number },
): Promise<S3Log> {
  const log = new Log(new URL(target));
  await log.listen(address);
  return log;
}

const BODY_BYTES_MAX = 64 << 10;

class Log implements S3Log {
  endpoint = '';
  readonly changes: LoggedChange[] = [];
  readonly #target: URL;
  readonly #server = createServer((incoming, answer) => {
    this.#serve(incoming, answer);
  });

  constructor(target: URL) {
    this.#target = target;
  }

  async listen({ host, port }: { readonly host: string; readonly port: number }): Promise<void> {
    this.#server.keepAliveTimeout = 60_000;
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject).listen(port, host, resolve);
    });
    this.endpoint = `http://${host}:${(this.#server.address() as AddressInfo).port}`;
  }

  #serve(incoming: IncomingMessage, answer: ServerResponse): void {
    const { hostname, port } = this.#target;
    const { method, url, headers } = incoming;
    const change = changeOf(incoming);
    const out = request({ hostname, port, method, path: url, headers }, (response) => {
      const status = response.statusCode ?? 500;
      answer.writeHead(status, response.headers);
      let head = '';
      response.on('data', (bytes: Buffer) => {
        if (head.length < BODY_BYTES_MAX) head += bytes.toString('latin1');
      });
      response.once('end', () => {
        // A completed upload or a copy may fail after its status was sent.
        const hasFailed = /<Error>/.test(head);
        if (change) this.changes.push({ ...change, status: hasFailed ? 500 : status });
      });
      response.pipe(answer);
      // A sent request takes effect, even if the client is gone.
      answer.once('close', () => response.resume());
    });
    out.once('error', () => answer.destroy());
    incoming.once('error', () => out.destroy()).once('aborted', () => out.destroy());
    incoming.pipe(out);
  }

  puts(prefix: string): string[] {
    return this.changes
      .filter(
        ({ change, key, status }) => change === 'put' && status < 300 && key.startsWith(prefix),
      )
      .map(({ key }) => key);
  }

  putTwice(prefix: string): string[] {
    const seen = new Set<string>();
    const twice = this.puts(prefix).filter((key) => seen.size === seen.add(key).size);
    return [...new Set(twice)];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

function changeOf({ method, url = '' }: IncomingMessage): Omit<LoggedChange, 'status'> | undefined {
  const { pathname, searchParams: asked } = new URL(url, 'http://s3');
  const key = decodeURIComponent(pathname).slice(1);
  const is = (change: Change): Omit<LoggedChange, 'status'> => ({ change, key });
  const isOfBucket = !/^[^/]+\/./.test(key);
  if (isOfBucket) return method === 'POST' && asked.has('delete') ? is('delete') : undefined;
  if (method === 'DELETE') return asked.has('uploadId') ? undefined : is('delete');
  if (method === 'POST') return asked.has('uploadId') ? is('put') : undefined;
  if (method !== 'PUT') return undefined;
  if (asked.has('uploadId')) return is('part');
  const isAttribute = ['retention', 'legal-hold', 'tagging', 'acl'].find((each) => asked.has(each));
  if (isAttribute !== undefined) return isAttribute === 'retention' ? is('lock') : undefined;
  return is('put');
}
