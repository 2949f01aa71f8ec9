import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  BACKUP_REPOSITORIES,
  type BackupRepository,
  BACKUPS,
  DATA_UPLOADS,
  type DataUpload,
  JOBS,
  type KubeObject,
  PODS,
  PVCS,
  type Resource,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../src/kube/index.ts';
import { sharedPackage } from '../support/package.ts';
import { hasRealNode, RealNode } from '../support/real-node.ts';
import { makeTree } from '../support/trees.ts';
import {
  assertSame,
  createBackup,
  FINAL_PHASE,
  locationIsAvailable,
  restore,
  runApplication,
  setEnvironment,
} from './tools.ts';

const run = promisify(execFile);
const WITHOUT = ['--disable-controllers=backup-repo'];
const WAIT = { timeout: 90_000, interval: 500 };
const CONNECTED = 'longshore.io/connected-to';
const OUR_JOB = 'longshore.io/repo-maintenance';

/**
 * The whole Velero server, but for its controller of BackupRepositories, whose work our server does
 * in a Deployment.
 */
describe.skipIf(!hasRealNode())(
  'our server beside a real Velero that leaves repositories to it',
  () => {
    let node: RealNode;
    beforeAll(async () => {
      node = await RealNode.start(22_700);
      await node.restartVelero({ flags: WITHOUT });
      await node.applyOverlay('beside-velero');
      await node.applyServer();
    }, 500_000);
    afterAll(async () => {
      await node[Symbol.asyncDispose]();
    });

    const repositoryOf = (namespace: string): Promise<BackupRepository> =>
      node.client.get(BACKUP_REPOSITORIES, {
        namespace: 'velero',
        name: `${namespace}-default-kopia`,
      });

    const uploadsOf = (name: string): Promise<DataUpload[]> =>
      node.client.list(DATA_UPLOADS, {
        namespace: 'velero',
        labelSelector: `velero.io/backup-name=${name}`,
      });

    const told = (name: string) => async (): Promise<unknown> =>
      (await uploadsOf(name)).map(({ spec, status }) => [
        spec.sourcePVC,
        status?.phase,
        status?.message,
      ]);

    const flagsOf = (namespace: string, mover: string): string[] => [
      ...['--include-namespaces', namespace, '--snapshot-move-data', '--data-mover', mover],
    ];

    const backUp = (name: string, namespace: string, mover: string): Promise<void> =>
      createBackup(node, name, flagsOf(namespace, mover), told(name));

    const velero = (...parameters: string[]): Promise<string> =>
      node.kubectl('-n', 'velero', ...parameters);

    /**
     * As if it had not been maintained for hours. A change of the spec makes Velero's server look,
     * too.
     */
    async function makeDue(namespace: string, frequency = '1h0m1s'): Promise<string> {
      const lastMaintenanceTime = new Date(Date.now() - 7_200_000)
        .toISOString()
        .replace(/\.\d+/, '');
      await node.client.patch(
        BACKUP_REPOSITORIES,
        { namespace: 'velero', name: `${namespace}-default-kopia` },
        { status: { lastMaintenanceTime }, spec: { maintenanceFrequency: frequency } },
      );
      return lastMaintenanceTime;
    }

    /** Waits for a maintenance after this time, and tells whose Jobs there are. */
    async function maintained(namespace: string, since: string): Promise<boolean[]> {
      const last = async (): Promise<string> =>
        (await repositoryOf(namespace)).status?.lastMaintenanceTime ?? '';
      await expect.poll(last, { ...WAIT, timeout: 180_000 }).not.toBe(since);
      const { status } = await repositoryOf(namespace);
      expect(status?.recentMaintenance?.at(-1)).toMatchObject({ result: 'Succeeded' });
      const labelSelector = `velero.io/repo-name=${namespace}-default-kopia`;
      const jobs = await node.client.list(JOBS, { namespace: 'velero', labelSelector });
      jobs.sort((a, b) =>
        (a.metadata.creationTimestamp ?? '') < (b.metadata.creationTimestamp ?? '') ? -1 : 1,
      );
      return jobs.map(({ metadata }) => metadata.labels?.[OUR_JOB] !== undefined);
    }

    /** Asserts that no snapshots, contents or data movements are left. */
    async function assertNothingLeft(): Promise<void> {
      const namesOf = async <T extends KubeObject>(
        resource: Resource<T>,
        options: object = {},
      ): Promise<string[]> =>
        (await node.client.list(resource, options)).map(({ metadata }) => metadata.name);
      const movers = { namespace: 'velero', labelSelector: 'velero.io/exposer-pod-group' };
      const left = async (): Promise<string[]> => [
        ...(await namesOf(VOLUME_SNAPSHOTS)),
        ...(await namesOf(VOLUME_SNAPSHOT_CONTENTS)),
        ...(await namesOf(PVCS, { namespace: 'velero' })),
        ...(await namesOf(PODS, movers)),
      ];
      await expect.poll(left, WAIT).toEqual([]);
    }

    async function deleteBackup(name: string): Promise<void> {
      await node.velero('backup', 'delete', name, '--confirm');
      const found = (): Promise<unknown> =>
        node.client.find(BACKUPS, { namespace: 'velero', name });
      await expect.poll(found, WAIT).toBeUndefined();
    }

    /**
     * Whole ones: a data mover that is canceled may have time to leave an incomplete one, for the
     * next to build on.
     */
    async function snapshotsOf(namespace: string): Promise<number> {
      const text = await node.kopia(namespace, 'snapshot', 'list', '--all', '--json');
      const listed = JSON.parse(text) as { incomplete?: string }[];
      return listed.filter(({ incomplete = '' }) => incomplete === '').length;
    }

    it('the first backup waits for the repository that our server makes, and data movers of both sides use it', async () => {
      await runApplication(node, 'app', [{ name: 'data' }]);
      const data = await node.volumePath('app', 'data');
      makeTree(join(data, 'tree'), 'beside-server');
      await backUp('first', 'app', 'velero');
      const { status, metadata, spec } = await repositoryOf('app');
      expect(status?.phase).toBe('Ready');
      expect(metadata.annotations?.[CONNECTED]).toBeDefined();
      expect(spec.maintenanceFrequency).toBe('1h0m0s');
      await backUp('second', 'app', 'longshore');
      for (const name of ['first', 'second']) {
        await restore(node, name, name, { app: `app-${name}` });
        assertSame(data, await node.volumePath(`app-${name}`, 'data'));
      }
      const shown = await node.velero('repo', 'get');
      expect(shown).toMatch(/^NAME +STATUS +LAST MAINTENANCE$/m);
      expect(shown).toMatch(/^app-default-kopia +Ready +20\d\d-/m);
    }, 400_000);

    it('file-system backup waits for it, too', async () => {
      await runApplication(node, 'files', [{ name: 'data' }]);
      const data = await node.volumePath('files', 'data');
      makeTree(join(data, 'tree'), 'files');
      const flags = ['--include-namespaces', 'files', '--default-volumes-to-fs-backup'];
      await createBackup(node, 'files', [...flags, '--snapshot-volumes=false'], () =>
        Promise.resolve('file-system backup'),
      );
      expect((await repositoryOf('files')).metadata.annotations?.[CONNECTED]).toBeDefined();
      await restore(node, 'files', 'files', { files: 'files-back' });
      assertSame(data, await node.volumePath('files-back', 'data'));
    }, 300_000);

    it('our Jobs maintain it, and what a deleted backup held is freed', async () => {
      const since = await makeDue('app');
      expect(await maintained('app', since)).toEqual([true]);
      expect(await node.velero('repo', 'get')).not.toContain(since);
      await runApplication(node, 'brief', [{ name: 'data' }]);
      const data = await node.volumePath('brief', 'data');
      fs.writeFileSync(join(data, 'bytes'), randomBytes(8 << 20));
      await backUp('brief-ours', 'brief', 'longshore');
      await backUp('brief-theirs', 'brief', 'velero');
      expect(await snapshotsOf('brief')).toBe(2);
      await deleteBackup('brief-ours');
      await deleteBackup('brief-theirs');
      expect(await snapshotsOf('brief')).toBe(0);
      const log = await node.veleroLog();
      expect(log).not.toMatch(/Running maintenance on backup repository/);
    }, 400_000);

    describe('a backup that is under way', () => {
      beforeAll(async () => {
        await runApplication(node, 'slow', [{ name: 'data', storage: '256Mi' }]);
        fs.writeFileSync(
          join(await node.volumePath('slow', 'data'), 'bytes'),
          randomBytes(120 << 20),
        );
        await setEnvironment(node, 'longshore-node-agent', 'LONGSHORE_UPLOAD_LIMIT=1MiB');
      }, 200_000);
      afterAll(
        () => setEnvironment(node, 'longshore-node-agent', 'LONGSHORE_UPLOAD_LIMIT-'),
        90_000,
      );

      async function begin(name: string, ...flags: string[]): Promise<DataUpload> {
        await locationIsAvailable(node);
        await node.velero('backup', 'create', name, ...flagsOf('slow', 'longshore'), ...flags);
        const phase = async (): Promise<string> => (await uploadsOf(name))[0]?.status?.phase ?? '';
        await expect.poll(phase, WAIT).toBe('InProgress');
        // During the first upload the repository is created, and Kopia reads it afterwards.
        const repository = async () => (await repositoryOf('slow')).status?.phase;
        await expect.poll(repository, WAIT).toBe('Ready');
        return (await uploadsOf(name))[0] as DataUpload;
      }

      const phaseOf = (name: string): Promise<string> =>
        velero('get', `backup.velero.io/${name}`, '-o', 'jsonpath={.status.phase}');

      const described = (name: string): Promise<string> =>
        node.velero('backup', 'describe', name, '--details', '--colorized=false');

      it('cannot be deleted, and ends as PartiallyFailed when its DataUpload is canceled', async () => {
        const upload = await begin('canceled');
        // Velero has no other way: no command cancels a backup, and a running backup cannot be
        // deleted.
        await node.velero('backup', 'delete', 'canceled', '--confirm');
        const label = [
          '-l',
          'velero.io/backup-name=canceled',
          '-o',
          'jsonpath={.items[*].status.errors}',
        ];
        const refusal = (): Promise<string> => velero('get', 'deletebackuprequest', ...label);
        await expect.poll(refusal, WAIT).toMatch(/backup is still in progress/);
        expect(await phaseOf('canceled')).toBe('WaitingForPluginOperations');
        await node.client.patch(DATA_UPLOADS, upload.metadata, { spec: { cancel: true } });
        await expect.poll(() => phaseOf('canceled'), WAIT).toMatch(FINAL_PHASE);
        expect(await phaseOf('canceled')).toBe('PartiallyFailed');
        expect((await uploadsOf('canceled'))[0]?.status?.phase).toBe('Canceled');
        const text = await described('canceled');
        expect(text).toMatch(/Phase:\s+PartiallyFailed/);
        expect(text).toMatch(/Operation Error:\s+DataUpload is canceled/);
        await assertNothingLeft();
        expect(await snapshotsOf('slow')).toBe(0);
        await deleteBackup('canceled');
      }, 300_000);

      it('ends as PartiallyFailed when the time for its operation is over, and its DataUpload is canceled then', async () => {
        await begin('timed-out', '--item-operation-timeout', '20s');
        await expect.poll(() => phaseOf('timed-out'), WAIT).toMatch(FINAL_PHASE);
        expect(await phaseOf('timed-out')).toBe('PartiallyFailed');
        const upload = async (): Promise<unknown> =>
          (await uploadsOf('timed-out'))[0]?.status?.phase;
        await expect.poll(upload, WAIT).toBe('Canceled');
        const text = await described('timed-out');
        expect(text).toMatch(/Operation Error:\s+Asynchronous action timed out/);
        await assertNothingLeft();
        expect(await snapshotsOf('slow')).toBe(0);
        await deleteBackup('timed-out');
      }, 300_000);
    });

    it('the password of all is changed beside it, and backup, restore and deletion go on', async () => {
      const file = join(node.directory, 'new-password');
      fs.writeFileSync(file, 'another one\n');
      const longshore = (...parameters: string[]): Promise<{ stdout: string; stderr: string }> =>
        run(join(sharedPackage(), 'bin/longshore'), [
          ...[
            'repository',
            'change-password-all',
            '--kubeconfig',
            join(node.directory, 'kubeconfig'),
          ],
          ...['-n', 'velero', ...parameters],
        ]);
      const plan = await longshore('--dry-run', '--new-password-file', file);
      expect(plan.stdout).toMatch(/app-default-kopia +would be changed/);
      const { stdout, stderr } = await longshore('--new-password-file', file);
      expect(stdout).toMatch(/repositories and the Secret have the new password/);
      expect(stderr).not.toMatch(/declared ready/);
      for (const mover of ['velero', 'longshore']) {
        await backUp(`changed-${mover}`, 'app', mover);
        await restore(node, `changed-${mover}`, `changed-${mover}`, { app: `changed-${mover}` });
        const data = await node.volumePath('app', 'data');
        assertSame(data, await node.volumePath(`changed-${mover}`, 'data'));
      }
      await deleteBackup('changed-velero');
      // Restore the password that the tests' own Kopia knows.
      fs.writeFileSync(file, 'static-passw0rd\n');
      await longshore('--new-password-file', file);
      const { status } = await repositoryOf('app');
      expect(status?.phase).toBe('Ready');
    }, 500_000);

    it("Velero's own controller goes on with what ours began when it is switched on again, and ours with what that began", async () => {
      await node.scaleServer(0);
      await node.restartVelero();
      await runApplication(node, 'theirs', [{ name: 'data' }]);
      makeTree(join(await node.volumePath('theirs', 'data'), 'tree'), 'theirs');
      await backUp('theirs', 'theirs', 'velero');
      expect((await repositoryOf('theirs')).metadata.annotations?.[CONNECTED]).toBeUndefined();
      await backUp('ours-by-velero', 'app', 'velero');
      const since = await makeDue('app', '1h0m2s');
      expect((await maintained('app', since)).at(-1)).toBe(false);
      // And back to ours.
      await node.restartVelero({ flags: WITHOUT });
      await node.scaleServer(1);
      await expect
        .poll(async () => (await repositoryOf('theirs')).metadata.annotations?.[CONNECTED], WAIT)
        .toBeDefined();
      const due = await makeDue('theirs');
      expect((await maintained('theirs', due)).at(-1)).toBe(true);
      await backUp('theirs-again', 'theirs', 'longshore');
      await restore(node, 'theirs-again', 'theirs', { theirs: 'theirs-back' });
      assertSame(
        await node.volumePath('theirs', 'data'),
        await node.volumePath('theirs-back', 'data'),
      );
    }, 600_000);
  },
);
