import type { Readable } from 'node:stream';
import { RestError, type RequestPolicyFactory } from '@azure/storage-blob';
import { ERROR_BYTES_MAX, PAGE_BYTES_MAX, readStart } from '../http/transfer.ts';

/** Statuses of answers whose body explains the failure. */
const FAILED = Array.from({ length: 700 }, (_, index) => 300 + index);
/** Our choice: more than the bound for errors, so that an error ends by its own bound. */
const SUCCESS_BYTES_MAX = 1 << 20;

/**
 * With a token, the library handles a 401 itself: it gets a token of another tenant, and leaves an
 * unread body on the connection for good. Tokens are sent only over TLS, so the 401 is from the
 * service.
 */
const ASKS_FOR_TOKEN = 401;

/**
 * Bounds the answers. The library reads every body to its end, except those of blobs. Here errors
 * are read up to a bound, and an answer that is too long for its kind ends the request.
 */
export function boundedAnswers({ hasToken }: { readonly hasToken: boolean }): RequestPolicyFactory {
  const failed = FAILED.filter((status) => !hasToken || status !== ASKS_FOR_TOKEN);
  const failedOnly = new Set(failed);
  return {
    create: (next) => ({
      async sendRequest(request) {
        const isList = new URL(request.url).searchParams.get('comp') === 'list';
        const streamed = request.streamResponseStatusCodes;
        // The library hands out these bodies unread.
        request.streamResponseStatusCodes = streamed
          ? new Set([...streamed, ...failed])
          : failedOnly;
        if (isList || request.method !== 'GET') {
          const bytesMax = isList ? PAGE_BYTES_MAX : SUCCESS_BYTES_MAX;
          request.onDownloadProgress = ({ loadedBytes }) => {
            // The library refuses the answer if this throws.
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

/** The service's message; the start of the body if it is not the service's XML. */
async function messageIn({ response }: RestError): Promise<string> {
  const body = response?.readableStreamBody as Readable | undefined;
  if (body === undefined) return '';
  const text = (await readStart(body, ERROR_BYTES_MAX)).bytes.toString('utf8');
  return /<Message>([^<]*)<\/Message>/.exec(text)?.[1] ?? text;
}
