/**
 * `node bench/latency.ts [GiB] [cores]`: the rate of a first backup by the latency of the store (0,
 * 20, 100 ms added to every request). Prints a Markdown table.
 */
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Secret, silentLogger } from '../src/base/index.ts';
import { faulty, openStorage } from '../src/blob/index.ts';
import {
  createFormat,
  DEFAULT_MEMORY_BYTES,
  openRepository,
  planMemory,
} from '../src/repository/index.ts';
import { createSnapshot } from '../src/uploader/index.ts';
import { createThreadPool } from '../src/workers/index.ts';

const bytes = Number(process.argv[2] ?? 2) * 2 ** 30;
const work = fs.mkdtempSync('/dev/shm/longshore-latency-');
const password = new Secret('bench');
const client = { username: 'bench', hostname: 'bench' };

async function backUp(latencyMs: number): Promise<number> {
  const path = join(work, `repo-${latencyMs}`);
  const inner = await openStorage(path, { create: true });
  await using storage = faulty(inner, async ({ when }) => {
    if (when === 'before' && latencyMs > 0) await sleep(latencyMs);
  });
  await createFormat(inner, password, {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    splitter: 'DYNAMIC-4M-BUZHASH',
    version: 3,
  });
  const plan = planMemory(DEFAULT_MEMORY_BYTES, availableParallelism());
  const { threads, indexMemoryBytes, ...memory } = plan;
  await using repository = await openRepository({
    storage,
    password,
    client,
    indexMemoryBytes,
    dataPath: { factory: createThreadPool(threads), threads, memory },
  });
  const start = performance.now();
  await createSnapshot(repository, join(work, 'source'), {
    source: { host: 'bench', userName: 'bench', path: '/bench' },
    logger: silentLogger,
    signal: new AbortController().signal,
  });
  const seconds = (performance.now() - start) / 1000;
  fs.rmSync(path, { recursive: true });
  return bytes / seconds / 1e6;
}

try {
  fs.mkdirSync(join(work, 'source'));
  const volume = join(work, 'source', 'volume');
  execFileSync('bash', ['-c', `head -c ${bytes} /dev/urandom > '${volume}'`]);
  await backUp(0);
  console.log('| latency of the store | MB/s | of 0 ms |\n|---|---|---|');
  let first = 0;
  for (const latencyMs of [0, 20, 100]) {
    const rates = [await backUp(latencyMs), await backUp(latencyMs), await backUp(latencyMs)];
    const rate = rates.sort((a, b) => a - b)[1] ?? 0;
    first ||= rate;
    console.log(
      `| ${latencyMs} ms | ${rate.toFixed(0)} | ${((100 * rate) / first).toFixed(0)} % |`,
    );
  }
} finally {
  fs.rmSync(work, { recursive: true, force: true });
}
