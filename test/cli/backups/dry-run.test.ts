import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  NAMESPACES,
  PVCS,
  PVS,
  RESTORES,
} from '../../../src/kube/index.ts';
import { stored, type StoredItem } from '../../restore/support/backup.ts';
import { Api } from './support/api.ts';

const PREFIX = 'backups/b1';
const ITEMS: readonly StoredItem[] = [
  ...['web', 'new'].map((name) => stored('namespaces', name)),
  stored('persistentvolumes', 'pv-1', {
    spec: {
      capacity: { storage: '1Gi' },
      accessModes: ['ReadWriteOnce'],
      storageClassName: 'csi',
      csi: { driver: 'csi.example.com', volumeHandle: 'h' },
      claimRef: { namespace: 'web', name: 'data' },
    },
  }),
  stored('persistentvolumeclaims', 'web/data', {
    spec: {
      volumeName: 'pv-1',
      accessModes: ['ReadWriteOnce'],
      storageClassName: 'csi',
      resources: { requests: { storage: '1Gi' } },
    },
  }),
  stored('configmaps', 'web/settings', { data: { colour: 'blue', size: 'large' } }),
  stored('configmaps', 'web/same', { data: { a: 'b' } }),
  stored('configmaps', 'web/more', { data: { a: 'b' } }),
  stored('configmaps', 'new/first', { data: { a: 'b' } }),
  stored('things.stable.example.com', 'web/thing', { spec: {} }),
  stored('secrets', 'web/hidden', { data: { a: 'Yg==' } }),
];

describe('longshore restore create --dry-run', () => {
  let api: Api;
  beforeAll(async () => {
    api = await Api.start('dry-run');
    const { client } = api;
    await api.set(BACKUP_STORAGE_LOCATIONS, 'default', { phase: 'Available' });
    const spec = { storageLocation: 'default' };
    await api.add(BACKUPS, 'b1', { spec, status: { phase: 'Completed' } });
    await api.add(BACKUPS, 'half', { spec, status: { phase: 'InProgress' } });
    await client.create(NAMESPACES, { metadata: { name: 'web' } });
    for (const [name, data] of [
      ['settings', { colour: 'red', size: 'large' }],
      ['same', { a: 'b' }],
    ] as const) {
      await client.create(CONFIG_MAPS, { metadata: { namespace: 'web', name }, data });
    }
    api.store(`${PREFIX}/velero-backup.json`, {
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      metadata: { name: 'b1' },
      status: { phase: 'Completed' },
    });
    api.store(`${PREFIX}/b1-volumeinfo.json.gz`, [
      {
        pvName: 'pv-1',
        pvcName: 'data',
        pvcNamespace: 'web',
        backupMethod: 'CSISnapshot',
        result: 'succeeded',
        snapshotDataMoved: true,
      },
    ]);
    await api.storeTarball(`${PREFIX}/b1.tar.gz`, ITEMS);
  });
  afterAll(() => api[Symbol.asyncDispose]());

  /** All objects that a restore could change. */
  async function state(): Promise<unknown> {
    const kinds = [NAMESPACES, CONFIG_MAPS, PVS, PVCS, RESTORES];
    return Promise.all(kinds.map((kind) => api.client.list(kind)));
  }

  it('lists what would be made and skipped, and why, and makes nothing', async () => {
    const before = await state();
    const ran = await api.longshore(
      ...['restore', 'create', '--from-backup', 'b1', '--dry-run'],
      ...['--exclude-resources', 'secrets'],
    );
    expect(ran.err).toBe('');
    const lines = ran.out.split('\n');
    const after = (head: string): string[] => {
      const at = lines.indexOf(head);
      expect(at, `${head} in\n${ran.out}`).toBeGreaterThanOrEqual(0);
      const rest = lines.slice(at + 1);
      const end = rest.findIndex((line) => !line.startsWith('   '));
      return rest.slice(0, end).map((line) => line.trim());
    };
    expect(after('created  ConfigMap web/more')).toEqual([]);
    expect(after('created  Namespace new')).toEqual([]);
    expect(after('created  ConfigMap new/first')).toEqual([]);
    expect(after('skipped  ConfigMap web/same').join()).toMatch(/it already exists in the cluster/);
    expect(after('skipped  ConfigMap web/settings').join()).toMatch(
      /warning: .* is different than the backed-up version/,
    );
    expect(after('failed   Thing web/thing').join()).toMatch(/error: .*could not find/);
    expect(after('skipped  PersistentVolume pv-1').join()).toMatch(/its claim gets a new volume/);
    expect(after('created  PersistentVolumeClaim web/data')).toEqual([]);
    expect(ran.out).not.toContain('hidden');
    expect(ran.out).toMatch(/left out secrets web: .*excludes it/);
    expect(ran.out).toMatch(/would be created: 4, updated: 0, skipped: 3, failed: 1; of these 1 /);
    expect(ran.out).toContain('The restore would be PartiallyFailed (errors: 1, warnings: 1).');
    expect(ran.out).toContain('Nothing was changed.');
    expect(ran.code).toBe(3);
    expect(await state()).toEqual(before);
  });

  it('says which fields would change, and prints one document', async () => {
    const before = await state();
    const ran = await api.longshore(
      ...['restore', 'create', '--from-backup', 'b1', '--dry-run', '-o', 'json'],
      ...['--existing-resource-policy', 'update', '--include-resources', 'configmaps'],
      ...['--namespace-mappings', 'new:copy'],
    );
    const report = JSON.parse(ran.out) as {
      items: { name: string; namespace: string; outcome: string; notes: { text: string }[] }[];
      summary: object;
    };
    const settings = report.items.find(({ name }) => name === 'settings');
    expect(settings?.outcome).toBe('updated');
    expect(settings?.notes.map(({ text }) => text)).toEqual(['changes data.colour']);
    expect(report.items.find(({ name }) => name === 'first')?.namespace).toBe('copy');
    expect(report.summary).toMatchObject({ created: 3, updated: 1, failed: 0, unchecked: 1 });
    expect(await state()).toEqual(before);
  });

  it('has the code 0 where nothing would fail', async () => {
    const ran = await api.longshore(
      ...['restore', 'create', '--from-backup', 'b1', '--dry-run'],
      ...['--include-namespaces', 'new'],
    );
    expect([ran.code, ran.err]).toEqual([0, '']);
    // An object that differs is a warning of the restore, which is Completed.
    const warned = await api.longshore(
      ...['restore', 'create', '--from-backup', 'b1', '--dry-run'],
      ...['--include-namespaces', 'web,nosuch', '--include-resources', 'configmaps'],
    );
    expect([warned.code, warned.err]).toEqual([0, '']);
    expect(warned.out).toContain('"nosuch" of includedNamespaces selects nothing');
    expect(warned.out).toContain('The restore would be Completed (errors: 0, warnings: 2).');
  });

  it('says all at once why the server would refuse it', async () => {
    const ran = await api.longshore(
      ...['restore', 'create', '--from-backup', 'half', '--dry-run'],
      ...['--include-resources', 'nodes'],
    );
    expect(ran.code).toBe(1);
    expect(ran.err).toMatch(/the server would refuse this restore: /);
    expect(ran.err).toMatch(/nodes are non-restorable resources/);
    expect(ran.err).toMatch(/InProgress/);
  });

  it('rehearses nothing of another Backup of the name', async () => {
    const status = { phase: 'Failed', failureReason: 'its name is taken' };
    await api.add(BACKUPS, 'taken', { spec: { storageLocation: 'default' }, status });
    api.store(`${PREFIX.replace(/b1$/, 'taken')}/velero-backup.json`, {
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      metadata: { name: 'taken' },
      status: { phase: 'Completed' },
    });
    const ran = await api.longshore('restore', 'create', '--from-backup', 'taken', '--dry-run');
    expect(ran.err).toContain('belong to another Backup of this name');
  });

  it('does not wait', async () => {
    const ran = await api.longshore(
      ...['restore', 'create', '--from-backup', 'b1', '--dry-run', '--wait'],
    );
    expect(ran.code).toBe(2);
  });
});
