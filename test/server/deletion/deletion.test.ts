import * as fs from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { BackupArchive, journalFolder, signingBy, signWith } from '../../../src/archive/index.ts';
import { CodedError, silentLogger, untilAborted } from '../../../src/base/index.ts';
import { type Body, type ObjectPutOptions, openStorage } from '../../../src/blob/index.ts';
import { OperationMap } from '../../../src/item-operations/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  DELETE_BACKUP_REQUESTS,
  Discovery,
  EVENTS,
  type KubeClient,
  type KubeObject,
  KNOWN_MOVERS,
  POD_VOLUME_BACKUPS,
  PVCS,
  RESTORES,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../../src/kube/index.ts';
import { openRepository } from '../../../src/repository/index.ts';
import {
  backupOperationStore,
  CANCEL_ANNOTATION,
  FileWriters,
  FinalizerController,
  SharedBackups,
} from '../../../src/server/index.ts';
import { DeletionFailures } from '../../../src/server/deletion/deletion-failures.ts';
import { DELETE_ANYWAY } from '../../../src/server/deletion/deletion.ts';
import { deleteKept } from '../../../src/server/deletion/kept-snapshots.ts';
import { encodeSegment } from '../../../src/server/runs/segment.ts';
import { isGone } from '../../../src/server/deletion/native-snapshots.ts';
import { STORED_UID } from '../../../src/server/deletion/ownership.ts';
import { forgetSnapshots, listSnapshots } from '../../../src/snapshot/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { backUp, CLIENT, createTest, openTest } from '../../support/repositories.ts';
import { boundContent, content, DeletionWorld, START, upload, VELERO } from './support/world.ts';
import { withCalls } from '../../support/with-calls.ts';

const scratch = tempDirectory('deletion');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

const ref = (name: string) => ({ namespace: VELERO, name });
const away = () => new CodedError('STORAGE_AWAY', 'the storage is away', { retry: 'backoff' });

let world: DeletionWorld;
let stop: (() => Promise<void>) | undefined;

beforeEach(async () => {
  world = await DeletionWorld.start(scratch);
});
afterEach(async () => {
  await stop?.();
  stop = undefined;
  await world[Symbol.asyncDispose]();
});

const signing = () => signingBy({ current: 'a secret', others: [], earlierKeys: [] });
const phaseOf = async (name: string): Promise<string | undefined> =>
  ((await world.client.find(BACKUPS, ref(name))) as { status?: { phase?: string } } | undefined)
    ?.status?.phase;

const metric = async (what: string): Promise<number> => {
  const found = await world.registry.getSingleMetric(`velero_backup_deletion_${what}_total`)?.get();
  return found?.values.reduce((sum, { value }) => sum + value, 0) ?? -1;
};

describe('a backup that is deleted', () => {
  it('is gone with all that it holds: data before what leads to them, its main file before its other ones, the Backup last', async () => {
    await world.rich('b1');
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect([...world.provider, ...world.drivers]).toEqual([]);
    expect([...world.repositories.values()].flatMap((ids) => [...ids])).toEqual([]);
    expect([...world.bucket.objects.keys()]).toEqual([]);
    for (const resource of [
      RESTORES,
      CONFIG_MAPS,
      VOLUME_SNAPSHOT_CONTENTS,
      DELETE_BACKUP_REQUESTS,
    ]) {
      const left = await world.client.list(resource);
      expect(left.map(({ metadata }) => metadata.name)).toEqual([]);
    }
    const at = (text: string): number => {
      const found = world.told.findIndex((each) => each.startsWith(text));
      expect(found, text).toBeGreaterThanOrEqual(0);
      return found;
    };
    const order = [
      ...['provider b1-native', 'driver b1-kept', 'forget b1-files', 'delete configmaps'],
      ...['file restores/b1-restore/', 'delete restores', 'file backups/b1/velero-backup.json'],
      ...['file backups/b1/b1.tar.gz', 'file backups/b1/longshore-journal/', 'delete backups'],
      'delete deletebackuprequests',
    ];
    expect(order.map(at)).toEqual(order.map(at).sort((a, b) => a - b));
    expect([await metric('attempt'), await metric('success'), await metric('failure')]).toEqual([
      1, 1, 0,
    ]);
  });

  it('takes restores in place along that are over, and those of its own alone', async () => {
    const [own, other] = [await world.rich('b1'), await world.backup('b2')];
    for (const backup of [own, other]) {
      for (const phase of ['Completed', 'Failed', 'Canceled']) {
        await world.restoreInPlace(backup, phase);
      }
    }
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    const left = await world.client.list(DATA_DOWNLOADS);
    expect(left.map(({ metadata }) => metadata.name).sort()).toEqual([
      'b2-canceled',
      'b2-completed',
      'b2-failed',
    ]);
  });

  it('goes although an older role lets nobody delete the restores in place', async () => {
    await world.restoreInPlace(await world.rich('b1'), 'Completed');
    await world.ask('b1');
    const remove: KubeClient['delete'] = (resource, of, options) =>
      resource.plural === DATA_DOWNLOADS.plural
        ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no right'))
        : world.client.delete(resource, of, options);
    stop = world.run({ client: withCalls(world.client, { delete: remove }) });
    await world.gone('b1');
  });

  it('is deleted for one request at a time, and the others go', async () => {
    await world.rich('b1');
    for (const name of ['one', 'two', 'three']) await world.ask('b1', {}, name);
    await world.make(DELETE_BACKUP_REQUESTS, 'before', {
      spec: { backupName: 'b1' },
      status: { phase: 'Processed', errors: ['no'] },
    });
    stop = world.run();
    await world.gone('b1');
    expect(await metric('attempt')).toBe(1);
    expect(world.told.filter((each) => each === 'provider b1-native')).toHaveLength(1);
  });

  it('is gone on with where a server has left a request, and ends where only the answer was missing', async () => {
    const backup = await world.rich('b1');
    const labels = (uid: string) => ({
      'velero.io/backup-name': 'b1',
      'velero.io/backup-uid': uid,
    });
    const left = { spec: { backupName: 'b1' }, status: { phase: 'InProgress' } };
    await world.make(DELETE_BACKUP_REQUESTS, 'left', {
      metadata: { labels: labels(backup.metadata.uid) },
      ...left,
    });
    stop = world.run();
    await world.gone('b1');
    // A newer Backup has the same name.
    await world.backup('b1');
    await world.make(DELETE_BACKUP_REQUESTS, 'old', {
      metadata: { labels: labels(backup.metadata.uid) },
      ...left,
    });
    await expect.poll(() => world.request('old')).toBeUndefined();
    expect(await phaseOf('b1')).toBe('Completed');
  });

  describe('that a writer of the bucket has forged', () => {
    const EVIL = '00000000-0000-4000-8000-00000000dead';
    const moved = (id: string): object => ({
      backupMethod: 'CSISnapshot',
      snapshotDataMoved: true,
      pvcNamespace: 'app',
      snapshotDataMovementInfo: { dataMover: 'velero', uploaderType: 'kopia', snapshotHandle: id },
    });
    const keptOf = (handle: string): object => ({
      backupMethod: 'CSISnapshot',
      snapshotDataMoved: false,
      csiSnapshotInfo: { driver: 'd', snapshotHandle: handle },
    });
    const filesOf = (id: string): object => ({
      backupMethod: 'PodVolumeBackup',
      pvbInfo: { uploaderType: 'kopia', podNamespace: 'app', snapshotHandle: id },
    });
    const native = (id: string): object => ({
      spec: { location: 'l', persistentVolumeName: 'pv' },
      status: { phase: 'Completed', providerSnapshotID: id },
    });
    const ofBackup = (uid: string) => ({ 'velero.io/async-operation-id': `du-${uid}.pvc` });

    /** A local backup with one snapshot of each kind. */
    async function victim(name: string): Promise<string> {
      const backup = await world.backup(name);
      const ids = { moved: `${name}-moved`, files: `${name}-files` };
      await world.store(backup, {
        volumeInfos: [
          moved(ids.moved),
          keptOf(`${name}-kept`),
          filesOf(ids.files),
          { nativeSnapshotInfo: { snapshotHandle: `${name}-native` } },
        ] as never,
        volumeSnapshots: [native(`${name}-native`)] as never,
      });
      world.hold('app', ids.moved, ids.files);
      world.tags.set(ids.moved, ofBackup(backup.metadata.uid));
      world.drivers.add(`${name}-kept`);
      world.provider.add(`${name}-native`);
      return backup.metadata.uid;
    }

    /** A Backup like those of the sync. Its tarball is missing, so its volume infos count. */
    async function forge(
      name: string,
      uid: string,
      volumeInfos: object[],
      parts: object = {},
    ): Promise<void> {
      const metadata = { annotations: { 'longshore.io/synced-uid': uid } };
      const synced = await world.backup(name, 'Completed', { metadata });
      const as = { ...synced, metadata: { ...synced.metadata, uid } };
      await world.store(synced, { volumeInfos: volumeInfos as never, ...parts }, as);
      world.bucket.objects.delete(`backups/${name}/${name}.tar.gz`);
    }

    const deleted = async (name: string): Promise<string> => {
      await world.ask(name);
      stop ??= world.run();
      await world.gone(name);
      const events = await world.client.list(EVENTS, { namespace: VELERO });
      return events
        .filter(({ reason, involvedObject }) => {
          return reason === 'NotAllDeleted' && involvedObject.name === name;
        })
        .map(({ message }) => message ?? '')
        .join(' ');
    };

    it('takes no snapshot of another backup along', async () => {
      const uid = await victim('good');
      const infos = [moved('good-moved'), keptOf('good-kept'), filesOf('good-files')];
      await forge('zz-evil', EVIL, infos, { volumeSnapshots: [native('good-native')] });
      const told = await deleted('zz-evil');
      expect(world.repositories.get('app')).toEqual(new Set(['good-moved', 'good-files']));
      expect([...world.drivers, ...world.provider]).toEqual(['good-kept', 'good-native']);
      expect(told).toContain(`snapshot good-moved (it was made for the backup with UID ${uid})`);
      expect(told).toContain('snapshot good-files (backup good names it as well)');
      expect(world.files('backups/zz-evil/')).toEqual([]);
    });

    it('takes no snapshot along that a backup in another location names', async () => {
      await world.location('second');
      await victim('good');
      const second = new MemoryBucket();
      for (const [key, bytes] of world.bucket.objects) second.objects.set(key, bytes);
      world.bucket.objects.clear();
      world.elsewhere.set('second', second);
      const natives = { volumeSnapshots: [native('good-native')] };
      await forge('zz-evil', EVIL, [keptOf('good-kept')], natives);
      expect(await deleted('zz-evil')).toContain('backup good names it as well');
      expect([...world.drivers, ...world.provider]).toEqual(['good-kept', 'good-native']);
    });

    it('takes none along while the files of another backup cannot be read', async () => {
      await victim('good');
      world.bucket.objects.set('backups/good/velero-backup.json', Buffer.from('{'));
      const natives = { volumeSnapshots: [native('good-native')] };
      await forge('zz-evil', EVIL, [keptOf('good-kept')], natives);
      const told = await deleted('zz-evil');
      expect(told).toContain('(backup good cannot be read)');
      expect(told).toContain('the backup is not signed, and snapshots stay');
      expect(told).not.toContain('not its own');
      expect([...world.drivers, ...world.provider]).toEqual(['good-kept', 'good-native']);
    });

    it('takes none along while another location cannot be read, and names it', async () => {
      await world.location('second');
      const second = new MemoryBucket();
      second.list = () => {
        throw new CodedError('STORAGE_NOT_FOUND', 'there is no such bucket');
      };
      world.elsewhere.set('second', second);
      await forge('b1', EVIL, [keptOf('b1-kept')]);
      world.drivers.add('b1-kept');
      await world.ask('b1');
      stop = world.run();
      const [error] = await world.answer('b1-1');
      expect(error).toContain('backups in location second may name the same snapshots');
      expect([...world.drivers]).toEqual(['b1-kept']);
    });

    it('is not kept by a backup of another cluster that is encrypted', async () => {
      const noKey = () => new CodedError('NO_ARCHIVE_KEY', 'its key is not here');
      await victim('theirs');
      await forge('b1', EVIL, [filesOf('b1-files')]);
      world.hold('app', 'theirs-moved', 'theirs-files', 'b1-files');
      world.fail('get theirs-volumeinfo.json.gz', ...Array.from({ length: 40 }, noKey));
      expect(await deleted('b1')).not.toContain('snapshot b1-files');
      expect(world.repositories.get('app')).toEqual(new Set(['theirs-moved', 'theirs-files']));
    });

    it('keeps a signed backup from nothing, whatever it names', async () => {
      world.signing = await signing();
      signWith(world.bucket, { signing: world.signing, isRequired: false });
      await victim('good');
      signWith(world.bucket, { signing: undefined, isRequired: false });
      await forge('zz-evil', EVIL, [keptOf('good-kept')], {
        volumeSnapshots: [native('good-native')],
      });
      world.bucket.objects.set('backups/odd/velero-backup.json', Buffer.from('{'));
      world.bucket.objects.delete('backups/good/good.tar.gz');
      await deleted('good');
      expect([...world.drivers, ...world.provider]).toEqual([]);
    });

    it('takes none along by files that were changed after they were signed', async () => {
      world.signing = await signing();
      signWith(world.bucket, { signing: world.signing, isRequired: false });
      await victim('good');
      const other = await world.backup('mine', 'Completed', {
        metadata: { annotations: { 'longshore.io/signed': 'true' } },
      });
      signWith(world.bucket, { signing: undefined, isRequired: false });
      await world.store(other, { volumeInfos: [keptOf('good-kept')] as never });
      world.bucket.objects.delete('backups/good/velero-backup.json');
      await world.ask('mine');
      stop = world.run();
      const told = await vi.waitFor(async () => {
        const [request] = await world.client.list(DELETE_BACKUP_REQUESTS, { namespace: VELERO });
        const { status } = (request ?? {}) as { status?: { errors?: string[] } };
        const { errors = [] } = status ?? {};
        expect(errors.length).toBeGreaterThan(0);
        return errors.join(' ');
      });
      expect(told).toContain('backup mine was signed, and this cluster cannot find its signature');
      expect([...world.drivers]).toEqual(['good-kept']);
      // A person decides.
      const annotations = { 'longshore.io/ignore-signature': 'true' };
      await world.client.patch(BACKUPS, ref('mine'), { metadata: { annotations } });
      await world.ask('mine', {}, 'again');
      await world.gone('mine');
    });

    it('takes none along under the UID of the other backup', async () => {
      const uid = await victim('good');
      await forge('zz-evil', uid, [moved('good-moved'), filesOf('good-files')]);
      expect(await deleted('zz-evil')).toContain('backup good has the same UID');
      expect(world.repositories.get('app')).toEqual(new Set(['good-moved', 'good-files']));
    });

    it('takes none along of a backup that did not name them yet when it was read before', async () => {
      const waiting = await world.backup('good', 'WaitingForPluginOperations');
      await world.store(waiting, { volumeInfos: [] });
      await forge('aa-evil', EVIL, [keptOf('of-nobody')]);
      await deleted('aa-evil');
      const over = { ...waiting, status: { ...waiting.status, phase: 'Completed' } };
      world.bucket.objects.delete('backups/good/velero-backup.json');
      await world.store(waiting, { volumeInfos: [keptOf('good-kept')] as never }, over);
      world.drivers.add('good-kept');
      await forge('zz-evil', EVIL, [keptOf('good-kept')]);
      await deleted('zz-evil');
      expect([...world.drivers]).toEqual(['good-kept']);
    });

    it('takes none along that pod volume backups of the bucket name', async () => {
      await victim('good');
      await forge('zz-evil', EVIL, []);
      const { metadata } = await world.client.get(BACKUPS, ref('zz-evil'));
      const labels = { 'velero.io/backup-name': 'zz-evil', 'velero.io/backup-uid': metadata.uid };
      await world.make(POD_VOLUME_BACKUPS, 'synced', {
        metadata: { labels },
        spec: {
          uploaderType: 'kopia',
          pod: { namespace: 'app', name: 'p' },
          backupStorageLocation: 'default',
          node: 'n',
          repoIdentifier: 'r',
          volume: 'v',
        },
        status: { phase: 'Completed', snapshotID: 'good-files' },
      });
      await deleted('zz-evil');
      expect(world.repositories.get('app')).toEqual(new Set(['good-moved', 'good-files']));
    });

    it('takes no snapshot of a user along', async () => {
      const snapshot = await world.client.create(VOLUME_SNAPSHOTS, {
        metadata: { namespace: 'app', name: 'precious' },
        spec: { source: { persistentVolumeClaimName: 'pvc' } },
      });
      const bound = boundContent('users', snapshot.metadata.uid);
      await world.client.create(VOLUME_SNAPSHOT_CONTENTS, {
        ...bound,
        spec: {
          ...bound.spec,
          source: { snapshotHandle: 'users-own' },
          volumeSnapshotRef: { namespace: 'app', name: 'precious', uid: snapshot.metadata.uid },
        },
        status: { snapshotHandle: 'users-own' },
      });
      world.drivers.add('users-own');
      await forge('zz-evil', EVIL, [keptOf('users-own')]);
      expect(await deleted('zz-evil')).toContain('in use by VolumeSnapshot app/precious');
      expect([...world.drivers]).toEqual(['users-own']);
    });

    it('does not keep the snapshots of the backup that it names from being deleted', async () => {
      await victim('good');
      const evil = [moved('good-moved'), moved('zz-evil-moved')];
      world.hold('app', 'zz-evil-moved');
      world.tags.set('zz-evil-moved', ofBackup(EVIL));
      await forge('zz-evil', EVIL, evil);
      world.bucket.objects.delete('backups/good/good.tar.gz');
      await deleted('good');
      expect(world.repositories.get('app')).toEqual(new Set(['zz-evil-moved']));
      expect([...world.drivers, ...world.provider]).toEqual([]);
    });
  });

  it('stays while a restored claim waits for a volume from its snapshot', async () => {
    await world.rich('b1');
    const ofRestore = { namespace: 'app', name: 'restored' };
    const { metadata } = await world.client.create(VOLUME_SNAPSHOTS, {
      metadata: { ...ofRestore, labels: { 'velero.io/restore-name': 'r' } },
      spec: { source: { volumeSnapshotContentName: 'restored' } },
    });
    const bound = boundContent('restored', metadata.uid);
    await world.client.create(VOLUME_SNAPSHOT_CONTENTS, {
      ...bound,
      spec: {
        ...bound.spec,
        source: { snapshotHandle: 'b1-kept' },
        volumeSnapshotRef: { ...ofRestore, uid: metadata.uid },
      },
      status: { snapshotHandle: 'b1-kept' },
    });
    const claim = { namespace: 'app', name: 'data' };
    const apiGroup = 'snapshot.storage.k8s.io';
    await world.client.create(PVCS, {
      metadata: claim,
      spec: { dataSource: { apiGroup, kind: 'VolumeSnapshot', name: 'restored' } },
      status: { phase: 'Pending' },
    });
    await world.ask('b1');
    stop = world.run();
    expect((await world.answer('b1-1')).join(' ')).toContain('PersistentVolumeClaim app/data');
    expect([...world.drivers]).toEqual(['b1-kept']);
    expect(await phaseOf('b1')).toBe('Deleting');
    await world.client.delete(PVCS, claim, {});
    await world.ask('b1', {}, 'again');
    await world.gone('b1');
    expect([...world.drivers]).toEqual([]);
  });

  it('of another cluster is gone with its snapshots, also with those that have only the tags of Velero', async () => {
    const uid = '11111111-0000-4000-8000-000000000001';
    const synced = await world.backup('b1', 'Completed', {
      metadata: { annotations: { 'longshore.io/synced-uid': uid } },
    });
    const pvbInfo = { uploaderType: 'kopia', podNamespace: 'app', snapshotHandle: 'plain' };
    await world.store(
      synced,
      { volumeInfos: [{ backupMethod: 'PodVolumeBackup', pvbInfo }] as never },
      { ...synced, metadata: { ...synced.metadata, uid } },
    );
    world.hold('app', 'plain');
    world.tags.set('plain', {
      'snapshot-requester': 'snapshot-pod-volume',
      'snapshot-uploader': 'kopia',
    });
    // A damaged backup does not block the deletion of others.
    world.bucket.objects.set('backups/odd/velero-backup.json', Buffer.from('{'));
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect(world.repositories.get('app')).toEqual(new Set());
  });

  it('keeps what belongs to another backup of its name', async () => {
    const foreign = await world.backup('b1');
    await world.store(
      foreign,
      {},
      {
        ...foreign,
        metadata: { ...foreign.metadata, uid: 'another' },
        status: { ...foreign.status, startTimestamp: '2026-10-01T00:00:00Z' },
      },
    );
    await world.make(CONFIG_MAPS, 'i', {
      metadata: {
        labels: { 'velero.io/backup-name': 'b1', 'velero.io/data-upload-snapshot-info': 'true' },
      },
      data: { volumeNamespace: 'app', snapshotID: 'theirs', repositoryType: 'kopia' },
    });
    world.hold('app', 'theirs');
    await world.make(DATA_UPLOADS, 'own', {
      ...upload('own', {}, 'app', 'mine'),
      metadata: {
        labels: { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': foreign.metadata.uid },
      },
    });
    world.hold('app', 'mine');
    const before = world.files('backups/b1/');
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect(world.files('backups/b1/')).toEqual(before);
    expect([...(world.repositories.get('app') ?? [])]).toEqual(['theirs']);
  });

  it('keeps what a backup of another cluster has stored that began in the same second, and deletes what its own run has taken', async () => {
    const rival = await world.backup('b1', 'Failed', {
      status: {
        failureReason: 'backup execution failed: backup already exists in object storage',
        completionTimestamp: '2026-11-21T02:10:00Z',
      },
    });
    await world.store(
      rival,
      {},
      {
        ...rival,
        metadata: { ...rival.metadata, uid: 'another' },
        status: { phase: 'Completed', startTimestamp: START },
      },
    );
    const stored = world.files('backups/b1/');
    const { uid } = rival.metadata;
    const record = { spec: { location: 'l' }, status: { providerSnapshotID: 'own-native' } };
    const item = { k: 'v1/PersistentVolume', ns: '', n: 'pv', facts: [{ kind: 'native', record }] };
    const records = gzipSync(JSON.stringify({ items: [item], thawed: [], entries: [] }));
    const none = Buffer.alloc(0);
    const segment = encodeSegment({ records, tar: none, log: none });
    world.bucket.objects.set(`${journalFolder('b1', uid)}1`, segment);
    world.provider.add('own-native');
    await world.make(RESTORES, 'r', { spec: { backupName: 'b1' }, status: { phase: 'Completed' } });
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect(world.files('backups/b1/')).toEqual(stored);
    expect(world.told).toContain('provider own-native');
    expect(await world.client.list(RESTORES, { namespace: VELERO })).toHaveLength(1);
  });

  it('is deleted also where a request for an earlier one of its name is answered first', async () => {
    await world.rich('b1');
    await world.ask('b1', { labels: { 'velero.io/backup-uid': 'earlier' } }, 'a-old');
    await world.ask('b1', {}, 'b-new');
    stop = world.run();
    await world.gone('b1');
    expect([...world.bucket.objects.keys()]).toEqual([]);
  });

  it('is not deleted for a request that is older than it, and names no other one', async () => {
    await world.ask('b1');
    // Times of creation are whole seconds.
    await new Promise((done) => setTimeout(done, 1100));
    await world.rich('b1');
    stop = world.run();
    expect(await world.answer('b1-1')).toEqual(['backup deletion failed: backup not found']);
    expect(await world.client.find(BACKUPS, ref('b1'))).toBeDefined();
  });

  it('has the snapshots removed that its run had taken where it failed, whole as its files are', async () => {
    const backup = await world.backup('b1', 'Failed');
    await world.store(backup);
    const labels = { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': backup.metadata.uid };
    await world.client.create(VOLUME_SNAPSHOTS, {
      metadata: { namespace: 'app', name: 'taken', labels },
      spec: { source: { persistentVolumeClaimName: 'c' } },
    });
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect(await world.client.list(VOLUME_SNAPSHOTS)).toEqual([]);
  });

  it('waits until what its run has left is ended, by the note of that', async () => {
    const backup = await world.rich('b1');
    const note = { namespace: VELERO, name: `longshore-backup-${backup.metadata.uid}` };
    await world.client.create(CONFIG_MAPS, { metadata: note, data: {} });
    await world.ask('b1');
    stop = world.run();
    await expect.poll(async () => (await world.request('b1-1'))?.status?.phase).toBe('InProgress');
    await expect
      .poll(async () => (await world.request('b1-1'))?.status?.errors)
      .toEqual(['what its run has left is still being ended: it is deleted after that']);
    await new Promise((done) => setTimeout(done, 500));
    expect(await phaseOf('b1')).toBe('Completed');
    await world.client.delete(CONFIG_MAPS, note);
    await world.gone('b1');
  });

  it('owns nothing where it never began', async () => {
    const first = await world.rich('b1');
    await world.client.delete(BACKUPS, first.metadata);
    await world.backup('b1', 'FailedValidation', { status: { startTimestamp: undefined } });
    const before = [...world.bucket.objects.keys()];
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect([...world.bucket.objects.keys()]).toEqual(before);
    expect([world.provider.size, world.drivers.size]).toEqual([1, 1]);
    expect(await world.client.list(RESTORES, { namespace: VELERO })).toHaveLength(1);
  });

  it.each(['FailedValidation', 'Failed'])(
    'needs no location where it never began: %s',
    async (phase) => {
      await world.location('ro', { accessMode: 'ReadOnly' });
      const never = { startTimestamp: undefined };
      await world.backup('b1', phase, { status: never, spec: { storageLocation: 'nope' } });
      await world.backup('b2', phase, { status: never, spec: { storageLocation: 'ro' } });
      await world.ask('b1');
      await world.ask('b2');
      world.isBucketSilent = true;
      stop = world.run();
      await world.gone('b1');
      await world.gone('b2');
      expect(await metric('success')).toBe(2);
    },
  );

  it('is its own where it was taken over from the bucket, also after its main file is gone', async () => {
    const backup = await world.backup('b1');
    await world.store(
      backup,
      {},
      { ...backup, metadata: { ...backup.metadata, uid: 'elsewhere' } },
    );
    world.bucket.objects.set('backups/b1/longshore-journal/elsewhere/1', Buffer.from('x'));
    world.fail('delete b1.tar.gz', new CodedError('REFUSED', 'no right to delete'));
    await world.ask('b1');
    stop = world.run();
    expect(await world.answer('b1-1')).toEqual([
      'error removing backup from backup storage: no right to delete',
    ]);
    const now = await world.client.get(BACKUPS, ref('b1'));
    expect(now.metadata.annotations?.[STORED_UID]).toBe('elsewhere');
    expect(world.files('backups/b1/velero-backup.json')).toEqual([]);
    await world.ask('b1', {}, 'again');
    await world.gone('b1');
    expect([...world.bucket.objects.keys()]).toEqual([]);
  });
});

describe('a request that is refused', () => {
  const cases: readonly (readonly [string, () => Promise<unknown>, string])[] = [
    ['no name', () => world.ask('', {}, 'none-1'), 'spec.backupName is required'],
    ['no backup', () => world.ask('none'), 'backup not found'],
    [
      'another UID',
      async () => {
        await world.backup('none');
        await world.ask('none', { labels: { 'velero.io/backup-uid': 'other' } });
      },
      'backup not found',
    ],
    [
      'no location',
      async () => {
        await world.backup('none', 'Completed', { spec: { storageLocation: 'gone' } });
        await world.ask('none');
      },
      'backup storage location gone not found',
    ],
    [
      'a location that is read-only',
      async () => {
        await world.location('ro', { accessMode: 'ReadOnly' });
        await world.backup('none', 'Completed', { spec: { storageLocation: 'ro' } });
        await world.ask('none');
      },
      'cannot delete backup because backup storage location ro is currently in read-only mode',
    ],
    [
      'a location that is away',
      async () => {
        await world.location('off', {}, 'Unavailable');
        await world.backup('none', 'Completed', { spec: { storageLocation: 'off' } });
        await world.ask('none');
      },
      'cannot delete backup because backup storage location off is currently in Unavailable state',
    ],
    [
      'a restore that reads it',
      async () => {
        await world.backup('none');
        await world.make(RESTORES, 'r', {
          spec: { backupName: 'none' },
          status: { phase: 'InProgress' },
        });
        await world.ask('none');
      },
      'restore r reads the backup (InProgress): wait for its end, or delete it, and delete the backup again',
    ],
    ...[true, false].map((isOwned): (typeof cases)[number] => [
      `a restore in place that still writes what it reads, ${isOwned ? 'by an older version' : 'by its labels'}`,
      async () => {
        const backup = await world.backup('none');
        for (const phase of ['Completed', 'InProgress']) {
          await world.restoreInPlace(backup, phase, isOwned);
        }
        await world.ask('none');
      },
      'DataDownload none-inprogress brings PersistentVolumeClaim shop/data back from the backup (InProgress): wait for its end, or delete it, and delete the backup again',
    ]),
  ];
  it.each(cases)('%s', async (_, prepare, text) => {
    await prepare();
    stop = world.run();
    expect(await world.answer('none-1')).toEqual([`backup deletion failed: ${text}`]);
    expect(world.told).toEqual([]);
    expect(['Completed', undefined]).toContain(await phaseOf('none'));
    expect(await metric('attempt')).toBe(0);
  });

  it('a backup that another server makes', async () => {
    await world.backup('b1', 'WaitingForPluginOperations');
    await world.ask('b1');
    stop = world.run({ isMadeHere: false });
    expect(await world.answer('b1-1')).toEqual([
      'backup deletion failed: backup is still in progress',
    ]);
  });

  it('is removed after a day, and not before', async () => {
    await world.make(DELETE_BACKUP_REQUESTS, 'new', {
      spec: {},
      status: { phase: 'Processed', errors: ['no'] },
    });
    const clock = { nowNs: () => BigInt(Date.now() + 24 * 3_600_000 + 5000) * 1_000_000n };
    stop = world.run();
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(await world.request('new')).toBeDefined();
    await stop();
    const later = withCalls(world.client, { clock });
    stop = world.run({ client: later });
    await expect.poll(() => world.request('new')).toBeUndefined();
  });
});

describe('a backup that is still made here', () => {
  it('is canceled, and deleted when it is over', async () => {
    const backup = await world.backup('b1', 'InProgress');
    await world.ask('b1');
    stop = world.run();
    const annotations = async () =>
      (await world.client.get(BACKUPS, ref('b1'))).metadata.annotations;
    await expect.poll(async () => (await annotations())?.[CANCEL_ANNOTATION]).toBe('true');
    expect((await world.request('b1-1'))?.status?.phase).toBe('InProgress');
    expect(await phaseOf('b1')).toBe('InProgress');
    await world.store(backup);
    await world.client.patch(BACKUPS, ref('b1'), { status: { phase: 'Failed' } });
    await world.gone('b1');
    expect([...world.bucket.objects.keys()]).toEqual([]);
  });

  it('says that it waits for its end, and does not wait for ever for one that cannot be completed', async () => {
    const backup = await world.backup('b1', 'Finalizing');
    await world.store(backup);
    await world.ask('b1');
    stop = world.run();
    await expect
      .poll(async () => (await world.request('b1-1'))?.status)
      .toEqual({
        phase: 'InProgress',
        errors: ['the backup is in phase Finalizing: it is deleted when it is over'],
      });
    expect(await phaseOf('b1')).toBe('Finalizing');
    await stop();
    stop = world.run({ endingMsMax: 100 });
    await world.gone('b1');
    expect([...world.bucket.objects.keys()]).toEqual([]);
  });

  it('is not completed any more when its deletion has begun', async () => {
    const backup = await world.backup('b1', 'Finalizing');
    await world.store(backup);
    const { client, scratch: directory } = world;
    const putting = Promise.withResolvers<undefined>();
    const goesOn = Promise.withResolvers<undefined>();
    const ended = Promise.withResolvers<undefined>();
    const slow = Object.assign(Object.create(world.bucket) as MemoryBucket, {
      put: async (key: string, body: Body, options: ObjectPutOptions = {}) => {
        if (key.endsWith('velero-backup.json')) {
          putting.resolve(undefined);
          await untilAborted(options.signal as AbortSignal, goesOn.promise);
        }
        await world.bucket.put(key, body, options).finally(() => {
          if (key.endsWith('velero-backup.json')) ended.resolve(undefined);
        });
      },
    });
    const buckets = {
      open: () => Promise.resolve({ bucket: slow, [Symbol.asyncDispose]: () => Promise.resolve() }),
    };
    const backups = new SharedBackups({ client, logger: silentLogger, namespace: VELERO });
    const finalizer = new FinalizerController({
      client,
      logger: silentLogger,
      host: 'h',
      backups,
      buckets,
      scratch: directory,
      map: new OperationMap({ store: backupOperationStore(client, VELERO, buckets) }),
      sessions: { open: () => Promise.reject(new Error('no plugins here')) },
      discovery: () => Discovery.open(client),
    });
    const abort = new AbortController();
    const finalizing = finalizer.run(abort.signal, () => undefined);
    await putting.promise;
    await world.ask('b1');
    stop = world.run({ endingMsMax: 50, writers: backups.writers });
    await world.gone('b1');
    goesOn.resolve(undefined);
    await ended.promise;
    expect([...world.bucket.objects.keys()]).toEqual([]);
    abort.abort();
    await finalizing;
    const events = await client.list(EVENTS, { namespace: VELERO });
    expect(events.map(({ reason }) => reason)).not.toContain('NotFinalized');
  });

  it('is not deleted while its files are still being written by who does not stop', async () => {
    const backup = await world.backup('b1', 'Finalizing');
    await world.store(backup);
    const writers = new FileWriters(20);
    const writing = Promise.withResolvers<undefined>();
    void writers.run(backup.metadata.uid, () => writing.promise);
    await world.ask('b1');
    stop = world.run({ endingMsMax: 50, writers });
    expect(await world.answer('b1-1')).toEqual([
      expect.stringMatching(/^files of the backup are still being written, .* delete it again/),
    ]);
    expect(world.files('backups/b1/')).toContain('backups/b1/velero-backup.json');
    writing.resolve(undefined);
    await world.ask('b1', {}, 'b1-2');
    await world.gone('b1');
    expect([...world.bucket.objects.keys()]).toEqual([]);
  });

  it('has its movers told to stop, and is not deleted before they have', async () => {
    const backup = await world.backup('b1', 'Failed');
    const labels = { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': backup.metadata.uid };
    await world.make(DATA_UPLOADS, 'du', {
      ...upload('du', labels, 'app', ''),
      metadata: { labels },
      status: { phase: 'InProgress' },
    });
    await world.make(POD_VOLUME_BACKUPS, 'pvb', {
      metadata: { labels },
      spec: {
        backupStorageLocation: 'default',
        node: 'n',
        volume: 'v',
        repoIdentifier: '',
        uploaderType: 'kopia',
        pod: { namespace: 'app', name: 'p' },
      },
      status: { phase: 'InProgress' },
    });
    await world.ask('b1');
    stop = world.run();
    const [error = ''] = await world.answer('b1-1');
    expect(error).toMatch(
      /^error deleting moved snapshot data: DataUpload du, PodVolumeBackup pvb still run/,
    );
    for (const resource of [DATA_UPLOADS, POD_VOLUME_BACKUPS] as const) {
      const [found] = (await world.client.list(resource as typeof DATA_UPLOADS)) as {
        spec: { cancel?: boolean };
      }[];
      expect(found?.spec.cancel).toBe(true);
    }
    // The operation ended differently, with an unknown snapshot.
    await world.client.patch(DATA_UPLOADS, ref('du'), {
      status: { phase: 'Completed', snapshotID: 'late' },
    });
    await world.client.patch(POD_VOLUME_BACKUPS, ref('pvb'), { status: { phase: 'Canceled' } });
    world.hold('app', 'late');
    await world.ask('b1', {}, 'again');
    await world.gone('b1');
    expect(world.told).toContain('forget late');
    expect(await world.client.list(DATA_UPLOADS)).toEqual([]);
  });
});

describe('a step that fails', () => {
  const refused = (text: string) => new CodedError('PLUGIN_REFUSED', text);
  /** More errors than tries. */
  const often = (error: () => unknown): unknown[] => Array.from({ length: 40 }, error);
  const steps: readonly (readonly [string, string, () => unknown, RegExp])[] = [
    [
      'a plugin that refuses',
      'snapshot b1-native',
      () => refused('volume is busy'),
      /^error deleting snapshot b1-native of volume snapshot location "l": volume is busy/,
    ],
    [
      'a repository that is away',
      'forget',
      away,
      /^error deleting moved snapshot data: (one snapshot|2 snapshots) in the repository of namespace \w+ at backup storage location default: the storage is away/,
    ],
    [
      'a tarball that cannot be read',
      'get b1.tar.gz',
      away,
      /^error downloading backup tarball: the storage is away/,
    ],
    [
      'plugins that do not start',
      'actions',
      () => refused('no such file'),
      /^error getting delete item actions: no such file/,
    ],
    [
      'a content that cannot be made',
      'create volumesnapshotcontents',
      () => new CodedError('KUBE_FORBIDDEN', 'not allowed'),
      /^error deleting snapshot b1-kept of CSI driver d: not allowed/,
    ],
  ];
  it.each(steps)('is told, and keeps files and Backup: %s', async (_, what, error, text) => {
    await world.rich('b1');
    const files = world.files('backups/b1/');
    world.fail(what, ...often(error));
    await world.ask('b1');
    stop = world.run();
    const errors = await world.answer('b1-1');
    expect(errors[0]).toMatch(text);
    expect(errors.at(-1)).toContain(`annotate backups.velero.io b1 ${DELETE_ANYWAY}=true`);
    expect(await phaseOf('b1')).toBe('Deleting');
    expect(world.files('backups/b1/')).toEqual(files);
    expect(await world.client.list(RESTORES, { namespace: VELERO })).toHaveLength(1);
    expect([await metric('attempt'), await metric('success'), await metric('failure')]).toEqual([
      1, 0, 1,
    ]);
    // After a repair, the next request succeeds.
    world.faults.clear();
    await world.ask('b1', {}, 'again');
    await world.gone('b1');
    expect([...world.bucket.objects.keys(), ...world.provider, ...world.drivers]).toEqual([]);
    expect([...world.repositories.values()].flatMap((ids) => [...ids])).toEqual([]);
  });

  it('is tried again where it passes, and says so meanwhile', async () => {
    await world.rich('b1');
    world.fail('forget', away(), away());
    world.fail('snapshot b1-native', refused('busy'));
    world.fail('bucket', away());
    world.fail('patch backups', new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }));
    await world.ask('b1');
    stop = world.run({ patienceMs: 5000 });
    await expect
      .poll(async () => (await world.request('b1-1'))?.status?.errors?.[0] ?? '', {
        timeout: 5000,
        interval: 5,
      })
      .toContain('it is tried again');
    await world.gone('b1', 30_000);
  }, 40_000);

  it.each(['velero-backup.json', 'b1.tar.gz'])(
    'of a file that the bucket locks is told, and done when the lock is over: %s',
    async (file) => {
      await world.rich('b1');
      const locked = (): CodedError =>
        new CodedError('STORAGE_DENIED', `delete of ${file} failed: 403 it is WORM protected`);
      world.fail(`delete ${file}`, ...often(locked));
      await world.ask('b1');
      stop = world.run();
      const errors = await world.answer('b1-1');
      expect(errors[0]).toContain('error removing backup from backup storage');
      expect(errors[0]).toContain('it is WORM protected');
      // The object leads to remaining data.
      expect(await phaseOf('b1')).toBe('Deleting');
      const files = world.files('backups/b1/');
      expect(files).toContain(`backups/b1/${file}`);
      // Never a backup without its files: its metadata is deleted first.
      if (file !== 'velero-backup.json')
        expect(files).not.toContain('backups/b1/velero-backup.json');
      world.faults.clear();
      await world.ask('b1', {}, 'again');
      await world.gone('b1');
      expect([...world.bucket.objects.keys()]).toEqual([]);
    },
  );

  it('leaves the Restore whose finalizer is somebody else’s, and the files of the backup with it', async () => {
    await world.rich('b1');
    world.fail('delete restores', new CodedError('KUBE_FORBIDDEN', 'not allowed'));
    await world.ask('b1');
    stop = world.run();
    expect(await world.answer('b1-1')).toEqual([
      'error deleting restore velero/b1-restore: not allowed',
    ]);
    expect(world.files('backups/b1/').length).toBeGreaterThan(3);
    await world.ask('b1', {}, 'again');
    await world.gone('b1');
  });
});

describe('a step that has no end', () => {
  it('keeps no other one: a provider that does not answer', async () => {
    const backup = await world.backup('b1');
    const ids = Array.from({ length: 30 }, (_, i) => `hangs-${i}`);
    await world.store(backup, {
      volumeSnapshots: [...ids.map((id) => ['l', id]), ['m', 'other']].map(
        ([at = '', id = '']) => ({
          spec: { location: at, persistentVolumeName: 'pv' },
          status: { phase: 'Completed', providerSnapshotID: id },
        }),
      ),
      podVolumeBackups: [
        {
          metadata: {
            namespace: VELERO,
            name: 'pvb',
            labels: { 'velero.io/backup-name': 'b1' },
          },
          spec: { uploaderType: 'kopia', pod: { namespace: 'app', name: 'p' } },
          status: { snapshotID: 'files' },
        },
      ],
    });
    world.locations.push({ metadata: { name: 'm' }, spec: { provider: 'x' } });
    for (const id of ids) world.silent.add(id);
    world.provider.add('other');
    world.hold('app', 'files');
    await world.ask('b1');
    stop = world.run({ providerMs: 100 });
    const errors = await world.answer('b1-1');
    expect(errors.slice(0, 4)).toEqual([
      ...[0, 1, 2].map(
        (i) =>
          `error deleting snapshot hangs-${i} of volume snapshot location "l": no answer within 1 min`,
      ),
      'error deleting snapshot hangs-3 of volume snapshot location "l": its plugin did not answer 3 times, and was not asked again',
    ]);
    expect(world.told).toEqual(expect.arrayContaining(['provider other', 'forget files']));
    world.silent.clear();
    for (const id of ids) world.provider.add(id);
    await world.ask('b1', {}, 'again');
    await world.gone('b1');
    expect([...world.provider]).toEqual([]);
  });

  it('is waited for side by side, and soon hardly any more: a driver that is gone', async () => {
    const snapshots = Array.from({ length: 60 }, (_, i) => ({
      driver: 'gone',
      handle: `kept-${i}`,
      annotations: {},
      volumeMode: undefined,
    }));
    const waits: number[] = [];
    let [underWay, most] = [0, 0];
    const waited = { metadata: {}, spec: { source: {} } };
    const client = {
      create: () => Promise.resolve(waited),
      delete: () => Promise.resolve({}),
      listPage: () => Promise.resolve({ items: [waited], resourceVersion: '1' }),
      // No event comes before the end of the wait.
      async *watch(_: unknown, { signal }: { signal: AbortSignal }) {
        const sinceMs = performance.now();
        most = Math.max(most, ++underWay);
        await new Promise((resolve) => {
          signal.addEventListener('abort', resolve);
        });
        underWay--;
        waits.push(performance.now() - sinceMs);
        yield* [];
        signal.throwIfAborted();
      },
    } as unknown as KubeClient;
    const { signal } = new AbortController();
    const attempts = new DeletionFailures({
      logger: silentLogger,
      backup: 'b1',
      signal,
      patienceMs: 200,
    });
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
    try {
      const startMs = performance.now();
      const task = deleteKept(snapshots, {
        client,
        attempts,
        logger: silentLogger,
        signal,
        deletionMs: 1000,
        backup: { metadata: { name: 'b1', uid: 'u' } } as never,
        assertLeading: () => undefined,
      });
      let isOver = false;
      const over = task.finally(() => (isOver = true));
      while (!isOver) await vi.advanceTimersByTimeAsync(5);
      await over;
      // Sequentially they would take a minute, and four at once 15 s.
      expect(performance.now() - startMs).toBeLessThan(3500);
    } finally {
      vi.useRealTimers();
    }
    expect(most).toBe(4);
    expect(waits).toHaveLength(60);
    const long = waits.filter((ms) => ms > 500);
    // Only waits that began before the first eight had failed are long.
    expect(long.length).toBeGreaterThanOrEqual(8);
    expect(long.length).toBeLessThanOrEqual(11);
    expect(attempts.hasFailed).toBe(true);
  });

  it('keeps no other one: a driver that is gone', async () => {
    const backup = await world.backup('b1');
    const labels = { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': backup.metadata.uid };
    await world.store(backup, {
      items: Array.from({ length: 60 }, (_, i) => [
        `volumesnapshotcontents.snapshot.storage.k8s.io/cluster/c${i}`,
        content(`c${i}`, labels, `kept-${i}`),
      ]),
    });
    world.isDriverGone = true;
    await world.ask('b1');
    stop = world.run({ driverMs: 1000 });
    const errors = await world.answer('b1-1', 60_000);
    expect(errors).toHaveLength(42);
    expect(errors[0]).toContain('it is still in the storage');
    // All of them are deleted when the driver is back.
    const asked = await world.client.list(VOLUME_SNAPSHOT_CONTENTS);
    expect(asked.filter(({ metadata }) => metadata.deletionTimestamp !== undefined)).toHaveLength(
      60,
    );
  });

  it('is not taken for the end of a snapshot where something else is missing', () => {
    const refused = (text: string) => new CodedError('PLUGIN_REFUSED', text);
    const id = '/subscriptions/s/resourceGroups/g/providers/p/snapshots/snap-1';
    for (const text of [
      'snapshot snap-1 not found',
      'The snapshot "snap-1" does not exist.',
      'InvalidSnapshot.NotFound: The snapshot snap-1 does not exist',
    ]) {
      expect(isGone(refused(text), id), text).toBe(true);
    }
    for (const text of [
      'not found',
      'DELETE https://x/snapshots/snap-1: SubscriptionNotFound: The subscription s could not be found.',
      'DELETE https://x/snapshots/snap-1: ResourceGroupNotFound',
      'delete snap-1: credentials file does not exist',
      'delete snap-1: role backup not found',
      'snap-1 is busy',
    ]) {
      expect(isGone(refused(text), id), text).toBe(false);
    }
  });
});

describe('what a request says', () => {
  it('is its answer in the end, also where an earlier word arrives late', async () => {
    await world.rich('b1');
    world.fail('forget', ...Array.from({ length: 40 }, away));
    let patches = 0;
    const arrived = Promise.withResolvers<undefined>();
    await world.ask('b1');
    stop = world.run({
      outside: async (task, what) => {
        // The first one takes the request.
        if (what !== 'patch deletebackuprequests' || ++patches !== 2) return task();
        await new Promise((resolve) => setTimeout(resolve, 1500));
        const result = await task();
        arrived.resolve(undefined);
        return result;
      },
    });
    await world.answer('b1-1');
    await arrived.promise;
    expect((await world.request('b1-1'))?.status).toMatchObject({
      phase: 'Processed',
      errors: [
        expect.stringMatching(/^error deleting moved.*away/) as string,
        expect.anything() as string,
        expect.stringContaining('delete it again when the cause is mended') as string,
      ],
    });
  });

  it('tells why it is not begun with', async () => {
    await world.rich('b1');
    const odd = () => new CodedError('ODD', 'may not patch', { retry: 'backoff' });
    world.fail('patch backups', ...Array.from({ length: 200 }, odd));
    await world.ask('b1');
    stop = world.run();
    await expect
      .poll(async () => (await world.request('b1-1'))?.status?.errors)
      .toEqual(['may not patch; it is tried again']);
    world.faults.clear();
    await world.gone('b1');
  });
});

describe('what cannot be deleted', () => {
  it('names the location that is gone, and is given up when a person says so', async () => {
    await world.rich('b1');
    world.locations = [];
    await world.ask('b1');
    stop = world.run();
    const [error = ''] = await world.answer('b1-1');
    expect(error).toContain('VolumeSnapshotLocation.velero.io "l" not found');
    await world.client.patch(BACKUPS, ref('b1'), {
      metadata: { annotations: { [DELETE_ANYWAY]: 'true' } },
    });
    await world.ask('b1', {}, 'again');
    await world.gone('b1');
    expect([...world.bucket.objects.keys()]).toEqual([]);
    expect([...world.provider]).toEqual(['b1-native']);
    await stop();
    stop = undefined;
    const events = (await world.client.list(EVENTS)) as (KubeObject & {
      reason?: string;
      message?: string;
    })[];
    const told = events
      .filter(({ reason }) => reason === 'NotAllDeleted')
      .map(({ message }) => message);
    expect(told.join()).toContain('b1-native');
  });

  it('names the plugin that is missing', async () => {
    await world.rich('b1');
    world.locations = [{ metadata: { name: 'l' }, spec: { provider: 'missing' } }];
    await world.ask('b1');
    stop = world.run();
    expect((await world.answer('b1-1'))[0]).toContain('there is no plugin missing');
  });

  it('is looked for in the other files where there is no tarball', async () => {
    const backup = await world.rich('b1');
    const infos = [
      {
        snapshotDataMoved: true,
        pvcNamespace: 'app',
        snapshotDataMovementInfo: { dataMover: 'velero', snapshotHandle: 'b1-moved' },
      },
      { backupMethod: 'CSISnapshot', csiSnapshotInfo: { driver: 'd', snapshotHandle: 'b1-kept' } },
    ];
    await new BackupArchive(world.bucket).update('b1', { volumeInfos: infos });
    world.bucket.objects.delete('backups/b1/b1.tar.gz');
    // Snapshots of its run and of a restore.
    for (const [name, labels] of [
      ['left', {}],
      ['restored', { 'velero.io/restore-name': 'r' }],
    ] as const) {
      await world.client.create(VOLUME_SNAPSHOTS, {
        metadata: {
          namespace: 'app',
          name,
          labels: {
            'velero.io/backup-name': 'b1',
            'velero.io/backup-uid': backup.metadata.uid,
            ...labels,
          },
        },
        spec: { source: { persistentVolumeClaimName: 'c' } },
      });
    }
    // A tenant has labelled its own snapshot, and set a foreign content in its status.
    const snapshots = await world.client.list(VOLUME_SNAPSHOTS);
    const left = snapshots.find(({ metadata }) => metadata.name === 'left');
    const forged = await world.client.create(VOLUME_SNAPSHOTS, {
      metadata: {
        namespace: 'app',
        name: 'forged',
        labels: { 'velero.io/backup-name': 'b1' },
      },
      spec: { source: { persistentVolumeClaimName: 'c' } },
    });
    for (const [name, uid = ''] of [
      ['content-of-left', left?.metadata.uid],
      ['content-of-others', 'other-uid'],
    ] as const) {
      await world.client.create(VOLUME_SNAPSHOT_CONTENTS, boundContent(name, uid));
    }
    const status = { boundVolumeSnapshotContentName: 'content-of-others' };
    const subresource = 'status';
    await world.client.patch(VOLUME_SNAPSHOTS, forged.metadata, { status }, { subresource });
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect([...world.drivers, ...(world.repositories.get('app') ?? [])]).toEqual([]);
    const contents = await world.client.list(VOLUME_SNAPSHOT_CONTENTS);
    const policies = contents.map(({ metadata, spec }) => [metadata.name, spec.deletionPolicy]);
    expect(policies.sort()).toEqual([
      ['content-of-left', 'Delete'],
      ['content-of-others', 'Retain'],
    ]);
    const there = await world.client.list(VOLUME_SNAPSHOTS);
    expect(there.map(({ metadata }) => metadata.name)).toEqual(['restored']);
  });

  it('is told where the tarball is damaged, and where nobody can tell whose the files are', async () => {
    await world.rich('b1');
    const key = 'backups/b1/b1.tar.gz';
    const tarball = world.bucket.objects.get(key) ?? Buffer.alloc(0);
    world.bucket.objects.set(key, tarball.subarray(0, tarball.length - 20));
    await world.ask('b1');
    stop = world.run();
    expect((await world.answer('b1-1'))[0]).toMatch(
      /^error downloading backup tarball: .*b1\.tar\.gz/,
    );
    world.bucket.objects.set(key, tarball);
    world.bucket.objects.set('backups/b1/velero-backup.json', Buffer.from('{'));
    await world.ask('b1', {}, 'again');
    expect((await world.answer('again'))[0]).toContain(
      'nobody can tell whose files are in the folder of the backup',
    );
    await world.client.patch(BACKUPS, ref('b1'), {
      metadata: { annotations: { [DELETE_ANYWAY]: 'true' } },
    });
    await world.ask('b1', {}, 'third');
    await world.gone('b1');
    expect([...world.bucket.objects.keys()]).toEqual([]);
    await stop();
    stop = undefined;
    const events = (await world.client.list(EVENTS)) as (KubeObject & { message?: string })[];
    expect(events.map(({ message }) => message).join()).toMatch(
      /deleted unread, .*velero-backup\.json.*snapshots that they alone tell of, .*are not deleted/,
    );
  });

  it('is told of where its files are not in the location, as where that points elsewhere; not of one that a server has left', async () => {
    const over = { status: { completionTimestamp: '2026-11-21T03:00:00Z' } };
    const annotations = { 'longshore.io/stored-uid': 'u' };
    await world.backup('elsewhere', 'Completed', over);
    await world.backup('left', 'Deleting', { ...over, metadata: { annotations } });
    const reason = { failureReason: 'it has failed' };
    await world.backup('failed', 'Failed', { status: { ...over.status, ...reason } });
    stop = world.run();
    for (const name of ['elsewhere', 'left', 'failed']) {
      await world.ask(name);
      await world.gone(name);
    }
    await stop();
    stop = undefined;
    const events = (await world.client.list(EVENTS)) as (KubeObject & {
      involvedObject?: { name: string };
      message?: string;
    })[];
    expect(events.map(({ involvedObject }) => involvedObject?.name)).toEqual(['elsewhere']);
    expect(events[0]?.message).toMatch(/not in its location: .*comes back when it points to/);
  });

  it('is not told of where a deletion goes on after its main file is gone', async () => {
    const status = { completionTimestamp: '2026-11-21T03:00:00Z' };
    await world.store(await world.backup('b1', 'Completed', { status }));
    world.fail('delete b1.tar.gz', new CodedError('REFUSED', 'no right to delete'));
    await world.ask('b1');
    stop = world.run();
    await world.answer('b1-1');
    await world.ask('b1', {}, 'again');
    await world.gone('b1');
    await stop();
    stop = undefined;
    expect(await world.client.list(EVENTS)).toEqual([]);
  });

  it('is named of a repository of another kind', async () => {
    const backup = await world.backup('b1');
    await world.store(backup, {
      podVolumeBackups: [
        {
          metadata: {
            namespace: VELERO,
            name: 'old',
            labels: { 'velero.io/backup-name': 'b1' },
          },
          spec: { uploaderType: 'restic', pod: { namespace: 'app', name: 'p' } },
          status: { snapshotID: 'r1' },
        },
      ],
    });
    await world.ask('b1');
    stop = world.run();
    expect((await world.answer('b1-1'))[0]).toBe(
      'error deleting pod volume snapshots: snapshot r1 of namespace app (PodVolumeBackup old) is not in a Kopia repository: delete it with the program that made it',
    );
  });
});

describe('operations of other backups and of tenants', () => {
  it('are items like any other: what they name stays', async () => {
    const backup = await world.backup('b1');
    const { uid } = backup.metadata;
    const labels = (more: object = {}) => ({
      'velero.io/backup-name': 'b1',
      'velero.io/backup-uid': uid,
      'velero.io/async-operation-id': 'du-1',
      ...more,
    });
    const forged = upload('own', labels(), 'app', 'forged');
    const items = [
      upload('own', labels(), 'app', 'moved'),
      upload('earlier', labels({ 'velero.io/backup-uid': 'earlier' }), 'app', 'same-name'),
      upload('other', labels({ 'velero.io/async-operation-id': 'du-2' }), 'app', 'no-operation'),
      { ...forged, metadata: { ...forged.metadata, namespace: 'mallory' } },
    ];
    const podVolume = (name: string, of: string, id: string) => ({
      metadata: { namespace: VELERO, name, labels: labels({ 'velero.io/backup-uid': of }) },
      spec: { uploaderType: 'kopia', pod: { namespace: 'app', name: 'p' } },
      status: { snapshotID: id },
    });
    await world.store(backup, {
      items: items.map((item) => [
        `datauploads.velero.io/namespaces/${item.metadata.namespace}/${item.metadata.name}`,
        item,
      ]),
      podVolumeBackups: [
        podVolume('p1', uid, 'files'),
        podVolume('p2', 'earlier', 'files-of-another'),
      ],
      itemOperations: [
        {
          spec: {
            backupName: 'b1',
            backupUID: uid,
            backupItemAction: 'x',
            operationID: 'du-1',
            resourceIdentifier: {},
          },
          status: { phase: 'Completed' },
        },
      ],
    });
    const others = ['same-name', 'no-operation', 'forged', 'files-of-another'];
    world.hold('app', 'moved', 'files', ...others);
    await world.ask('b1');
    stop = world.run();
    await expect
      .poll(() => world.client.find(BACKUPS, { namespace: VELERO, name: 'b1' }))
      .toBeUndefined();
    expect([...(world.repositories.get('app') ?? [])].sort()).toEqual(others.sort());
  });
});

describe('delete item actions', () => {
  it('are asked about their items, of which one at a time is in memory; one that fails always is not asked for ever', async () => {
    const backup = await world.backup('b1');
    const { uid } = backup.metadata;
    const labels = { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': uid };
    const item = (i: number) => ({
      metadata: { namespace: 'app', name: `c${i}`, labels: { n: `${i % 2}` } },
    });
    const items = Array.from({ length: 3000 }, (_, i): readonly [string, object][] => [
      [`configmaps/namespaces/app/c${i}`, item(i)],
      [`configmaps/v1-preferredversion/namespaces/app/c${i}`, item(i)],
    ]).flat();
    await world.store(backup, {
      items: [
        ...items,
        [
          'datauploads.velero.io/namespaces/velero/theirs',
          upload('theirs', { 'velero.io/backup-name': 'b2' }, 'app', 'b2-moved'),
        ],
        [
          'datauploads.velero.io/namespaces/velero/third',
          upload('third', labels, 'app', 'third-moved', 'somebody'),
        ],
        [
          'volumesnapshotcontents.snapshot.storage.k8s.io/cluster/users',
          content('users', {}, 'users-own'),
        ],
      ],
    });
    world.hold('app', 'b2-moved', 'third-moved');
    world.drivers.add('users-own');
    const asked: string[] = [];
    let failures = 0;
    world.actions = [
      {
        name: 'x/odd',
        appliesTo: { includedResources: ['configmaps'], selector: 'n=1' },
        execute: ({ metadata }) => {
          asked.push(metadata.name);
          return Promise.resolve();
        },
      },
      {
        name: 'x/bad',
        appliesTo: { includedResources: ['configmaps'] },
        execute: () => {
          failures++;
          return Promise.reject(new CodedError('BAD', 'never'));
        },
      },
    ];
    await world.ask('b1');
    stop = world.run();
    const errors = await world.answer('b1-1');
    expect(asked).toHaveLength(1500);
    expect(failures).toBe(10);
    expect(errors[0]).toBe('error invoking delete item actions: x/bad of configmaps app/c0: never');
    expect(errors.join('\n')).toContain('x/bad has failed 10 times in a row');
    expect([...(world.repositories.get('app') ?? []), ...world.drivers]).toEqual([
      'b2-moved',
      'third-moved',
      'users-own',
    ]);
  }, 30_000);
});

describe('a backup that waits for its turn to be deleted', () => {
  const NAMES = ['b1', 'b2', 'b3', 'b4', 'b5'];
  /** Two calls wait for a provider that does not answer yet, so the others wait. */
  const held = async (): Promise<() => void> => {
    const released = Promise.withResolvers<undefined>();
    world.actions.push({
      name: 'x/slow',
      appliesTo: { includedResources: ['configmaps'] },
      execute: () => released.promise,
    });
    for (const name of NAMES) {
      await world.rich(name);
      await world.ask(name);
    }
    stop = world.run();
    const phases = async () =>
      (await Promise.all(NAMES.map((name) => world.request(`${name}-1`)))).map(
        (request) => request?.status?.phase,
      );
    await expect.poll(phases).toEqual(NAMES.map(() => 'InProgress'));
    return () => {
      released.resolve(undefined);
    };
  };
  const waiting = async (): Promise<string[]> => {
    const phases = await Promise.all(NAMES.map((name) => phaseOf(name)));
    return NAMES.filter((_, i) => phases[i] === 'Completed');
  };

  it('stays whole where its location turns read-only, or a restore reads it, or nobody wants it deleted any more', async () => {
    const release = await held();
    await expect.poll(async () => (await waiting()).length).toBe(3);
    const [kept = '', taken = '', read = ''] = await waiting();
    await world.client.delete(DELETE_BACKUP_REQUESTS, ref(`${taken}-1`));
    await world.client.patch(RESTORES, ref(`${read}-restore`), { status: { phase: 'InProgress' } });
    await world.client.patch(BACKUP_STORAGE_LOCATIONS, ref('default'), {
      spec: { accessMode: 'ReadOnly' },
    });
    release();
    const readOnly =
      'backup deletion failed: cannot delete backup because backup storage location default is currently in read-only mode';
    expect(await world.answer(`${kept}-1`)).toEqual([readOnly]);
    expect(await world.answer(`${read}-1`)).toEqual([readOnly]);
    await world.client.patch(BACKUP_STORAGE_LOCATIONS, ref('default'), {
      spec: { accessMode: 'ReadWrite' },
    });
    await world.ask(read, {}, 'again');
    const [error] = await world.answer('again');
    expect(error).toContain(`restore ${read}-restore reads the backup (InProgress)`);
    expect(await waiting()).toEqual(expect.arrayContaining([kept, taken, read]));
    for (const name of [kept, taken, read]) {
      expect(world.files(`backups/${name}/`)).not.toEqual([]);
      expect(world.provider.has(`${name}-native`)).toBe(true);
    }
  }, 30_000);

  it('is deleted as soon as it has one', async () => {
    const release = await held();
    release();
    for (const name of NAMES) await world.gone(name);
    expect([await metric('attempt'), await metric('success')]).toEqual([5, 5]);
  }, 30_000);
});

describe('a location that does not answer', () => {
  it('keeps only its own backups', async () => {
    world.isBucketSilent = true;
    for (let i = 0; i < 8; i++) {
      await world.backup(`d${i}`);
      await world.ask(`d${i}`);
    }
    await world.location('second');
    const backup = await world.backup('b1', 'Completed', { spec: { storageLocation: 'second' } });
    await world.store(backup);
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect(await phaseOf('d0')).toBe('Deleting');
  });
});

describe('data of movers', () => {
  const itemsOf = (uid: string, mover: string): (readonly [string, object])[] => {
    const labels = { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': uid };
    const moved = upload('one', labels, 'app', 'moved', mover);
    return [['datauploads.velero.io/namespaces/velero/one', moved]];
  };

  it.each([...KNOWN_MOVERS])('are deleted from the repository: "%s"', async (mover) => {
    const backup = await world.backup('b1');
    await world.store(backup, { items: itemsOf(backup.metadata.uid, mover) });
    world.hold('app', 'moved');
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect([...(world.repositories.get('app') ?? [])]).toEqual([]);
  });

  it('are deleted if only the volume infos name them: "velero-block"', async () => {
    const moved = { dataMover: 'velero-block', snapshotHandle: 'moved', uploaderType: 'kopia' };
    const volume = { pvcName: 'data', pvcNamespace: 'app', snapshotDataMoved: true };
    await world.store(await world.backup('b1'), {
      volumeInfos: [{ ...volume, snapshotDataMovementInfo: moved }],
    });
    world.hold('app', 'moved');
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect([...(world.repositories.get('app') ?? [])]).toEqual([]);
  });

  it('are named in the errors of the request if their mover is not known', async () => {
    const backup = await world.backup('b1');
    await world.store(backup, { items: itemsOf(backup.metadata.uid, 'tar') });
    await world.ask('b1');
    stop = world.run();
    const [error, hint] = await world.answer('b1-1');
    expect(error).toBe(
      'error deleting moved snapshot data: the data mover "tar" is not known here, and no plugin has a DeleteItemAction for datauploads.velero.io: what it has stored of app/pvc (moved) is not deleted',
    );
    expect(hint).toContain('longshore.io/delete-anyway=true');
    expect(await world.client.find(BACKUPS, ref('b1'))).toBeDefined();
  });

  it('are left to the action of a plugin for DataUploads', async () => {
    const backup = await world.backup('b1');
    await world.store(backup, { items: itemsOf(backup.metadata.uid, 'tar') });
    const asked: string[] = [];
    world.actions = [
      {
        name: 'x/tar',
        appliesTo: { includedResources: ['datauploads.velero.io'] },
        execute: ({ metadata }) => {
          asked.push(metadata.name);
          return Promise.resolve();
        },
      },
    ];
    await world.ask('b1');
    stop = world.run();
    await world.gone('b1');
    expect(asked).toEqual(['one']);
  });
});

describe('a real repository', () => {
  it('has the snapshots of the backup forgotten, and no others', async () => {
    const backup = await world.backup('b1');
    const place = join(scratch, 'default/kopia/app');
    fs.mkdirSync(place, { recursive: true });
    await createTest(place);
    const tree = join(scratch, 'tree');
    fs.mkdirSync(tree);
    const ids: string[] = [];
    {
      await using repository = await openTest(place);
      for (const text of ['a', 'b', 'c']) {
        fs.writeFileSync(join(tree, 'file'), text);
        ids.push((await backUp(repository, tree)).id);
      }
    }
    const labels = { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': backup.metadata.uid };
    await world.store(backup, {
      items: [
        [
          'datauploads.velero.io/namespaces/velero/one',
          upload('one', labels, 'app', ids[0] ?? '', 'velero'),
        ],
        ['datauploads.velero.io/namespaces/velero/two', upload('two', labels, 'app', ids[1] ?? '')],
      ],
    });
    await world.ask('b1');
    stop = world.run({
      forget: async ({ location, password }, wanted, options) => {
        const storage = await openStorage(location);
        await using repository = await openRepository({ storage, password, client: CLIENT });
        return await forgetSnapshots(repository, wanted, options);
      },
    });
    await world.gone('b1');
    await using repository = await openTest(place);
    expect((await listSnapshots(repository)).map(({ id }) => id)).toEqual(ids.slice(2));
    expect(START).toBe('2026-11-21T02:00:00Z');
    await world.client.delete(BACKUP_STORAGE_LOCATIONS, ref('default'));
  }, 30_000);
});
