import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import { asBuffer, isCode, lastLinesOf, printable } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import { gunzipped } from './gzip.ts';
import { type MoverLogOwner, moverLogKey, moverLogsFolder, moverLogVolume } from './layout.ts';

/** The log of one data mover. */
export interface MoverLog {
  readonly owner: MoverLogOwner & { readonly uid: string };
  /** `NAMESPACE.PVC`, or `NAMESPACE.POD_VOLUME` for a pod's volume. */
  readonly volume: string;
  /** Its task, such as `DataUpload nightly-x5k2p`. */
  readonly title: string;
  readonly node: string;
  /** UID of its pod. */
  readonly pod: string;
  /** RFC 3339, when its end was seen. */
  readonly time: string;
  readonly text: Uint8Array;
}

/** Limit for all data movers of a volume. Our choice: hours of one line every few seconds. */
const LOG_BYTES_MAX = 1 << 20;

interface Section {
  readonly owner: string;
  readonly pod: string;
  readonly heading: Buffer;
  readonly body: Buffer;
}

const BAR = '======== ';
const HEADING = /^======== .* \(for ([-0-9A-Za-z]+), pod ([-0-9A-Za-z]+)\)$/;
const compress = promisify(gzip);

/**
 * The logs of data movers, beside the files of their backup or restore. A volume has one object
 * with the last {@link LOG_BYTES_MAX} bytes of all its data movers, because a failed mover is
 * replaced. There is no lock: of two concurrent additions for a volume, one may be lost.
 */
export class MoverLogArchive {
  readonly #bucket: Bucket;

  constructor(bucket: Bucket) {
    this.#bucket = bucket;
  }

  /**
   * Adds a log, in place of earlier text of this pod. Drops logs of earlier backups of the name.
   */
  async add(log: MoverLog, options: SignalOptions = {}): Promise<void> {
    const key = moverLogKey(log.owner, log.volume);
    const own = sectionOf(log);
    const before = await this.#sections(key, options);
    const others = before.filter(({ owner, pod }) => owner === own.owner && pod !== own.pod);
    const text = Buffer.concat(bounded([...others, own]));
    await this.#bucket.put(key, [await compress(text)], options);
  }

  async remove({ owner, volume }: MoverLog, options: SignalOptions = {}): Promise<void> {
    await this.#bucket.delete(moverLogKey(owner, volume), options);
  }

  /** The volumes with logs, sorted. */
  async volumes(owner: MoverLogOwner, options: SignalOptions = {}): Promise<string[]> {
    const volumes: string[] = [];
    for await (const key of this.#bucket.list(moverLogsFolder(owner), options)) {
      const volume = moverLogVolume(owner, key);
      if (volume !== undefined) volumes.push(volume);
    }
    return volumes.sort();
  }

  /** Throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`, and errors of the bucket. */
  read(
    owner: MoverLogOwner,
    volume: string,
    options: SignalOptions = {},
  ): AsyncIterable<Uint8Array> {
    return this.#read(moverLogKey(owner, volume), options);
  }

  #read(key: string, options: SignalOptions): AsyncIterable<Uint8Array> {
    return gunzipped(this.#bucket.get(key, options), { key, bytesMax: LOG_BYTES_MAX });
  }

  /** Empty for an unreadable log: the new log is worth more than the damaged one. */
  async #sections(key: string, options: SignalOptions): Promise<Section[]> {
    try {
      const pieces = await Array.fromAsync(this.#read(key, options));
      return sectionsIn(Buffer.concat(pieces));
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_ARCHIVE')) return [];
      throw error;
    }
  }
}

function sectionOf({ owner, title, node, pod, time, text }: MoverLog): Section {
  const what = printable(`${title} on node ${node}, ended at ${time}`);
  const heading = Buffer.from(`${BAR}${what} (for ${owner.uid}, pod ${pod})\n`);
  const isWhole = text.length === 0 || text.at(-1) === NEWLINE;
  const body = isWhole ? asBuffer(text) : Buffer.concat([text, Buffer.of(NEWLINE)]);
  return { owner: owner.uid, pod, heading, body };
}

const NEWLINE = 0x0a;

/** Ignores text before the first heading. */
function sectionsIn(text: Buffer): Section[] {
  const starts: { at: number; end: number; owner: string; pod: string }[] = [];
  for (let at = text.indexOf(BAR); at !== -1; at = text.indexOf(BAR, at + 1)) {
    const newline = text.indexOf(NEWLINE, at);
    const end = newline === -1 ? text.length : newline + 1;
    if (at > 0 && text[at - 1] !== NEWLINE) continue;
    const [, owner, pod] = HEADING.exec(text.toString('utf8', at, end).trimEnd()) ?? [];
    if (owner !== undefined && pod !== undefined) starts.push({ at, end, owner, pod });
  }
  return starts.map(({ at, end, owner, pod }, index) => ({
    owner,
    pod,
    heading: text.subarray(at, end),
    body: text.subarray(end, starts[index + 1]?.at ?? text.length),
  }));
}

/** The ends of the logs, newest first, within the limit. */
function bounded(sections: readonly Section[]): Buffer[] {
  const kept: Buffer[] = [];
  let left = LOG_BYTES_MAX;
  for (const { heading, body } of sections.toReversed()) {
    left -= heading.length;
    if (left <= 0) break;
    const end = asBuffer(lastLinesOf(body, left));
    kept.unshift(heading, end);
    left -= end.length;
  }
  return kept;
}
