import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  BACKUPS,
  type KubeObject,
  NAMESPACES,
  type Resource,
  RESTORES,
  SCHEDULES,
} from '../../../src/kube/index.ts';
import { mapLimited } from '../../../src/base/index.ts';
import { type Ran, runHere } from '../../support/command-line.ts';
import { hasPeers, hasRealApi, peer, type RealApi, startRealApi } from '../../support/real-api.ts';

const run = promisify(execFile);
const NAMESPACE = 'velero';

describe.skipIf(!hasRealApi() || !hasPeers('velero'))(
  "on a real API server with Velero's definitions",
  () => {
    let api: RealApi;
    beforeAll(async () => {
      api = await startRealApi(28_700, { hasVeleroCrds: true });
      await api.client.create(NAMESPACES, { metadata: { name: NAMESPACE } });
    }, 180_000);
    afterAll(() => api[Symbol.asyncDispose]());

    const longshore = (...words: string[]): Promise<Ran> =>
      runHere(...words, '--kubeconfig', api.kubeconfig);
    const velero = async (...words: string[]): Promise<string> => {
      const flags = ['--kubeconfig', api.kubeconfig, '--namespace', NAMESPACE];
      return (await run(peer('velero'), [...words, ...flags])).stdout;
    };

    /** Creates it, and returns the printed object and the stored object. */
    async function created(
      resource: Resource<KubeObject>,
      ...words: string[]
    ): Promise<[told: unknown, there: unknown]> {
      const printed = await longshore(...words, '-o', 'json');
      expect(printed.err).toBe('');
      const told = JSON.parse(printed.out) as KubeObject & { spec: unknown };
      expect(await longshore(...words)).toMatchObject({ code: 0, err: '' });
      const ref = { namespace: NAMESPACE, name: told.metadata.name };
      const there = (await api.client.get(resource, ref)) as KubeObject & { spec: unknown };
      return [told.spec, there.spec];
    }

    it('objects of all flags are taken as they are, and nothing of them is dropped', async () => {
      const [backup, madeBackup] = await created(
        BACKUPS,
        'backup',
        'create',
        'b1',
        ...[
          ...['--ttl', '36h', '--include-namespaces', 'a,b', '--exclude-resources', 'secrets'],
          ...['--snapshot-move-data', '--data-mover', 'velero', '--default-volumes-to-fs-backup'],
          ...['-l', 'app=web,tier in (a,b),!old', '--ordered-resources', 'pods=a/b,a/c'],
          ...['--resource-policies-configmap', 'p', '--parallel-files-upload', '3'],
          ...['--csi-snapshot-timeout', '20m', '--item-operation-timeout', '2h', '--labels', 'a=b'],
        ],
      );
      expect(madeBackup).toEqual(backup);
      const [restore, madeRestore] = await created(
        RESTORES,
        'restore',
        'create',
        'r1',
        ...[
          ...['--from-backup', 'b1', '--namespace-mappings', 'a:c', '--restore-volumes=false'],
          ...[
            '--existing-resource-policy',
            'update',
            '--write-sparse-files',
            '--preserve-nodeports',
          ],
          ...['--status-include-resources', 'pods', '--resource-modifier-configmap', 'm'],
          ...['--or-selector', 'a=b or c in (d)', '--parallel-files-download', '2'],
        ],
      );
      expect(madeRestore).toEqual(restore);
      const [schedule, madeSchedule] = await created(
        SCHEDULES,
        'schedule',
        'create',
        's1',
        ...[...['--schedule', '0 2 * * *', '--paused', '--skip-immediately=true', '--ttl', '1h']],
      );
      expect(madeSchedule).toEqual(schedule);
    });

    it('a restore into volumes that are there is not made where the definitions of 1.18 would drop that', async () => {
      const words = ['restore', 'create', 'back', '--from-backup', 'b1', '--delete-extra-files'];
      const flags = [...words, '--existing-volume-data-policy', 'incremental'];
      const refused = await longshore(...flags);
      expect(refused.code).toBe(1);
      expect(refused.err).toContain(
        'does not know spec.existingVolumeDataPolicy and spec.uploaderConfig.deleteExtraFiles',
      );
      const ref = { namespace: NAMESPACE, name: 'back' };
      expect(await api.client.find(RESTORES, ref)).toBeUndefined();
      const file = new URL('../../../crds/server/velero.io_restores.yaml', import.meta.url)
        .pathname;
      await api.kubectl('apply', '--server-side', '--force-conflicts', '-f', file);
      // A changed definition takes a moment to be served everywhere.
      await expect
        .poll(async () => (await longshore(...flags)).code, { timeout: 20_000, interval: 200 })
        .toBe(0);
      const made = (await api.client.get(RESTORES, ref)) as KubeObject & { spec: object };
      expect(made.spec).toMatchObject({
        existingVolumeDataPolicy: 'incremental',
        uploaderConfig: { deleteExtraFiles: true },
      });
      await api.client.delete(RESTORES, ref);
    });

    it("Velero's command line sees them, and what is done to them", async () => {
      expect(await velero('backup', 'get')).toMatch(/^b1 +New/m);
      expect(await velero('restore', 'get')).toMatch(/^r1 +b1 +New/m);
      expect(await velero('schedule', 'get')).toMatch(/^s1 .* true *$/m);
      expect(await longshore('schedule', 'unpause', 's1')).toMatchObject({ code: 0, err: '' });
      expect(await velero('schedule', 'get')).toMatch(/^s1 .* false *$/m);
      expect((await longshore('schedule', 'delete', 's1', '--confirm')).code).toBe(0);
      expect(await velero('schedule', 'get')).not.toContain('s1');
    });

    it('backups stay when the schedule that they belong to is deleted', async () => {
      const spec = { schedule: '@daily', template: {}, useOwnerReferencesInBackup: true };
      const named = (name: string) => ({ namespace: NAMESPACE, name });
      const { apiVersion, kind, metadata } = await api.client.create(SCHEDULES, {
        metadata: named('owner'),
        spec,
      });
      const { uid } = metadata;
      const owner = { apiVersion, kind, name: 'owner', uid, controller: true };
      const labels = { 'velero.io/schedule-name': 'owner' };
      const ref = named('owner-20261128000000');
      await api.client.create(BACKUPS, {
        metadata: { ...ref, labels, ownerReferences: [owner] },
        spec: {},
      } as never);
      expect((await longshore('schedule', 'delete', 'owner', '--confirm')).code).toBe(0);
      const gone = async () => (await api.client.find(SCHEDULES, named('owner'))) === undefined;
      await expect.poll(gone, { timeout: 90_000, interval: 200 }).toBe(true);
      const backup = await api.client.get(BACKUPS, ref);
      expect(backup.metadata.ownerReferences ?? []).toEqual([]);
    }, 120_000);

    it('what it refuses is a sentence', async () => {
      const { code, err } = await longshore('backup', 'create', 'b1');
      expect(err).toContain('there is a backup b1 already (New); choose another name');
      expect(code).toBe(1);
      const elsewhere = await longshore('backup', 'create', 'b2', '-n', 'elsewhere');
      expect(elsewhere.err).toContain('the cluster has no namespace elsewhere');
    });

    it('more than a page, by labels, is listed whole', async () => {
      const names = Array.from({ length: 1100 }, (_, i) => `many-${1000 + i}`);
      await mapLimited(names, 20, (name) =>
        api.client.create(BACKUPS, {
          metadata: { namespace: NAMESPACE, name, labels: { many: 'yes' } },
          spec: {},
        }),
      );
      const { out } = await longshore('backup', 'get', '-l', 'many in (yes)', '-o', 'name');
      expect(out.trimEnd().split('\n')).toEqual(names.map((name) => `backup.velero.io/${name}`));
    }, 60_000);

    it('describe shows one that no server has taken up', async () => {
      const { code, out, err } = await longshore('backup', 'describe', 'b1', '--details');
      expect({ code, err }).toEqual({ code: 0, err: '' });
      expect(out).toContain('  labelSelector: app=web,!old,tier in (a,b)\n');
    });
  },
);
