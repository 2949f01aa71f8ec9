import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { randomBytes } from '../../src/base/index.ts';
import { TestCluster } from '../support/dev-cluster.ts';

const MIB = 2 ** 20;
const FILES = 12;
const FILE_BYTES = 5 * MIB;

it('bytes count while a volume is being moved, and each once', { timeout: 120_000 }, async () => {
  await using cluster = await TestCluster.start({
    nodes: ['node-1'],
    moverEnvironment: { LONGSHORE_DOWNLOAD_LIMIT: '8MiB', LONGSHORE_PROGRESS_INTERVAL: '100ms' },
  });
  const { agent } = cluster.startAgent('node-1');
  const metric = async (name: string, direction = 'download'): Promise<number> => {
    const text = await agent.metrics.registry.metrics();
    const begin = `longshore_${name}_bytes_total{direction="${direction}"} `;
    const line = text.split('\n').find((each) => each.startsWith(begin));
    return Number(line?.slice(begin.length));
  };
  // An alert on a rate of zero needs a series to begin with.
  expect(await metric('moved')).toBe(0);
  for (const name of ['app', 'app2']) await cluster.makeNamespace(name);
  const source = await cluster.makeVolume('app', 'data');
  for (let i = 0; i < FILES; i++) fs.writeFileSync(join(source, `${i}`), randomBytes(FILE_BYTES));
  const snapshot = await cluster.makeSnapshot('app', 'data');
  await cluster.createUpload('up', { namespace: 'app', pvc: 'data', snapshot });
  const { snapshotID = '' } = (await cluster.waitUpload('up', 'Completed')).status ?? {};
  expect(await metric('moved', 'upload')).toBe(FILES * FILE_BYTES);
  await cluster.makeTarget('app2', 'data');
  const download = { namespace: 'app2', pvc: 'data', sourceNamespace: 'app', snapshotID };
  await cluster.createDownload('slow', download);
  await cluster.waitDownload('slow', 'InProgress');
  const seen = new Set<number>();
  for (const endMs = performance.now() + 30_000; seen.size < 2 && performance.now() < endMs;) {
    const moved = await metric('moved');
    if (moved > 0 && moved < FILES * FILE_BYTES) seen.add(moved);
    await sleep(50);
  }
  expect(seen.size).toBe(2);
  expect(await metric('completed')).toBe(0);
  await cluster.waitDownload('slow', 'Completed');
  await expect.poll(() => metric('completed')).toBe(FILES * FILE_BYTES);
  expect(await metric('moved')).toBe(FILES * FILE_BYTES);
});
