import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../src/base/index.ts';
import { type BackupFlags, backupSettingsOf } from '../../../src/cli/server/settings.ts';
import { warnOfUnknownActions } from '../../../src/server/compose/backups.ts';
import { serverPoliciesOf } from '../../../src/server/compose/policies.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  type Backup,
  BACKUPS,
  connectToCluster,
  type KubeClient,
  NAMESPACES,
} from '../../../src/kube/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { sharedPackage } from '../../support/package.ts';

const run = promisify(execFile);

const FLAGS: BackupFlags = {
  concurrentBackups: '1',
  itemBlockWorkerCount: '1',
  itemOperationSyncFrequency: '10s',
  defaultBackupTtl: '720h0m0s',
  defaultItemOperationTimeout: '4h0m0s',
  fsBackupTimeout: '4h0m0s',
  resourceTimeout: '10m0s',
  logLevel: 'info',
  logFormat: 'text',
  volumeGroupSnapshotLabelKey: 'velero.io/volume-group',
};

describe('flags about backups', () => {
  it("have the defaults of Velero's server", () => {
    expect(backupSettingsOf(FLAGS)).toMatchObject({
      runningMax: 1,
      workers: 1,
      operationsEveryMs: 10_000,
      podVolumeTimeoutMs: 14_400_000,
      resourceTimeoutMs: 600_000,
      operationTimeoutNs: 14_400_000_000_000n,
      hasCsi: false,
      defaults: { ttl: '720h0m0s', snapshotMoveData: false, defaultVolumesToFsBackup: false },
    });
  });
  it('are taken as Go takes them', () => {
    const settings = backupSettingsOf({
      ...FLAGS,
      concurrentBackups: '0',
      features: 'Other,EnableCSI',
      defaultVolumesToFsBackup: true,
      defaultSnapshotMoveData: 'false',
      defaultVolumeSnapshotLocations: 'aws:one, gcp:two',
    });
    expect(settings).toMatchObject({
      runningMax: 1,
      hasCsi: true,
      defaults: {
        defaultVolumesToFsBackup: true,
        snapshotMoveData: false,
        snapshotLocations: { aws: 'one', gcp: 'two' },
      },
    });
  });
  it('give single actions time-outs of their own', () => {
    const pluginItemOperationTimeout = ['longshore.io/csi-pvc-backupper=12h', 'a.io/b=90s'];
    const { timeoutsOfActions } = backupSettingsOf({ ...FLAGS, pluginItemOperationTimeout });
    expect([...timeoutsOfActions]).toEqual([
      ['longshore.io/csi-pvc-backupper', 43_200_000_000_000n],
      ['a.io/b', 90_000_000_000n],
    ]);
    expect(backupSettingsOf(FLAGS).timeoutsOfActions.size).toBe(0);
  });
  it.each([
    [
      { pluginItemOperationTimeout: ['12h'] },
      '--plugin-item-operation-timeout "12h" is not the name of an action and a duration, as in longshore.io/csi-pvc-backupper=12h',
    ],
    [
      { pluginItemOperationTimeout: ['a.io/b=long'] },
      '--plugin-item-operation-timeout a.io/b "long" is not a duration such as 12h',
    ],
    [
      { pluginItemOperationTimeout: ['a.io/b=1h', 'a.io/b=2h'] },
      '--plugin-item-operation-timeout names a.io/b twice',
    ],
    [{ concurrentBackups: 'many' }, '--concurrent-backups "many" is not a whole number'],
    [{ itemBlockWorkerCount: '-1' }, '--item-block-worker-count "-1" is not a whole number'],
    [{ defaultBackupTtl: 'month' }, '--default-backup-ttl "month" is not a duration'],
    [{ fsBackupTimeout: '4' }, '--fs-backup-timeout "4" is not a duration'],
    [
      { defaultSnapshotMoveData: 'yes' },
      '--default-snapshot-move-data "yes" is neither true nor false',
    ],
    [
      { defaultVolumeSnapshotLocations: 'aws' },
      '--default-volume-snapshot-locations "aws" is not a provider and a location',
    ],
  ])('that are wrong are refused: %j', (wrong, text) => {
    expect(() => backupSettingsOf({ ...FLAGS, ...wrong })).toThrow(text);
  });
});

describe('time-outs of actions that no plugin has', () => {
  it('are warned of, with the names that there are', async () => {
    const warnings: object[] = [];
    const logger = { ...silentLogger, warn: (fields: object) => warnings.push(fields) };
    const host = () => Promise.resolve({ plugins: [{ name: 'a.io/b' }] });
    await warnOfUnknownActions(['a.io/b'], { host }, logger);
    expect(warnings).toEqual([]);
    await warnOfUnknownActions(['a.io/b', 'a.io/c'], { host }, logger);
    expect(warnings).toEqual([{ unknown: ['a.io/c'], known: ['a.io/b'] }]);
    const broken = () => Promise.reject(new Error('no folder'));
    await warnOfUnknownActions(['a.io/c'], { host: broken }, logger);
    expect(warnings).toHaveLength(1);
  });
});

describe('resource policies of a backup', () => {
  const rule = (type: string): string =>
    `version: v1\nvolumePolicies:\n  - conditions: { csi: {} }\n    action: { type: ${type} }`;
  const client = {
    get: (_resource: unknown, { name }: { name: string }) =>
      name === 'gone'
        ? Promise.reject(new CodedError('KUBE_NOT_FOUND', 'not found'))
        : Promise.resolve({ data: { policies: rule(name) } }),
  } as unknown as KubeClient;
  const of = (own: string | undefined, all: string | undefined) => {
    const resourcePolicy = own === undefined ? undefined : { kind: 'configmap', name: own };
    const metadata = { namespace: 'velero', name: 'b1', uid: 'u1' };
    const backup = { metadata, spec: { resourcePolicy } } as unknown as Backup;
    return serverPoliciesOf(client, backup, all);
  };

  it('are its own, then those for all backups', async () => {
    const actions = (await of('skip', 'fs-backup'))?.rules.map(({ action }) => action.type);
    expect(actions).toEqual(['skip', 'fs-backup']);
    expect(await of(undefined, undefined)).toBeUndefined();
  });
  it.each(['snapshot-csi', 'snapshot-native', 'snapshot-datamover'])(
    'may name the way of a snapshot: %s',
    async (type) => {
      const actions = (await of(type, type))?.rules.map(({ action }) => action.type);
      expect(actions).toEqual([type, type]);
    },
  );
  it('are an error where those for all backups are not there', async () => {
    await expect(of('skip', 'gone')).rejects.toMatchObject({ code: 'NO_VOLUME_POLICY' });
  });
});

describe('longshore backup cancel', () => {
  let server: ApiServer;
  let client: KubeClient;
  const directory = tempDirectory('backup-cancel');
  const kubeconfig = join(directory, 'kubeconfig');

  beforeAll(async () => {
    server = await ApiServer.start();
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    await client.create(NAMESPACES, { metadata: { name: 'velero' } });
    for (const [name, phase] of [
      ['over', 'Completed'],
      ['runs', 'InProgress'],
    ]) {
      await client.create(BACKUPS, {
        metadata: { namespace: 'velero', name },
        spec: {},
        status: { phase },
      } as never);
    }
  });
  afterAll(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
  });

  const cancel = (...parameters: string[]) =>
    run(join(sharedPackage(), 'bin/longshore'), [
      'backup',
      'cancel',
      ...parameters,
      '--kubeconfig',
      kubeconfig,
    ]);

  it('marks the Backup, for the server to see', async () => {
    const { stdout } = await cancel('runs');
    expect(stdout).toContain('backup runs is told to end');
    const { metadata } = await client.get(BACKUPS, { namespace: 'velero', name: 'runs' });
    expect(metadata.annotations).toEqual({ 'longshore.io/cancel': 'true' });
  });
  it.each([
    ['over', 'backup over has ended already: Completed'],
    ['nothing', 'there is no Backup velero/nothing'],
  ])('refuses %s', async (name, text) => {
    await expect(cancel(name)).rejects.toMatchObject({
      stderr: expect.stringContaining(text) as string,
    });
  });
});
