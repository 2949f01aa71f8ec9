import * as fs from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest';
import { BackupArchive, signingBy, signWith } from '../../../src/archive/index.ts';
import {
  CodedError,
  ManualClock,
  parseGoTime,
  SECOND_NS,
  silentLogger,
} from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  type Backup,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  type BackupStorageLocation,
  connectToCluster,
  type KubeClient,
  NAMESPACES,
  POD_VOLUME_BACKUPS,
  SCHEDULES,
} from '../../../src/kube/index.ts';
import {
  syncLocation,
  type SyncOptions,
  type SyncReport,
} from '../../../src/server/sync/sync-location.ts';
import { SyncMemory } from '../../../src/server/sync/sync-memory.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { callsThrough, withCalls } from '../../support/with-calls.ts';

const VELERO = 'velero';
const NOW = '2026-11-21T02:00:00Z';
const MINUTE = 60n * SECOND_NS;
const scratch = tempDirectory('sync');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

/** A bucket that counts requests. */
class CountedBucket extends MemoryBucket {
  requests = 0;
  override async *get(...given: Parameters<MemoryBucket['get']>): AsyncIterable<Uint8Array> {
    this.requests++;
    yield* super.get(...given);
  }
  override has(...given: Parameters<MemoryBucket['has']>): Promise<boolean> {
    this.requests++;
    return super.has(...given);
  }
  override async *listFolders(prefix: string): AsyncIterable<string> {
    this.requests++;
    yield* super.listFolders(prefix);
  }
}

describe('the sync of a location', () => {
  let server: ApiServer;
  let client: KubeClient;
  let clock: ManualClock;
  let bucket: CountedBucket;
  let memory: SyncMemory;
  let writes: string[];
  let expired: string[];

  beforeEach(async () => {
    clock = new ManualClock(parseGoTime(NOW));
    server = await ApiServer.start({ clock });
    const kubeconfig = join(scratch, 'kubeconfig');
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    await client.create(NAMESPACES, { metadata: { name: VELERO } });
    await addLocation('default');
    bucket = new CountedBucket();
    memory = new SyncMemory();
    writes = [];
    expired = [];
  });
  afterEach(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
  });

  const addLocation = (name: string, spec: object = {}): Promise<unknown> =>
    client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: { namespace: VELERO, name },
      spec: { provider: 'aws', objectStorage: { bucket: name }, ...spec },
      status: { phase: 'Available' },
    } as never);

  function store(name: string, fields: { status?: object; spec?: object; metadata?: object } = {}) {
    const { metadata, spec, status } = fields;
    bucket.objects.set(
      `backups/${name}/velero-backup.json`,
      Buffer.from(
        JSON.stringify({
          apiVersion: 'velero.io/v1',
          kind: 'Backup',
          metadata: {
            name,
            namespace: 'elsewhere',
            uid: `stored-${name}`,
            resourceVersion: '77',
            labels: { team: 'a', 'velero.io/storage-location': 'theirs' },
            generation: 5,
            ...metadata,
          },
          spec: { storageLocation: 'theirs', hooks: { resources: [{ name: 'h' }] }, ...spec },
          status: { phase: 'Completed', expiration: '2036-01-01T00:00:00Z', ...status },
        }),
      ),
    );
  }
  const storeVolumes = (name: string, ...volumes: object[]): void => {
    bucket.objects.set(
      `backups/${name}/${name}-podvolumebackups.json.gz`,
      gzipSync(JSON.stringify(volumes)),
    );
  };
  const volumeOf = (name: string, phase = 'Completed', metadata: object = {}): object => ({
    apiVersion: 'velero.io/v1',
    kind: 'PodVolumeBackup',
    metadata: {
      name,
      namespace: 'elsewhere',
      uid: 'x',
      resourceVersion: '9',
      labels: { 'velero.io/backup-uid': 'stored-b1', 'velero.io/backup-name': 'b1' },
      ...metadata,
    },
    spec: {
      backupStorageLocation: 'theirs',
      node: 'n',
      pod: {},
      volume: 'v',
      repoIdentifier: 'r',
    },
    status: { phase, snapshotID: 's' },
  });

  const list = (): Promise<Backup[]> =>
    client.list(BACKUPS, { namespace: VELERO }) as unknown as Promise<Backup[]>;
  const names = async (): Promise<string[]> =>
    (await list()).map(({ metadata }) => metadata.name).sort();
  const get = (name: string) =>
    client.get(BACKUPS, { namespace: VELERO, name }) as unknown as Promise<
      Backup & { readonly status: { readonly phase: string } }
    >;
  const location = (name = 'default'): Promise<BackupStorageLocation> =>
    client.get(BACKUP_STORAGE_LOCATIONS, { namespace: VELERO, name });

  async function sync(given: Partial<SyncOptions> & { name?: string } = {}): Promise<SyncReport> {
    const { name = 'default', ...options } = given;
    const all = await list();
    const current = await location(name);
    const noting = callsThrough(client, (call, [resource], go) => {
      if (['create', 'delete', 'patch'].includes(call)) {
        writes.push(`${call} ${(resource as { plural: string }).plural}`);
      }
      return go();
    });
    return syncLocation({
      client: withCalls(noting, { clock }),
      logger: silentLogger,
      namespace: VELERO,
      memory,
      backups: {
        get: (ref) => all.find(({ metadata }) => metadata.name === ref.name),
        list: () => all,
      },
      archive: new BackupArchive(bucket),
      location: current,
      locationNow: () => current,
      assertLeading: () => undefined,
      onExpired: ({ metadata }) => expired.push(metadata.name),
      signal: new AbortController().signal,
      ...options,
    });
  }

  describe('brings', () => {
    it('a backup as Velero does: of this namespace and location, without hooks and old identity', async () => {
      store('b1', { metadata: { annotations: { a: 'b' }, finalizers: ['x/y'] } });
      expect(await sync()).toMatchObject({ created: 1, removed: 0, held: 0 });
      const made = await get('b1');
      expect(made.metadata).toMatchObject({
        namespace: VELERO,
        annotations: { a: 'b' },
        labels: { team: 'a', 'velero.io/storage-location': 'default' },
      });
      expect(made.metadata.uid).not.toBe('stored-b1');
      expect(made.metadata.finalizers ?? []).toEqual([]);
      expect(made.spec).toMatchObject({ storageLocation: 'default', hooks: {} });
      expect(made.status).toMatchObject({ phase: 'Completed', expiration: '2036-01-01T00:00:00Z' });
      expect((await location()).status).toMatchObject({ phase: 'Available', lastSyncedTime: NOW });
    });

    it('a backup without the mark of a Schedule, and without orders to the server', async () => {
      // Any writer to the bucket can read the UID of a Schedule in other backups.
      store('b1', {
        metadata: {
          labels: { 'velero.io/schedule-name': 'nightly', 'longshore.io/schedule-uid': 'u' },
          annotations: {
            note: 'kept',
            'longshore.io/cancel': 'true',
            'longshore.io/delete-anyway': 'true',
            'longshore.io/stored-uid': 'of-another',
            'longshore.io/sync-pending': 'podvolumebackups',
            'longshore.io/synced-uid': 'of-another',
            'longshore.io/expired-at-sync': '2036-01-01T00:00:00Z',
          },
        },
      });
      await sync();
      const { labels, annotations } = (await get('b1')).metadata;
      expect(labels).toEqual({
        'velero.io/schedule-name': 'nightly',
        'velero.io/storage-location': 'default',
      });
      expect(annotations).toEqual({
        note: 'kept',
        'longshore.io/synced-uid': 'stored-b1',
        // Only the choice of a restore reads it.
        'longshore.io/synced-schedule-uid': 'u',
      });
    });

    it('a backup that has expired with a note that says so, and tells of it once', async () => {
      store('old', { status: { expiration: '2026-11-21T01:59:59Z' } });
      store('left', { status: { phase: 'Finalizing', expiration: '2020-01-01T00:00:00Z' } });
      store('new', { status: { expiration: '2026-11-21T02:00:01Z' } });
      store('odd', { status: { expiration: 'never' } });
      await sync();
      await sync();
      expect(expired.sort()).toEqual(['left', 'old']);
      const noteOf = async (name: string): Promise<string | undefined> =>
        (await get(name)).metadata.annotations?.['longshore.io/expired-at-sync'];
      expect(await noteOf('old')).toBe('2026-11-21T01:59:59Z');
      expect(await noteOf('left')).toBe('2020-01-01T00:00:00Z');
      expect(await noteOf('new')).toBeUndefined();
      expect(await noteOf('odd')).toBeUndefined();
    });

    it('its location as a label that fits', async () => {
      const name = 'l'.repeat(80);
      await addLocation(name);
      store('b1');
      await sync({ name });
      const { metadata, spec } = await get('b1');
      expect(metadata.labels?.['velero.io/storage-location']).toHaveLength(63);
      expect(spec.storageLocation).toBe(name);
    });

    it.each([
      ['Completed', undefined, 'Completed'],
      ['PartiallyFailed', undefined, 'PartiallyFailed'],
      ['Failed', undefined, 'Failed'],
      ['', undefined, undefined],
      ['New', undefined, undefined],
      ['InProgress', '2020-01-01T00:00:00Z', undefined],
      ['FailedValidation', '2020-01-01T00:00:00Z', undefined],
      ['Deleting', '2020-01-01T00:00:00Z', undefined],
      ['WaitingForPluginOperations', undefined, undefined],
      ['Finalizing', '2036-01-01T00:00:00Z', undefined],
      ['Finalizing', '2020-01-01T00:00:00Z', 'PartiallyFailed'],
      ['WaitingForPluginOperationsPartiallyFailed', '2020-01-01T00:00:00Z', 'PartiallyFailed'],
    ])('one that is "%s" and expires %s as %s', async (phase, expiration, expected) => {
      store('b1', { status: { phase, expiration } });
      await sync();
      const [made] = (await list()) as { status?: { phase?: string } }[];
      expect(made?.status?.phase).toBe(expected);
    });

    it('none whose own file is not there', async () => {
      bucket.objects.set('backups/half/half-logs.gz', Buffer.from('x'));
      bucket.objects.set('backups/half/half.tar.gz', Buffer.from('x'));
      expect(await sync()).toMatchObject({ created: 0 });
      expect(await names()).toEqual([]);
    });

    it('all others where one is damaged, says another name, or has a name that is none', async () => {
      for (const name of ['a', 'b', 'c', 'd']) store(name);
      bucket.objects.set('backups/a/velero-backup.json', Buffer.from('{"metadata":'));
      store('lies', { metadata: { name: 'd' } });
      store('Not A Name');
      store('c', { status: { expiration: 'never' } });
      store('..');
      await sync();
      expect(await names()).toEqual(expect.arrayContaining(['b', 'd']));
      expect(await names()).not.toContain('a');
      expect(await names()).not.toContain('lies');
      expect(memory.refused).toBeGreaterThanOrEqual(2);
      // They are not read again at once, but they are after a repair an hour later.
      store('a');
      await sync();
      expect(await names()).not.toContain('a');
      clock.advance(61n * MINUTE);
      await sync();
      expect(await names()).toContain('a');
    });

    it('none where one of its name is there, whoever made it', async () => {
      store('b1');
      const mine = await client.create(BACKUPS, {
        metadata: { namespace: VELERO, name: 'b1' },
        spec: { storageLocation: 'other' },
        status: { phase: 'InProgress' },
      });
      expect(await sync()).toMatchObject({ created: 0, removed: 0 });
      // Works even if the watch does not have it yet.
      expect(await sync({ backups: { get: () => undefined, list: () => [] } })).toMatchObject({
        created: 0,
      });
      expect(await get('b1')).toEqual(mine);
    });

    it('the Schedule that owns it only where that is the very same one', async () => {
      const own = await client.create(SCHEDULES, {
        metadata: { namespace: VELERO, name: 'nightly' },
        spec: {},
      });
      const owner = {
        apiVersion: 'velero.io/v1',
        kind: 'Schedule',
        name: 'nightly',
        controller: true,
      };
      const other = { apiVersion: 'apps/v1', kind: 'Deployment', name: 'd', uid: 'd' };
      store('same', {
        metadata: { ownerReferences: [{ ...owner, uid: own.metadata.uid }, other] },
      });
      store('another', { metadata: { ownerReferences: [{ ...owner, uid: 'gone' }] } });
      await sync();
      expect((await get('same')).metadata.ownerReferences).toMatchObject([
        { uid: own.metadata.uid },
      ]);
      expect((await get('another')).metadata.ownerReferences ?? []).toEqual([]);
    });

    it('its volumes, with the new identity of their backup', async () => {
      store('b1');
      storeVolumes('b1', volumeOf('v1'), volumeOf('v2', 'Failed'), volumeOf('v3', 'InProgress'));
      await sync();
      const backup = await get('b1');
      const volumes = await client.list(POD_VOLUME_BACKUPS, { namespace: VELERO });
      expect(volumes.map(({ metadata }) => metadata.name).sort()).toEqual(['v1', 'v2']);
      expect(volumes[0]).toMatchObject({
        metadata: {
          labels: { 'velero.io/backup-uid': backup.metadata.uid, 'velero.io/backup-name': 'b1' },
          ownerReferences: [{ kind: 'Backup', name: 'b1', uid: backup.metadata.uid }],
        },
        spec: { backupStorageLocation: 'default', volume: 'v' },
        status: { snapshotID: 's' },
      });
      expect(backup.metadata.annotations).toEqual({ 'longshore.io/synced-uid': 'stored-b1' });
    });

    it('the rest of its volumes later, where a server was killed between two of them', async () => {
      store('b1');
      storeVolumes('b1', volumeOf('v1'), volumeOf('v2'), volumeOf('v3'));
      for (let dieAt = 2; dieAt <= 4; dieAt++) {
        let steps = 0;
        const assertLeading = (): void => {
          if (++steps >= dieAt) throw new CodedError('LEADERSHIP_LOST', 'another one leads');
        };
        await expect(sync({ assertLeading })).rejects.toMatchObject({ code: 'LEADERSHIP_LOST' });
        expect((await location()).status?.lastSyncedTime ?? undefined).toBeUndefined();
      }
      await sync();
      const volumes = await client.list(POD_VOLUME_BACKUPS, { namespace: VELERO });
      expect(volumes).toHaveLength(3);
      expect((await get('b1')).metadata.annotations).toEqual({
        'longshore.io/synced-uid': 'stored-b1',
      });
    });

    it('a backup, where one of its volumes is nothing that the API server takes', async () => {
      store('b1');
      storeVolumes('b1', { ...volumeOf('v1'), spec: {} }, volumeOf('v2'), {}, { metadata: 7 });
      expect(await sync()).toMatchObject({ created: 1 });
      const volumes = await client.list(POD_VOLUME_BACKUPS, { namespace: VELERO });
      expect(volumes.map(({ metadata }) => metadata.name)).toEqual(['v2']);
    });

    it('a backup whose volumes cannot be read', async () => {
      store('b1');
      bucket.objects.set('backups/b1/b1-podvolumebackups.json.gz', Buffer.from('no gzip'));
      expect(await sync()).toMatchObject({ created: 1 });
    });

    it('one location after the other, each its own', async () => {
      await addLocation('other', { accessMode: 'ReadOnly' });
      store('b1');
      await sync();
      bucket.objects.clear();
      store('b2');
      // Backups of the first location are not missing in the second.
      expect(await sync({ name: 'other' })).toMatchObject({ created: 1, removed: 0, held: 0 });
      expect((await get('b2')).spec.storageLocation).toBe('other');
      expect(await names()).toEqual(['b1', 'b2']);
    });

    it('hundreds with few requests each, and asks for none of them again', async () => {
      const count = 300;
      for (let at = 0; at < count; at++) store(`b${at}`);
      expect(await sync()).toMatchObject({ created: count });
      expect(bucket.requests).toBeLessThanOrEqual(1 + 3 * count);
      [bucket.requests, writes] = [0, []];
      expect(await sync()).toMatchObject({ created: 0, removed: 0 });
      expect([bucket.requests, writes]).toEqual([1, ['patch backupstoragelocations']]);
    });
  });

  describe('removes', () => {
    /** Stores three known backups, and removes one from the bucket. */
    async function lose(name = 'b2'): Promise<void> {
      for (const each of ['b1', 'b2', 'b3']) store(each);
      await sync();
      bucket.objects.delete(`backups/${name}/velero-backup.json`);
    }

    it('a Backup whose files are gone, after a second look', async () => {
      await lose();
      expect(await sync()).toMatchObject({ removed: 0, held: 1 });
      expect(await sync()).toMatchObject({ removed: 1, held: 0 });
      expect(await names()).toEqual(['b1', 'b3']);
    });

    it('none that was signed, without a true note of its deletion', async () => {
      const passwords = { current: 'a secret', others: [], earlierKeys: [] };
      signWith(bucket, { signing: await signingBy(passwords), isRequired: false });
      const signed = { metadata: { annotations: { 'longshore.io/signed': 'true' } } };
      for (const name of ['b4', 'b5']) store(name);
      await lose('b4');
      for (const name of ['b2', 'b4', 'b5']) {
        await client.patch(BACKUPS, { namespace: VELERO, name }, signed);
        bucket.objects.delete(`backups/${name}/velero-backup.json`);
      }
      const expiration = '2026-11-21T01:00:00Z';
      await client.patch(BACKUPS, { namespace: VELERO, name: 'b5' }, { status: { expiration } });
      bucket.objects.set(
        'metadata/longshore-deleted/b4/stored-b4.json',
        Buffer.from('{"version":1,"uid":"stored-b4","deleted":"2026-11-21T01:00:00Z","states":[]}'),
      );
      clock.advance(20n * MINUTE);
      await sync();
      clock.advance(20n * MINUTE);
      expect(await sync()).toMatchObject({ removed: 1, held: 2 });
      for (let at = 0; at < 4; at++) expect(await sync()).toMatchObject({ removed: 0, held: 2 });
      expect(await names()).toEqual(['b1', 'b2', 'b3', 'b4']);
      const requests = bucket.requests;
      await sync();
      expect(bucket.requests - requests).toBeLessThan(3);
      // A deletion by another cluster.
      const nowNs = clock.nowNs();
      await new BackupArchive(bucket).deleteOf('b4', 'stored-b4', { nowNs });
      clock.advance(61n * MINUTE);
      expect(await sync()).toMatchObject({ removed: 1, held: 1 });
      expect(await names()).toEqual(['b1', 'b2', 'b3']);
    });

    it.each([
      'New',
      'InProgress',
      'Finalizing',
      'Failed',
      'FailedValidation',
      'Deleting',
      'Queued',
    ])('none that is %s', async (phase) => {
      await lose();
      await client.patch(BACKUPS, { namespace: VELERO, name: 'b2' }, { status: { phase } });
      for (let at = 0; at < 4; at++) await sync();
      expect(await names()).toEqual(['b1', 'b2', 'b3']);
    });

    it('none that has no label of the location, or says another location', async () => {
      await lose();
      const ref = { namespace: VELERO, name: 'b2' };
      await client.patch(BACKUPS, ref, { spec: { storageLocation: 'other' } });
      for (let at = 0; at < 4; at++) await sync();
      await client.patch(BACKUPS, ref, {
        metadata: { labels: { 'velero.io/storage-location': null } },
        spec: { storageLocation: 'default' },
      });
      for (let at = 0; at < 4; at++) await sync();
      expect(await names()).toContain('b2');
    });

    it('none after a listing that was cut off', async () => {
      await lose();
      const cut = new BackupArchive(bucket);
      const archive: SyncOptions['archive'] = {
        has: (...given) => cut.has(...given),
        isNoted: (...given) => cut.isNoted(...given),
        open: (...given) => cut.open(...given),
        async *list() {
          await Promise.resolve();
          yield 'b1';
          throw new CodedError('STORAGE_FAILED', 'connection reset');
        },
      };
      for (let at = 0; at < 4; at++) {
        await expect(sync({ archive })).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
      }
      expect(await names()).toEqual(['b1', 'b2', 'b3']);
    });

    it('none, not even the one that is gone, where a listing lacks what is there', async () => {
      await lose();
      const whole = new BackupArchive(bucket);
      const archive: SyncOptions['archive'] = {
        has: (...given) => whole.has(...given),
        isNoted: (...given) => whole.isNoted(...given),
        open: (...given) => whole.open(...given),
        async *list() {
          await Promise.resolve();
          yield 'b1';
        },
      };
      for (let at = 0; at < 4; at++) expect(await sync({ archive })).toMatchObject({ removed: 0 });
      expect(await names()).toEqual(['b1', 'b2', 'b3']);
    });

    it('none for a quarter of an hour where all are gone at once, as of a disk that is not mounted', async () => {
      await lose();
      bucket.objects.clear();
      for (let at = 0; at < 14; at++) {
        expect(await sync()).toMatchObject({ removed: 0, held: 3 });
        clock.advance(MINUTE);
      }
      expect(await names()).toEqual(['b1', 'b2', 'b3']);
      clock.advance(2n * MINUTE);
      expect(await sync()).toMatchObject({ removed: 3 });
      // Backups that come back are created again.
      for (const each of ['b1', 'b2', 'b3']) store(each);
      expect(await sync()).toMatchObject({ created: 3 });
    });

    it('none at once where all but one are gone that was made meanwhile', async () => {
      await lose();
      bucket.objects.clear();
      store('b9');
      for (let at = 0; at < 14; at++) {
        expect(await sync()).toMatchObject({ removed: 0, held: 3 });
        clock.advance(MINUTE);
      }
      expect(await names()).toEqual(['b1', 'b2', 'b3', 'b9']);
    });

    it('all others where one may not be removed, and notes the time', async () => {
      for (let at = 0; at < 6; at++) store(`b${at}`);
      await sync();
      for (const name of ['b1', 'b2']) bucket.objects.delete(`backups/${name}/velero-backup.json`);
      const refusing = callsThrough(withCalls(client, { clock }), (call, [, ref], go) =>
        call === 'delete' && (ref as { name: string }).name === 'b1'
          ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'a policy says no'))
          : go(),
      );
      await sync();
      clock.advance(MINUTE);
      expect(await sync({ client: refusing })).toMatchObject({ removed: 1, held: 1 });
      expect(await names()).toEqual(['b0', 'b1', 'b3', 'b4', 'b5']);
      expect((await location()).status?.lastSyncedTime).toBe('2026-11-21T02:01:00Z');
    });

    it('none where the location was pointed elsewhere, however long that lasts', async () => {
      await lose();
      const ref = { namespace: VELERO, name: 'default' };
      await client.patch(BACKUP_STORAGE_LOCATIONS, ref, {
        spec: { objectStorage: { bucket: 'new' } },
      });
      bucket.objects.clear();
      store('b9');
      for (let at = 0; at < 4; at++) {
        expect(await sync()).toMatchObject({ removed: 0, elsewhere: 3 });
        clock.advance(60n * MINUTE);
      }
      expect(await names()).toEqual(['b1', 'b2', 'b3', 'b9']);
    });

    it('none of a location that nobody has synced before and that has none of them', async () => {
      await client.create(BACKUPS, {
        metadata: {
          namespace: VELERO,
          name: 'old',
          labels: { 'velero.io/storage-location': 'default' },
        },
        spec: { storageLocation: 'default' },
        status: { phase: 'Completed' },
      });
      for (let at = 0; at < 4; at++) {
        expect(await sync()).toMatchObject({ removed: 0, elsewhere: 1 });
        clock.advance(60n * MINUTE);
      }
      expect(await names()).toEqual(['old']);
    });

    it('none where the location is not what it was, is unavailable by now, or nobody leads', async () => {
      await lose();
      await sync();
      const before = await location();
      await expect(sync({ locationNow: () => undefined })).rejects.toMatchObject({
        code: 'LOCATION_CHANGED',
      });
      const ref = { namespace: VELERO, name: 'default' };
      await client.patch(BACKUP_STORAGE_LOCATIONS, ref, { status: { phase: 'Unavailable' } });
      await sync({ location: before, locationNow: () => before });
      await client.patch(BACKUP_STORAGE_LOCATIONS, ref, { status: { phase: 'Available' } });
      const assertLeading = (): void => {
        throw new CodedError('LEADERSHIP_LOST', 'another one leads');
      };
      await expect(sync({ assertLeading })).rejects.toMatchObject({ code: 'LEADERSHIP_LOST' });
      expect(await names()).toEqual(['b1', 'b2', 'b3']);
      await sync();
      expect(await names()).toEqual(['b1', 'b3']);
    });

    it('none that was changed or made anew since it was looked at', async () => {
      await lose();
      await sync();
      const stale = await list();
      await client.patch(
        ...([
          BACKUPS,
          { namespace: VELERO, name: 'b2' },
          { metadata: { labels: { new: 'x' } } },
        ] as const),
      );
      const backups = {
        get: (ref: { name: string }) => stale.find(({ metadata }) => metadata.name === ref.name),
        list: () => stale,
      };
      await sync({ backups }).catch((error: unknown) => {
        expect(error).toMatchObject({ code: 'KUBE_CONFLICT' });
      });
      expect(await names()).toContain('b2');
      await client.delete(BACKUPS, { namespace: VELERO, name: 'b2' });
      await client.create(BACKUPS, {
        metadata: { namespace: VELERO, name: 'b2' },
        spec: {},
      });
      await sync({ backups }).catch((error: unknown) => {
        expect(error).toMatchObject({ code: 'KUBE_CONFLICT' });
      });
      expect(await names()).toContain('b2');
    });
  });

  it('brings all others where many cannot be read whatever one waits for, as in cold storage', async () => {
    for (let at = 0; at < 50; at++) store(`b${String(at).padStart(2, '0')}`);
    const whole = new BackupArchive(bucket);
    const archive: SyncOptions['archive'] = {
      has: (...given) => whole.has(...given),
      isNoted: (...given) => whole.isNoted(...given),
      list: (...given) => whole.list(...given),
      open: (name, ...given) =>
        name < 'b30'
          ? Promise.reject(new CodedError('STORAGE_DENIED', 'the object is archived'))
          : whole.open(name, ...given),
    };
    expect(await sync({ archive })).toMatchObject({ created: 20 });
    expect((await location()).status?.lastSyncedTime).toBeDefined();
  });

  it('is not noted where the bucket fails for many, and goes on the next time', async () => {
    for (let at = 0; at < 50; at++) store(`b${at}`);
    const whole = new BackupArchive(bucket);
    const archive: SyncOptions['archive'] = {
      has: (...given) => whole.has(...given),
      isNoted: (...given) => whole.isNoted(...given),
      list: (...given) => whole.list(...given),
      open: () => Promise.reject(new CodedError('STORAGE_FAILED', 'slow down')),
    };
    await expect(sync({ archive })).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
    expect((await location()).status?.lastSyncedTime ?? undefined).toBeUndefined();
    expect(await sync()).toMatchObject({ created: 50 });
  });
});
