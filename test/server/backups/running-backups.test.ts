import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, expect, it } from 'vitest';
import { CanceledError, CodedError, silentLogger } from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  type Backup,
  CONFIG_MAPS,
  connectToCluster,
  type KubeClient,
  NAMESPACES,
} from '../../../src/kube/index.ts';
import { kubeError } from '../../../src/kube/client/errors.ts';
import { UnderWayNotes } from '../../../src/server/backups/running-backups.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { withCalls } from '../../support/with-calls.ts';

const NAMESPACE = 'velero';
const scratch = tempDirectory('under-way');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});
const { signal } = new AbortController();
const BACKUP = { metadata: { namespace: NAMESPACE, name: 'b1', uid: 'u1' }, spec: {} } as Backup;

let server: ApiServer;
let client: KubeClient;
beforeEach(async () => {
  server = await ApiServer.start();
  const kubeconfig = join(scratch, 'kubeconfig');
  fs.writeFileSync(kubeconfig, server.kubeconfig);
  client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
  await client.create(NAMESPACES, { metadata: { name: NAMESPACE } });
});
afterEach(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

const notesOf = (seen: KubeClient): UnderWayNotes =>
  new UnderWayNotes({
    client: seen,
    logger: silentLogger,
    namespace: NAMESPACE,
    assertLeading: () => undefined,
  });
const there = async (): Promise<number> =>
  (await client.list(CONFIG_MAPS, { namespace: NAMESPACE })).length;

it.each([
  ['got no answer', new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' })],
  ['was cut off', new CanceledError('user')],
])('a note that was written by a call that %s goes as well', async (_how, error) => {
  const create = async (...given: Parameters<KubeClient['create']>): Promise<never> => {
    await client.create(...given);
    throw error;
  };
  const notes = notesOf(withCalls(client, { create }));
  await expect(notes.write(BACKUP, signal)).rejects.toBe(error);
  expect(await there()).toBe(1);
  expect(notes.has('u1')).toBe(true);
  await notes.remove('u1', signal);
  expect(await there()).toBe(0);
  expect(notes.has('u1')).toBe(false);
});

it('a note that is refused is not removed, which may be refused as well', async () => {
  const refused = kubeError('create a ConfigMap', 403, undefined);
  const notes = notesOf(
    withCalls(client, {
      create: () => Promise.reject(refused),
      delete: () => Promise.reject(refused),
    }),
  );
  await notes.write(BACKUP, signal);
  expect(notes.has('u1')).toBe(false);
  await notes.remove('u1', signal);
});
