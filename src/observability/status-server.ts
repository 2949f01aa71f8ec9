import { type HttpListener, listenHttp } from './http-listener.ts';

export interface StatusSources {
  /** Prometheus text. */
  readonly metrics: () => Promise<string>;
  /** Why nothing can be asked of it now; undefined while all is well. */
  readonly notReady: () => string | undefined;
}

const HEADERS_MS = 3000;

/** `/metrics`, `/healthz` and `/readyz` on an address such as `:8085`. Throws `ADDRESS_UNUSABLE`. */
export function serveStatus(address: string, sources: StatusSources): Promise<HttpListener> {
  return listenHttp(address, 'metrics', { headersMs: HEADERS_MS }, () => (request, response) => {
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
}
