import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { NativeSnapshot } from '../../../src/archive/index.ts';
import { CanceledError, CodedError, silentLogger } from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import { kubeError } from '../../../src/kube/client/errors.ts';
import {
  type Backup,
  BACKUPS,
  CONFIG_MAPS,
  connectToCluster,
  CUSTOM_RESOURCE_DEFINITIONS,
  DATA_UPLOADS,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  POD_VOLUME_BACKUPS,
  PODS,
  type Resource,
} from '../../../src/kube/index.ts';
import type { Buckets } from '../../../src/server/backups/contract.ts';
import { BackupJournal } from '../../../src/server/backups/run/journal.ts';
import { UnderWayNotes } from '../../../src/server/backups/running-backups.ts';
import { bucketThrough } from '../../support/bucket-through.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { openLost } from './support/lost.ts';
import { callsThrough, withCalls } from '../../support/with-calls.ts';

const VELERO = 'velero';
const scratch = tempDirectory('lost-backups');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

const backupOf = (index: number, spec: object = {}): Backup => ({
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata: {
    namespace: VELERO,
    name: `b${index}`,
    uid: `u${index}`,
    resourceVersion: '1',
    creationTimestamp: '2026-11-21T01:00:00Z',
  },
  spec: { storageLocation: 'default', ...spec },
  status: { phase: 'InProgress', startTimestamp: '2026-11-21T02:00:00Z' },
});

describe('Backups that were deleted while no server led', () => {
  let server: ApiServer;
  let client: KubeClient;
  let bucket: MemoryBucket;
  /** External actions, in order. */
  let told: string[];
  /** When the API server learned about Backups. */
  let kindSince: string;

  beforeEach(async () => {
    server = await ApiServer.start();
    const kubeconfig = join(scratch, 'kubeconfig');
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    for (const name of [VELERO, 'a']) await client.create(NAMESPACES, { metadata: { name } });
    await client.create(PODS, {
      metadata: {
        namespace: 'a',
        name: 'p',
        annotations: { 'post.hook.backup.velero.io/command': 'thaw' },
      },
      spec: { containers: [{ name: 'main' }] },
    });
    bucket = new MemoryBucket();
    told = [];
    kindSince = '2026-11-01T00:00:00Z';
  });
  afterEach(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
  });

  /** Leaves a note, a journal and a log, like a killed server. */
  async function leave(backup: Backup): Promise<void> {
    const { signal } = new AbortController();
    const { name, uid } = backup.metadata;
    const notes = { client, logger: silentLogger, namespace: VELERO };
    await new UnderWayNotes({ ...notes, assertLeading: () => undefined }).write(backup, signal);
    await using journal = await BackupJournal.open({
      isSealed: false,
      bucket,
      name,
      uid,
      directory: scratch,
      signal,
      logger: silentLogger,
      assertLeading: () => undefined,
    });
    const item = { group: '', resource: 'pods', namespace: 'a', name: 'p' };
    const record: NativeSnapshot = {
      spec: { location: 'l', persistentVolumeName: 'pv' },
      status: { phase: 'Completed', providerSnapshotID: `snap-${name}` },
    };
    await journal.put({
      kind: 'v1/Pod',
      namespace: 'a',
      name: 'p',
      files: [],
      hasEffect: true,
      hasFailed: false,
      owesPostHooks: true,
      facts: [{ kind: 'native', record }],
      operations: [{ action: 'x/y', item, operationId: `op-${name}`, postOperationItems: [] }],
    });
    bucket.objects.set(`backups/${name}/${name}-logs.gz`, Buffer.from('x'));
  }

  const notes = async (): Promise<string[]> =>
    (await client.list(CONFIG_MAPS, { namespace: VELERO })).map(({ metadata }) => metadata.name);

  /** A server that dies at its n-th external step, before or after it. Returns whether it died. */
  async function lead(dieAt: number, isDone: boolean): Promise<boolean> {
    const abort = new AbortController();
    const { signal } = abort;
    let steps = 0;
    const outside = async <T>(task: () => Promise<T>): Promise<T> => {
      signal.throwIfAborted();
      const isLast = ++steps === dieAt;
      if (isLast && !isDone) abort.abort(new CanceledError('shutdown'));
      signal.throwIfAborted();
      try {
        return await task();
      } finally {
        if (isLast) abort.abort(new CanceledError('shutdown'));
        signal.throwIfAborted();
      }
    };
    const say = (text: string): Promise<void> =>
      outside(() => {
        told.push(text);
        return Promise.resolve();
      });
    const counted = callsThrough(client, (name, _, go) => {
      const isCounted = ['get', 'list', 'collect', 'delete', 'create'].includes(name);
      return isCounted ? outside(() => go() as Promise<unknown>) : go();
    });
    const mortal = withCalls(counted, {
      exec: async ({ pod, command }: { pod: string; command: string[] }) => {
        await say(`${command.join(' ')} ${pod}`);
        return { stdout: '', stderr: '' };
      },
      find: (...[resource, ref, options]: Parameters<KubeClient['find']>) =>
        outside(async () => {
          if (resource !== CUSTOM_RESOURCE_DEFINITIONS) return client.find(resource, ref, options);
          return { metadata: { name: ref.name, creationTimestamp: kindSince } };
        }),
    });
    const mortalBucket = bucketThrough(bucket, (_, __, task) => outside(task));
    const buckets: Buckets = {
      open: (location) =>
        location === 'gone'
          ? Promise.reject(new CodedError('NO_LOCATION', 'there is none'))
          : outside(() =>
              Promise.resolve({
                bucket: mortalBucket,
                [Symbol.asyncDispose]: () => Promise.resolve(),
              }),
            ),
    };
    const { ended } = await openLost({
      namespace: VELERO,
      client,
      seen: mortal,
      buckets,
      signal,
      say,
      assertLeading: () => {
        signal.throwIfAborted();
      },
      removeSnapshots: (backup, { withKept }) =>
        say(`remove ${withKept ? 'all' : 'moved'} snapshots of ${backup.metadata.name}`),
    });
    await expect
      .poll(async () => signal.aborted || (await notes()).length === 0, {
        timeout: 40_000,
        interval: 20,
      })
      .toBe(true);
    const hasDied = signal.aborted;
    abort.abort(new CanceledError('shutdown'));
    await ended();
    return hasDied;
  }

  it.each([false, true])(
    'are ended and removed whole, wherever the server dies that does it (the step is done: %s)',
    async (isDone) => {
      for (let dieAt = 1, hasDied = true; hasDied; dieAt++) {
        told = [];
        await leave(backupOf(dieAt));
        hasDied = await lead(dieAt, isDone);
        expect(dieAt, 'it dies for ever').toBeLessThan(40);
        expect(hasDied || dieAt > 20, `its steps are what they are: ${dieAt}`).toBe(true);
        await lead(Infinity, false);
        expect({ dieAt, told: [...new Set(told)], notes: await notes() }).toEqual({
          dieAt,
          notes: [],
          told: [
            ...['thaw p', `cancel op-b${dieAt}`, `remove all snapshots of b${dieAt}`],
            `delete snap-b${dieAt}`,
          ],
        });
        expect([...bucket.objects.keys()]).toEqual([]);
      }
    },
    120_000,
  );

  it('have movements told to stop that a server created right before it was killed, if they failed', async () => {
    const given = { ...backupOf(1), status: { phase: 'Failed' } };
    const { metadata } = await client.create(BACKUPS, {
      ...given,
      metadata: { namespace: VELERO, name: 'b1' },
    });
    const { signal } = new AbortController();
    const noting = { client, logger: silentLogger, namespace: VELERO };
    const notes = new UnderWayNotes({ ...noting, assertLeading: () => undefined });
    await notes.write({ ...given, metadata }, signal);
    // The journal is empty.
    const base = { backupStorageLocation: 'default', uploaderType: 'kopia' };
    for (const [name, uid, status] of [
      ['unsaved', metadata.uid, {}],
      ['over', metadata.uid, { phase: 'Completed' }],
      ['other', 'u2', { phase: 'InProgress' }],
    ] as const) {
      const labeled = { namespace: VELERO, name, labels: { 'velero.io/backup-uid': uid } };
      const source = { sourceNamespace: 'a', sourcePVC: 'c', operationTimeout: '10m0s' };
      const spec = { ...base, ...source, snapshotType: 'CSI' };
      await client.create(DATA_UPLOADS, { metadata: labeled, spec, status });
      const pod = { pod: { namespace: 'a', name: 'p' }, node: 'n', volume: 'v' };
      const ofPod = { ...base, ...pod, repoIdentifier: '' };
      await client.create(POD_VOLUME_BACKUPS, { metadata: labeled, spec: ofPod, status } as never);
    }
    await lead(Infinity, false);
    for (const resource of [DATA_UPLOADS, POD_VOLUME_BACKUPS]) {
      const kind = resource as unknown as Resource<KubeObject & { spec: { cancel?: boolean } }>;
      const found = await client.list(kind, { namespace: VELERO });
      const canceled = found.filter(({ spec }) => spec.cancel === true);
      expect(canceled.map((each) => each.metadata.name)).toEqual(['unsaved']);
    }
  });

  it('are ended, and keep their files, where their whole kind was deleted meanwhile', async () => {
    await leave(backupOf(1));
    kindSince = '2026-11-21T03:00:00Z';
    const before = bucket.objects.size;
    await lead(Infinity, false);
    expect(told).toEqual(['thaw p', 'cancel op-b1', 'remove moved snapshots of b1']);
    expect([await notes(), bucket.objects.size]).toEqual([[], before]);
  });

  it('are made without notes where these cannot be made', async () => {
    let times = 0;
    const failing = {
      create: () => {
        times++;
        return Promise.reject(kubeError('create', 500, undefined));
      },
    } as unknown as KubeClient;
    const own = new UnderWayNotes({
      client: failing,
      logger: silentLogger,
      namespace: VELERO,
      assertLeading: () => undefined,
    });
    const { signal } = new AbortController();
    for (let i = 0; i < 4; i++) {
      await expect(own.write(backupOf(1), signal)).rejects.toMatchObject({ retry: 'backoff' });
    }
    await own.write(backupOf(1), signal);
    expect([times, own.has('u1')]).toEqual([5, false]);
  });

  it('are many, and of a location that is gone', async () => {
    const own = new UnderWayNotes({
      client,
      logger: silentLogger,
      namespace: VELERO,
      assertLeading: () => undefined,
    });
    const { signal } = new AbortController();
    const all = Array.from({ length: 1200 }, (_, i) => backupOf(i, { storageLocation: 'gone' }));
    for (const backup of all) await own.write(backup, signal);
    expect(await lead(Infinity, false)).toBe(false);
    expect(await notes()).toEqual([]);
  }, 60_000);

  it('have notes that are never too long', async () => {
    const own = new UnderWayNotes({
      client,
      logger: silentLogger,
      namespace: VELERO,
      assertLeading: () => undefined,
    });
    const { signal } = new AbortController();
    const words = Array.from({ length: 100_000 }, (_, i) => `namespace-${i}`);
    const hooks = { resources: [{ name: 'h', post: [{ exec: { command: ['thaw'] } }] }] };
    await own.write(backupOf(1, { includedNamespaces: words, hooks }), signal);
    const [note] = await client.list(CONFIG_MAPS, { namespace: VELERO });
    expect(JSON.stringify(note).length).toBeLessThan(600_000);
    expect((await own.load('u1', signal))?.spec).toEqual({ storageLocation: 'default', hooks });
  });
});
