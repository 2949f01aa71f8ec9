import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DAEMON_SETS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  POD_VOLUME_BACKUPS,
  PODS,
  RESTORES,
  SCHEDULES,
} from '../../../../src/kube/index.ts';
import type { FakeApi } from './fake-api.ts';

/** Labels of a backup or restore, by its name. */
export const owned = (word: 'backup' | 'restore', name: string): object => ({
  [`velero.io/${word}-name`]: name,
  [`velero.io/${word}-uid`]: `uid-${name}`,
});

export const uploadOf = (
  name: string,
  backup: string,
  status: object,
  more: object = {},
): object => ({
  metadata: { name, labels: owned('backup', backup) },
  spec: {
    snapshotType: 'CSI',
    sourceNamespace: 'shop',
    sourcePVC: `claim-${name}`,
    backupStorageLocation: 'default',
    operationTimeout: '10m0s',
    ...more,
  },
  status,
});

/** A name, or any other text that a user may write into an object. */
export type Word = (plain: string) => string;

/**
 * A cluster in which each part of the page has something to show. `word` replaces the usual texts
 * with those of a user.
 */
export function fill(api: FakeApi, word: Word = (plain) => plain): void {
  api.put(
    BACKUP_STORAGE_LOCATIONS,
    {
      metadata: { name: 'default' },
      spec: {
        provider: word('aws'),
        default: true,
        objectStorage: { bucket: word('nightly-bucket') },
      },
      status: { phase: word('Available'), lastValidationTime: '2026-11-26T09:59:30Z' },
    },
    {
      metadata: { name: 'far' },
      spec: { provider: word('gcp'), accessMode: 'ReadOnly' },
      status: { phase: 'Unavailable', message: word('no route to host') },
    },
  );
  const label = { 'velero.io/schedule-name': 'nightly' };
  const spec = { storageLocation: word('default') };
  api.put(
    BACKUPS,
    {
      metadata: { name: word('nightly-3'), uid: 'uid-nightly-3', labels: label },
      spec,
      status: {
        phase: 'WaitingForPluginOperations',
        startTimestamp: '2026-11-26T09:50:00Z',
        progress: { totalItems: 1200, itemsBackedUp: 1200 },
        backupItemOperationsAttempted: 2,
        backupItemOperationsCompleted: 1,
      },
    },
    {
      metadata: { name: word('nightly-2'), uid: 'uid-nightly-2', labels: label },
      spec,
      status: {
        phase: 'PartiallyFailed',
        errors: 2,
        warnings: 5,
        startTimestamp: '2026-11-25T02:00:00Z',
        completionTimestamp: '2026-11-25T02:31:00Z',
        expiration: '2026-12-25T02:00:00Z',
      },
    },
    {
      metadata: { name: word('by-hand'), uid: 'uid-by-hand' },
      spec,
      status: {
        phase: 'FailedValidation',
        validationErrors: [word('there is no location "defualt"')],
        startTimestamp: '2026-11-24T12:00:00Z',
      },
    },
  );
  api.put(RESTORES, {
    metadata: { name: word('back-again'), uid: 'uid-back-again' },
    spec: { backupName: word('nightly-2') },
    status: { phase: 'InProgress', startTimestamp: '2026-11-26T09:58:00Z' },
  });
  api.put(
    SCHEDULES,
    {
      metadata: { name: 'nightly' },
      spec: { schedule: '0 2 * * *' },
      status: { phase: 'Enabled', lastBackup: '2026-11-26T09:50:00Z' },
    },
    { metadata: { name: 'asleep' }, spec: { schedule: word('0 3 * * *'), paused: true } },
    {
      metadata: { name: 'wrong' },
      spec: { schedule: word('every night') },
      status: { phase: 'FailedValidation', validationErrors: [word('invalid schedule')] },
    },
    {
      metadata: { name: 'late', creationTimestamp: '2026-11-26T07:00:00Z' },
      spec: { schedule: '0 8 * * *' },
      status: { phase: 'Enabled' },
    },
  );
  const repository = { backupStorageLocation: 'default', repositoryType: 'kopia' };
  const verified = {
    time: '2026-11-26T03:00:00Z',
    damagedContents: 3,
    damagedPacks: 1,
    damagedSnapshots: 1,
    readShare: 0.25,
    packBytes: 5 << 28,
    problem: word('pack p1 is missing'),
  };
  api.put(
    BACKUP_REPOSITORIES,
    {
      metadata: {
        name: 'shop-default-kopia',
        annotations: { 'longshore.io/verification': JSON.stringify(verified) },
      },
      spec: { ...repository, volumeNamespace: 'shop', maintenanceFrequency: '1h0m0s' },
      status: {
        phase: 'Ready',
        lastMaintenanceTime: '2026-11-26T09:10:00Z',
        recentMaintenance: [{ result: 'Failed', message: word('the bucket is full') }],
      },
    },
    {
      metadata: { name: 'crm-default-kopia' },
      spec: { ...repository, volumeNamespace: word('crm'), maintenanceFrequency: '1h0m0s' },
      status: { phase: 'NotReady', message: word('access denied') },
    },
  );
  api.put(DAEMON_SETS, {
    metadata: { name: 'longshore-node-agent' },
    spec: { template: { spec: { containers: [{ name: 'a', args: ['node-agent', 'server'] }] } } },
  });
  api.put(PODS, {
    metadata: {
      name: 'agent-1',
      ownerReferences: [{ kind: 'DaemonSet', name: 'longshore-node-agent' }],
    },
    spec: { nodeName: 'node-1', containers: [] },
    status: { phase: 'Running' },
  });
  api.put(
    DATA_UPLOADS,
    uploadOf('moving', 'nightly-3', {
      phase: 'InProgress',
      node: 'node-1',
      startTimestamp: '2026-11-26T09:58:20Z',
      progress: { bytesDone: 100 << 20, totalBytes: 400 << 20 },
    }),
    uploadOf('done', 'nightly-3', {
      phase: 'Completed',
      node: 'node-1',
      completionTimestamp: '2026-11-26T09:57:00Z',
      progress: { bytesDone: 1 << 30, totalBytes: 1 << 30 },
      incrementalBytes: 256 << 20,
    }),
    uploadOf('fresh', 'nightly-3', { phase: 'New' }, { datamover: word('somebody-elses') }),
    uploadOf('lost', 'nightly-2', {
      phase: 'Failed',
      completionTimestamp: '2026-11-25T02:20:00Z',
      message: word('the snapshot was deleted while it was read'),
    }),
  );
  api.put(POD_VOLUME_BACKUPS, {
    metadata: { name: 'pod-volume', labels: owned('backup', 'nightly-3') },
    spec: {
      node: 'node-1',
      volume: word('cache'),
      backupStorageLocation: 'default',
      pod: { namespace: 'shop', name: word('web-0') },
      repoIdentifier: '',
    },
    status: { phase: 'Prepared' },
  });
  api.put(DATA_DOWNLOADS, {
    metadata: { name: 'down', labels: owned('restore', 'back-again') },
    spec: {
      targetVolume: { namespace: word('shop'), pvc: word('claim-back'), pv: '' },
      backupStorageLocation: 'default',
      sourceNamespace: 'shop',
      snapshotID: 'x',
      operationTimeout: '10m0s',
    },
    status: { phase: 'Accepted', acceptedByNode: 'node-1' },
  });
}
