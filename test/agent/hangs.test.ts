import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TestCluster } from '../support/dev-cluster.ts';
import { tempDirectory } from '../support/kopia.ts';

const work = tempDirectory('mover-hangs');
const BLOCK = new URL('../support/block-reads.ts', import.meta.url).href;
let cluster: TestCluster;
beforeAll(async () => {
  execFileSync('mkfifo', [join(work, 'pipe')]);
  cluster = await TestCluster.start({
    nodes: ['node-1'],
    moverEnvironment: {
      NODE_OPTIONS: `--import ${BLOCK}`,
      BLOCKING_PIPE: join(work, 'pipe'),
      LONGSHORE_STALL_TIMEOUT: '5s',
      LONGSHORE_PROGRESS_INTERVAL: '500ms',
    },
  });
  // Both at once: each waits for minutes.
  cluster.startAgent('node-1', { concurrency: 2 });
  await cluster.makeNamespace('app');
});
afterAll(async () => {
  await cluster[Symbol.asyncDispose]();
  fs.rmSync(work, { recursive: true, force: true });
});

it.concurrent.each([
  ['a thread', 'hangs', 10],
  ['a request of the main thread', 'hangs-large', 20 << 20],
])(
  'a data mover of which %s is blocked by the volume ends, and the CR says what hangs',
  async (_what, file, bytes) => {
    const source = await cluster.makeVolume('app', file);
    fs.writeFileSync(join(source, file), Buffer.alloc(bytes));
    const snapshot = await cluster.makeSnapshot('app', file);
    await cluster.createUpload(file, { namespace: 'app', pvc: file, snapshot });
    const upload = await cluster.waitUpload(file, undefined, 170_000);
    expect(upload.status?.phase).toBe('Failed');
    expect(upload.status?.message).toMatch(
      /nothing has moved for \d+ s: the volume at \S+ hangs; check that its storage responds, then try again/,
    );
  },
  180_000,
);

it('neither leaves anything behind', async () => {
  expect(await cluster.leftovers()).toEqual([]);
});
