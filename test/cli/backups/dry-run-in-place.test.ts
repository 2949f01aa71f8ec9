import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DATA_DOWNLOADS,
  NAMESPACES,
  PODS,
  PVCS,
  PVS,
} from '../../../src/kube/index.ts';
import { stored, type StoredItem } from '../../restore/support/backup.ts';
import { Api } from './support/api.ts';

const PREFIX = 'backups/b1';
const CLAIMS = ['back', 'used', 'kept', 'files', 'other', 'anew', 'absent'];
const specOf = (name: string): object => ({
  volumeName: `pv-${name}`,
  accessModes: ['ReadWriteOnce'],
  storageClassName: 'csi',
  resources: { requests: { storage: '1Gi' } },
});
/** As the server's action leaves a claim in the backup. */
const marksOf = (name: string): object => {
  if (name === 'files') return {};
  if (name === 'kept') {
    return { 'longshore.io/snapshot-way': 'csi', 'velero.io/volume-snapshot-name': 'kept' };
  }
  return {
    'longshore.io/snapshot-way': 'moved',
    'velero.io/data-upload-name': `velero/${name}`,
  };
};
const ITEMS: readonly StoredItem[] = [
  stored('namespaces', 'web'),
  ...CLAIMS.map((name) =>
    stored('persistentvolumeclaims', `web/${name}`, {
      metadata: { annotations: marksOf(name) },
      spec: specOf(name),
    }),
  ),
  ...CLAIMS.filter((name) => !['files', 'kept'].includes(name)).map((name) =>
    stored('datauploads.velero.io', `velero/${name}`, {
      metadata: { labels: { 'velero.io/backup-name': 'b1' } },
      spec: { sourceNamespace: 'web', sourcePVC: name, datamover: 'velero' },
      status: { phase: 'Completed', snapshotID: 's', progress: { totalBytes: 100 } },
    }),
  ),
  ...['back', 'anew'].map((name) =>
    stored('persistentvolumes', `pv-${name}`, {
      spec: { csi: { driver: 'csi.example.com', volumeHandle: 'back' } },
    }),
  ),
];

describe('longshore restore create --existing-volume-data-policy --dry-run', () => {
  let api: Api;
  beforeAll(async () => {
    api = await Api.start('dry-run-in-place');
    const { client } = api;
    await api.set(BACKUP_STORAGE_LOCATIONS, 'default', { phase: 'Available' });
    const spec = { storageLocation: 'default' };
    await api.add(BACKUPS, 'b1', { spec, status: { phase: 'Completed' } });
    await client.create(NAMESPACES, { metadata: { name: 'web' } });
    for (const name of CLAIMS.slice(0, -1)) {
      const volumeName = name === 'other' ? 'pv-new' : `pv-${name}`;
      const claim = await client.create(PVCS, {
        metadata: { namespace: 'web', name },
        spec: { ...specOf(name), volumeName },
      });
      const status = { phase: 'Bound', capacity: { storage: '1Gi' } };
      const ref = { namespace: 'web', name };
      await client.patch(PVCS, ref, { status }, { subresource: 'status' });
      const { uid } = claim.metadata;
      await client.create(PVS, {
        metadata: { name: volumeName },
        spec: {
          capacity: { storage: '1Gi' },
          accessModes: ['ReadWriteOnce'],
          csi: { driver: 'csi.example.com', volumeHandle: name },
          claimRef: { namespace: 'web', name, uid },
        },
      });
    }
    await client.create(PODS, {
      metadata: { namespace: 'web', name: 'db-0' },
      spec: {
        containers: [{ name: 'c', image: 'i' }],
        volumes: [{ name: 'v', persistentVolumeClaim: { claimName: 'used' } }],
      },
    });
    api.store(`${PREFIX}/velero-backup.json`, {
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      metadata: { name: 'b1' },
      status: { phase: 'Completed' },
    });
    const info = (name: string): object => {
      const moved = { dataMover: 'velero', snapshotHandle: 's', operationID: 'o', size: 100 };
      return {
        pvName: `pv-${name}`,
        pvcName: name,
        pvcNamespace: 'web',
        result: 'succeeded',
        ...(name === 'files'
          ? { backupMethod: 'PodVolumeBackup', pvbInfo: { snapshotHandle: 's' } }
          : { backupMethod: 'CSISnapshot', snapshotDataMoved: name !== 'kept' }),
        ...(!['files', 'kept'].includes(name) && { snapshotDataMovementInfo: moved }),
      };
    };
    api.store(`${PREFIX}/b1-volumeinfo.json.gz`, CLAIMS.map(info));
    await api.storeTarball(`${PREFIX}/b1.tar.gz`, ITEMS);
  });
  afterAll(() => api[Symbol.asyncDispose]());

  const rehearse = (...words: string[]) =>
    api.longshore('restore', 'create', '--from-backup', 'b1', '--dry-run', ...words);
  const of = (text: string, name: string): string =>
    (text.split('PersistentVolumeClaim web/').find((part) => part.startsWith(`${name}\n`)) ?? '')
      .split('\n')
      .slice(1, 2)
      .join();

  it('tells which volumes would be brought back, and why others would not', async () => {
    const { out, code } = await rehearse('--existing-volume-data-policy', 'full');
    expect(out).toContain('updated  PersistentVolumeClaim web/back\n');
    expect(of(out, 'back')).toContain('its volume is brought back in place');
    expect(out).toContain('failed   PersistentVolumeClaim web/used\n');
    expect(of(out, 'used')).toContain('pod web/db-0 uses PVC web/used: scale what uses it down');
    expect(of(out, 'kept')).toContain('a snapshot of its volume that stayed in the storage');
    expect(of(out, 'other')).toContain('has the volume pv-new, and had pv-other');
    expect(of(out, 'anew')).toContain(
      'PersistentVolume pv-anew is volume anew of csi.example.com, and was volume back of csi.example.com',
    );
    expect(of(out, 'files')).not.toContain('in place');
    expect(out).toContain('created  PersistentVolumeClaim web/absent\n');
    expect(code).toBe(3);
    expect(await api.client.list(DATA_DOWNLOADS)).toEqual([]);
  });

  it('leaves all of them alone without the flag', async () => {
    const { out } = await rehearse();
    expect(out).not.toContain('in place');
    for (const [name, what] of [
      ['back', 'data'],
      ['kept', 'data'],
      ['files', 'files'],
    ]) {
      expect(out).toContain(
        `the ${what} of PersistentVolumeClaim web/${name} were not restored, because the claim exists.`,
      );
    }
    expect(out).not.toContain('PersistentVolumeClaim web/absent were not restored');
  });
});
