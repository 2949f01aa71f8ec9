import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { isCode } from '../../src/base/index.ts';
import { DevEnvironment } from '../../src/cli/demo/dev-environment.ts';
import { PODS, PVS, waitFor } from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { recordingLogger } from '../support/repositories.ts';

const work = tempDirectory('dev-volumes');
const logger = recordingLogger();
let environment: DevEnvironment;
beforeAll(async () => {
  environment = await DevEnvironment.start({
    directory: join(work, 'dev'),
    nodes: ['node-1'],
    command: ['/usr/bin/env'],
    environment: { PATH: '/usr/bin:/bin' },
    logger,
  });
});
afterAll(async () => {
  await environment[Symbol.asyncDispose]();
  fs.rmSync(work, { recursive: true, force: true });
});

/** Makes a volume with a handle and deletes it again; resolves when the driver has seen that. */
async function comeAndGo(name: string, handle: string): Promise<void> {
  const { client } = environment;
  const count = (): number =>
    logger.messages.filter((text) => text === 'a volume could not be removed').length;
  const before = count();
  await client.create(PVS, {
    metadata: { name },
    spec: {
      capacity: { storage: '1Gi' },
      accessModes: ['ReadWriteOnce'],
      persistentVolumeReclaimPolicy: 'Delete',
      csi: { driver: 'dir.csi.longshore.dev', volumeHandle: handle },
    },
  });
  // The driver has to have seen it.
  await sleep(500);
  await client.delete(PVS, { name });
  await expect.poll(count, { timeout: 10_000 }).toBe(before + 1);
}

it('a handle that is no name removes nothing outside of the volumes, nor all of them', async () => {
  const victim = join(work, 'victim');
  fs.mkdirSync(victim);
  fs.writeFileSync(join(victim, 'file'), 'precious');
  const other = join(work, 'dev/storage/volumes/other');
  fs.mkdirSync(other, { recursive: true });
  await comeAndGo('out', '../../../victim');
  await comeAndGo('up', '..');
  await comeAndGo('empty', '');
  expect(fs.readFileSync(join(victim, 'file'), 'utf8')).toBe('precious');
  expect(fs.existsSync(other)).toBe(true);
  for (const handle of ['', '.', '..', 'a/b', '/a', 'a\0b']) {
    const named = (path: () => string): unknown => {
      try {
        return path();
      } catch (error) {
        return isCode(error, 'BAD_HANDLE');
      }
    };
    expect(named(() => environment.cluster.csi.volumePath(handle))).toBe(true);
    expect(named(() => environment.cluster.csi.snapshotPath(handle))).toBe(true);
  }
});

it('a log that cannot be written ends neither the pod nor the cluster', async () => {
  const { client } = environment;
  const ref = { namespace: 'default', name: 'silent' };
  fs.mkdirSync(join(work, 'dev/pods/node-1/silent.log'), { recursive: true });
  await client.create(PODS, {
    metadata: ref,
    spec: { containers: [{ name: 'c', image: 'x', command: ['/velero'] }], nodeName: 'node-1' },
  });
  const ended = await waitFor(
    client,
    PODS,
    ref,
    (pod) => (['Succeeded', 'Failed'].includes(pod?.status?.phase ?? '') ? pod : undefined),
    { timeoutMs: 20_000 },
  );
  expect(ended.status?.phase).toBe('Succeeded');
  expect(logger.messages).toContain('a log cannot be written');
});
