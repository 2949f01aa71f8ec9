import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { availableParallelism } from 'node:os';
import { formatBytes, randomBytes, Secret, silentLogger } from '../base/index.ts';
import { openStorage } from '../blob/index.ts';
import { DEFAULT_ENCRYPTION, DEFAULT_HASH, DEFAULT_SPLITTER } from '../codec/index.ts';
import { defaultClient } from '../config/index.ts';
import {
  createFormat,
  defaultParameters,
  openRepository,
  putMaintenanceParameters,
  type Repository,
  DEFAULT_MEMORY_BYTES,
  planMemory,
} from '../repository/index.ts';
import { createSnapshot, restoreTree, type UploadResult } from '../uploader/index.ts';
import { createThreadPool } from '../workers/index.ts';
import { printLine } from './terminal.ts';

/** `npm run demo`: the engine on a sample of its own making, in well under a minute. */
const PASSWORD = 'demo';
const LARGE_FILE_BYTES = 192 << 20;
const SMALL_FILES = 2000;

async function makeSample(root: string): Promise<void> {
  await fs.mkdir(join(root, 'documents'), { recursive: true });
  await fs.mkdir(join(root, 'database'));
  for (let i = 0; i < SMALL_FILES; i++) {
    await fs.writeFile(join(root, 'documents', `note-${i}.txt`), randomBytes(200 + (i % 50) * 100));
  }
  await fs.writeFile(join(root, 'database', 'table.bin'), randomBytes(LARGE_FILE_BYTES));
  await fs.symlink('../documents/note-0.txt', join(root, 'database', 'first-note'));
}

/** What a day of use might change: one page of a database, some documents. */
async function changeSample(root: string): Promise<void> {
  const table = await fs.open(join(root, 'database', 'table.bin'), 'r+');
  await table.write(randomBytes(8192), 0, 8192, LARGE_FILE_BYTES / 2);
  await table.close();
  for (let i = 0; i < 20; i++) {
    await fs.writeFile(join(root, 'documents', `note-${i}.txt`), randomBytes(3000));
  }
}

async function open(path: string): Promise<Repository> {
  const threads = availableParallelism();
  const { indexMemoryBytes, ...memory } = planMemory(DEFAULT_MEMORY_BYTES, threads);
  return openRepository({
    storage: await openStorage(path),
    password: new Secret(PASSWORD),
    client: defaultClient(),
    indexMemoryBytes,
    dataPath: { factory: createThreadPool(threads), threads, memory },
  });
}

async function backUp(repository: Repository, path: string): Promise<UploadResult> {
  const start = performance.now();
  const { client } = repository;
  const result = await createSnapshot(repository, path, {
    source: { host: client.hostname, userName: client.username, path },
    logger: silentLogger,
    signal: new AbortController().signal,
  });
  const { counters } = result;
  const seconds = ((performance.now() - start) / 1000).toFixed(1);
  printLine(
    `  ${counters.files + counters.cachedFiles} files, ${formatBytes(counters.totalBytes)}: read ${formatBytes(counters.bytesRead)}, stored ${formatBytes(counters.bytesPacked)}, ${counters.contentsDeduplicated} chunks and ${counters.cachedFiles} files were there already (${seconds} s)`,
  );
  return result;
}

const work = await fs.mkdtemp(join(tmpdir(), 'longshore-demo-'));
const [sample, repo, restored] = ['sample', 'repository', 'restored'].map((name) =>
  join(work, name),
) as [string, string, string];
printLine('1. making a sample: a database file, many small documents');
await makeSample(sample);
printLine('2. creating an encrypted repository');
{
  await using storage = await openStorage(repo, { create: true });
  await createFormat(storage, new Secret(PASSWORD), {
    hash: DEFAULT_HASH,
    encryption: DEFAULT_ENCRYPTION,
    splitter: DEFAULT_SPLITTER,
    version: 3,
  });
}
await using repository = await open(repo);
await putMaintenanceParameters(repository, defaultParameters(repository.client));
printLine('3. first backup');
await backUp(repository, sample);
printLine('4. changing one page of the database and 20 documents, second backup');
await changeSample(sample);
const { id, rootEntry } = await backUp(repository, sample);
printLine('5. restoring the second backup and comparing');
const signal = new AbortController().signal;
await restoreTree(repository, rootEntry, restored, { logger: silentLogger, signal });
execFileSync('diff', ['-r', '--no-dereference', sample, restored]);
printLine('  every byte is the same');
printLine('');
printLine(`sample:     ${sample}`);
printLine(`repository: ${repo}   (password: ${PASSWORD})`);
printLine(`restored:   ${restored}`);
printLine('');
printLine('Look around, or remove it all:');
printLine(`  LONGSHORE_PASSWORD=${PASSWORD} bin/longshore snapshot ls ${id} --repo ${repo}`);
printLine(`  rm -r ${work}`);
