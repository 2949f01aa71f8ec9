import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { lastLinesOf } from '../../src/base/index.ts';
import { ApiServer } from '../../src/dev/index.ts';
import { connectToCluster, type KubeClient } from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';

const MIB = 1 << 20;
const LINE = `${'x'.repeat(99)}\n`;
const LOG = `${Array.from({ length: 30_000 }, (_, at) => `${at} ${LINE}`).join('')}the end`;

describe('the log of a pod', () => {
  let server: ApiServer;
  let client: KubeClient;
  const directory = tempDirectory('pod-log');

  beforeAll(async () => {
    server = await ApiServer.start({ podLog: (_, name) => (name === 'p' ? LOG : undefined) });
    const kubeconfig = join(directory, 'kubeconfig');
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
  });
  afterAll(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
  });

  const read = (limits: { tailLines: number; bytesMax: number }): Promise<string> =>
    client.podLog({ namespace: 'velero', name: 'p' }, 'c', limits);

  it('is read from its last bytes, from the beginning of a line', async () => {
    const text = await read({ tailLines: 30_000, bytesMax: MIB });
    expect(text.length).toBeLessThanOrEqual(MIB);
    expect(text.length).toBeGreaterThan(MIB - 200);
    expect(LOG.endsWith(text)).toBe(true);
    expect(text).toMatch(/^\d+ x{99}\n/);
  });

  it('is read from its last lines where these have no more bytes', async () => {
    expect(await read({ tailLines: 3, bytesMax: MIB })).toBe(`29998 ${LINE}29999 ${LINE}the end`);
  });

  it('that is not there fails', async () => {
    const asked = client.podLog({ namespace: 'velero', name: 'q' }, 'c', {
      tailLines: 1,
      bytesMax: 1,
    });
    await expect(asked).rejects.toMatchObject({ code: 'KUBE_NOT_FOUND' });
  });
});

describe('the end of a text', () => {
  it.each([
    ['ab\ncd\n', 9, 'ab\ncd\n'],
    ['ab\ncd\n', 6, 'ab\ncd\n'],
    ['ab\ncd\n', 5, 'cd\n'],
    ['ab\ncd\n', 3, 'cd\n'],
    ['ab\ncd\n', 2, 'd\n'],
    ['ab\ncd\n', 0, ''],
    ['aüü', 3, 'ü'],
    ['aüü', 4, 'üü'],
  ])('%j within %i bytes is %j', (text, bytesMax, end) => {
    expect(Buffer.from(lastLinesOf(Buffer.from(text), bytesMax)).toString()).toBe(end);
  });
});
