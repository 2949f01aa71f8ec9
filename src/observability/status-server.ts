import type { RequestListener } from 'node:http';
import type { ServedCertificate } from './certificate.ts';
import { type HttpListener, listenHttp } from './http-listener.ts';

export interface StatusSources {
  /** Prometheus text. */
  readonly metrics: () => Promise<string>;
  /** Why the process cannot serve requests now; undefined if it can. */
  readonly notReady: () => string | undefined;
}

/**
 * Our choice: no Prometheus scrapes more often, and a flood of scrapes costs one rendering each.
 */
const RENDERED_FOR_MS = 1000;

/** Serves on an address such as `:8085`. Throws `ADDRESS_UNUSABLE`. */
export function serveStatus(
  address: string,
  sources: StatusSources,
  certificate?: ServedCertificate,
): Promise<HttpListener> {
  const metrics = sharedMetrics(sources.metrics);
  const handler: RequestListener = (request, response) => {
    const answer = (
      code: number,
      text: string | Buffer,
      type = 'text/plain; charset=utf-8',
    ): void => {
      response.writeHead(code, { 'content-type': type, 'content-length': Buffer.byteLength(text) });
      response.end(request.method === 'HEAD' ? undefined : text);
    };
    const state = (problem: string | undefined): void => {
      answer(problem === undefined ? 200 : 503, `${problem ?? 'ok'}\n`);
    };
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.writeHead(405, { allow: 'GET, HEAD', connection: 'close' }).end();
      return;
    }
    const [path] = (request.url ?? '').split('?');
    // A process that answers is alive. A restart does not help if it waits for something else.
    if (path === '/healthz') state(undefined);
    else if (path === '/readyz') state(sources.notReady());
    else if (path === '/metrics') {
      metrics().then(
        (text) => {
          answer(200, text, 'text/plain; version=0.0.4; charset=utf-8');
        },
        (error: unknown) => {
          answer(500, `${String(error)}\n`);
        },
      );
    } else answer(404, 'not found; try /metrics, /healthz or /readyz\n');
  };
  return listenHttp(address, 'metrics', () => handler, certificate);
}

/** Clients share the bytes for a second, so slow clients hold no copies of them. */
function sharedMetrics(metrics: () => Promise<string>): () => Promise<Buffer> {
  let shared: Promise<Buffer> | undefined;
  let renderedAtMs = 0;
  return () => {
    if (shared && performance.now() - renderedAtMs < RENDERED_FOR_MS) return shared;
    renderedAtMs = performance.now();
    shared = metrics().then((text) => Buffer.from(text));
    const own = shared;
    shared.catch(() => {
      // Lets the next client retry.
      if (shared === own) shared = undefined;
    });
    return shared;
  };
}
