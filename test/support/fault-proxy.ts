import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** Faults between Longshore and a store. */
export const FAULTS = [
  'refused',
  'lost-answer',
  'slow-down',
  'internal-error',
  'broken-body',
  'truncated',
  'corrupt',
  'stalled',
  'stale',
  'other-listing',
  'page',
  'page-404',
] as const;
/** `denied` is no accident: a policy forbids the request. */
export type Fault = (typeof FAULTS)[number] | 'denied';
export const REQUESTS = ['put', 'get', 'head', 'list', 'delete'] as const;
export type RequestKind = (typeof REQUESTS)[number];

export interface FaultProxy extends AsyncDisposable {
  readonly endpoint: string;
  /** `get corrupt`: 7 */
  readonly counts: ReadonlyMap<string, number>;
  /** Requests by kind, with or without faults. */
  readonly requests: ReadonlyMap<RequestKind, number>;
}

/** The fault for a request; undefined to pass it unchanged. */
export type FaultPlan = (kind: RequestKind, path: string) => Fault | undefined;

/** Whether a fault can apply to a kind of request. */
export function applies(fault: Fault, kind: RequestKind): boolean {
  if (fault === 'stale' || fault === 'other-listing') return kind === 'list';
  const hasBody = kind === 'get' || kind === 'list';
  if (fault === 'broken-body' || fault === 'truncated') return hasBody;
  return fault === 'corrupt' ? hasBody || kind === 'put' : true;
}

/** An HTTP proxy for a real S3 server that damages requests and answers by plan. */
export async function startFaultProxy(target: string, plan: FaultPlan): Promise<FaultProxy> {
  const proxy = new Proxy(new URL(target), plan);
  await proxy.listen();
  return proxy;
}

class Proxy implements FaultProxy {
  endpoint = '';
  readonly counts = new Map<string, number>();
  readonly requests = new Map<RequestKind, number>();
  readonly #target: URL;
  readonly #plan: FaultPlan;
  readonly #server = createServer((incoming, answer) => void this.#serve(incoming, answer));
  /** The last answer to each listing, for stale ones. */
  readonly #listings = new Map<string, Buffer>();

  constructor(target: URL, plan: FaultPlan) {
    this.#target = target;
    this.#plan = plan;
  }

  async listen(): Promise<void> {
    this.#server.keepAliveTimeout = 60_000;
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    this.endpoint = `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async #serve(incoming: IncomingMessage, answer: ServerResponse): Promise<void> {
    try {
      const body = Buffer.concat(await Array.fromAsync(incoming as AsyncIterable<Buffer>));
      const kind = kindOf(incoming);
      this.requests.set(kind, (this.requests.get(kind) ?? 0) + 1);
      const fault = this.#plan(kind, incoming.url ?? '');
      if (fault) {
        const key = `${kind} ${fault}`;
        this.counts.set(key, (this.counts.get(key) ?? 0) + 1);
      }
      await this.#perform(incoming, answer, body, fault);
    } catch {
      answer.destroy();
    }
  }

  async #perform(
    incoming: IncomingMessage,
    answer: ServerResponse,
    body: Buffer,
    fault: Fault | undefined,
  ): Promise<void> {
    const kind = kindOf(incoming);
    if (fault === 'refused') answer.destroy();
    else if (fault === 'stalled') return;
    else if (fault === 'slow-down') refuse(answer, 503, 'SlowDown');
    else if (fault === 'denied') refuse(answer, 403, 'AccessDenied');
    else if (fault === 'internal-error') refuse(answer, 500, 'InternalError');
    else if (fault === 'page' || fault === 'page-404')
      showPage(answer, fault === 'page' ? 200 : 404);
    else if (fault === 'corrupt' && kind === 'put') {
      await this.#answer(answer, await this.#forward(incoming, flipped(body)), undefined);
    } else {
      const real = await this.#forward(incoming, body);
      if (fault === 'lost-answer') answer.destroy();
      else {
        const isListing = kind === 'list' && real.status === 200;
        const stale = this.#listings.get(incoming.url ?? '');
        if (isListing) this.#listings.set(incoming.url ?? '', real.body);
        if (fault === 'stale' && stale && isListing) real.body = stale;
        if (fault === 'other-listing' && isListing)
          real.body = this.#otherListing(incoming.url ?? '');
        await this.#answer(answer, real, fault, kind);
      }
    }
  }

  #forward(incoming: IncomingMessage, body: Buffer): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const { hostname, port } = this.#target;
      const { method, url, headers } = incoming;
      const out = request({ hostname, port, method, path: url, headers }, (response) => {
        Array.fromAsync(response as AsyncIterable<Buffer>).then((pieces) => {
          const status = response.statusCode ?? 500;
          resolve({ status, headers: response.headers, body: Buffer.concat(pieces) });
        }, reject);
      });
      out.once('error', reject);
      out.end(body);
    });
  }

  /** The last listing of another prefix. */
  #otherListing(url: string): Buffer {
    const prefixOf = (of: string): string | null =>
      new URL(of, 'http://proxy').searchParams.get('prefix');
    const others = [...this.#listings].filter(([of]) => prefixOf(of) !== prefixOf(url));
    return others.at(-1)?.[1] ?? Buffer.from('<html><body>no listing</body></html>');
  }

  async #answer(
    answer: ServerResponse,
    { status, headers, body }: Answer,
    fault: Fault | undefined,
    kind?: RequestKind,
  ): Promise<void> {
    const isHarmed = status < 300 && body.length > 0;
    let sent = body;
    if (isHarmed && fault === 'corrupt') sent = kind === 'list' ? notXml(body) : flipped(body);
    if (isHarmed && fault === 'truncated') sent = body.subarray(0, body.length >> 1);
    const kept = { ...headers };
    delete kept['transfer-encoding'];
    // A HEAD answer has the length of a missing body.
    const lengthHeader = kind === 'head' ? {} : { 'content-length': String(sent.length) };
    answer.writeHead(status, { ...kept, ...lengthHeader });
    if (isHarmed && fault === 'broken-body') {
      answer.write(sent.subarray(0, sent.length >> 1), () => answer.destroy());
      return;
    }
    await new Promise<void>((resolve) => answer.end(sent, resolve));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

interface Answer {
  status: number;
  headers: IncomingMessage['headers'];
  body: Buffer;
}

function kindOf({ method, url = '' }: IncomingMessage): RequestKind {
  if (method === 'PUT') return 'put';
  if (method === 'DELETE') return 'delete';
  if (method === 'HEAD') return 'head';
  return url.includes('list-type=2') ? 'list' : 'get';
}

function refuse(answer: ServerResponse, status: number, code: string): void {
  answer.writeHead(status, { 'content-type': 'application/xml', 'retry-after': '0' });
  answer.end(`<?xml version="1.0"?><Error><Code>${code}</Code><Message>injected</Message></Error>`);
}

/** The answer of captive portals, load balancers without a backend, and maintenance modes. */
function showPage(answer: ServerResponse, status: number): void {
  answer.writeHead(status, {
    'content-type': 'text/html',
    'last-modified': new Date(0).toUTCString(),
  });
  answer.end('<!doctype html><html><body><h1>We will be right back.</h1></body></html>');
}

function flipped(body: Buffer): Buffer {
  const copy = Buffer.from(body);
  const at = copy.length >> 1;
  if (copy.length > 0) copy[at] = (copy[at] ?? 0) ^ 0x20;
  return copy;
}

/** Damages the list visibly. Only TLS can protect against a changed but valid list. */
function notXml(body: Buffer): Buffer {
  return Buffer.concat([
    body.subarray(0, body.length >> 1),
    Buffer.from('<<<'),
    body.subarray(body.length >> 1),
  ]);
}
