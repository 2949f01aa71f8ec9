import type { Bucket } from '../../src/blob/index.ts';

/** Carries a call out, or makes it fail before or after its effect. */
export type Through = <T>(
  call: 'put' | 'get' | 'has' | 'delete' | 'list',
  /** The prefix if the call is `list`. */
  key: string,
  task: () => Promise<T>,
) => Promise<T>;

/**
 * A bucket for a process that can be killed at each call, or that finds the bucket away. Bodies are
 * read before their put. A get or a list runs as a whole at its first piece.
 */
export function bucketThrough(bucket: Bucket, through: Through): Bucket {
  return {
    displayName: bucket.displayName,
    put: async (key, body, options) => {
      const pieces = await Array.fromAsync(body);
      await through('put', key, () => bucket.put(key, pieces, options));
    },
    get: async function* (key) {
      yield* await through('get', key, () => Array.fromAsync(bucket.get(key)));
    },
    has: (key) => through('has', key, () => bucket.has(key)),
    delete: (key) => through('delete', key, () => bucket.delete(key)),
    list: async function* (prefix) {
      yield* await through('list', prefix, () => Array.fromAsync(bucket.list(prefix)));
    },
    listFolders: (prefix) => bucket.listFolders(prefix),
    signedUrl: (...asked) => bucket.signedUrl(...asked),
    close: () => Promise.resolve(),
    [Symbol.asyncDispose]: () => Promise.resolve(),
  };
}
