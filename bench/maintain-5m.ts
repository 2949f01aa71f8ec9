/**
 * `node bench/maintain-5m.ts [contents]`: full maintenance of a repository of 5 million contents, half of
 * them reached by one snapshot, in a process of its own. Prints one JSON line: seconds, peak memory.
 */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Secret, silentLogger } from '../src/base/index.ts';
import { openStorage } from '../src/blob/index.ts';
import { splitterSpec } from '../src/codec/index.ts';
import {
  contentIdOf,
  createFormat,
  type IndexEntry,
  type ObjectId,
  openRepository,
  type Repository,
  runMaintenance,
  writeObject,
} from '../src/repository/index.ts';
import { sealBlob } from '../src/repository/content/sealed-blob.ts';
import { encodeIndex, sortEntries } from '../src/repository/index/index-writer.ts';
import {
  planGarbageCollection,
  type DirectoryEntry,
  encodeDirectory,
  saveSnapshot,
} from '../src/snapshot/index.ts';

const password = new Secret('bench');
const client = { username: 'bench', hostname: 'bench' };
const BLOB_ENTRIES = 100_000;
const DIRECTORY_ENTRIES = 1000;
const LENGTH = 5000;
const SPLITTER = splitterSpec('FIXED-4M');

/** Contents of 5000 bytes in full packs that nobody reads. */
function makeEntries(count: number, blob: number): IndexEntry[] {
  const hashes = randomBytes(16 * count);
  return Array.from({ length: count }, (_, i) => ({
    contentId: contentIdOf('', hashes.subarray(16 * i, 16 * i + 16)),
    packBlobId: `p${blob.toString(16).padStart(8, '0')}${Math.floor(i / 4000)
      .toString(16)
      .padStart(24, '0')}-s0123456789abcdef147`,
    packOffset: 32 + (i % 4000) * LENGTH,
    packedLength: LENGTH,
    originalLength: LENGTH - 28,
    timestampSeconds: 1_700_000_000,
    deleted: false,
    formatVersion: 3,
    compressionHeaderId: 0,
    encryptionKeyId: 0,
  }));
}

const common = { mode: 0o644, mtimeNs: 1_700_000_000_000_000_000n, uid: 0, gid: 0 };
const summary = {
  size: 0,
  files: 0,
  symlinks: 0,
  dirs: 1,
  maxTimeNs: common.mtimeNs,
  numFailed: 0,
};

function writeDirectory(repository: Repository, entries: DirectoryEntry[]): Promise<ObjectId> {
  return writeObject(repository.contents, [encodeDirectory(entries, summary)], {
    prefix: 'k',
    compressor: undefined,
    metadataCompressor: undefined,
    splitter: SPLITTER,
    indexSplitter: SPLITTER,
  });
}

async function prepare(path: string, count: number): Promise<void> {
  await using storage = await openStorage(path, { create: true });
  await createFormat(storage, password, {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    splitter: 'FIXED-4M',
    version: 3,
  });
  await using repository = await openRepository({ storage, password, client });
  const directories: DirectoryEntry[] = [];
  for (let blob = 0; blob * BLOB_ENTRIES < count; blob++) {
    const entries = makeEntries(BLOB_ENTRIES, blob);
    for (let at = 0; at < entries.length && blob % 2 === 0; at += DIRECTORY_ENTRIES) {
      const files = entries.slice(at, at + DIRECTORY_ENTRIES).map(({ contentId }, i) => ({
        ...common,
        name: `file-${i}`,
        type: 'f' as const,
        size: LENGTH - 28,
        objectId: contentId as string as ObjectId,
      }));
      const objectId = await writeDirectory(repository, files);
      const name = `directory-${directories.length}`;
      directories.push({ ...common, name, type: 'd', size: 0, objectId, summary });
    }
    const { id, bytes } = sealBlob(
      repository.codec,
      'xn0_',
      '-s0123456789abcdef147-c1',
      encodeIndex(2, sortEntries(entries)),
    );
    await storage.putBlob(id, [bytes]);
  }
  const root = await writeDirectory(repository, directories);
  saveSnapshot(repository, {
    source: { host: 'bench', userName: 'bench', path: '/bench' },
    description: '',
    startTimeNs: common.mtimeNs,
    endTimeNs: common.mtimeNs,
    stats: {
      totalSize: 0,
      excludedTotalSize: 0,
      fileCount: 0,
      cachedFiles: 0,
      nonCachedFiles: 0,
      dirCount: 0,
      excludedFileCount: 0,
      excludedDirCount: 0,
      ignoredErrorCount: 0,
      errorCount: 0,
    },
    incomplete: undefined,
    rootEntry: { ...common, name: 'bench', type: 'd', size: 0, objectId: root, summary },
    tags: {},
    pins: undefined,
  });
  await repository.flush();
}

async function maintain(path: string): Promise<void> {
  const start = performance.now();
  await using storage = await openStorage(path);
  await using repository = await openRepository({ storage, password, client });
  const { tasks } = await runMaintenance(repository, {
    mode: 'full',
    safety: 'none',
    force: true,
    dryRun: false,
    signal: new AbortController().signal,
    logger: silentLogger,
    collectGarbage: planGarbageCollection,
  });
  const status = fs.readFileSync('/proc/self/status', 'utf8');
  console.log(
    JSON.stringify({
      bench: 'maintenance',
      seconds: (performance.now() - start) / 1000,
      peakMiB: Number(/VmHWM:\s+(\d+)/.exec(status)?.[1]) / 1024,
      collected: tasks.find(({ task }) => task === 'snapshot-gc')?.stats,
    }),
  );
}

if (process.argv[2] === 'probe') {
  await maintain(process.argv[3] ?? '');
} else {
  const path = fs.mkdtempSync(join(tmpdir(), 'longshore-maintain-'));
  try {
    await prepare(path, Number(process.argv[2] ?? 5_000_000));
    execFileSync(process.execPath, [import.meta.filename, 'probe', path], { stdio: 'inherit' });
  } finally {
    fs.rmSync(path, { recursive: true, force: true });
  }
}
