import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import type { DevEnvironment } from '../../../src/cli/demo/dev-environment.ts';
import { withDemoServer } from '../../../src/cli/demo/server.ts';
import {
  type Backup,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  type KubeClient,
  type Resource,
  VOLUME_SNAPSHOTS,
} from '../../../src/kube/index.ts';
import { PinnedPolicies, policiesOfBackup } from '../../../src/plugin/index.ts';
import type { VolumePolicies } from '../../../src/volume-policy/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { withCalls } from '../../support/with-calls.ts';

const rule = (type: string): string =>
  `version: v1\nvolumePolicies:\n- conditions: { csi: {} }\n  action: { type: ${type} }\n`;
const OVER = /^(?:Completed|PartiallyFailed|Failed|FailedValidation)$/;

describe('policies that somebody edits while a backup runs', () => {
  let test: TestCluster;
  beforeAll(async () => {
    test = await TestCluster.start({ nodes: ['node-1'] });
    await test.makeNamespace('app');
    await test.makeVolume('app', 'data');
  });
  afterAll(() => test[Symbol.asyncDispose]());

  it.each(['own', 'global'] as const)(
    'decide as at the validation for each side: the %s ones',
    async (which) => {
      let reads = 0;
      const get = async (resource: Resource<never>, ref: { name: string }, ...rest: never[]) => {
        const found = await test.client.get(resource, ref, ...rest);
        if (resource.plural !== 'configmaps' || ref.name !== 'rules') return found;
        // From the second look on, the server leaves the volume to the action, and the action to
        // the server.
        const type = ['snapshot', 'fs-backup', 'skip'][Math.min(reads++, 2)] ?? '';
        return { ...(found as object), data: { rules: rule(type) } };
      };
      const client = withCalls(test.client, { get });
      await test.client.create(CONFIG_MAPS, {
        metadata: { name: 'rules', namespace: NAMESPACE },
        data: { rules: rule('snapshot') },
      });
      const fspath = join(test.directory, `bucket-${which}`);
      const scratch = join(test.directory, `server-${which}`);
      for (const folder of [fspath, scratch]) mkdirSync(folder);
      const location = { namespace: NAMESPACE, name: which };
      await test.client.create(BACKUP_STORAGE_LOCATIONS, {
        metadata: location,
        spec: { provider: 'velero.io/fs', config: { fspath } },
        status: { phase: 'Available' },
      } as never);
      const ref = { namespace: NAMESPACE, name: which };
      await withDemoServer({ client } as unknown as DevEnvironment, scratch, async () => {
        await test.client.create(BACKUPS, {
          metadata: {
            ...ref,
            ...(which === 'global' && {
              annotations: { 'velero.io/global-backup-volume-policy-configmap': 'rules' },
            }),
          },
          spec: {
            includedNamespaces: ['app'],
            storageLocation: which,
            ...(which === 'own' && { resourcePolicy: { kind: 'configmap', name: 'rules' } }),
          },
        });
        const phase = async () =>
          ((await test.client.get(BACKUPS, ref)) as unknown as { status?: { phase?: string } })
            .status?.phase;
        await expect.poll(phase, { timeout: 60_000 }).toMatch(OVER);
        expect(await phase()).toBe('Completed');
      });
      expect(reads).toBe(1);
      const labelSelector = `velero.io/backup-name=${which}`;
      const contents = await test.client.list(VOLUME_SNAPSHOTS, { labelSelector });
      expect(contents.length).toBeLessThanOrEqual(1);
      const infos = (await test.client.get(BACKUPS, ref)) as unknown as {
        status?: { csiVolumeSnapshotsAttempted?: number };
      };
      expect(infos.status?.csiVolumeSnapshotsAttempted).toBe(1);
      await test.client.delete(CONFIG_MAPS, { namespace: NAMESPACE, name: 'rules' });
    },
    120_000,
  );

  it('are an error of an action in a process of its own', async () => {
    const config = (time: string, field: string) => ({
      metadata: {
        namespace: 'velero',
        name: 'rules',
        managedFields: [{ time, fieldsV1: { [field]: {} } }, { time: '2026-11-25T00:00:00Z' }],
      },
      data: { rules: rule('skip') },
    });
    const load = (time: string, field = 'f:data') => {
      const client = { get: () => Promise.resolve(config(time, field)) } as unknown as KubeClient;
      const status = { startTimestamp: '2026-11-26T10:00:00Z' };
      const metadata = { namespace: 'velero', name: 'b', uid: 'u' };
      const spec = { resourcePolicy: { kind: 'configmap', name: 'rules' } };
      return policiesOfBackup(client, { metadata, spec, status } as unknown as Backup);
    };
    await expect(load('2026-11-26T10:00:01Z')).rejects.toMatchObject({
      code: 'POLICY_CHANGED',
      message: expect.stringContaining('ConfigMap velero/rules') as unknown,
    });
    for (const before of ['2026-11-26T09:59:59Z', '2026-11-26T10:00:00Z']) {
      expect((await load(before))?.rules).toHaveLength(1);
    }
    // Labels decide nothing.
    expect((await load('2026-11-26T10:00:01Z', 'f:metadata'))?.rules).toHaveLength(1);
  });

  it('are read again by a validation, and after a failure', async () => {
    const pinned = new PinnedPolicies();
    const of = (type: string) => () =>
      Promise.resolve({ rules: [], type } as unknown as VolumePolicies);
    const failing = () => Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'away'));
    await expect(pinned.of('u', failing)).rejects.toThrow('away');
    const first = await pinned.of('u', of('skip'));
    expect(await pinned.of('u', of('snapshot'))).toBe(first);
    const second = await pinned.renew('u', of('snapshot'));
    expect(second).not.toBe(first);
    expect(await pinned.of('u', of('skip'))).toBe(second);
    expect(await pinned.of('v', of('skip'))).not.toBe(second);
  });
});
