/**
 * `node bench/index-10m.ts [entries]`: an index of 10 million contents is opened and looked up in a
 * process of its own. Prints one JSON line: seconds to open, microseconds per look-up, peak memory.
 */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Secret } from '../src/base/index.ts';
import { openStorage } from '../src/blob/index.ts';
import {
  contentIdOf,
  createFormat,
  type IndexEntry,
  openRepository,
} from '../src/repository/index.ts';
import { sealBlob } from '../src/repository/content/sealed-blob.ts';
import { encodeIndex, sortEntries } from '../src/repository/index/index-writer.ts';

const password = new Secret('bench');
const client = { username: 'bench', hostname: 'bench' };
const BLOB_ENTRIES = 100_000;
const LOOKUPS = 200_000;

function makeEntries(count: number, blob: number): IndexEntry[] {
  const hashes = randomBytes(16 * count);
  return Array.from({ length: count }, (_, i) => ({
    contentId: contentIdOf('', hashes.subarray(16 * i, 16 * i + 16)),
    packBlobId: `p${blob.toString(16).padStart(8, '0')}${(i >> 10).toString(16).padStart(24, '0')}-s0123456789abcdef147`,
    packOffset: 32 + (i & 1023) * 5000,
    packedLength: 5000,
    originalLength: 4972,
    timestampSeconds: 1_795_000_000,
    deleted: false,
    formatVersion: 3,
    compressionHeaderId: 0,
    encryptionKeyId: 0,
  }));
}

async function prepare(path: string, entries: number): Promise<void> {
  await using storage = await openStorage(path, { create: true });
  const format = {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    splitter: 'FIXED-4M',
    version: 3,
  } as const;
  await createFormat(storage, password, format);
  await using repository = await openRepository({ storage, password, client });
  for (let blob = 0; blob * BLOB_ENTRIES < entries; blob++) {
    const body = encodeIndex(2, sortEntries(makeEntries(BLOB_ENTRIES, blob)));
    const { id, bytes } = sealBlob(repository.codec, 'xn0_', '-s0123456789abcdef147-c1', body);
    await storage.putBlob(id, [bytes]);
  }
}

async function probe(path: string): Promise<void> {
  const start = performance.now();
  await using storage = await openStorage(path);
  await using repository = await openRepository({ storage, password, client });
  const openSeconds = (performance.now() - start) / 1000;
  const { contents } = repository;
  const known: string[] = [];
  for (const { contentId } of contents.entries()) {
    known.push(contentId);
    if (known.length === LOOKUPS / 2) break;
  }
  const wanted = [...known, ...known.map(() => contentIdOf('', randomBytes(16)))];
  const lookupStart = performance.now();
  let found = 0;
  for (const id of wanted) if (contents.has(id as never)) found++;
  const microseconds = ((performance.now() - lookupStart) * 1000) / wanted.length;
  const peak =
    Number(/VmHWM:\s+(\d+)/.exec(fs.readFileSync('/proc/self/status', 'utf8'))?.[1]) / 1024;
  if (found !== known.length) throw new Error(`found ${found} of ${known.length}`);
  console.log(
    JSON.stringify({
      bench: 'index',
      openSeconds,
      microsecondsPerLookup: microseconds,
      peakMiB: peak,
    }),
  );
}

if (process.argv[2] === 'probe') {
  await probe(process.argv[3] ?? '');
} else {
  const path = fs.mkdtempSync(join(tmpdir(), 'longshore-index-'));
  try {
    await prepare(path, Number(process.argv[2] ?? 10_000_000));
    execFileSync(process.execPath, [import.meta.filename, 'probe', path], { stdio: 'inherit' });
  } finally {
    fs.rmSync(path, { recursive: true, force: true });
  }
}
