import { closeSync, openSync, unlinkSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { randomHex } from '../../base/index.ts';
import { comparePrecedence, type IndexEntry, sortKeyOf } from './entry.ts';
import { fileSource, IndexBody, memorySource } from './index-body.ts';
import { IndexV2Encoder } from './index-writer.ts';

interface Head {
  key: string;
  entry: IndexEntry;
  rest: Iterator<IndexEntry>;
}

/** Entries of several sorted streams in key order, one per content: the one that takes precedence. */
export function* mergeEntries(streams: Iterable<Iterable<IndexEntry>>): Generator<IndexEntry> {
  const heads: Head[] = [];
  for (const stream of streams) {
    const rest = stream[Symbol.iterator]();
    const first = rest.next();
    if (first.done !== true) push(heads, { key: sortKeyOf(first.value), entry: first.value, rest });
  }
  let best: IndexEntry | undefined;
  while (heads.length > 0) {
    const head = heads[0] as Head;
    const { entry } = head;
    if (best?.contentId === entry.contentId) {
      if (comparePrecedence(entry, best) > 0) best = entry;
    } else {
      if (best) yield best;
      best = entry;
    }
    const next = head.rest.next();
    if (next.done === true) {
      const last = heads.pop() as Head;
      if (heads.length > 0) heads[0] = last;
    } else {
      head.entry = next.value;
      head.key = sortKeyOf(next.value);
    }
    if (heads.length > 0) sink(heads);
  }
  if (best) yield best;
}

function push(heads: Head[], head: Head): void {
  let at = heads.push(head) - 1;
  while (at > 0) {
    const parent = (at - 1) >> 1;
    if ((heads[parent] as Head).key <= head.key) break;
    heads[at] = heads[parent] as Head;
    at = parent;
  }
  heads[at] = head;
}

function sink(heads: Head[]): void {
  const head = heads[0] as Head;
  let at = 0;
  for (;;) {
    let child = 2 * at + 1;
    if (child >= heads.length) break;
    const right = heads[child + 1];
    if (right && right.key < (heads[child] as Head).key) child++;
    if ((heads[child] as Head).key >= head.key) break;
    heads[at] = heads[child] as Head;
    at = child;
  }
  heads[at] = head;
}

/** A file that has no name any more: it goes away with its descriptor, also after SIGKILL. */
export function openScratchFile(directory: string = tmpdir()): number {
  const path = join(directory, `longshore-index-${randomHex(8)}`);
  const descriptor = openSync(path, 'wx+', 0o600);
  unlinkSync(path);
  return descriptor;
}

/** Collects entries in key order into a body that is kept in memory, or in a scratch file above `memoryBytesMax`. */
export function buildIndexBody(
  entries: Iterable<IndexEntry>,
  memoryBytesMax: number,
): IndexBody | undefined {
  const encoder = new IndexV2Encoder();
  let parts: Buffer[] = [];
  let joined: Buffer[] = [];
  let heldBytes = 0;
  let at = IndexV2Encoder.headerBytes;
  let file: number | undefined;
  const spill = (): void => {
    file ??= openScratchFile();
    const bytes = Buffer.concat([...joined, ...parts]);
    writeSync(file, bytes, 0, bytes.length, at);
    at += bytes.length;
    parts = [];
    joined = [];
    heldBytes = 0;
  };
  try {
    let count = 0;
    for (const entry of entries) {
      const part = encoder.encode(entry);
      parts.push(part);
      heldBytes += part.length;
      count++;
      // A small Buffer costs some 100 bytes beside its own: join them before they add up.
      if (file === undefined && heldBytes > memoryBytesMax) spill();
      else if (file !== undefined && heldBytes > 1 << 20) spill();
      else if (parts.length >= 8192) {
        joined.push(Buffer.concat(parts));
        parts = [];
      }
    }
    if (count === 0) return undefined;
    if (file === undefined) {
      return new IndexBody(
        memorySource(Buffer.concat([encoder.header(), ...joined, ...parts, encoder.trailer()])),
      );
    }
    spill();
    const trailer = encoder.trailer();
    writeSync(file, trailer, 0, trailer.length, at);
    writeSync(file, encoder.header(), 0, IndexV2Encoder.headerBytes, 0);
    return new IndexBody(fileSource(file));
  } catch (error) {
    if (file !== undefined) closeSync(file);
    throw error;
  }
}
