/**
 * `node bench/browse-10m.ts [--files 10000000] [--wide 1000000] [--rounds 5]`: time until the first
 * byte of a single file from a backup of so many files.
 *
 * The wide directory has a million names. The other files are in a tree of eight levels, a thousand
 * per directory. The tree exists only as directories of a repository, and all files have the same
 * few bytes. Prints a JSON line for each way, with median and longest seconds and the peak of
 * memory in MiB:
 * - `longshore browse --cat` as a new process, for the last name of the wide directory and a file
 *   of the deep tree
 * - the page over HTTP for the same two files, as soon as it listens, and when the repository is
 *   open
 * - the first and the last page of the wide directory
 *
 * The API server is in memory, and the bucket is a directory.
 */
import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { gzipSync } from 'node:zlib';
import { DEV_PASSWORD } from '../src/cli/demo/dev-environment.ts';
import { openStatusPage } from '../src/cli/server/page.ts';
import { Secret, silentLogger } from '../src/base/index.ts';
import { openStorage } from '../src/blob/index.ts';
import { BACKUPS } from '../src/kube/index.ts';
import type { ObjectId, Repository } from '../src/repository/index.ts';
import { createFormat, writeObject } from '../src/repository/index.ts';
import {
  DirectoryEncoder,
  type DirectoryEntry,
  type DirectorySummary,
  saveSnapshot,
} from '../src/snapshot/index.ts';
import { FakeApi } from '../test/server/page/support/fake-api.ts';
import { ask } from '../test/server/page/support/page.ts';
import { NAMESPACE, TestCluster } from '../test/support/dev-cluster.ts';
import { sharedPackage } from '../test/support/package.ts';
import { DEFAULT_FORMAT, openTest } from '../test/support/repositories.ts';
import { peakOf } from './measure.ts';
import { putDirectoryLocation } from '../test/cli/browse/support/directory-location.ts';

const { values } = parseArgs({
  options: {
    files: { type: 'string', default: '10000000' },
    wide: { type: 'string', default: '1000000' },
    rounds: { type: 'string', default: '5' },
  },
});
const [FILES, WIDE, ROUNDS] = [values.files, values.wide, values.rounds].map(Number) as [
  number,
  number,
  number,
];
const A_DIRECTORY = 1000;
/** Directories beside each other on each level but the last. */
const FAN_OUT = 4;
const LEVELS = 8;
const BATCH = 10_000;
const TEXT = 'the bytes of a file\n';
const PLAIN = { mode: 0o644, mtimeNs: 1_795_687_200_000_000_000n, uid: 1000, gid: 1000 };

const optionsOf = ({ splitter }: Repository, prefix: '' | 'k') => ({
  prefix,
  compressor: undefined,
  metadataCompressor: undefined,
  splitter,
  indexSplitter: splitter,
});

/** A directory of numbered files. */
async function writeFiles(
  repository: Repository,
  { from, count, file }: { from: number; count: number; file: ObjectId },
): Promise<{ objectId: ObjectId; summary: DirectorySummary }> {
  const summary = summaryOf(count, 1);
  const encoder = new DirectoryEncoder();
  function* parts(): Generator<Uint8Array> {
    for (let at = 0; at < count; at += BATCH) {
      const entries = Array.from({ length: Math.min(BATCH, count - at) }, (_, index) => ({
        ...PLAIN,
        type: 'f',
        size: TEXT.length,
        objectId: file,
        name: `file-${String(from + at + index).padStart(8, '0')}-of-an-application.json`,
      }));
      yield Buffer.from(encoder.entries(entries));
    }
    yield Buffer.from(encoder.end(summary));
  }
  const objectId = await writeObject(repository.contents, parts(), optionsOf(repository, 'k'));
  return { objectId, summary };
}

const summaryOf = (files: number, dirs: number): DirectorySummary => ({
  files,
  dirs,
  size: files * TEXT.length,
  symlinks: 0,
  numFailed: 0,
  maxTimeNs: PLAIN.mtimeNs,
});

async function writeDirectory(
  repository: Repository,
  entries: readonly DirectoryEntry[],
): Promise<{ objectId: ObjectId; summary: DirectorySummary }> {
  const all = entries.map(({ summary }) => summary);
  const filesOf = all.reduce((sum, each) => sum + (each?.files ?? 0), 0);
  const summary = summaryOf(filesOf, 1 + all.reduce((sum, each) => sum + (each?.dirs ?? 0), 0));
  const encoder = new DirectoryEncoder();
  const text = encoder.entries(entries) + encoder.end(summary);
  const options = optionsOf(repository, 'k');
  return {
    objectId: await writeObject(repository.contents, [Buffer.from(text)], options),
    summary,
  };
}

/** Returns its ID. */
async function makeSnapshot(repository: Repository): Promise<string> {
  const bytes = Buffer.from(TEXT);
  const file = await writeObject(repository.contents, [bytes], optionsOf(repository, ''));
  const wide = await writeFiles(repository, { from: 0, count: WIDE, file });
  const leaves = Math.ceil((FILES - WIDE) / A_DIRECTORY);
  let level: DirectoryEntry[] = [];
  for (let at = 0; at < leaves; at++) {
    const from = WIDE + at * A_DIRECTORY;
    const made = await writeFiles(repository, { from, count: A_DIRECTORY, file });
    level.push(directoryOf(`leaf-${String(at).padStart(5, '0')}`, made));
  }
  for (let depth = LEVELS; depth > 0; depth--) {
    const next: DirectoryEntry[] = [];
    const each = Math.max(1, Math.ceil(level.length / FAN_OUT ** (depth - 1)));
    for (let at = 0; at < level.length; at += each) {
      const made = await writeDirectory(repository, level.slice(at, at + each));
      next.push(directoryOf(`level-${depth}-${String(next.length).padStart(5, '0')}`, made));
    }
    level = next;
  }
  const root = await writeDirectory(repository, [...level, directoryOf('wide', wide)]);
  const rootEntry = { ...directoryOf('root', root), mode: 0o755 };
  const counts = { fileCount: root.summary.files, dirCount: root.summary.dirs };
  const id = saveSnapshot(repository, {
    source: { host: 'default', userName: 'default', path: 'snapshot-data' },
    description: '',
    startTimeNs: PLAIN.mtimeNs,
    endTimeNs: PLAIN.mtimeNs,
    rootEntry,
    stats: {
      ...counts,
      totalSize: root.summary.size,
      excludedTotalSize: 0,
      cachedFiles: 0,
      nonCachedFiles: 0,
      excludedFileCount: 0,
      excludedDirCount: 0,
      ignoredErrorCount: 0,
      errorCount: 0,
    },
  });
  await repository.flush();
  return id;
}

const directoryOf = (
  name: string,
  { objectId, summary }: { objectId: ObjectId; summary: DirectorySummary },
): DirectoryEntry => ({ ...PLAIN, mode: 0o755, name, type: 'd', size: 0, objectId, summary });

interface Measured {
  readonly seconds: number;
  readonly peakMiB?: number;
}

/** Until the first byte, and the peak of memory at the end. */
function firstByteOf(command: string, parameters: readonly string[]): Promise<Measured> {
  return new Promise((resolve, reject) => {
    const start = performance.now();
    const child = spawn(command, parameters, { stdio: ['ignore', 'pipe', 'inherit'] });
    let [seconds, peakMiB] = [0, 0];
    const timer = setInterval(() => {
      peakMiB = Math.max(peakMiB, peakOf(child.pid ?? 0) / 1024);
    }, 10);
    child.stdout.once('data', () => (seconds = (performance.now() - start) / 1000));
    child.on('close', (code) => {
      clearInterval(timer);
      if (code === 0) resolve({ seconds, peakMiB });
      else reject(new Error(`${command} ended with ${code}`));
    });
  });
}

function print(way: string, what: string, all: readonly Measured[]): void {
  const seconds = all.map((each) => each.seconds).sort((a, b) => a - b);
  const peaks = all.flatMap(({ peakMiB }) => (peakMiB === undefined ? [] : [peakMiB]));
  const shown = {
    files: FILES,
    way,
    what,
    median: seconds[seconds.length >> 1],
    longest: seconds.at(-1),
    ...(peaks.length > 0 && { peakMiB: Math.max(...peaks) }),
  };
  console.log(
    JSON.stringify(shown, (_, value: unknown) =>
      typeof value === 'number' ? Math.round(value * 1000) / 1000 : value,
    ),
  );
}

await using cluster = await TestCluster.start({ nodes: [] });
await cluster.makeNamespace('app');
const store = cluster.cluster.storageDirectory;
const path = join(store, 'kopia/app');
{
  await using storage = await openStorage(path, { create: true });
  await createFormat(storage, new Secret(DEV_PASSWORD), DEFAULT_FORMAT);
}
let id = '';
// The first name of each level.
const deep = [
  ...Array.from({ length: LEVELS }, (_, depth) => `level-${depth + 1}-00000`),
  `leaf-00000/file-${String(WIDE).padStart(8, '0')}-of-an-application.json`,
].join('/');
{
  await using repository = await openTest(path, { password: DEV_PASSWORD, threads: 2 });
  const start = performance.now();
  id = await makeSnapshot(repository);
  const seconds = (performance.now() - start) / 1000;
  console.error(`wrote a snapshot of ${FILES} files in ${Math.round(seconds)} s`);
}
const metadata = { namespace: NAMESPACE, name: 'nightly', uid: 'uid-nightly' };
const head = {
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata,
  spec: { storageLocation: 'default' },
};
const status = { phase: 'Completed', startTimestamp: '2026-11-26T09:50:00Z' };
await cluster.client.create(BACKUPS, { metadata, spec: head.spec, status });
const folder = join(store, 'backups/nightly');
fs.mkdirSync(folder, { recursive: true });
fs.writeFileSync(join(folder, 'velero-backup.json'), JSON.stringify({ ...head, status }));
const info = {
  pvcName: 'data',
  pvcNamespace: 'app',
  backupMethod: 'CSISnapshot',
  snapshotDataMoved: true,
  snapshotDataMovementInfo: { uploaderType: 'kopia', snapshotHandle: id, size: 5 },
};
fs.writeFileSync(join(folder, 'nightly-volumeinfo.json.gz'), gzipSync(JSON.stringify([info])));
fs.writeFileSync(join(folder, 'nightly.tar.gz'), gzipSync(''));

const last = `wide/file-${String(WIDE - 1).padStart(8, '0')}-of-an-application.json`;
const places = { 'last of the wide directory': last, 'deep in the tree': deep };
const bin = join(sharedPackage(), 'bin/longshore');
for (const [what, file] of Object.entries(places)) {
  const words = ['browse', 'nightly', 'app/data', file, '--cat'];
  const all: Measured[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    all.push(
      await firstByteOf(bin, [...words, '--kubeconfig', cluster.kubeconfig, '-n', NAMESPACE]),
    );
  }
  print('longshore browse', what, all);
}

const api = new FakeApi();
putDirectoryLocation(api, store, DEV_PASSWORD);
api.put(BACKUPS, { metadata, spec: head.spec, status });
api.tokens.set('good', { user: { username: 'ann' }, mayList: true, mayBrowse: ['nightly'] });
const headers = { authorization: 'Bearer good' };
const queryOf = (file: string, more: Record<string, string> = {}): string =>
  new URLSearchParams({ volume: 'app/data', path: `/${file}`, ...more }).toString();

async function timed(address: string, question: string): Promise<Measured> {
  const start = performance.now();
  const { status: code, bytes } = await ask(address, question, { headers, isTls: true });
  if (code !== 200 || bytes.length === 0) throw new Error(`${question}: ${code}`);
  return { seconds: (performance.now() - start) / 1000, peakMiB: peakOf(process.pid) / 1024 };
}
/** A page of its own, whose repository is not open yet. */
async function withPage<T>(work: (address: string) => Promise<T>): Promise<T> {
  const options = {
    client: api.client,
    logger: silentLogger,
    namespace: NAMESPACE,
    hasFiles: true,
  };
  await using page = await openStatusPage('0.0.0.0:0', options);
  while ((await ask(page.address, '/', { headers, isTls: true })).status !== 200) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return await work(page.address);
}
for (const [what, file] of Object.entries(places)) {
  const question = `/backups/nightly/download?${queryOf(file)}`;
  const cold: Measured[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    cold.push(await withPage((address) => timed(address, question)));
  }
  print('page, repository not open', what, cold);
}
await withPage(async (address) => {
  const pages = Math.ceil(WIDE / 200);
  const questions = {
    ...Object.fromEntries(
      Object.entries(places).map(([what, file]) => [what, `download?${queryOf(file)}`]),
    ),
    'first page of the wide directory': `files?${queryOf('wide')}`,
    'last page of the wide directory': `files?${queryOf('wide', { page: String(pages) })}`,
  };
  for (const [what, question] of Object.entries(questions)) {
    const all: Measured[] = [];
    for (let round = 0; round <= ROUNDS; round++) {
      all.push(await timed(address, `/backups/nightly/${question}`));
    }
    print('page, repository open', what, all.slice(1));
  }
});
process.exit();
