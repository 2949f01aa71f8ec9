import type {
  ListObjectsV2Command,
  ListObjectsV2CommandInput,
  ListObjectsV2CommandOutput,
} from '@aws-sdk/client-s3';
import { badListing, rootOf } from '../http/listing.ts';
import { PAGE_BYTES_MAX } from '../http/transfer.ts';

interface Request {
  readonly input: ListObjectsV2CommandInput;
  readonly request: unknown;
}

/** What the library calls a deserialize handler, as far as it matters here. */
type Handler = (
  request: Request,
) => Promise<{ readonly response: unknown; readonly output: ListObjectsV2CommandOutput }>;

interface Watch {
  readonly storage: string;
  readonly progress: (lengthBytes: number) => void;
}

/**
 * Makes the command refuse an answer whose root element is another one: the library takes whatever fields it
 * finds below any root, so that an HTML page is an empty list to it.
 */
export function watchRoot(
  command: ListObjectsV2Command,
  root: string,
  { storage, progress }: Watch,
): void {
  command.middlewareStack.addRelativeTo(
    (next: Handler) => async (request: Request) => {
      const result = await next(request);
      const response = result.response as { statusCode?: number; body?: unknown };
      if (response.statusCode !== 200) return result;
      const pieces: Uint8Array[] = [];
      let bytes = 0;
      for await (const piece of response.body as AsyncIterable<Uint8Array>) {
        progress(piece.length);
        pieces.push(piece);
        bytes += piece.length;
        if (bytes > PAGE_BYTES_MAX) throw badListing(storage, 'it is too long');
      }
      const body = Buffer.concat(pieces);
      const found = rootOf(body.subarray(0, 1000).toString('utf8'));
      if (found !== root) throw badListing(storage, describe(found));
      response.body = body;
      return result;
    },
    { relation: 'after', toMiddleware: 'deserializerMiddleware', name: 'watchRoot' },
  );
}

const describe = (root: string | undefined): string =>
  root === undefined ? 'it is not XML' : `it is <${root.slice(0, 100)}>`;
