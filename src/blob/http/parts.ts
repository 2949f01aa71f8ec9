import type { Body } from '../bucket.ts';
import type { BlobId, PutOptions, SignalOptions } from '../storage.ts';
import { type LongPut, type PartsRules, tooLong } from './remote-storage.ts';

export type PartsOptions = Pick<PutOptions, 'doNotRecreate' | 'signal'>;

/** A blob that is put in parts. Readers see it only after `complete`. */
export interface PartsPut {
  /** Parts count from 0, and may be put in parallel. A repeated part counts once. */
  part(index: number, data: readonly Uint8Array[], options: SignalOptions): Promise<void>;
  /**
   * Call it after all parts. May be repeated if its answer was lost. `doNotRecreate` fails if the
   * blob exists, for services whose condition belongs to this request.
   */
  complete(options: PartsOptions): Promise<void>;
}

/** Puts a blob in parts. Stops at the first failed part. */
export async function putInParts(
  { id, storage, rules }: { id: BlobId; storage: string; rules: PartsRules },
  begin: (options: PartsOptions) => Promise<PartsPut>,
  pieces: AsyncIterable<Uint8Array>,
  put: LongPut,
): Promise<void> {
  const { partBytes, partsMax, partsAtOnce } = rules;
  const { signal } = put;
  const begun = await put.retry(() => begin({ signal, doNotRecreate: put.isExclusive }), signal);
  const stop = new AbortController();
  const own = signal ? AbortSignal.any([signal, stop.signal]) : stop.signal;
  const running = new Set<Promise<void>>();
  try {
    let index = 0;
    for await (const data of inParts(pieces, partBytes)) {
      // Waiting parts stay in memory, so their number is limited.
      while (running.size >= partsAtOnce) await Promise.race(running);
      own.throwIfAborted();
      if (index === partsMax) throw tooLong(id, storage);
      const at = index++;
      const task = put
        .retry(() => begun.part(at, data, { signal: own }), own)
        .catch((error: unknown) => {
          stop.abort(error);
        })
        .finally(() => running.delete(task));
      running.add(task);
    }
    await Promise.all(running);
    own.throwIfAborted();
    await put.exclusively((doNotRecreate) =>
      put.retry(() => begun.complete({ signal, doNotRecreate }), signal),
    );
  } catch (error) {
    stop.abort(error);
    await Promise.all(running);
    throw error;
  }
}

/** Splits a body into parts. The last part is shorter; an empty body has none. */
export async function* inParts(body: Body, partBytes: number): AsyncGenerator<Uint8Array[]> {
  let part: Uint8Array[] = [];
  let length = 0;
  for await (const piece of body) {
    for (let at = 0; at < piece.length;) {
      const bytes = piece.subarray(at, at + partBytes - length);
      part.push(bytes);
      length += bytes.length;
      at += bytes.length;
      if (length < partBytes) continue;
      yield part;
      part = [];
      length = 0;
    }
  }
  if (length > 0) yield part;
}
