import { formatBytes, lookup } from '../../base/index.ts';
import type { Body } from '../../blob/index.ts';
import { damaged } from '../damaged-error.ts';
import { BLOCK_BYTES, decodeHeader, decodePax, isZero, type TarHeader } from './header.ts';
import { PathSet } from './path-set.ts';

export interface TarLimits {
  /** Limit for one item. */
  readonly entryBytesMax: number;
  readonly entriesMax: number;
  /**
   * Allows several entries of one path; the last one counts, as when Velero unpacks them. Several
   * workers of a Velero server may store an item at the same moment (`--item-block-worker-count`).
   */
  readonly mayRepeat?: boolean;
}

export interface TarEntry {
  /** Relative and plain: no part of it is empty, `.` or `..`. */
  readonly path: string;
  readonly bytes: Buffer;
  readonly mode: number;
  /** Seconds since 1970. */
  readonly mtime: number;
}

/** Limit for a long name. Our choice: items' names have 253 characters, four times in a path. */
const NAME_BYTES_MAX = 64 << 10;

const FILES = ['0', '\0', '7'];
const DIRECTORY = '5';
const PAX = 'x';
const PAX_GLOBAL = 'g';
const GNU_LONG_NAME = 'L';
const WHAT: Record<string, string> = {
  '1': 'a hard link',
  '2': 'a symbolic link',
  '3': 'a device',
  '4': 'a device',
  '6': 'a pipe',
  K: 'a link with a long name',
  S: 'a sparse file',
};

/**
 * The files of a tar archive in order, each whole in memory. The archive may come from an attacker.
 * Bad paths, sizes, counts and links throw `DAMAGED_ARCHIVE` with the key, and so do repeated paths
 * unless allowed.
 */
export async function* readTar(
  body: Body,
  key: string,
  { entryBytesMax, entriesMax, mayRepeat = false }: TarLimits,
): AsyncGenerator<TarEntry> {
  const source = new ByteSource(body, key);
  const seen = mayRepeat ? undefined : new PathSet();
  let entries = 0;
  let longName: string | undefined;
  let longSize: number | undefined;
  try {
    for (;;) {
      const block = await source.block();
      // Some writers omit the end. The outer format detects a truncated file.
      if (!block || isZero(block)) break;
      const header = decodeHeader(block);
      if (!header) throw damaged(key, `what follows entry ${entries} is no tar header`);
      if ([PAX, PAX_GLOBAL, GNU_LONG_NAME].includes(header.type)) {
        if (header.size > NAME_BYTES_MAX) throw damaged(key, 'a header of it is too long');
        const bytes = await source.take(header.size);
        if (header.type === GNU_LONG_NAME) longName = textOf(bytes);
        if (header.type !== PAX) continue;
        const records = decodePax(bytes);
        if (!records) throw damaged(key, 'a pax header of it cannot be read');
        longName = records.get('path') ?? longName;
        longSize = sizeOf(records.get('size'), key) ?? longSize;
        continue;
      }
      const name = longName ?? header.name;
      const size = longSize ?? header.size;
      longName = undefined;
      longSize = undefined;
      if (++entries > entriesMax) throw damaged(key, `it has more than ${entriesMax} entries`);
      if (header.type === DIRECTORY) {
        if (size > 0) throw damaged(key, `its directory ${shown(name)} has a content`);
        assertPath(name.replace(/\/$/, ''), key);
        continue;
      }
      yield await readFile({ ...header, name, size }, source, { key, seen, entryBytesMax });
    }
    // Reads to the end, so that the checksum is checked.
    await source.drain();
  } finally {
    await source.close();
  }
}

async function readFile(
  { name, size, mode, mtime, type }: TarHeader,
  source: ByteSource,
  { key, seen, entryBytesMax }: { key: string; seen: PathSet | undefined; entryBytesMax: number },
): Promise<TarEntry> {
  if (!FILES.includes(type)) {
    const what = lookup(WHAT, type) ?? `of type ${shown(type)}`;
    throw damaged(key, `its entry ${shown(name)} is ${what}`);
  }
  assertPath(name, key);
  if (size > entryBytesMax) {
    throw damaged(key, `its entry ${shown(name)} is longer than ${formatBytes(entryBytesMax)}`);
  }
  if (seen?.add(name) === false) throw damaged(key, `its entry ${shown(name)} is there twice`);
  return { path: name, bytes: await source.take(size), mode, mtime };
}

/** Velero's sentence for a path outside the target. */
function assertPath(name: string, key: string): void {
  const parts = name.split('/');
  if (name.startsWith('/') || parts.includes('..')) {
    throw damaged(key, `invalid archive path ${shown(name)}: escapes target directory`);
  }
  if (parts.some((part) => part === '' || part === '.') || name.includes('\0')) {
    throw damaged(key, `invalid archive path ${shown(name)}`);
  }
}

const shown = (name: string): string => JSON.stringify(name.slice(0, 300));

function textOf(bytes: Buffer): string {
  const end = bytes.indexOf(0);
  return bytes.toString('utf8', 0, end === -1 ? bytes.length : end);
}

function sizeOf(text: string | undefined, key: string): number | undefined {
  if (text === undefined) return undefined;
  if (/^\d{1,15}$/.test(text)) return Number(text);
  throw damaged(key, 'a pax header of it has no size that can be read');
}

/** A body, read by number of bytes. */
class ByteSource {
  readonly #iterator: AsyncIterator<Uint8Array>;
  readonly #key: string;
  #piece: Buffer = Buffer.alloc(0);

  constructor(body: Body, key: string) {
    this.#iterator = iteratorOf(body);
    this.#key = key;
  }

  /** Undefined at the end. */
  async block(): Promise<Buffer | undefined> {
    if (this.#piece.length === 0 && !(await this.#next())) return undefined;
    return this.#exactly(BLOCK_BYTES);
  }

  /** Also reads the padding of the last block, and does not return it. */
  async take(length: number): Promise<Buffer> {
    const bytes = await this.#exactly(length);
    await this.#exactly((BLOCK_BYTES - (length % BLOCK_BYTES)) % BLOCK_BYTES);
    return bytes;
  }

  async drain(): Promise<void> {
    while (await this.#next());
  }

  async close(): Promise<void> {
    await this.#iterator.return?.();
  }

  async #exactly(length: number): Promise<Buffer> {
    if (this.#piece.length >= length) {
      const bytes = this.#piece.subarray(0, length);
      this.#piece = this.#piece.subarray(length);
      return bytes;
    }
    const bytes = Buffer.allocUnsafeSlow(length);
    for (let at = 0; at < length;) {
      if (this.#piece.length === 0 && !(await this.#next())) {
        throw damaged(this.#key, 'its last entry is cut off');
      }
      const count = this.#piece.copy(bytes, at);
      at += count;
      this.#piece = this.#piece.subarray(count);
    }
    return bytes;
  }

  async #next(): Promise<boolean> {
    for (;;) {
      const step = await this.#iterator.next();
      if (step.done === true) return false;
      if (step.value.length === 0) continue;
      this.#piece = Buffer.from(step.value.buffer, step.value.byteOffset, step.value.byteLength);
      return true;
    }
  }
}

async function* iteratorOf(body: Body): AsyncGenerator<Uint8Array> {
  yield* body;
}
