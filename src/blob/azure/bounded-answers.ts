import type { Readable } from 'node:stream';
import { RestError, type RequestPolicyFactory } from '@azure/storage-blob';
import { ERROR_BYTES_MAX, PAGE_BYTES_MAX, readStart } from '../http/transfer.ts';

/** Statuses whose body says why a request failed. */
const FAILED = Array.from({ length: 700 }, (_, index) => 300 + index);
/**
 * Of an answer that only says yes. More than is read of an error, whose own bound must end it. Our
 * choice.
 */
const SUCCESS_BYTES_MAX = 1 << 20;

/**
 * With a token the library answers a 401 by itself, with a token of another tenant, and leaves a
 * body that it did not read on its connection for good. Tokens go over TLS alone, so that 401 is
 * the service's own.
 */
const ASKS_FOR_TOKEN = 401;

/**
 * Bounds what the library collects: by itself it reads every body to its end, except those of
 * blobs. Errors are read here, up to a bound, and what else is longer than its kind may be ends the
 * request.
 */
export function boundedAnswers({ hasToken }: { readonly hasToken: boolean }): RequestPolicyFactory {
  const failed = FAILED.filter((status) => !hasToken || status !== ASKS_FOR_TOKEN);
  const failedOnly = new Set(failed);
  return {
    create: (next) => ({
      async sendRequest(request) {
        const isList = new URL(request.url).searchParams.get('comp') === 'list';
        const streamed = request.streamResponseStatusCodes;
        // The library hands out such bodies, and does not read them.
        request.streamResponseStatusCodes = streamed
          ? new Set([...streamed, ...failed])
          : failedOnly;
        if (isList || request.method !== 'GET') {
          const bytesMax = isList ? PAGE_BYTES_MAX : SUCCESS_BYTES_MAX;
          request.onDownloadProgress = ({ loadedBytes }) => {
            // A throw is how the library lets an answer be refused on its way.
            if (loadedBytes > bytesMax) throw new Error(`it has more than ${bytesMax} bytes`);
          };
        }
        try {
          return await next.sendRequest(request);
        } catch (error) {
          if (error instanceof RestError && failedOnly.has(error.statusCode ?? 0)) {
            error.message = await messageIn(error);
          }
          throw error;
        }
      },
    }),
  };
}

/** What the service says; the start of the body, where that is not its XML. */
async function messageIn({ response }: RestError): Promise<string> {
  const body = response?.readableStreamBody as Readable | undefined;
  if (body === undefined) return '';
  const text = (await readStart(body, ERROR_BYTES_MAX)).bytes.toString('utf8');
  return /<Message>([^<]*)<\/Message>/.exec(text)?.[1] ?? text;
}
