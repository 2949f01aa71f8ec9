import { CodedError } from '../base/index.ts';

export interface StatusSources {
  /** Prometheus text. */
  readonly metrics: () => Promise<string>;
  /** Why nothing can be asked of it now; undefined while all is well. */
  readonly notReady: () => string | undefined;
}

const HEADERS_MS = 3000;

/** `/metrics`, `/healthz` and `/readyz` on an address such as `:8085`. Throws `ADDRESS_UNUSABLE`. */
export async function serveStatus(
  address: string,
  sources: StatusSources,
): Promise<AsyncDisposable & { readonly address: string }> {
  const match = /^(.*):(\d+)$/.exec(address);
  const [, host = '', port = ''] = match ?? [];
  if (!match) throw unusable(address, 'it is not of the form host:port');
  // Loaded here: commands that only log must not pay for it.
  const { createServer } = await import('node:http');
  const server = createServer((request, response) => {
    const answer = (code: number, text: string, type = 'text/plain; charset=utf-8'): void => {
      response.writeHead(code, { 'content-type': type });
      response.end(text);
    };
    const state = (problem: string | undefined): void => {
      answer(problem === undefined ? 200 : 503, `${problem ?? 'ok'}\n`);
    };
    const [path] = (request.url ?? '').split('?');
    // Whoever answers lives. What it waits for comes back without a new start.
    if (path === '/healthz') state(undefined);
    else if (path === '/readyz') state(sources.notReady());
    else if (path === '/metrics') {
      sources.metrics().then(
        (text) => {
          answer(200, text, 'text/plain; version=0.0.4; charset=utf-8');
        },
        (error: unknown) => {
          answer(500, `${String(error)}\n`);
        },
      );
    } else answer(404, 'not found; try /metrics, /healthz or /readyz\n');
  });
  server.headersTimeout = HEADERS_MS;
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause) => {
      reject(unusable(address, cause.message));
    });
    server.listen(Number(port), host === '' ? undefined : host.replace(/^\[|\]$/g, ''), resolve);
  });
  const bound = server.address();
  return {
    address: typeof bound === 'object' && bound ? `${host}:${bound.port}` : address,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

const unusable = (address: string, reason: string): CodedError =>
  new CodedError('ADDRESS_UNUSABLE', `cannot serve metrics on "${address}": ${reason}`);
