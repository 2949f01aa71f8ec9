import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { Secret } from '../../src/base/index.ts';
import { openStorage } from '../../src/blob/index.ts';
import { Arena } from '../../src/codec/index.ts';
import type { ThreadPool } from '../../src/volume-files/index.ts';
import { openRepository, type Repository } from '../../src/repository/index.ts';
import { listSnapshots, verifyTrees } from '../../src/snapshot/index.ts';
import { createThreadPool } from '../../src/workers/index.ts';
import { prng } from '../support/golden.ts';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, CLIENT, createTest, openTest, PASSWORD } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

/** Threads that may still be started, as a container with a limit has it. */
const room = { threads: Infinity };
vi.mock('node:worker_threads', async (importOriginal) => {
  const original = await importOriginal<typeof import('node:worker_threads')>();
  class LimitedWorker extends original.Worker {
    constructor(entry: URL) {
      // Node's own error, with the code as its message.
      if (room.threads-- <= 0) {
        throw Object.assign(new Error('EAGAIN'), { code: 'ERR_WORKER_INIT_FAILED' });
      }
      super(entry);
    }
  }
  return { ...original, Worker: LimitedWorker };
});
beforeEach(() => {
  room.threads = Infinity;
});

const work = tempDirectory('death');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

const KEYS = {
  hash: 'BLAKE2B-256-128',
  encryption: 'AES256-GCM-HMAC-SHA256',
  secret: prng('s', 32),
  masterKey: prng('m', 32),
};

/** An entry for threads that die: parameters as in mortal-thread.ts. */
function mortal(death: { task: string; how?: string; once?: string }): URL {
  const modules = ['../support/mortal-thread.ts', '../../src/workers/thread.ts'];
  const imports = modules.map((path) => `import '${new URL(path, import.meta.url).href}';`);
  const code = `${imports.join('')} globalThis.death = ${JSON.stringify(death)};`;
  return new URL(`data:text/javascript,${encodeURIComponent(code)}`);
}

const listing = (pool: ThreadPool): Promise<unknown> => pool.readDirectory(work, 100);

describe('a thread that dies in the middle of a task', () => {
  it.each([
    ['throw', 'a worker thread died: killed on purpose'],
    ['exit', 'a worker thread died: it exited with code 7'],
  ])('fails its callers with the reason, and is replaced: %s', async (how, message) => {
    const entry = mortal({ task: 'hash', how, once: at(`once-${how}`) });
    await using pool = createThreadPool(1, entry)(KEYS, new Arena(1 << 20));
    const [hash, waiting, queued] = await Promise.allSettled([
      pool.hash([[]]),
      listing(pool),
      listing(pool),
    ]);
    expect(hash).toMatchObject({ reason: { code: 'THREAD_DIED', message } });
    // This task was already given to the dead thread.
    expect(waiting).toMatchObject({ reason: { code: 'THREAD_DIED', message } });
    expect(queued.status).toBe('fulfilled');
    await expect(pool.hash([[]])).resolves.toHaveLength(1);
  });

  it('is replaced three times; then every task fails, also those that wait', async () => {
    const pool = createThreadPool(1, mortal({ task: 'hash' }))(KEYS, new Arena(1 << 20));
    for (let death = 1; death <= 3; death++) {
      await expect(pool.hash([[]])).rejects.toMatchObject({ code: 'THREAD_DIED' });
      await expect(listing(pool)).resolves.toBeDefined();
    }
    const last = [pool.hash([[]]), ...Array.from({ length: 10 }, () => listing(pool))];
    for (const result of await Promise.allSettled(last)) {
      expect(result).toMatchObject({ reason: { code: 'THREAD_DIED' } });
    }
    await expect(listing(pool)).rejects.toMatchObject({ code: 'THREAD_DIED' });
    await pool.close();
  });
});

describe('a thread for which there is no room', () => {
  const NO_ROOM =
    'a worker thread cannot be started (EAGAIN): check how many processes and threads this container or user may have';

  it('is told of in words', () => {
    room.threads = 0;
    expect(() => createThreadPool(2)).toThrow(
      expect.objectContaining({ code: 'NO_THREAD', message: NO_ROOM }),
    );
  });

  it('is done without where there is another one', async () => {
    room.threads = 1;
    const pool = createThreadPool(4)(KEYS, new Arena(1 << 20));
    const listed = await Promise.all(Array.from({ length: 20 }, () => listing(pool)));
    expect(listed).toHaveLength(20);
    // The pool requests memory for a thread once, not before every task.
    expect(room.threads).toBe(-1);
    await pool.close();
  });

  it('is started when a task has to wait, and not before', async () => {
    room.threads = 4;
    const pool = createThreadPool(4)(KEYS, new Arena(1 << 20));
    for (let i = 0; i < 5; i++) await listing(pool);
    expect(room.threads).toBe(3);
    await Promise.all(Array.from({ length: 20 }, () => listing(pool)));
    expect(room.threads).toBe(0);
    await pool.close();
  });

  it('in the place of one that died fails every task, also those that wait', async () => {
    room.threads = 1;
    const pool = createThreadPool(1, mortal({ task: 'hash' }))(KEYS, new Arena(1 << 20));
    const [died, atHand, queued] = await Promise.allSettled([
      pool.hash([[]]),
      listing(pool),
      listing(pool),
    ]);
    expect(died).toMatchObject({ reason: { code: 'THREAD_DIED' } });
    expect(atHand).toMatchObject({ reason: { code: 'THREAD_DIED' } });
    expect(queued).toMatchObject({ reason: { code: 'NO_THREAD', message: NO_ROOM } });
    await expect(listing(pool)).rejects.toMatchObject({ code: 'NO_THREAD' });
    await pool.close();
  });
});

const openMortal = async (repo: string, entry: URL): Promise<Repository> =>
  openRepository({
    storage: await openStorage(repo),
    password: new Secret(PASSWORD),
    client: CLIENT,
    dataPath: {
      threads: 2,
      memory: { slabCount: 7, dataLanes: 1, packsInFlight: 0 },
      factory: createThreadPool(2, entry),
    },
  });

it.each(['hashPartly', 'cut', 'seal', 'readFiles'])(
  'an upload whose thread dies in "%s" fails with the reason; what it stored is sound, and the next one is whole',
  async (task) => {
    makeTree(at(task), task, { bigBytes: 12_000_000 });
    const repo = at(`repo-${task}`);
    await createTest(repo);
    {
      await using repository = await openMortal(repo, mortal({ task, once: at(`once-${task}`) }));
      await expect(backUp(repository, at(task))).rejects.toMatchObject({
        code: 'THREAD_DIED',
        message: 'a worker thread died: killed on purpose',
      });
    }
    await using again = await openTest(repo);
    const { snapshot } = await backUp(again, at(task));
    expect(snapshot.stats.errorCount).toBe(0);
    const roots = (await listSnapshots(again)).flatMap(({ rootEntry }) => rootEntry ?? []);
    const options = { readAll: true, signal: new AbortController().signal };
    expect((await verifyTrees(again, roots, options)).problems).toEqual([]);
  },
);
