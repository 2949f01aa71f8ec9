import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import {
  BackupArchive,
  type BackupVolumeInfo,
  readTarball,
  signingBy,
  signWith,
} from '../../../../src/archive/index.ts';
import type { BackupAction } from '../../../../src/backup/index.ts';
import type { KubeObject } from '../../../../src/kube/index.ts';
import { tempDirectory } from '../../../support/kopia.ts';
import { refusal } from '../../../backup/support/cluster.ts';
import { done } from '../../operations/support/after-run.ts';
import { ITEM, type World as AnyWorld, World } from '../support/world.ts';

const scratch = tempDirectory('scratch');

async function finalizing({
  items = [ITEM],
  infos = [],
}: { items?: (typeof ITEM)[]; infos?: BackupVolumeInfo[] } = {}): Promise<World> {
  const world = new World();
  const operation = { action: 'a.io/move', operationId: 'op-1', item: ITEM };
  await world.begin(scratch, [{ ...operation, postOperationItems: items }], infos);
  world.answers.set('op-1', done);
  await world.server(scratch).step();
  expect(world.status.phase).toBe('Finalizing');
  return world;
}

async function contentsOf(world: AnyWorld): Promise<Record<string, string>> {
  const open = await new BackupArchive(world.bucket).open('b1');
  const files: Record<string, string> = {};
  for await (const { path, bytes } of readTarball(open.read('contents'), 'b1')) {
    files[path] = String(bytes);
  }
  return files;
}

const resultsOf = async (world: AnyWorld) =>
  (await new BackupArchive(world.bucket).open('b1')).results();

const action = (name: string, output: (item: KubeObject) => object): BackupAction => ({
  name,
  appliesTo: { includedResources: ['configmaps'] },
  execute: (item) => Promise.resolve(output(item)),
});

describe('the finalizer of backups', () => {
  it('completes no backup whose files are kept apart, since its location was written once until a moment ago', async () => {
    for (const phase of ['WaitingForPluginOperations', 'Finalizing']) {
      const world = new World(phase, { isWriteOnce: true });
      await world.begin(scratch, [{ action: 'a.io/move', operationId: 'op-1', item: ITEM }]);
      world.answers.set('op-1', done);
      world.mode = { isWriteOnce: false };
      const server = world.server(scratch);
      const trying = phase === 'Finalizing' ? server.finalize() : server.step();
      await expect(trying, phase).rejects.toMatchObject({ code: 'FILES_APART', retry: 'backoff' });
      expect(world.status.phase).toBe(phase);
      world.mode = { isWriteOnce: true };
      if (phase !== 'Finalizing') await world.server(scratch).step();
      expect(world.status.phase).toBe('Finalizing');
      await world.server(scratch).finalize();
      expect(world.status.phase).toBe('Completed');
      expect(world.bucket.objects.has('backups/b1/b1.tar.gz')).toBe(true);
      expect(world.bucket.putTwice).toEqual([]);
    }
  });

  it('stores items of operations anew, leaves others as they are, and completes the backup', async () => {
    const world = await finalizing();
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'Completed', errors: 0 });
    expect(world.status.completionTimestamp).toBe('2026-11-21T02:00:00Z');
    const files = await contentsOf(world);
    expect(files['resources/configmaps/namespaces/app/a.json']).toContain('"now":"new"');
    expect(files['resources/configmaps/namespaces/app/b.json']).toBe('{"b":1}');
    const stored = await new BackupArchive(world.bucket).loadMetadata('b1');
    expect(stored.status).toMatchObject({ phase: 'Completed' });
    expect(world.tarballs).toEqual([world.bucket.objects.get('backups/b1/b1.tar.gz')?.length]);
  });

  it('writes nothing into files of another Backup that has its name in the bucket', async () => {
    const world = await finalizing();
    const { backup, bucket } = world;
    const metadata = { ...backup, metadata: { ...backup.metadata, uid: 'of-another-cluster' } };
    await new BackupArchive(bucket).update('b1', { metadata });
    const before = new Map(bucket.objects);
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({
      phase: 'PartiallyFailed',
      failureReason: 'its files in the backup storage location are of another Backup by now',
    });
    expect(new Map(bucket.objects)).toEqual(before);
  });

  it('takes over no end that somebody else wrote into signed files', async () => {
    const world = await finalizing();
    const { backup, bucket } = world;
    const passwords = { current: 'a secret', others: [], earlierKeys: [] };
    world.signing = await signingBy(passwords);
    const annotations = { ...backup.metadata.annotations, 'longshore.io/signed': 'true' };
    world.backup.metadata.annotations = annotations;
    const forged = { ...backup, status: { ...backup.status, phase: 'Completed' } };
    bucket.objects.set('backups/b1/velero-backup.json', Buffer.from(JSON.stringify(forged)));
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed' });
    expect(world.status.failureReason).toContain('cannot find its signature any more');
  });

  it.each(['another', undefined])(
    'waits while the key that signed the files is missing (there is %s), and then completes the backup',
    async (password) => {
      const keyOf = (current: string) => signingBy({ current, others: [], earlierKeys: [] });
      const signing = await keyOf('a secret');
      const world = new World();
      const sign = (by: typeof signing): void => {
        world.signing = by;
        signWith(world.bucket, { signing: by, isRequired: false });
      };
      sign(signing);
      await world.begin(scratch, [{ action: 'a.io/move', operationId: 'op-1', item: ITEM }]);
      world.answers.set('op-1', done);
      await world.server(scratch).step();
      world.backup.metadata.annotations = { 'longshore.io/signed': 'true' };
      sign(password === undefined ? undefined : await keyOf(password));
      const missing = { code: 'NOT_SIGNED', retry: 'backoff' };
      await expect(world.server(scratch).finalize()).rejects.toMatchObject(missing);
      expect(world.status.phase).toBe('Finalizing');
      sign(signing);
      await world.server(scratch).finalize();
      expect(world.status.phase).toBe('Completed');
    },
  );

  it('completes no backup whose file of operations is gone', async () => {
    const world = await finalizing();
    world.bucket.objects.delete('backups/b1/b1-itemoperations.json.gz');
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
  });

  it('leaves the tarball alone where no operation asks for items', async () => {
    const world = await finalizing({ items: [] });
    world.requests.length = 0;
    await world.server(scratch).finalize();
    expect(world.status.phase).toBe('Completed');
    expect(world.requests.filter((text) => text.endsWith('b1.tar.gz'))).toEqual([]);
    expect(world.tarballs).toEqual([]);
  });

  it('warns of an item that is gone, where the user reads it', async () => {
    const world = await finalizing({ items: [{ ...ITEM, name: 'gone' }] });
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'Completed', warnings: 1 });
    const text = 'Finalizing: an item that an operation was about is not in the cluster any more';
    expect((await resultsOf(world)).warnings?.namespaces).toEqual({
      app: [` resource: /configmaps name: /gone message: /${text}`],
    });
    const log = world.bucket.objects.get('backups/b1/b1-logs.gz');
    expect(gunzipSync(log ?? Buffer.alloc(0)).toString()).toContain(text);
  });

  it.each([true, false])(
    'completes no backup whose DataUpload is gone, since its volume could not be restored (the kind is served: %s)',
    async (isServed) => {
      const upload = {
        group: 'velero.io',
        resource: 'datauploads',
        namespace: 'velero',
        name: 'd',
      };
      const world = await finalizing({ items: [upload] });
      if (isServed) {
        const kind = { plural: 'datauploads', kind: 'DataUpload' };
        world.cluster.groups = { ...world.cluster.groups, 'velero.io': [kind] };
      }
      await world.server(scratch).finalize();
      expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
      expect((await resultsOf(world)).errors?.namespaces?.velero).toEqual([
        expect.stringMatching(
          /^ resource: \/datauploads\.velero\.io name: \/d message: .*cannot be restored/,
        ),
      ]);
    },
  );

  it('runs no hooks of a pod that is stored anew', async () => {
    const world = await finalizing({ items: [{ ...ITEM, resource: 'pods', name: 'web' }] });
    const annotations = {
      'pre.hook.backup.velero.io/command': '["freeze"]',
      'post.hook.backup.velero.io/command': '["thaw"]',
    };
    world.cluster.add('pods', { metadata: { namespace: 'app', name: 'web', annotations } });
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'Completed', errors: 0 });
    expect(await contentsOf(world)).toHaveProperty(['resources/pods/namespaces/app/web.json']);
    expect(world.requests).not.toContain('EXEC');
  });

  it('follows additional items', async () => {
    const world = await finalizing();
    world.cluster.add('configmaps', 'app/more');
    world.actions.push(
      action('a.io/more', ({ metadata }) =>
        metadata.name === 'a' ? { additionalItems: [{ ...ITEM, name: 'more' }] } : {},
      ),
    );
    await world.server(scratch).finalize();
    expect(await contentsOf(world)).toHaveProperty([
      'resources/configmaps/namespaces/app/more.json',
    ]);
  });

  it('counts an operation that is started too late, cancels it, and keeps the item', async () => {
    const world = await finalizing();
    world.actions.push(action('a.io/late', () => ({ operationId: 'late-1' })));
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
    expect(world.canceled).toEqual(['late-1']);
    expect(JSON.stringify((await resultsOf(world)).errors)).toContain('started operation late-1');
    const files = await contentsOf(world);
    expect(files['resources/configmaps/namespaces/app/a.json']).toContain('"now":"new"');
  });

  it('counts an item whose action fails, and says it once however often it tries', async () => {
    const world = await finalizing();
    world.actions.push(
      action('a.io/bad', () => {
        throw new Error('bad action');
      }),
    );
    let puts = 0;
    const away = world.server(scratch, async (task, mayFail) => {
      // The metadata is the last but one of them.
      if (mayFail === true && world.requests.at(-1) === 'put velero-backup.json' && puts++ === 0) {
        throw new Error('the bucket is away');
      }
      return task();
    });
    await expect(away.finalize()).rejects.toThrow('the bucket is away');
    expect(world.status.phase).toBe('Finalizing');
    await away.finalize();
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
    expect((await resultsOf(world)).errors?.namespaces?.app).toHaveLength(1);
    const log = world.bucket.objects.get('backups/b1/b1-logs.gz');
    expect(
      gunzipSync(log ?? Buffer.alloc(0))
        .toString()
        .split('bad action'),
    ).toHaveLength(2);
  });

  it('takes over what the bucket says already', async () => {
    const world = await finalizing();
    const before = world.backup;
    await world.server(scratch).finalize();
    const { completionTimestamp } = world.status;
    world.backup = before;
    world.clock.advance(60_000_000_000n);
    world.requests.length = 0;
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'Completed', completionTimestamp });
    expect(world.requests.filter((text) => text.startsWith('put'))).toEqual([]);
  });

  it('ends a backup whose files are gone', async () => {
    const world = await finalizing();
    world.bucket.objects.delete('backups/b1/velero-backup.json');
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({
      phase: 'PartiallyFailed',
      failureReason: 'its files are no longer in the backup storage location',
    });
    expect(world.bucket.objects.has('backups/b1/velero-backup.json')).toBe(false);
  });

  it('does not keep a backup whose tarball is damaged from its end', async () => {
    const world = await finalizing();
    world.bucket.objects.set('backups/b1/b1.tar.gz', Buffer.from('nothing'));
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
    expect(JSON.stringify((await resultsOf(world)).errors)).toContain('could not be stored anew');
  });

  describe.each(['nothing', '', '\u001f\u008b cut'])(
    'a stored file that is damaged (%j)',
    (text) => {
      const infos = [
        { pvcName: 'data', pvcNamespace: 'app', snapshotDataMovementInfo: {} },
        { backupMethod: 'PodVolumeBackup', pvbInfo: { podNamespace: 'app' } },
      ];
      const NEEDED = ['b1-itemoperations', 'b1-volumeinfo', 'velero-backup.json', 'b1.tar.gz'];

      it('ends each backup at once, and names the file', async () => {
        const { bucket } = await finalizing({ infos });
        const keys = [...bucket.objects.keys()].filter((key) => key.startsWith('backups/b1/'));
        expect(keys.length).toBeGreaterThan(5);
        for (const key of keys) {
          const world = await finalizing({ infos });
          world.bucket.objects.set(key, Buffer.from(text, 'latin1'));
          await world.server(scratch).finalize();
          expect(world.status.phase, key).toMatch(/^(Completed|PartiallyFailed)$/);
          const file = NEEDED.find((each) => key.includes(each));
          if (file === undefined) continue;
          expect(world.status, key).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
          const bytes = world.bucket.objects.get('backups/b1/b1-logs.gz');
          const log = bytes ? gunzipSync(bytes).toString() : '';
          const said = `${world.status.failureReason ?? ''} ${log}`;
          expect(said, key).toContain(file);
        }
      });

      it('does not keep a backup waiting for operations that nobody can read', async () => {
        const world = new World();
        await world.begin(scratch, [{ action: 'a.io/move', operationId: 'op-1', item: ITEM }]);
        world.bucket.objects.set(
          'backups/b1/b1-itemoperations.json.gz',
          Buffer.from(text, 'latin1'),
        );
        expect((await world.server(scratch).step()).hasLeft).toBe(true);
        expect(world.status.phase).toBe('FinalizingPartiallyFailed');
        await world.server(scratch).finalize();
        expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
      });
    },
  );

  it('completes what is known of volumes', async () => {
    const pvbInfo = { podNamespace: 'app', podName: 'p', volumeName: 'v', Phase: 'InProgress' };
    const moved = { pvcName: 'data', pvcNamespace: 'app', snapshotDataMovementInfo: {} };
    const world = await finalizing({
      infos: [moved, { backupMethod: 'PodVolumeBackup', pvbInfo }],
    });
    world.labelled.push(
      {
        kind: 'DataUpload',
        metadata: {
          name: 'du',
          uid: 'du',
          namespace: 'velero',
          labels: { 'velero.io/backup-name': 'b1', 'velero.io/async-operation-id': 'op-1' },
        },
        spec: { sourcePVC: 'data', sourceNamespace: 'app', csiSnapshot: { volumeSnapshot: 'vs' } },
        status: {
          phase: 'Completed',
          snapshotID: 's1',
          progress: { totalBytes: 7 },
          message: 'left out by rules: "*.log"',
        },
      } as never,
      {
        kind: 'PodVolumeBackup',
        metadata: { name: 'pvb', uid: 'pvb' },
        spec: { pod: { namespace: 'app', name: 'p' }, volume: 'v', node: 'n1' },
        status: { phase: 'Failed', message: 'the pod is gone' },
      } as never,
    );
    await world.server(scratch).finalize();
    const open = await new BackupArchive(world.bucket).open('b1');
    const infos = await open.volumeInfos();
    expect(infos).toMatchObject([
      {
        result: 'succeeded',
        snapshotDataMovementInfo: { snapshotHandle: 's1', retainedSnapshot: 'vs', size: 7 },
        note: 'left out by rules: "*.log"',
      },
      { result: 'failed', pvbInfo: { nodeName: 'n1', Phase: 'Failed' } },
    ]);
    expect(infos[1]).not.toHaveProperty('note');
    expect(await open.objects('podVolumeBackups')).toMatchObject([{ metadata: { name: 'pvb' } }]);
  });

  const podVolumeBackup = (status: object): KubeObject =>
    ({
      kind: 'PodVolumeBackup',
      metadata: { name: 'pvb', uid: 'pvb-1' },
      spec: { pod: { namespace: 'app', name: 'p' }, volume: 'v' },
      status,
    }) as never;

  /** The files of a pod's volume. Without its PersistentVolume, there is no volume info. */
  async function withFiles(now: KubeObject[]): Promise<World> {
    const world = new World();
    const item = { ...ITEM, resource: 'pods', name: 'p' };
    const begun = { action: 'longshore.io/pod-volume-backup', operationId: 'pvb', item };
    await world.begin(scratch, [begun]);
    await new BackupArchive(world.bucket).update('b1', {
      podVolumeBackups: [podVolumeBackup({ phase: 'InProgress' })],
    });
    world.answers.set('pvb', done);
    world.labelled.push(...now);
    await world.server(scratch).step();
    await world.server(scratch).finalize();
    return world;
  }

  it('stores what the files of a volume came to, also where no volume info tells of it', async () => {
    const status = { phase: 'Completed', snapshotID: 's1' };
    const world = await withFiles([podVolumeBackup(status)]);
    expect(world.status).toMatchObject({ phase: 'Completed', errors: 0 });
    const open = await new BackupArchive(world.bucket).open('b1');
    expect(await open.objects('podVolumeBackups')).toMatchObject([{ status }]);
  });

  it('completes no backup whose PodVolumeBackup is gone before its snapshot was stored with it', async () => {
    const world = await withFiles([]);
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
    expect((await resultsOf(world)).errors?.namespaces?.velero).toEqual([
      expect.stringMatching(
        /^ resource: \/podvolumebackups\.velero\.io name: \/pvb message: .*cannot be restored/,
      ),
    ]);
  });

  it('warns of a resource that the cluster serves no more', async () => {
    const world = await finalizing({ items: [{ ...ITEM, resource: 'nothings' }] });
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'Completed', warnings: 1 });
    const texts = JSON.stringify((await resultsOf(world)).warnings);
    expect(texts).toContain('the cluster has no resource nothings');
  });

  it('counts an item that may not be read, and tries again where the API server is away', async () => {
    const world = await finalizing();
    let code = 'KUBE_UNAVAILABLE';
    world.cluster.onGet = () => {
      throw refusal(code);
    };
    await expect(world.server(scratch).finalize()).rejects.toThrow('KUBE_UNAVAILABLE');
    expect(world.status.phase).toBe('Finalizing');
    code = 'KUBE_FORBIDDEN';
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
    expect(JSON.stringify((await resultsOf(world)).errors)).toContain(
      'an item could not be read again error: /the server says KUBE_FORBIDDEN',
    );
  });

  it('leaves nothing of what an earlier try said', async () => {
    const world = await finalizing();
    world.cluster.onGet = () => {
      throw refusal('KUBE_FORBIDDEN');
    };
    const away = world.server(scratch, (task, mayFail) => {
      if (mayFail === true && world.requests.at(-1) === 'put velero-backup.json') {
        return Promise.reject(new Error('the bucket is away'));
      }
      return Promise.resolve(task());
    });
    await expect(away.finalize()).rejects.toThrow('the bucket is away');
    expect(JSON.stringify(await resultsOf(world))).toContain('KUBE_FORBIDDEN');
    world.cluster.onGet = () => undefined;
    world.cluster.objects.set('configmaps', []);
    await world.server(scratch).finalize();
    expect(world.status).toMatchObject({ phase: 'Completed', errors: 0, warnings: 1 });
    expect(JSON.stringify(await resultsOf(world))).not.toContain('KUBE_FORBIDDEN');
    const log = world.bucket.objects.get('backups/b1/b1-logs.gz');
    expect(gunzipSync(log ?? Buffer.alloc(0)).toString()).not.toContain('KUBE_FORBIDDEN');
  });
});
