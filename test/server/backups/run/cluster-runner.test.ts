import * as fs from 'node:fs';
import { describe, expect, it } from 'vitest';
import { gunzipped } from '../../../../src/archive/gzip.ts';
import { BackupArchive } from '../../../../src/archive/index.ts';
import {
  CanceledError,
  CodedError,
  HOUR_NS,
  messageOf,
  silentLogger,
} from '../../../../src/base/index.ts';
import type { BackupAction } from '../../../../src/backup/index.ts';
import { type KubeObject, VOLUME_SNAPSHOTS } from '../../../../src/kube/index.ts';
import { BackupJournal } from '../../../../src/server/backups/run/journal.ts';
import { FakeCluster } from '../../../backup/support/cluster.ts';
import { bucketThrough } from '../../../support/bucket-through.ts';
import { canMount, mountSmallDisk } from '../../../support/full-disk.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';
import { noise } from '../../../support/noise.ts';

import { scratch, Rig, configMaps, reasonOf, pathsIn } from './support/rig.ts';

/** An operation for each ConfigMap. */
const moves: BackupAction = {
  name: 'example.io/moves',
  appliesTo: { includedResources: ['configmaps'] },
  execute: ({ metadata: { name } }) =>
    Promise.resolve({ operationId: `op-${name}`, postOperationItems: [] }),
};

describe('a run of a backup', () => {
  it('waits for an API server that is away when its volumes are summed up', async () => {
    let fails = 3;
    const answer = (): Promise<unknown> =>
      fails-- > 0
        ? Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }))
        : Promise.resolve([]);
    const rig = new Rig({
      cluster: configMaps(1),
      client: { list: answer, raw: answer },
      volumes: ({ client }) => ({
        outcome: async () => {
          await client.list(VOLUME_SNAPSHOTS);
          return { nativeSnapshots: [], podVolumeBackups: [], volumeInfos: [], csiSnapshots: 0 };
        },
      }),
    });
    expect((await rig.run()).phase).toBe('Finalizing');
  });

  it('ends at its end what has taken too long by then, but for plugins whose time-out is longer', async () => {
    const parts = {
      cluster: configMaps(1),
      actions: [moves],
      spec: { itemOperationTimeout: '1ns' },
    };
    const late = await new Rig(parts).run();
    expect(late).toMatchObject({ status: { backupItemOperationsFailed: 1 } });
    const rig = new Rig({ ...parts, timeoutNsOf: () => 4n * HOUR_NS });
    expect((await rig.run()).phase).toBe('WaitingForPluginOperations');
  });

  it('that fails while another server may lead stops no operation', async () => {
    const rig: Rig = new Rig({
      cluster: configMaps(2),
      actions: [moves],
      volumes: () => ({
        outcome: () => {
          rig.isLeading = false;
          return Promise.reject(new Error('something else'));
        },
      }),
    });
    await reasonOf(rig.run());
    expect(rig.canceled).toEqual([]);
    expect([...rig.bucket.objects.keys()].filter((key) => !key.includes('journal'))).toEqual([]);
  });

  it('tells all operations of one that is canceled to stop, however long that takes', async () => {
    const rig: Rig = new Rig({
      cluster: configMaps(17),
      actions: [moves],
      cancel: async () => {
        await new Promise((resolve) => setTimeout(resolve, 2200));
      },
      volumes: () => ({
        outcome: () => {
          rig.abort.abort(new CanceledError('user'));
          return Promise.reject(rig.abort.signal.reason as Error);
        },
      }),
    });
    await reasonOf(rig.run());
    expect(rig.canceled).toHaveLength(17);
    expect((await new BackupArchive(rig.bucket).loadMetadata('b1')).status?.phase).toBe('Failed');
  }, 20_000);

  it('that fails names operations that could not be told to stop, in its files and to its caller', async () => {
    const untold: string[] = [];
    const rig: Rig = new Rig({
      cluster: configMaps(7),
      actions: [moves],
      cancel: () => Promise.reject(new Error('no route')),
      volumes: () => ({ outcome: () => Promise.reject(new Error('something else')) }),
      onUntold: (text) => untold.push(text),
    });
    await reasonOf(rig.run());
    const [text = ''] = untold;
    expect(text).toMatch(
      /^7 operations could not be told to stop, and may go on: (op-\S+, ){4}op-\S+ and 2 more: no route$/,
    );
    const { status } = await new BackupArchive(rig.bucket).loadMetadata('b1');
    expect(status).toMatchObject({
      phase: 'Failed',
      failureReason: `backup execution failed: cannot ask for the volumes of a backup: something else; ${text}`,
    });
  });

  it.each([
    ['that cannot be stored any more', 'never'],
    ['that is canceled while the bucket is away', 'backoff'],
  ] as const)('tells operations to stop that are in no journal, of one %s', async (_, retry) => {
    const begun: string[] = [];
    const begins: BackupAction = {
      ...moves,
      execute: (item, ...more) => {
        begun.push(item.metadata.name);
        return moves.execute(item, ...more);
      },
    };
    const rig: Rig = new Rig({
      cluster: configMaps(2),
      actions: [begins],
      bucket: bucketThrough(new MemoryBucket(), async (call, _key, task) => {
        if (call !== 'put' || begun.length === 0) return task();
        await expect.poll(() => begun.length).toBe(2);
        if (retry === 'backoff') rig.abort.abort(new CanceledError('user'));
        throw new CodedError('BLOB_REFUSED', 'no longer', { retry });
      }),
    });
    const code = retry === 'never' ? 'ARCHIVE_NOT_WRITTEN' : 'CANCELED';
    expect(await reasonOf(rig.run())).toMatchObject({ code });
    expect(rig.canceled.sort()).toEqual(['op-c0', 'op-c1']);
  });

  it('ends where its process has to, while operations are told to stop, and leaves the rest to the next one', async () => {
    const rig: Rig = new Rig({
      cluster: configMaps(1),
      actions: [moves],
      cancel: (_, signal) => {
        rig.leaving.abort(new CanceledError('shutdown'));
        return new Promise((_resolve, reject) => {
          const end = (): void => {
            reject(signal.reason as Error);
          };
          if (signal.aborted) end();
          else signal.addEventListener('abort', end);
        });
      },
      volumes: () => ({
        outcome: () => {
          rig.abort.abort(new CanceledError('user'));
          return Promise.reject(rig.abort.signal.reason as Error);
        },
      }),
    });
    await reasonOf(rig.run());
    expect(await new BackupArchive(rig.bucket).has('b1')).toBe(false);
    expect([...rig.bucket.objects.keys()].some((key) => key.includes('journal'))).toBe(true);
  });

  it.each([
    ['whose journal is damaged', 'DAMAGED_JOURNAL'],
    ['that is canceled before it has come to them', 'CANCELED'],
    ['that fails before it has come to them', 'NO_VOLUMES'],
  ])('thaws what an earlier one has frozen, and ends what it began: one %s', async (_, code) => {
    const ran: string[] = [];
    const cluster = new FakeCluster().namespaces('a').add('pods', {
      metadata: {
        namespace: 'a',
        name: 'p',
        annotations: { 'post.hook.backup.velero.io/command': 'thaw' },
      },
      spec: { containers: [{ name: 'main' }] },
    });
    let ended = 0;
    const rig: Rig = new Rig({
      cluster,
      onEnded: () => ended++,
      client: {
        exec: ({ pod, command }: { pod: string; command: string[] }) => {
          ran.push(`${command.join(' ')} ${pod}`);
          return Promise.resolve({ stdout: '', stderr: '' });
        },
        list: () => {
          if (code === 'CANCELED') rig.abort.abort(new CanceledError('user'));
          return Promise.resolve([]);
        },
      },
      openVolumes: async (context) => {
        await context.client.list(VOLUME_SNAPSHOTS);
        context.signal.throwIfAborted();
        throw new CodedError('NO_VOLUMES', 'none');
      },
    });
    {
      await using journal = await BackupJournal.open({
        isSealed: false,
        bucket: rig.bucket,
        name: 'b1',
        uid: 'u1',
        directory: scratch,
        logger: silentLogger,
        assertLeading: () => undefined,
        signal: rig.leaving.signal,
      });
      const pod = { kind: 'v1/Pod', namespace: 'a', name: 'p' };
      const item = { group: '', resource: 'pods', namespace: 'a', name: 'p' };
      const common = { ...pod, files: [], facts: [], hasFailed: false, hasEffect: true };
      const operation = { action: 'x/y', item, operationId: 'op-j', postOperationItems: [] };
      await journal.put({ ...common, owesPostHooks: true, operations: [operation] });
      await journal.put({ ...common, name: 'q', owesPostHooks: true, operations: [] });
      await journal.postHooksDone({ ...pod, name: 'q' });
      if (code === 'DAMAGED_JOURNAL') {
        await journal.put({ ...common, name: 'r', owesPostHooks: false, operations: [] });
        const keys = [...rig.bucket.objects.keys()].sort();
        rig.bucket.objects.set(keys.at(-1) ?? '', Buffer.from('damaged'));
      }
    }
    expect(await reasonOf(rig.run())).toMatchObject({ code });
    expect([ran, rig.canceled, ended]).toEqual([['thaw p'], ['op-j'], 1]);
  });

  it('takes no item that no reader would take, and goes on', async () => {
    const cluster = configMaps(1).add('configmaps', {
      metadata: { namespace: 'a', name: 'long' },
      data: { text: 'x'.repeat(65 << 20) },
    });
    const rig = new Rig({ cluster });
    const { phase, status } = await rig.run();
    expect([phase, status.errors]).toEqual(['FinalizingPartiallyFailed', 1]);
    expect(await pathsIn(rig)).toHaveLength(5);
  }, 60_000);

  it.each(['../../x', 'a/b', '', '..', null])(
    'takes no item under the name %j that an action gives it, and goes on',
    async (name) => {
      const lies: BackupAction = {
        name: 'example.io/lies',
        appliesTo: { includedResources: ['configmaps'] },
        execute: (item) =>
          Promise.resolve(
            item.metadata.name === 'c0'
              ? { item: { ...item, metadata: { ...item.metadata, name } } as KubeObject }
              : {},
          ),
      };
      const rig = new Rig({ cluster: configMaps(2), actions: [lies] });
      const { phase, status } = await rig.run();
      expect([phase, status.errors]).toEqual(['FinalizingPartiallyFailed', 1]);
      expect(await pathsIn(rig)).toEqual([
        'metadata/version',
        'resources/configmaps/namespaces/a/c1.json',
        'resources/configmaps/v1-preferredversion/namespaces/a/c1.json',
        'resources/namespaces/cluster/a.json',
        'resources/namespaces/v1-preferredversion/cluster/a.json',
      ]);
    },
  );

  it.each(['c0', 'c1'])(
    'stores no two items under one path where an action renames %s to the other',
    async (renamed) => {
      const lies: BackupAction = {
        name: 'example.io/lies',
        appliesTo: { includedResources: ['configmaps'] },
        execute: (item) =>
          Promise.resolve(
            item.metadata.name === renamed
              ? {
                  item: {
                    ...item,
                    metadata: { ...item.metadata, name: renamed === 'c0' ? 'c1' : 'c0' },
                  },
                }
              : {},
          ),
      };
      const rig = new Rig({ cluster: configMaps(2), actions: [lies] });
      const { phase, status } = await rig.run();
      expect([phase, status.errors]).toEqual(['FinalizingPartiallyFailed', 1]);
      expect(await pathsIn(rig)).toHaveLength(5);
    },
  );

  it.each([
    ['another version of it', { kind: 'v1beta1/ConfigMap', name: 'c1' }],
    [
      'an item that an action has renamed',
      { kind: 'v1/ConfigMap', name: 'c0', storedAs: { namespace: 'a', name: 'c1' } },
    ],
  ])('stores no item under a path that an earlier try has taken for %s', async (_, stored) => {
    const rig = new Rig({ cluster: configMaps(2) });
    {
      await using journal = await BackupJournal.open({
        isSealed: false,
        bucket: rig.bucket,
        name: 'b1',
        uid: 'u1',
        directory: scratch,
        logger: silentLogger,
        assertLeading: () => undefined,
        signal: rig.leaving.signal,
      });
      const path = 'resources/configmaps/namespaces/a/c1.json';
      await journal.put({
        namespace: 'a',
        operations: [],
        facts: [],
        hasFailed: false,
        owesPostHooks: false,
        files: [{ path, bytes: Buffer.from('{}') }],
        hasEffect: true,
        ...stored,
      });
    }
    const { phase, status } = await rig.run();
    expect([phase, status.errors]).toEqual(['FinalizingPartiallyFailed', 1]);
    const paths = await pathsIn(rig);
    expect(paths.filter((path) => path.endsWith('/c1.json'))).toEqual([
      'resources/configmaps/namespaces/a/c1.json',
    ]);
  });

  it.skipIf(!canMount)(
    'that has no scratch space left says so, stops what it began, and leaves its log',
    async () => {
      using disk = mountSmallDisk(1 << 20);
      const cluster = new FakeCluster().namespaces('a').add(
        'configmaps',
        ...Array.from({ length: 12 }, (_, i) => ({
          metadata: { namespace: 'a', name: `c${i}` },
          data: { text: noise(`c${i}`, 150_000).toString('base64') },
        })),
      );
      const rig = new Rig({ cluster, actions: [moves], directory: disk.path });
      const error = await reasonOf(rig.run());
      expect(messageOf(error)).toContain(`no space left in ${disk.path}`);
      expect(rig.canceled).not.toEqual([]);
      expect(fs.readdirSync(disk.path)).toEqual([]);
      const archive = await new BackupArchive(rig.bucket).open('b1');
      expect(archive.metadata.status?.phase).toBe('Failed');
      const log = await Array.fromAsync(
        gunzipped(archive.read('log'), { key: 'log', bytesMax: 1 << 20 }),
      );
      expect(String(Buffer.concat(log))).toContain('no space left');
    },
  );
  it.skipIf(!canMount)('leaves its log also where others take all space meanwhile', async () => {
    using disk = mountSmallDisk(4 << 20);
    const cluster = new FakeCluster().namespaces('a').add('configmaps', {
      metadata: { namespace: 'a', name: 'c' },
      data: { text: noise('c', 300_000).toString('base64') },
    });
    const rig = new Rig({
      cluster,
      actions: [moves],
      directory: disk.path,
      volumes: () => ({ outcome: () => Promise.reject(new Error('no outcome')) }),
      cancel: () => {
        disk.fill();
        return Promise.resolve();
      },
    });
    expect(messageOf(await reasonOf(rig.run()))).toContain('no outcome');
    const archive = await new BackupArchive(rig.bucket).open('b1');
    expect(archive.metadata.status?.phase).toBe('Failed');
  });
  it.skipIf(!canMount)('that begins on a full disk says so', async () => {
    using disk = mountSmallDisk(1 << 20);
    disk.fill();
    const rig = new Rig({ cluster: configMaps(1), directory: disk.path });
    expect(messageOf(await reasonOf(rig.run()))).toContain(`no space left in ${disk.path}`);
  });
});
