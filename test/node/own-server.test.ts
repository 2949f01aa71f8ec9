import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DATA_UPLOADS,
  POD_VOLUME_BACKUPS,
  type KubeObject,
  PVCS,
  PVS,
  VOLUME_SNAPSHOTS,
} from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { askedBy } from '../support/rights.ts';
import type { OwnServer } from '../support/own-server.ts';
import { applicationOfVolumes, hasRealNode, RealNode } from '../support/real-node.ts';
import type { S3Log } from '../support/s3-log.ts';
import { makeTree } from '../support/trees.ts';
import { BLOCK, FILES, wholeApplications } from './applications.ts';
import { assertSame, briefly, record } from './tools.ts';

const ALL = [...FILES, BLOCK].sort();
const NAMESPACES = ['moved', 'kept', 'pods'];
const VOLUMES_OF_PODS = ['cache', 'data', 'scratch', 'shared'];
/** A location in a bucket with object lock, and that bucket. */
const ONCE = 'once';
const LOCKED = 'locked';
const VELERO = 'velero';
/** Expired backups and the bucket are checked more often than in production. */
const SERVER_FLAGS = ['--garbage-collection-frequency', '5s', '--backup-sync-period', '10s'];

/**
 * Backups by our server, with no Velero server in the cluster; it restores them, and then the real
 * Velero does. They are in a location that is written once; all that anybody asks of S3 passes a
 * proxy, whose log tells which keys were put.
 */
describe.skipIf(!hasRealNode())(
  'our server alone makes backups and restores, and the real Velero restores them too',
  () => {
    let node: RealNode;
    let s3: S3Log;
    let server: OwnServer;
    const copies = tempDirectory('own-server-copies');
    const { runApplication, work, assertBack, untilPhase, describedAs, create, detailsOf } =
      wholeApplications(() => node, copies);

    beforeAll(async () => {
      node = await RealNode.start(22_100, { isAudited: true });
      await node.applyOverlay('instead-of-velero');
      await node.stopVelero();
      s3 = await node.logS3();

      await useLog();
      await createLocationOnce();
      server = await node.startOwnServer(SERVER_FLAGS);
    }, 500_000);
    afterAll(async () => {
      try {
        // None is there where the node did not start.
        await (server as OwnServer | undefined)?.[Symbol.asyncDispose]();
      } finally {
        await (node as RealNode | undefined)?.[Symbol.asyncDispose]();
        await (s3 as S3Log | undefined)?.[Symbol.asyncDispose]();
      }
      fs.rmSync(copies, { recursive: true, force: true });
    });

    /** From here on the default location is reached through the proxy. */
    async function useLog(): Promise<void> {
      const config = { s3Url: s3.endpoint };
      const ref = { namespace: VELERO, name: 'default' };
      await node.client.patch(BACKUP_STORAGE_LOCATIONS, ref, { spec: { config } });
    }

    async function createLocationOnce(): Promise<void> {
      const credentials = { accessKeyId: 'peersaccess', secretAccessKey: 'peerssecret' };
      const { endpoint } = s3;
      const client = new S3Client({
        endpoint,
        region: 'us-east-1',
        forcePathStyle: true,
        credentials,
      });
      await client.send(
        new CreateBucketCommand({ Bucket: LOCKED, ObjectLockEnabledForBucket: true }),
      );
      client.destroy();
      const config = { region: 'us-east-1', s3ForcePathStyle: 'true', s3Url: endpoint };
      await node.client.create(BACKUP_STORAGE_LOCATIONS, {
        metadata: {
          namespace: VELERO,
          name: ONCE,
          annotations: { 'longshore.io/write-once': 'true', 'longshore.io/retention': '48h' },
        },
        spec: {
          provider: 'aws',
          config,
          objectStorage: { bucket: LOCKED },
          credential: { name: 'cloud-credentials', key: 'cloud' },
        },
      });
    }

    const createOnce = (name: string, ...flags: string[]): Promise<void> =>
      create('backup', name, '--storage-location', ONCE, ...flags);

    const repositoryOf = (namespace: string): { namespace: string; name: string } => ({
      namespace: VELERO,
      name: `${namespace}-${ONCE}-kopia`,
    });

    /**
     * As if it had not been maintained for hours. Returns a function that waits until it was, well.
     */
    async function maintain(namespace: string): Promise<() => Promise<void>> {
      const ref = repositoryOf(namespace);
      const at = new Date(Date.now() - 7_200_000).toISOString().replace(/\.\d+/, '');
      await node.client.patch(BACKUP_REPOSITORIES, ref, { status: { lastMaintenanceTime: at } });
      const status = async (): Promise<unknown> => {
        const { status: found } = await node.client.get(BACKUP_REPOSITORIES, ref);
        const isOver = found?.lastMaintenanceTime !== at;
        return isOver ? found?.recentMaintenance?.at(-1)?.result : undefined;
      };
      return () => expect.poll(status, { timeout: 180_000, interval: 500 }).toBe('Succeeded');
    }

    async function assertCompleted(name: string): Promise<string> {
      const phase = await untilPhase('backup', name);
      if (phase !== 'Completed') throw new Error(await detailsOf('backup', name));
      const logs = await node.velero('backup', 'logs', name);
      expect(logs.split('\n').filter((line) => line.includes('level=error'))).toEqual([]);
      const told = await describedAs('backup', name);
      expect(told).toMatch(/Phase:\s+Completed/);
      return told;
    }

    async function withoutNamespaces(namespaces = NAMESPACES): Promise<void> {
      const waits = ['--timeout=180s', '--ignore-not-found'];
      await node.kubectl('delete', 'namespace', ...namespaces, ...waits);
    }

    async function assertRestored(name: string): Promise<string> {
      const phase = await untilPhase('restore', name);
      if (phase !== 'Completed') throw new Error(await detailsOf('restore', name));
      return describedAs('restore', name);
    }

    async function assertAllBack(): Promise<void> {
      await assertBack('moved');
      await assertBack('kept');
      await node.kubectl('-n', 'pods', 'rollout', 'status', 'statefulset/db', '--timeout=90s');
      await node.kubectl('-n', 'pods', 'rollout', 'status', 'deploy/web', '--timeout=90s');
      const volumes = await node.volumesOfPods('pods');
      expect(volumes.map(({ volume }) => volume).sort()).toEqual(VOLUMES_OF_PODS);
      for (const { volume, path } of volumes) assertSame(join(copies, `pods-${volume}`), path);
    }

    it('with volumes that are moved, also when it is killed while it waits for them', async () => {
      await runApplication('moved');
      const uploads = record(node, DATA_UPLOADS);
      const snapshots = record(node, VOLUME_SNAPSHOTS, '');
      const flags = ['--include-namespaces', 'moved', '--snapshot-move-data'];
      await createOnce('moved', ...flags);
      await untilPhase('backup', 'moved', /^(InProgress|WaitingForPluginOperations)/);
      await server.kill();
      server = await node.startOwnServer(SERVER_FLAGS);
      const told = await assertCompleted('moved');
      for (const name of ALL) expect(told).toContain(`moved/${name}`);
      const of = <T extends KubeObject>(versions: Map<string, T[]>): T[] =>
        [...versions.values()].flatMap(([first]) => (first ? [first] : []));
      expect(
        of(uploads.versions)
          .map(({ spec }) => spec.sourcePVC)
          .sort(),
      ).toEqual(ALL);
      const taken = of(snapshots.versions).filter(({ metadata }) => metadata.namespace === 'moved');
      expect(taken.map(({ spec }) => spec.source.persistentVolumeClaimName).sort()).toEqual(ALL);
      uploads.stop();
      snapshots.stop();
    }, 240_000);

    it('with snapshots that stay in the storage', async () => {
      await runApplication('kept');
      await createOnce('kept', '--include-namespaces', 'kept', '--snapshot-move-data=false');
      await assertCompleted('kept');
    }, 200_000);

    it('with volumes that are read in their pods', async () => {
      await node.applyPatiently(applicationOfVolumes('pods'));
      const hook = (command: string): string => JSON.stringify(['sh', '-c', command]);
      const annotations = {
        'pre.hook.backup.velero.io/command': hook('echo freezing && touch /tmp/frozen'),
        'post.hook.backup.velero.io/command': hook('rm /tmp/frozen && touch /cache/thawed'),
        'post.hook.restore.velero.io/command': hook('touch /tmp/restored'),
      };
      const patch = { spec: { template: { metadata: { annotations } } } };
      const patching = ['patch', 'statefulset/db', '--type=merge', '-p', JSON.stringify(patch)];
      await node.kubectl('-n', 'pods', ...patching);
      await node.kubectl('-n', 'pods', 'rollout', 'status', 'statefulset/db', '--timeout=90s');
      await node.kubectl('-n', 'pods', 'rollout', 'status', 'deploy/web', '--timeout=90s');
      for (const { pod, volume, path } of await node.volumesOfPods('pods')) {
        makeTree(join(path, 'tree'), `${pod}-${volume}`);
        execFileSync('cp', ['-a', path, join(copies, `pods-${volume}`)]);
      }
      const flags = ['--include-namespaces', 'pods', '--default-volumes-to-fs-backup'];
      await createOnce('pods', ...flags, '--snapshot-volumes=false');
      const told = await assertCompleted('pods');
      expect(told).toMatch(/Pod Volume Backups/);
      // The second hook fails if the first hook has not run.
      expect(told).toMatch(/HooksAttempted:\s+2\s+HooksFailed:\s+0/);
      // The log has the hook's output. No copy has `thawed`, so the restore below proves that the
      // volume was read before the second hook.
      expect(await node.velero('backup', 'logs', 'pods')).toContain('stdout: freezing');
      const made = await node.client.list(POD_VOLUME_BACKUPS, { namespace: 'velero' });
      expect(made.map(({ spec }) => spec.volume).sort()).toEqual(VOLUMES_OF_PODS);
    }, 240_000);

    it('a backup that is deleted while it is made leaves nothing, in the storage neither', async () => {
      const before = node.storedSnapshots();
      await createOnce('deleted', '--include-namespaces', 'moved', '--snapshot-move-data');
      await untilPhase('backup', 'deleted', /^(InProgress|WaitingForPluginOperations)/);
      await node.velero('backup', 'delete', 'deleted', '--confirm');
      let stays: string[] = [];
      const left = async (): Promise<string[]> => {
        const scope = { namespace: 'velero', labelSelector: 'velero.io/backup-name=deleted' };
        const backup = await node.client.find(BACKUPS, { namespace: 'velero', name: 'deleted' });
        const uploads = await node.client.list(DATA_UPLOADS, scope);
        const snapshots = await node.client.list(VOLUME_SNAPSHOTS, { namespace: 'moved' });
        const stored = node.storedSnapshots().filter((each) => !before.includes(each));
        stays = [
          ...(backup ? [briefly(BACKUPS, backup)] : []),
          ...uploads.map((each) => briefly(DATA_UPLOADS, each)),
          ...snapshots.map((each) => briefly(VOLUME_SNAPSHOTS, each)),
          ...stored.map((each) => `in the storage: ${each}`),
        ];
        return stays;
      };
      try {
        await expect.poll(left, { timeout: 120_000, interval: 500 }).toEqual([]);
      } catch (error) {
        // Our logs do not say what keeps the objects.
        const kinds = 'volumesnapshots,volumesnapshotcontents,datauploads,pvc';
        const there = await node.kubectl('get', kinds, '--all-namespaces', '-o', 'yaml');
        const text = ['something stays:', ...stays, 'all that is there:', there].join('\n');
        throw new Error(text, { cause: error });
      }
    }, 200_000);

    it('a backup that is canceled says so', async () => {
      await createOnce('canceled', '--include-namespaces', 'moved', '--snapshot-move-data');
      await untilPhase('backup', 'canceled', /^(InProgress|WaitingForPluginOperations)/);
      const said = await node.longshore('backup', 'cancel', 'canceled', '--wait');
      expect(said).toMatch(/backup canceled has ended: (Failed|PartiallyFailed)/);
      const told = await describedAs('backup', 'canceled');
      expect(told).toMatch(/cancel/i);
    }, 120_000);

    it('volumes that are there are brought back in place, and their claims are left alone', async () => {
      await node.applyServerDefinition('velero.io_restores');
      const scale = async (replicas: number): Promise<void> => {
        await node.kubectl('-n', 'moved', 'scale', 'deploy/app', `--replicas=${replicas}`);
      };
      await scale(0);
      await node.kubectl('-n', 'moved', 'wait', '--for=delete', 'pod', '--all', '--timeout=60s');
      const [data, more, raw] = await Promise.all(
        [...FILES, BLOCK].map((name) => node.volumePath('moved', name)),
      );
      fs.appendFileSync(join(data ?? '', 'tree/data/big'), 'more');
      fs.writeFileSync(join(data ?? '', 'extra'), 'extra');
      fs.rmSync(join(more ?? '', 'tree/README'));
      const file = fs.openSync(raw ?? '', 'r+');
      fs.writeSync(file, 'changed', 4096);
      fs.closeSync(file);
      const objects = async (): Promise<unknown> => {
        const claims = await node.client.list(PVCS, { namespace: 'moved' });
        const volumes = await node.client.list(PVS);
        return [...claims, ...volumes].map(({ metadata, spec, status }) => ({
          uid: metadata.uid,
          spec,
          phase: status?.phase,
        }));
      };
      const before = await objects();
      const policy = ['--existing-volume-data-policy', 'full', '--delete-extra-files'];
      await node.longshore('restore', 'create', 'in-place', '--from-backup', 'moved', ...policy);
      await assertRestored('in-place');
      expect(await objects()).toEqual(before);
      await scale(1);
      await assertBack('moved');
    }, 200_000);

    it('brings all of them back itself, also when it is killed meanwhile', async () => {
      await withoutNamespaces();
      await create('restore', 'moved-by-ours', '--from-backup', 'moved');
      await untilPhase('restore', 'moved-by-ours', /^(InProgress|WaitingForPluginOperations)/);
      await server.kill();
      server = await node.startOwnServer(SERVER_FLAGS);
      await assertRestored('moved-by-ours');
      for (const name of ['kept', 'pods']) {
        await create('restore', `${name}-by-ours`, '--from-backup', name);
      }
      await assertRestored('kept-by-ours');
      const told = await assertRestored('pods-by-ours');
      expect(told).toMatch(/HooksAttempted:\s+1\s+HooksFailed:\s+0/);
      await assertAllBack();
    }, 400_000);

    it('asks for no more than it has the right to', () => {
      const asked = askedBy(join(node.directory, 'audit.log'), 'velero', 'longshore-server');
      const refused = asked.filter(({ isAllowed }) => !isAllowed).map(({ right }) => right);
      expect(refused).toEqual([]);
    });

    it('a backup of a schedule expires and is deleted, repositories are maintained, and locks are extended', async () => {
      const maintained = await Promise.all(['moved', 'pods'].map(maintain));
      const flags = ['--include-namespaces', 'moved', '--snapshot-move-data', '--ttl', '20s'];
      const schedule = ['--schedule', '@every 5s', '--storage-location', ONCE];
      await node.velero('schedule', 'create', 'brief', ...schedule, ...flags);
      const made = async (): Promise<string[]> => {
        const labelSelector = 'velero.io/schedule-name=brief';
        const found = await node.client.list(BACKUPS, { namespace: VELERO, labelSelector });
        return found.map(({ metadata }) => metadata.name);
      };
      await expect.poll(made, { timeout: 60_000, interval: 200 }).not.toEqual([]);
      await node.velero('schedule', 'delete', 'brief', '--confirm');
      const [first = ''] = await made();
      const metadata = `${LOCKED}/backups/${first}/velero-backup.json`;
      await expect.poll(made, { timeout: 180_000, interval: 500 }).toEqual([]);
      expect(s3.puts(metadata)).toEqual([metadata]);
      expect(s3.changes).toContainEqual({ change: 'delete', key: metadata, status: 204 });
      for (const waited of maintained) await waited();
      const locked = (prefix: string): number =>
        s3.changes.filter(
          ({ change, key, status }) =>
            change === 'lock' && status === 200 && key.startsWith(`${LOCKED}/${prefix}`),
        ).length;
      for (const repository of ['moved', 'pods']) {
        expect(locked(`kopia/${repository}/p`)).toBeGreaterThan(0);
      }
      const ofBackups = (): number[] =>
        NAMESPACES.map((name) => locked(`backups/${name}/velero-backup.json`));
      await expect.poll(ofBackups, { timeout: 90_000, interval: 500 }).not.toContain(0);
    }, 400_000);

    it('no key of the location that is written once was put twice', () => {
      const put = s3.puts(`${LOCKED}/`);
      for (const name of NAMESPACES) {
        expect(put).toContain(`${LOCKED}/backups/${name}/velero-backup.json`);
        expect(put).toContain(
          `${LOCKED}/restores/${name}-by-ours/restore-${name}-by-ours-results.gz`,
        );
      }
      for (const name of ['moved', 'pods']) {
        const ofRepository = put.filter((key) => key.startsWith(`${LOCKED}/kopia/${name}/`));
        expect(ofRepository).toContain(`${LOCKED}/kopia/${name}/kopia.repository`);
        expect(ofRepository.join('\n')).toMatch(/\/kopia\.maintenance-0{7}[2-9]-/);
      }
      expect(s3.putTwice(`${LOCKED}/`)).toEqual([]);
    });

    it('and the real Velero brings all of them back', async () => {
      await server[Symbol.asyncDispose]();
      await withoutNamespaces();
      await node.restartVelero();
      for (const name of NAMESPACES) {
        await create('restore', name, '--from-backup', name);
        await assertRestored(name);
      }
      await assertAllBack();
    }, 400_000);

    it('a backup by the real Velero is brought back by our server', async () => {
      // The restart of Velero's server has created its location again.
      await useLog();
      await create('backup', 'by-velero', '--include-namespaces', 'moved', '--snapshot-move-data');
      await assertCompleted('by-velero');
      await node.stopVelero();
      await withoutNamespaces(['moved']);
      server = await node.startOwnServer(SERVER_FLAGS);
      await create('restore', 'of-velero', '--from-backup', 'by-velero');
      await assertRestored('of-velero');
      await assertBack('moved');
      // In the other location: the log does see keys that are put again.
      expect(s3.putTwice('velero/')).toContain('velero/backups/by-velero/velero-backup.json');
    }, 300_000);

    describe('two nights of all namespaces', () => {
      const restored = async (name: string, backup: string, ...flags: string[]): Promise<void> => {
        const spaces = ['--include-namespaces', 'nights'];
        await node.longshore(
          'restore',
          'create',
          name,
          '--from-backup',
          backup,
          ...spaces,
          ...flags,
        );
        await assertRestored(name);
      };

      /** Two nights of work and backups, then damage. A restore must equal the second night. */
      async function twoNights(by: string): Promise<void> {
        for (const night of [1, 2]) {
          await work('nights', `${by} ${night}`);
          await create('backup', `${by}-${night}`, '--snapshot-move-data');
          await assertCompleted(`${by}-${night}`);
        }
        await spoil();
      }

      async function spoil(): Promise<void> {
        for (const name of FILES) {
          fs.writeFileSync(join(await node.volumePath('nights', name), 'tree/worked'), 'spoiled');
        }
        const file = fs.openSync(await node.volumePath('nights', BLOCK), 'r+');
        fs.writeSync(file, 'spoiled', 4096);
        fs.closeSync(file);
      }

      it('by our server: the second one comes back in place while another application runs, and when all is lost', async () => {
        await node.applyServerDefinition('velero.io_restores');
        await withoutNamespaces();
        await runApplication('nights');
        await runApplication('elsewhere');
        await twoNights('ours');
        await work('elsewhere', 'since then');
        const scale = ['-n', 'nights', 'scale', 'deploy/app'];
        await node.kubectl(...scale, '--replicas=0');
        await node.kubectl('-n', 'nights', 'wait', '--for=delete', 'pod', '--all', '--timeout=60s');
        const policy = ['--existing-volume-data-policy', 'full', '--delete-extra-files'];
        await restored('nights-in-place', 'ours-2', ...policy);
        await node.kubectl(...scale, '--replicas=1');
        await assertBack('nights');
        await assertBack('elsewhere');
        await withoutNamespaces(['nights']);
        await restored('nights-lost', 'ours-2');
        await assertBack('nights');
        await assertBack('elsewhere');
      }, 500_000);

      it('the real Velero brings the second one of ours back', async () => {
        await server[Symbol.asyncDispose]();
        await withoutNamespaces(['nights']);
        await node.restartVelero();
        await restored('nights-by-velero', 'ours-2');
        await assertBack('nights');
        await assertBack('elsewhere');
      }, 400_000);

      it('by the real Velero: the second one comes back by our server', async () => {
        await useLog();
        await twoNights('theirs');
        await node.stopVelero();
        server = await node.startOwnServer(SERVER_FLAGS);
        await withoutNamespaces(['nights']);
        await restored('nights-of-theirs', 'theirs-2');
        await assertBack('nights');
        await assertBack('elsewhere');
      }, 500_000);

      it('in another cluster with the same bucket', async () => {
        await server[Symbol.asyncDispose]();
        await node.replaceCluster();
        await node.applyOverlay('instead-of-velero');
        await node.stopVelero();
        server = await node.startOwnServer(SERVER_FLAGS);
        const synced = (): Promise<unknown> =>
          node.client.find(BACKUPS, { namespace: VELERO, name: 'theirs-2' });
        await expect.poll(synced, { timeout: 90_000, interval: 500 }).toBeDefined();
        await restored('nights-of-another', 'theirs-2');
        await assertBack('nights');
      }, 500_000);
    });
  },
);
