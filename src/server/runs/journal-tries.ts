import { assert, CodedError, formatBytes, isCode, messageOf, retryOf } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import type { KubeObject } from '../../kube/index.ts';
import type { z } from 'zod';
import { decodeSegment, type Segment, type TryRecords } from './segment.ts';

/** The work of one server on a backup or a restore. */
export interface Try {
  readonly number: number;
  /** Random, because two processes may take the same number. */
  readonly owner: string;
  /** Up to the first gap. Segments are stored in order, so later ones do not count. */
  readonly keys: readonly string[];
}

/** The stored work that a new try continues. */
export interface LastTry<R extends TryRecords> {
  /** The highest number of any try, even if it does not count; 0 if there is none. */
  readonly number: number;
  readonly keys: readonly string[];
  /** The first segment of the last try that counts, already loaded. */
  readonly head?: { readonly key: string; readonly segment: Segment<R> };
}

export interface StoredTriesOptions<R extends TryRecords> {
  readonly bucket: Bucket;
  readonly schema: z.ZodType<R>;
  /** `backup` or `restore`, for messages. */
  readonly kind: string;
  /** Folder of one journal. */
  readonly folder: string;
  /** {@link isJournalSealed} */
  readonly isSealed: boolean;
  readonly signal: AbortSignal;
  /** Runs a named step with retries. */
  readonly patiently: <T>(what: string, task: () => Promise<T>) => Promise<T>;
}

const SEGMENT_BYTES_MAX = 512 << 20;
const NUMBER_DIGITS = 8;
const READ_AHEAD = 8;

/** The tries of a journal in the bucket. */
export class StoredTries<R extends TryRecords> {
  readonly #options: StoredTriesOptions<R>;

  constructor(options: StoredTriesOptions<R>) {
    this.#options = options;
  }

  /**
   * Finds the last try that counts. Among tries of one number, the longest wins: the others saw
   * less and stored only a first segment. Tries without a segment are skipped.
   */
  async last(): Promise<LastTry<R>> {
    const { bucket, folder, kind, signal, patiently } = this.#options;
    const keys = await patiently(`list the journal of a ${kind}`, () =>
      Array.fromAsync(bucket.list(folder, { signal })),
    );
    const tries = triesIn(keys.sort(), folder);
    const numbers = [...new Set(tries.map(({ number }) => number))].sort((a, b) => b - a);
    const [last = 0] = numbers;
    for (const number of numbers) {
      const all = await Promise.all(
        tries
          .filter((each) => each.number === number && each.keys.length > 0)
          .map(async ({ keys: own }) => {
            const [key = ''] = own;
            const segment = await this.#load(key);
            const before = segment.records.includes ?? [];
            return { keys: [...before, ...own], head: { key, segment } };
          }),
      );
      const [best] = all.sort((a, b) => b.keys.length - a.keys.length);
      if (best) return { number: last, ...best };
    }
    return { number: last, keys: [] };
  }

  /** Loads segments in order, with read-ahead: long backups have tens of thousands. */
  async *segments({ keys, head }: LastTry<R>): AsyncGenerator<Segment<R>> {
    const ahead: Promise<Segment<R>>[] = [];
    let next = 0;
    for (const key of keys) {
      while (ahead.length < READ_AHEAD && next < keys.length) {
        const loading = this.#load(keys[next++] ?? '');
        // The loop throws the error when it reaches this segment.
        loading.catch(() => undefined);
        ahead.push(loading);
      }
      const segment = await ahead.shift();
      assert(segment, 'a segment that was asked for');
      yield key === head?.key ? head.segment : segment;
    }
  }

  async #load(key: string): Promise<Segment<R>> {
    const { bucket, schema, isSealed, signal, patiently } = this.#options;
    const options = { schema, isSealed, signal };
    try {
      return await patiently(`read ${key}`, () => readSegment(bucket, key, options));
    } catch (error) {
      if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
      throw new CodedError('DAMAGED_JOURNAL', `${key} was stored, and is gone`);
    }
  }
}

/**
 * Annotation of a Backup or Restore whose journal is sealed. Unsealed files are then refused. The
 * annotation comes with the phase `InProgress`, out of reach of a writer to the bucket. Runs of
 * earlier versions lack it.
 */
const SEALED_JOURNAL = 'longshore.io/sealed-journal';

export const areSealed = (annotations: KubeObject['metadata']['annotations']): boolean =>
  annotations?.[SEALED_JOURNAL] === 'true';

export const isJournalSealed = ({ metadata }: Pick<KubeObject, 'metadata'>): boolean =>
  areSealed(metadata.annotations);

/** `canSeal`: there is a key. Overwrites an annotation that a user has set. */
export function journalAnnotations(
  { metadata }: Pick<KubeObject, 'metadata'>,
  canSeal: boolean,
): Record<string, string> {
  const isGiven = metadata.annotations?.[SEALED_JOURNAL] !== undefined;
  return canSeal || isGiven ? { [SEALED_JOURNAL]: String(canSeal) } : {};
}

/** For the log, when only the readable segments of a journal are used to end a run. */
export const SEGMENT_UNREAD =
  'a segment of a journal is damaged or forged, so its operations are not ended';

export interface SegmentOptions<R extends TryRecords> {
  readonly schema: z.ZodType<R>;
  /** {@link isJournalSealed} */
  readonly isSealed: boolean;
  readonly signal: AbortSignal;
}

/** Throws `DAMAGED_JOURNAL`, also for a forged segment, and errors of the bucket. */
export async function readSegment<R extends TryRecords>(
  bucket: Bucket,
  key: string,
  { schema, isSealed, signal }: SegmentOptions<R>,
): Promise<Segment<R>> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  try {
    for await (const piece of bucket.get(key, { signal, isSealed })) {
      pieces.push(piece);
      length += piece.length;
      if (length > SEGMENT_BYTES_MAX) {
        const text = `${key} is longer than ${formatBytes(SEGMENT_BYTES_MAX)}`;
        throw new CodedError('DAMAGED_JOURNAL', text);
      }
    }
  } catch (cause) {
    // The segment has a key that this cluster never had. Without any key, the caller retries.
    const isForeign = isCode(cause, 'NO_ARCHIVE_KEY') && retryOf(cause) === 'never';
    if (!isForeign && !isCode(cause, 'DAMAGED_ARCHIVE')) throw cause;
    throw new CodedError('DAMAGED_JOURNAL', messageOf(cause), { cause });
  }
  return decodeSegment(Buffer.concat(pieces), key, schema);
}

const padded = (value: number): string => String(value).padStart(NUMBER_DIGITS, '0');

/** Key of the segment at index `at` of a try. */
export const keyOf = (
  folder: string,
  { number, owner }: Pick<Try, 'number' | 'owner'>,
  at: number,
): string => `${folder}${padded(number)}-${owner}-${padded(at)}`;

function triesIn(keys: readonly string[], folder: string): Try[] {
  const all = Map.groupBy(keys, (key) => key.slice(folder.length).split('-').slice(0, 2).join('-'));
  return [...all].map(([name, found]): Try => {
    const [number = '', owner = ''] = name.split('-');
    const own = { number: Number(number), owner };
    const sorted = [...found].sort();
    const end = sorted.findIndex((key, at) => key !== keyOf(folder, own, at));
    return { ...own, keys: end === -1 ? sorted : sorted.slice(0, end) };
  });
}
