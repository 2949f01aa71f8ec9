import { describe, expect, it } from 'vitest';
import type { NativeSnapshot } from '../../src/archive/index.ts';
import { codeOf } from '../../src/base/index.ts';
import type {
  KubeObject,
  PersistentVolume,
  PersistentVolumeClaim,
  Resource,
} from '../../src/kube/index.ts';
import type { VolumeSnapshotter } from '../../src/plugin/index.ts';
import type { VolumeFacts } from '../../src/restore-volumes/index.ts';
import { RestoredVolumes, type VolumeFact } from '../../src/restore-volumes/index.ts';
import { aRestore } from '../support/builders.ts';

const { signal } = new AbortController();
const NATIVE = {
  spec: {
    persistentVolumeName: 'pv1',
    location: 'default',
    volumeType: 'gp3',
    volumeAZ: 'zone-a',
    volumeIOPS: 100,
  },
  status: { phase: 'Completed', providerSnapshotID: 'snap-1' },
} as NativeSnapshot;

const pvOf = (spec: object = {}, metadata: object = {}): PersistentVolume =>
  ({
    metadata: {
      name: 'pv1',
      annotations: {
        'pv.kubernetes.io/bind-completed': 'yes',
        'pv.kubernetes.io/bound-by-controller': 'yes',
        kept: 'x',
      },
      ...metadata,
    },
    spec: {
      persistentVolumeReclaimPolicy: 'Retain',
      claimRef: { namespace: 'app', name: 'data', uid: 'old', resourceVersion: '7' },
      ...spec,
    },
  }) as unknown as PersistentVolume;
const claimOf = (volumeName?: string): PersistentVolumeClaim =>
  ({
    metadata: {
      name: 'data',
      namespace: 'app',
      annotations: { 'pv.kubernetes.io/bind-completed': 'yes' },
    },
    spec: { ...(volumeName !== undefined && { volumeName }), storageClassName: 's' },
  }) as unknown as PersistentVolumeClaim;

class World {
  readonly objects = new Map<string, object>();
  readonly asked: unknown[][] = [];
  readonly facts: VolumeFact[] = [];
  readonly lines: string[] = [];
  failure: string | undefined;
  /** The volume's new name from the plugin. */
  newName: string | undefined;
  polls = 0;
  onPoll: (() => void) | undefined;

  volumes(
    facts: Partial<VolumeFacts>,
    {
      mapping,
      terminatingMs = 50,
    }: { mapping?: Record<string, string>; terminatingMs?: number } = {},
  ) {
    const restore = aRestore({
      metadata: {
        name: 'r',
        namespace: 'velero',
        uid: 'restore-uid',
        creationTimestamp: '2026-11-26T11:59:00Z',
      },
      spec: { backupName: 'b', namespaceMapping: mapping ?? {} },
    });
    const log = (level: string) => (message: string) => {
      if (level !== 'info') this.lines.push(`${level}: ${message}`);
    };
    const snapshotter: Partial<VolumeSnapshotter> = {
      createVolume: async (from) => {
        this.asked.push(['create', from]);
        if (this.failure === 'create') throw new Error('quota exceeded');
        return Promise.resolve(`vol-${this.asked.length}`);
      },
      withVolumeId: async (pv, volumeId) => {
        this.asked.push(['set', volumeId]);
        if (this.failure === 'set') throw new Error('no such type');
        const metadata = { ...pv.metadata, name: this.newName ?? pv.metadata.name };
        return Promise.resolve({ ...pv, metadata, volumeId } as KubeObject);
      },
    };
    return new RestoredVolumes({
      client: {
        find: async <T extends KubeObject>(
          { plural }: Resource<T>,
          { namespace = '', name }: { namespace?: string | undefined; name: string },
        ) => {
          this.polls++;
          this.onPoll?.();
          return Promise.resolve(
            this.objects.get(`${plural} ${namespace}/${name}`) as T | undefined,
          );
        },
      },
      restore,
      factsOf: async () =>
        Promise.resolve({
          info: undefined,
          native: undefined,
          restorePVs: undefined,
          hasFileBackup: false,
          hasCsiSnapshot: false,
          hasUploadResult: false,
          ...facts,
        }),
      locations: [
        { metadata: { name: 'default' }, spec: { provider: 'aws', config: { region: 'r' } } },
      ] as never,
      snapshotters: (provider, config) => {
        this.asked.push([provider, config]);
        return snapshotter as VolumeSnapshotter;
      },
      log: { info: log('info'), warn: log('warn'), error: log('error') },
      signal,
      terminatingMs,
      pollMs: 5,
      onFact: async (fact) => {
        this.facts.push(fact);
        return Promise.resolve();
      },
    });
  }
}

const native = { native: NATIVE, info: { backupMethod: 'NativeSnapshot' } };

describe('PersistentVolumes of a restore', () => {
  it('are left out where their claims get new ones', async () => {
    const world = new World();
    const volumes = world.volumes({ info: { backupMethod: 'CSISnapshot' } });
    expect(await volumes.prepare(pvOf())).toEqual({ isRestored: false });
    expect(volumes.claimOf(claimOf('pv1'))).toEqual({
      metadata: { name: 'data', namespace: 'app', annotations: {} },
      spec: { storageClassName: 's' },
    });
    expect(volumes.claimOf(claimOf('other')).spec.volumeName).toBe('other');
    const unbound = claimOf();
    expect(volumes.claimOf(unbound)).toBe(unbound);
  });

  it('are restored as they were, bound to nothing yet, in the namespace that is mapped to', async () => {
    const world = new World();
    const pv = pvOf();
    const before = structuredClone(pv);
    const prepared = await world.volumes({}, { mapping: { app: 'copy' } }).prepare(pv);
    expect(prepared).toMatchObject({ isRestored: true });
    const item = prepared.isRestored ? prepared.item : undefined;
    expect(item?.spec.claimRef).toEqual({ namespace: 'copy', name: 'data' });
    expect(item?.metadata.annotations).toEqual({ kept: 'x' });
    expect(pv).toEqual(before);
  });

  it('get a volume that their provider makes out of the snapshot', async () => {
    const world = new World();
    const volumes = world.volumes(native);
    const prepared = await volumes.prepare(pvOf());
    expect(world.asked).toEqual([
      ['aws', { region: 'r' }],
      ['create', { snapshotId: 'snap-1', volumeType: 'gp3', zone: 'zone-a', iops: 100 }],
      ['set', 'vol-2'],
    ]);
    expect(prepared).toMatchObject({ item: { volumeId: 'vol-2', metadata: { name: 'pv1' } } });
    expect(volumes.usedSnapshots).toEqual([{ pv: 'pv1', snapshot: NATIVE }]);
    expect(world.facts).toEqual([{ kind: 'volume', pv: 'pv1', volumeId: 'vol-2' }]);
  });

  it('get no second volume after a restart', async () => {
    const world = new World();
    const volumes = world.volumes(native);
    volumes.resume([{ kind: 'volume', pv: 'pv1', volumeId: 'vol-9' }]);
    expect(await volumes.prepare(pvOf())).toMatchObject({ item: { volumeId: 'vol-9' } });
    expect(world.asked.filter(([what]) => what === 'create')).toEqual([]);
    expect(volumes.usedSnapshots).toHaveLength(1);
  });

  it('are made although the journal has facts of other kinds about them', async () => {
    const world = new World();
    const volumes = world.volumes(native);
    const later = { kind: 'of a later version', pv: 'pv1', volumeId: 'vol-9' };
    volumes.resume([{ kind: 'backup' }, later]);
    expect(await volumes.prepare(pvOf())).toMatchObject({ item: { volumeId: 'vol-2' } });
    expect(volumes.usedSnapshots).toHaveLength(1);
  });

  // Made by this very restore, whose server was killed before it could say so.
  const ownPv = (claimRef: object): object => ({
    metadata: {
      name: 'pv1',
      creationTimestamp: '2026-11-26T12:00:00Z',
      labels: { 'velero.io/backup-name': 'b', 'velero.io/restore-name': 'r' },
    },
    spec: { claimRef },
    status: { phase: 'Available' },
  });

  it('are found after a restart, although their claim is not there yet', async () => {
    const world = new World();
    world.objects.set('persistentvolumes /pv1', ownPv({ namespace: 'app', name: 'data' }));
    const volumes = world.volumes(native);
    volumes.resume([{ kind: 'volume', pv: 'pv1', volumeId: 'vol-9' }]);
    expect(await volumes.prepare(pvOf())).toMatchObject({ item: { metadata: { name: 'pv1' } } });
    expect(world.asked.filter(([what]) => what === 'create')).toEqual([]);
    expect(volumes.usedSnapshots).toEqual([{ pv: 'pv1', snapshot: NATIVE }]);
  });

  it('get no second PersistentVolume for their volume after a restart', async () => {
    const world = new World();
    world.objects.set('persistentvolumes /pv1', ownPv({ namespace: 'copy', name: 'data' }));
    const volumes = world.volumes(native, { mapping: { app: 'copy' } });
    volumes.resume([{ kind: 'volume', pv: 'pv1', volumeId: 'vol-9' }]);
    expect(await volumes.prepare(pvOf())).toMatchObject({ item: { metadata: { name: 'pv1' } } });
    expect(volumes.claimOf(claimOf('pv1')).spec.volumeName).toBe('pv1');
    expect(world.facts).toEqual([]);
  });

  it('get none where the one of that name is there and stays', async () => {
    const world = new World();
    world.objects.set('persistentvolumes /pv1', pvOf());
    world.objects.set('persistentvolumeclaims app/data', { metadata: {} });
    world.objects.set('namespaces /app', { metadata: {} });
    const volumes = world.volumes(native);
    expect(await volumes.prepare(pvOf())).toMatchObject({
      isRestored: true,
      item: { metadata: { name: 'pv1' } },
    });
    expect(world.asked).toEqual([]);
    expect(volumes.usedSnapshots).toEqual([]);
  });

  it('warn that the snapshot is not restored where an unclaimed one of that name is there', async () => {
    const world = new World();
    world.objects.set('persistentvolumes /pv1', pvOf({ claimRef: undefined }));
    await world.volumes(native).prepare(pvOf());
    expect(world.asked).toEqual([]);
    expect(world.lines).toEqual([
      'warn: the data of PersistentVolume pv1 were not restored from its snapshot, because the volume exists. Delete it and restore again',
    ]);
  });

  it('do not wait for a released one that is kept, where no snapshot is asked for', async () => {
    const world = new World();
    world.objects.set('persistentvolumes /pv1', { ...pvOf(), status: { phase: 'Released' } });
    const volumes = world.volumes({ ...native, restorePVs: false });
    expect(await volumes.prepare(pvOf())).toMatchObject({ isRestored: true });
    expect(world.polls).toBeLessThanOrEqual(1);
  });

  const leaving = { metadata: { deletionTimestamp: 'now' } };
  it.each([
    [
      'it is released',
      { ...pvOf(), status: { phase: 'Released' } },
      { metadata: {} },
      { metadata: {} },
    ],
    ['it is being deleted', pvOf({}, leaving.metadata), { metadata: {} }, { metadata: {} }],
    ['its claim is being deleted', pvOf(), leaving, { metadata: {} }],
    ['its claim is gone', pvOf(), undefined, { metadata: {} }],
    ['its namespace is being deleted', pvOf(), { metadata: {} }, leaving],
    [
      'its namespace is terminating',
      pvOf(),
      { metadata: {} },
      { metadata: {}, status: { phase: 'Terminating' } },
    ],
    ['its namespace is gone', pvOf(), { metadata: {} }, undefined],
  ])('wait for the one of that name when %s', async (_about, pv, claim, space) => {
    const world = new World();
    world.objects.set('persistentvolumes /pv1', pv);
    if (claim) world.objects.set('persistentvolumeclaims app/data', claim);
    if (space) world.objects.set('namespaces /app', space);
    const refused = await world
      .volumes(native)
      .prepare(pvOf())
      .catch((error: unknown) => codeOf(error));
    expect(refused).toBe('PV_STAYS');
    world.onPoll = () => {
      if (world.polls > 40) world.objects.delete('persistentvolumes /pv1');
    };
    const prepared = await world.volumes(native, { terminatingMs: 5000 }).prepare(pvOf());
    expect(prepared).toMatchObject({ item: { metadata: { name: 'pv1' } } });
    expect(world.asked.filter(([what]) => what === 'create')).toHaveLength(1);
  });

  it('wait for all kept ones at once, since only a user can delete them', async () => {
    const world = new World();
    const released = { status: { phase: 'Released' } };
    for (const name of ['pv1', 'pv2']) {
      world.objects.set(`persistentvolumes /${name}`, { ...pvOf({}, { name }), ...released });
    }
    const volumes = world.volumes(native);
    const prepare = (name: string) =>
      volumes.prepare(pvOf({}, { name })).catch((error: unknown) => codeOf(error));
    expect(await prepare('pv1')).toBe('PV_STAYS');
    world.polls = 0;
    expect(await prepare('pv2')).toBe('PV_STAYS');
    expect(world.polls).toBe(1);
  });

  it('get another name where the namespace is mapped and the old volume is there', async () => {
    const names: (string | undefined)[] = [];
    for (let i = 0; i < 2; i++) {
      const world = new World();
      world.objects.set('persistentvolumes /pv1', pvOf());
      const volumes = world.volumes(native, { mapping: { app: 'copy' } });
      const prepared = await volumes.prepare(pvOf());
      const item = prepared.isRestored ? prepared.item : undefined;
      const name = item?.metadata.name ?? '';
      expect(name).toMatch(
        /^velero-clone-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}$/,
      );
      expect(item?.metadata.annotations).toEqual({
        kept: 'x',
        'velero.io/original-pv-name': 'pv1',
      });
      expect(item?.spec.claimRef?.namespace).toBe('copy');
      expect(volumes.claimOf(claimOf('pv1')).spec.volumeName).toBe(name);
      expect(volumes.usedSnapshots).toEqual([{ pv: name, snapshot: NATIVE }]);
      names.push(name);
    }
    expect(names[0]).toBe(names[1]);
  });

  it.each([
    ['the restore brings no data', { ...native, restorePVs: false }, []],
    [
      'the backup has no snapshot',
      { info: { backupMethod: 'NativeSnapshot' } },
      [expect.stringContaining('its claim gets an empty volume')],
    ],
  ])('do not share the storage of the original where %s', async (_why, facts, lines) => {
    const world = new World();
    world.objects.set('persistentvolumes /pv1', pvOf());
    const volumes = world.volumes(facts, { mapping: { app: 'copy' } });
    expect(await volumes.prepare(pvOf())).toEqual({ isRestored: false });
    expect(volumes.claimOf(claimOf('pv1')).spec.volumeName).toBeUndefined();
    expect(world.facts).toEqual([{ kind: 'provision', pv: 'pv1' }]);
    expect(world.lines).toEqual(lines);
    expect(world.asked).toEqual([]);
  });

  it('keep another name that an earlier try gave them, although the old volume has gone since', async () => {
    const world = new World();
    world.objects.set('persistentvolumes /pv1', pvOf());
    const mapping = { app: 'copy' };
    const first = await world.volumes(native, { mapping }).prepare(pvOf());
    const made = first.isRestored ? first.item : pvOf();
    const labels = { 'velero.io/backup-name': 'b', 'velero.io/restore-name': 'r' };
    world.objects.set(`persistentvolumes /${made.metadata.name}`, {
      ...made,
      metadata: { ...made.metadata, labels, creationTimestamp: '2026-11-26T12:00:00Z' },
    });
    world.objects.delete('persistentvolumes /pv1');
    const again = await world.volumes(native, { mapping }).prepare(pvOf());
    expect(again).toMatchObject({ item: { metadata: { name: made.metadata.name } } });
  });

  it('keep their name where the namespace is mapped and the old volume is gone', async () => {
    const world = new World();
    const prepared = await world.volumes(native, { mapping: { app: 'copy' } }).prepare(pvOf());
    expect(prepared).toMatchObject({ item: { metadata: { name: 'pv1' }, volumeId: 'vol-2' } });
  });

  it('take the name that a plugin gives them', async () => {
    const world = new World();
    world.newName = 'by-plugin';
    const volumes = world.volumes(native);
    const prepared = await volumes.prepare(pvOf());
    expect(prepared).toMatchObject({
      item: {
        metadata: { name: 'by-plugin', annotations: { 'velero.io/original-pv-name': 'pv1' } },
      },
    });
    expect(volumes.claimOf(claimOf('pv1')).spec.volumeName).toBe('by-plugin');
  });

  it('say which volume is left over where one was made and cannot be used', async () => {
    const world = new World();
    world.failure = 'set';
    await expect(world.volumes(native).prepare(pvOf())).rejects.toThrow(
      'error executing PVAction for persistentvolumes/pv1: no such type. The provider has made the volume vol-2, which nothing uses: delete it there',
    );
    world.failure = 'create';
    await expect(world.volumes(native).prepare(pvOf())).rejects.toThrow(
      /^error executing PVAction for persistentvolumes\/pv1: quota exceeded$/,
    );
  });

  it('fail in words where the location of the snapshot is gone', async () => {
    const world = new World();
    const gone = { ...NATIVE, spec: { ...NATIVE.spec, location: 'gone' } };
    await expect(world.volumes({ ...native, native: gone }).prepare(pvOf())).rejects.toThrow(
      'volumesnapshotlocations.velero.io "gone" not found',
    );
  });

  it('are made without their snapshot where the restore says so', async () => {
    const world = new World();
    const prepared = await world.volumes({ ...native, restorePVs: false }).prepare(pvOf());
    expect(prepared).toMatchObject({ isRestored: true, item: { metadata: { name: 'pv1' } } });
    expect(world.asked).toEqual([]);
    expect(world.lines).toEqual([]);
  });
});
