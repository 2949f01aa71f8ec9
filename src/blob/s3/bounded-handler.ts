import type { Readable } from 'node:stream';
import { NodeHttpHandler, type NodeHttpHandlerOptions } from '@smithy/node-http-handler';
import { ERROR_BYTES_MAX, readStart } from '../http/transfer.ts';

type Handle = NodeHttpHandler['handle'];
type HandlerOptions = NonNullable<Parameters<Handle>[1]>;

/**
 * Bounds the answers. The library reads every body to its end, except those of blobs. The caller of
 * a successful GET reads its body. A time-out is for requests without a watchdog.
 */
export class BoundedHandler extends NodeHttpHandler {
  readonly #timeoutMs: number | undefined;

  constructor(options: NodeHttpHandlerOptions, timeoutMs?: number) {
    super(options);
    this.#timeoutMs = timeoutMs;
  }

  override async handle(...[request, options = {}]: Parameters<Handle>): ReturnType<Handle> {
    const result = await super.handle(request, this.#withTimeout(options));
    const { statusCode } = result.response;
    const isFailure = statusCode >= 300;
    if (request.method === 'HEAD' || (request.method === 'GET' && !isFailure)) return result;
    const { bytes, isWhole } = await readStart(result.response.body as Readable, ERROR_BYTES_MAX);
    if (!isWhole && !isFailure) throw new Error(TOO_LONG);
    // A partial page is not valid XML, and the status would be lost.
    result.response.body = isWhole
      ? bytes
      : Buffer.from(`<Error><Message>${TOO_LONG}</Message></Error>`);
    return result;
  }

  #withTimeout(options: HandlerOptions): HandlerOptions {
    if (this.#timeoutMs === undefined) return options;
    const timeout = AbortSignal.timeout(this.#timeoutMs);
    const given = options.abortSignal as AbortSignal | undefined;
    return { ...options, abortSignal: given ? AbortSignal.any([given, timeout]) : timeout };
  }
}

const TOO_LONG = `the answer has more than ${ERROR_BYTES_MAX} bytes`;
