import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import {
  BackupArchive,
  type NativeSnapshot,
  readTarball,
  RestoreArchive,
} from '../../../../src/archive/index.ts';
import { CanceledError, silentLogger } from '../../../../src/base/index.ts';
import { ClusterVolumes } from '../../../../src/backup-volumes/index.ts';
import { archiveStore, OperationMap } from '../../../../src/item-operations/index.ts';
import type { KubeClient } from '../../../../src/kube/index.ts';
import { type HostOptions, PluginHost } from '../../../../src/plugin/index.ts';
import { ClusterRunner, HostSessions } from '../../../../src/server/index.ts';
import type { VolumeHelper } from '../../../../src/volume-policy/index.ts';
import { FakeCluster } from '../../../backup/support/cluster.ts';
import { tempDirectory } from '../../../support/kopia.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';
import {
  hasNativeSnapshotter,
  NativeDirectory,
  pluginFolder,
} from '../../../support/native-snapshotter.ts';
import { aBackup } from '../../../support/builders.ts';

const BACKUP = aBackup({
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata: {
    name: 'b1',
    namespace: 'velero',
    uid: 'u1',
    resourceVersion: '1',
    labels: { team: 'x', 'velero.io/storage-location': 'default' },
  },
  spec: { includedNamespaces: ['*'], storageLocation: 'default', itemOperationTimeout: '4h0m0s' },
  status: { phase: 'InProgress', version: 1, formatVersion: '1.1.0' },
});
const MIB = 1 << 20;

const volume = (name: string, path: string, more: object = {}): object => ({
  metadata: { name, uid: `uid-${name}`, ...more },
  spec: {
    hostPath: { path },
    claimRef: { namespace: 'app', name: `claim-${name}` },
    persistentVolumeReclaimPolicy: 'Delete',
  },
});

describe.skipIf(!hasNativeSnapshotter())('snapshots by a plugin in Go', () => {
  const scratch = tempDirectory('native-snapshots');
  const folder = pluginFolder(scratch);
  const hosts: PluginHost[] = [];
  let worlds = 0;
  afterEach(async () => {
    await Promise.all(hosts.splice(0).map((host) => host.close()));
  });
  afterAll(() => {
    fs.rmSync(scratch, { recursive: true, force: true });
  });

  interface Location {
    readonly provider: string;
    readonly config?: Readonly<Record<string, string>>;
  }

  function newWorld() {
    const path = join(scratch, `world-${++worlds}`);
    const cluster = new FakeCluster().namespaces('app');
    const directories = {
      native: new NativeDirectory(join(path, 'native')),
      other: new NativeDirectory(join(path, 'other')),
    };
    return { cluster, directories, bucket: new MemoryBucket(), path };
  }
  type World = ReturnType<typeof newWorld>;

  async function run(
    { cluster, bucket, directories }: World,
    locations: Readonly<Record<string, Location>>,
    {
      signal = new AbortController().signal,
      opening,
      ...more
    }: Partial<HostOptions> & { readonly opening?: Error } = {},
  ) {
    const host = await PluginHost.open({
      folder,
      flags: [],
      environment: { PATH: process.env.PATH },
      logger: silentLogger,
      ...more,
    });
    hosts.push(host);
    const archives = { backups: new BackupArchive(bucket), restores: new RestoreArchive(bucket) };
    const operations = new OperationMap({ store: archiveStore(() => Promise.resolve(archives)) });
    const client = {
      listPage: cluster.listPage,
      find: cluster.find,
      list: () => Promise.resolve([]),
      collect: async (resource: never, options: never, take: (item: never) => readonly unknown[]) =>
        (await (cluster.listPage(resource, options) as Promise<{ items: never[] }>)).items.flatMap(
          take,
        ),
    } as unknown as KubeClient;
    const helper = {
      snapshotDecision: () => Promise.resolve({ yes: true, because: { by: 'nothing' } }),
      filesDecision: () => Promise.resolve({ yes: false, because: { by: 'nothing' } }),
    } as unknown as VolumeHelper;
    const nothing = { [Symbol.asyncDispose]: () => Promise.resolve() };
    const runner = new ClusterRunner({
      client,
      operations,
      logger: silentLogger,
      discovery: await cluster.discovery(),
      buckets: { open: () => Promise.resolve({ bucket, ...nothing }) },
      archiveOf: (opened) => new BackupArchive(opened),
      sessions: new HostSessions(client, () => Promise.resolve(host), silentLogger),
      openVolumes: ({ backup, session, log, signal: ofRun }) =>
        opening
          ? Promise.reject(opening)
          : Promise.resolve(
              new ClusterVolumes({
                client,
                backup,
                helper,
                signal: ofRun,
                log: log.results,
                hasCsi: true,
                locations: Object.entries(locations).map(([name, { provider, config }]) => ({
                  metadata: { name, uid: name, resourceVersion: '1', creationTimestamp: '' },
                  spec: {
                    provider,
                    config: {
                      directory: directories[provider.endsWith('other') ? 'other' : 'native'].path,
                      ...config,
                    },
                  },
                })),
                snapshotters: (provider, config) => session.snapshotter(provider, config),
                resourceTimeoutMs: 1000,
                podVolumeTimeoutMs: 1000,
              }),
            ),
      directory: scratch,
      logLevel: 'info',
      logFormat: 'text',
      workers: 2,
      patienceMs: 400,
    });
    const outcome = await runner.run({
      backup: BACKUP,
      onProgress: () => Promise.resolve(),
      assertLeading: () => undefined,
      signal,
    });
    return { ...(await stored(bucket)), outcome };
  }

  async function stored(bucket: MemoryBucket) {
    const archive = await new BackupArchive(bucket).open('b1');
    const paths: string[] = [];
    for await (const { path } of readTarball(archive.read('contents'), 'contents')) {
      if (!path.includes('preferredversion')) paths.push(path);
    }
    return {
      paths,
      results: await archive.results(),
      snapshots: await archive.volumeSnapshots(),
      infos: await archive.volumeInfos(),
    };
  }

  const NATIVE = { provider: 'example.io/native' };
  const OTHER = { provider: 'example.io/other' };
  const itemOf = (name: string): string => `resources/persistentvolumes/cluster/${name}.json`;

  it('are taken of each volume in the location that knows it', async () => {
    const world = newWorld();
    const { native, other } = world.directories;
    const zone = { 'topology.kubernetes.io/zone': 'z1' };
    world.cluster.add(
      'persistentvolumes',
      volume('pv1', native.volume('one', 'first', 3000), { labels: zone }),
      volume('pv2', other.volume('two', 'second')),
      volume('pv3', '/somewhere/else'),
    );
    const { outcome, snapshots, infos, results, paths } = await run(world, { n: NATIVE, o: OTHER });
    expect(results.errors).toEqual({});
    // Locations are called in order, and each warns about foreign volumes, as in Velero.
    expect(results.warnings?.cluster).toHaveLength(3);
    expect(outcome).toMatchObject({
      phase: 'Finalizing',
      status: { volumeSnapshotsAttempted: 2, volumeSnapshotsCompleted: 2, warnings: 3 },
    });
    expect(paths).toEqual(expect.arrayContaining(['pv1', 'pv2', 'pv3'].map(itemOf)));
    const common = { backupName: 'b1', backupUID: 'u1', volumeType: 'directory' };
    expect(snapshots.toSorted(byVolume)).toEqual([
      {
        spec: {
          ...common,
          location: 'n',
          persistentVolumeName: 'pv1',
          providerVolumeID: 'one',
          volumeAZ: 'z1',
          volumeIOPS: 3000,
        },
        status: { phase: 'Completed', providerSnapshotID: 'snap-one-b1' },
      },
      {
        spec: { ...common, location: 'o', persistentVolumeName: 'pv2', providerVolumeID: 'two' },
        status: { phase: 'Completed', providerSnapshotID: 'snap-two-b1' },
      },
    ]);
    expect(infos.map(({ pvName, result, skipped }) => [pvName, result, skipped]).sort()).toEqual([
      ['pv1', 'succeeded', false],
      ['pv2', 'succeeded', false],
      ['pv3', undefined, true],
    ]);
    expect(native.asked('CreateSnapshot')).toMatchObject([
      {
        volume: 'one',
        zone: 'z1',
        tags: { ...BACKUP.metadata.labels, 'velero.io/backup': 'b1', 'velero.io/pv': 'pv1' },
      },
    ]);
    // Each is configured once, in its own process.
    expect(native.asked('Init')).toHaveLength(1);
    expect(other.asked('Init')).toHaveLength(1);
    expect(native.textOf('snapshots', 'snap-one-b1')).toBe('first');
    expect(other.textOf('snapshots', 'snap-two-b1')).toBe('second');
  });

  describe('that fail', () => {
    const withTwo = (): World => {
      const world = newWorld();
      const { native } = world.directories;
      world.cluster.add(
        'persistentvolumes',
        volume('pv1', native.volume('one', 'first')),
        volume('pv2', native.volume('two', 'second')),
      );
      return world;
    };
    const faulty = (fault: string) => ({ n: { ...NATIVE, config: { fault, faultOf: 'one' } } });

    it.each([
      [
        'CreateSnapshot=error',
        'error taking snapshot of volume: the provider refuses CreateSnapshot',
      ],
      [
        'CreateSnapshot=crash',
        /error taking snapshot of volume: plugin .*native-snapshotter ended with code 3 while it was asked for CreateSnapshot/,
      ],
      [
        'CreateSnapshot=panic',
        /error taking snapshot of volume: plugin panicked: the plugin has a/,
      ],
      ['GetVolumeInfo=error', 'error getting volume info: the provider refuses GetVolumeInfo'],
      [
        'GetVolumeID=crash',
        /Error attempting to get volume ID for persistent volume in n error: \/plugin .* ended with code 3/,
      ],
    ])('by %s: the error says which, and the other one is taken', async (fault, text) => {
      const world = withTwo();
      const { outcome, results, snapshots, infos, paths } = await run(world, faulty(fault));
      const [error, ...more] = results.errors?.cluster ?? [];
      // If a process dies, its other calls fail, too.
      if (!fault.endsWith('crash')) expect(more).toEqual([]);
      expect([error, ...more].filter((each) => each?.includes('name: /pv1'))).toEqual([
        text instanceof RegExp ? expect.stringMatching(text) : expect.stringContaining(text),
      ]);
      expect(outcome.phase).toBe('FinalizingPartiallyFailed');
      if (fault.startsWith('CreateSnapshot')) {
        expect(snapshots.find(({ spec }) => spec.persistentVolumeName === 'pv1')).toMatchObject({
          status: { phase: 'Failed' },
        });
        expect(infos.find(({ pvName }) => pvName === 'pv1')).toMatchObject({
          result: 'failed',
          nativeSnapshotInfo: { snapshotHandle: '', Phase: 'Failed' },
        });
      }
      // As in Velero: if the snapshot of a volume fails, the backup lacks the volume.
      expect(paths.includes(itemOf('pv1'))).toBe(fault.startsWith('GetVolumeID'));
      if (!fault.endsWith('crash')) expect(paths).toContain(itemOf('pv2'));
    });

    it('because the plugin hangs are waited for once, and the location is left alone', async () => {
      const world = withTwo();
      const { native } = world.directories;
      for (let i = 3; i <= 8; i++) {
        world.cluster.add('persistentvolumes', volume(`pv${i}`, native.volume(`v${i}`, 'x')));
      }
      const fault = { n: { ...NATIVE, config: { fault: 'CreateSnapshot=hang' } } };
      const from = Date.now();
      const { results, snapshots, paths } = await run(world, fault, { callMsMax: 1500 });
      // Each of the two workers waits once.
      expect(Date.now() - from).toBeLessThan(1500 * 3);
      expect(native.asked('CreateSnapshot')).toHaveLength(2);
      const errors = results.errors?.cluster ?? [];
      expect(errors).toHaveLength(8);
      for (let i = 1; i <= 8; i++) {
        expect(errors).toContainEqual(expect.stringContaining(`name: /pv${i} `));
      }
      const waited = errors.filter((text) => text.includes('gave no answer within 2 s'));
      expect(waited).toHaveLength(2);
      expect(waited[0]).toMatch(
        /to CreateSnapshot\. The provider may have one all the same, with the tags velero\.io\/backup=b1 and velero\.io\/pv=pv\d: delete it there$/,
      );
      expect(errors.filter((text) => /n left CreateSnapshot without an answer/.test(text))).toEqual(
        errors.filter((text) => !waited.includes(text)),
      );
      expect(snapshots.map(({ status }) => status)).toEqual([
        { phase: 'Failed' },
        { phase: 'Failed' },
      ]);
      expect(paths).toHaveLength(2 + 6);
    });

    it('because the configuration is wrong, or takes for ever, say so of the location', async () => {
      const world = withTwo();
      const wrong = await run(world, { n: { ...NATIVE, config: { regoin: 'x' } } });
      expect(wrong.results.errors?.cluster).toHaveLength(2);
      expect(wrong.results.errors?.cluster?.[0]).toMatch(
        /volume ID for persistent volume in n error: \/config has invalid keys \[regoin\]/,
      );
      expect(wrong.infos).toMatchObject([{ skipped: true }, { skipped: true }]);
      const hung = withTwo();
      hung.cluster.add('persistentvolumes', volume('pv3', '/a'), volume('pv4', '/b'));
      const fault = { n: { ...NATIVE, config: { fault: 'Init=hang' } } };
      const { results } = await run(hung, fault, { streamMsMax: 1000, callMsMax: 60_000 });
      expect(results.errors?.cluster).toHaveLength(4);
      expect(results.errors?.cluster?.[0]).toMatch(
        /volume in n error: \/.*plugin .*native-snapshotter gave no answer within 1 s to Init/,
      );
      expect(hung.directories.native.asked('Init').length).toBeLessThanOrEqual(2);
    });

    it('end with the backup that is canceled, whose others somebody can delete with it', async () => {
      const world = withTwo();
      const abort = new AbortController();
      const config = { fault: 'CreateSnapshot=hang', faultOf: 'two' };
      const running = run(world, { n: { ...NATIVE, config } }, { signal: abort.signal });
      const { native } = world.directories;
      await expect.poll(() => native.asked('CreateSnapshot').length, { timeout: 20_000 }).toBe(2);
      await expect.poll(() => native.snapshots).toEqual(['snap-one-b1']);
      // The cancel waits for the answer.
      await sleep(300);
      abort.abort(new CanceledError('user'));
      await expect(running).rejects.toMatchObject({ code: 'CANCELED' });
      const { snapshots, paths } = await stored(world.bucket);
      expect(snapshots).toMatchObject([
        { spec: { location: 'n' }, status: { providerSnapshotID: 'snap-one-b1' } },
      ]);
      expect(paths).not.toContain(itemOf('pv1'));
    });

    it('with a server that is replaced are in the backup that its successor cannot make', async () => {
      const world = withTwo();
      const abort = new AbortController();
      const config = { fault: 'CreateSnapshot=hang', faultOf: 'two' };
      const running = run(world, { n: { ...NATIVE, config } }, { signal: abort.signal });
      const { native, other } = world.directories;
      await expect.poll(() => native.snapshots, { timeout: 20_000 }).toEqual(['snap-one-b1']);
      // Steps with external effects are in the journal at once.
      await sleep(500);
      abort.abort(new CanceledError('shutdown'));
      await expect(running).rejects.toMatchObject({ code: 'CANCELED' });
      const gone = new Error('the location is gone');
      await expect(run(world, { n: NATIVE }, { opening: gone })).rejects.toThrow(gone.message);
      const { snapshots } = await stored(world.bucket);
      expect(snapshots).toMatchObject([{ status: { providerSnapshotID: 'snap-one-b1' } }]);
      expect(other.asked()).toEqual([]);
    });
  });

  describe('and more than 4 MiB', () => {
    it('come from it whole', async () => {
      const world = newWorld();
      const { native } = world.directories;
      world.cluster.add('persistentvolumes', volume('pv1', native.volume('one', 'first')));
      world.cluster.add('configmaps', {
        metadata: {
          name: 'grows',
          namespace: 'app',
          uid: 'u',
          labels: { 'example.io/large': '' },
          annotations: { 'example.io/grow-mib': '6' },
        },
      });
      const config = { fault: 'CreateSnapshot=large' };
      const { results, snapshots, paths } = await run(world, { n: { ...NATIVE, config } });
      expect(results.errors).toEqual({});
      expect(snapshots[0]?.status?.providerSnapshotID).toHaveLength('snap-one-b1'.length + 5 * MIB);
      expect(paths).toContain('resources/configmaps/namespaces/app/grows.json');
    });

    it('that it does not take fail the item alone, with what to do', async () => {
      const world = newWorld();
      const { native } = world.directories;
      const annotations = { text: 'x'.repeat(5 * MIB) };
      world.cluster.add(
        'persistentvolumes',
        volume('pv1', native.volume('one', 'first'), { annotations }),
        volume('pv2', native.volume('two', 'second')),
      );
      const large = { namespace: 'app', labels: { 'example.io/large': '' } };
      world.cluster.add(
        'configmaps',
        { metadata: { name: 'big', uid: 'u1', ...large }, data: annotations },
        { metadata: { name: 'small', uid: 'u2', ...large }, data: { a: 'b' } },
      );
      const { results, snapshots, paths, outcome } = await run(world, { n: NATIVE });
      expect(outcome.phase).toBe('FinalizingPartiallyFailed');
      const refused =
        /plugin .*native-snapshotter does not take the message of (Execute|GetVolumeID): .*larger than max \(.* vs\. 4194304\)\. Programs in Go take 4 MiB unless they are built for more/;
      expect(results.errors?.cluster).toEqual([expect.stringMatching(refused)]);
      expect(results.errors?.cluster?.[0]).toContain('name: /pv1 ');
      expect(results.errors?.namespaces?.app).toEqual([expect.stringMatching(refused)]);
      expect(results.errors?.namespaces?.app?.[0]).toContain('name: /big ');
      expect(snapshots.map(({ spec }) => spec.persistentVolumeName)).toEqual(['pv2']);
      expect(paths).toContain('resources/configmaps/namespaces/app/small.json');
      expect(paths).not.toContain('resources/configmaps/namespaces/app/big.json');
    });
  });
});

const byVolume = (a: NativeSnapshot, b: NativeSnapshot): number =>
  (a.spec.persistentVolumeName ?? '').localeCompare(b.spec.persistentVolumeName ?? '');
