import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CONTROLLERS, RESTORE_CONTROLLERS } from '../../../src/server/compose/controller-names.ts';
import { openBucket } from '../../../src/blob/index.ts';
import {
  hasNativeSnapshotter,
  NativeDirectory,
  pluginFolder,
} from '../../support/native-snapshotter.ts';
import { OwnServer } from '../../support/own-server.ts';
import { sharedPackage } from '../../support/package.ts';
import { hasPeers, hasRealApi, peer, type RealApi, startRealApi } from '../../support/real-api.ts';

const run = promisify(execFile);
const PORT = 26_700;
const FINAL = /^(Completed|PartiallyFailed|Failed|FailedValidation)$/;
const CREDENTIALS = 'what the provider wants to see';

const hasAll = (): boolean =>
  hasNativeSnapshotter() && hasRealApi() && hasPeers('velero', 'velero-plugin-for-aws', 'minio');

describe.skipIf(!hasAll())('native snapshots by the real Velero and by our server', () => {
  let api: RealApi;
  let server: OwnServer | undefined;
  let native: NativeDirectory;
  let other: NativeDirectory;

  beforeAll(async () => {
    api = await startRealApi(PORT, { hasVeleroCrds: true });
    native = new NativeDirectory(join(api.directory, 'native'));
    other = new NativeDirectory(join(api.directory, 'other'));
    pluginFolder(api.directory);
    await api.stack('up', 's3', 'velero');
    // `velero install` created it.
    await api.kubectl('-n', 'velero', 'delete', 'volumesnapshotlocation.velero.io/default');
    await apply(objects());
    for (const name of ['one', 'two', 'broken', 'nowhere']) {
      const bound = ['--for=jsonpath={.status.phase}=Bound', `pvc/${name}`, '--timeout=60s'];
      await api.kubectl('-n', 'vol', 'wait', ...bound);
    }
  }, 240_000);
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  });

  async function apply(items: readonly object[]): Promise<void> {
    const file = join(api.directory, 'objects.json');
    fs.writeFileSync(file, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }));
    await api.kubectl('apply', '-f', file);
  }

  const inVelero = (kind: string, apiVersion: string, name: string, more: object): object => ({
    kind,
    apiVersion,
    metadata: { name, namespace: 'velero' },
    ...more,
  });

  function objects(): object[] {
    const claim = (name: string, path: string, labels?: object): object[] => [
      {
        kind: 'PersistentVolume',
        apiVersion: 'v1',
        metadata: { name: `pv-${name}`, labels },
        spec: {
          capacity: { storage: '1Gi' },
          accessModes: ['ReadWriteOnce'],
          persistentVolumeReclaimPolicy: 'Retain',
          storageClassName: 'by-hand',
          hostPath: { path },
          claimRef: { kind: 'PersistentVolumeClaim', apiVersion: 'v1', namespace: 'vol', name },
        },
      },
      {
        kind: 'PersistentVolumeClaim',
        apiVersion: 'v1',
        metadata: { name, namespace: 'vol' },
        spec: {
          accessModes: ['ReadWriteOnce'],
          storageClassName: 'by-hand',
          volumeName: `pv-${name}`,
          resources: { requests: { storage: '1Gi' } },
        },
      },
    ];
    return [
      { kind: 'Namespace', apiVersion: 'v1', metadata: { name: 'vol' } },
      inVelero('Secret', 'v1', 'snapshots', { stringData: { key: CREDENTIALS } }),
      inVelero('VolumeSnapshotLocation', 'velero.io/v1', 'first', {
        spec: {
          provider: 'example.io/native',
          config: { directory: native.path, fault: 'CreateSnapshot=error', faultOf: 'broken' },
          credential: { name: 'snapshots', key: 'key' },
        },
      }),
      inVelero('VolumeSnapshotLocation', 'velero.io/v1', 'second', {
        spec: { provider: 'example.io/other', config: { directory: other.path } },
      }),
      ...claim('one', native.volume('one', 'first', 3000), { 'topology.kubernetes.io/zone': 'z1' }),
      ...claim('two', other.volume('two', 'second')),
      ...claim('broken', native.volume('broken', 'third')),
      ...claim('nowhere', '/somewhere/else'),
    ];
  }

  const velero = async (...parameters: string[]): Promise<string> => {
    const options = { env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: api.directory } };
    return (await run(peer('velero'), ['-n', 'velero', ...parameters], options)).stdout;
  };

  interface Ended {
    readonly status: Readonly<Record<string, unknown>> & { readonly phase: string };
  }

  async function ended(kind: string, name: string): Promise<Ended> {
    for (;;) {
      const named = ['-n', 'velero', 'get', `${kind}.velero.io/${name}`, '-o', 'json'];
      const object = JSON.parse(await api.kubectl(...named)) as { status?: { phase?: string } };
      if (FINAL.test(object.status?.phase ?? '')) return object as Ended;
      await sleep(100);
    }
  }

  async function bytesOf(key: string): Promise<string> {
    process.env.AWS_ACCESS_KEY_ID = 'peersaccess';
    process.env.AWS_SECRET_ACCESS_KEY = 'peerssecret';
    const location = `s3://velero?endpoint=http://127.0.0.1:${PORT + 3}&region=us-east-1`;
    await using bucket = await openBucket(location);
    return gunzipSync(Buffer.concat(await Array.fromAsync(bucket.get(key)))).toString();
  }

  /** All files in the bucket about the snapshots of a backup, byte by byte. */
  async function make(name: string) {
    const before = [native.asked().length, other.asked().length] as const;
    const labels = ['--labels', 'team=x,example.io/why=test'];
    await velero('backup', 'create', name, '--include-namespaces', 'vol', ...labels);
    const { status } = await ended('backup', name);
    const uid = await api.kubectl(
      ...['-n', 'velero', 'get', `backup.velero.io/${name}`, '-o', 'jsonpath={.metadata.uid}'],
    );
    const plain = (text: string): string => text.replaceAll(uid, 'UID').replaceAll(name, 'NAME');
    const listed = (text: string): string[] =>
      (JSON.parse(text) as object[]).map((each) => JSON.stringify(each)).sort();
    // Velero's order of locations is random for each backup, and so are the first calls.
    const calls = (directory: NativeDirectory, from: number): unknown[] =>
      directory
        .asked()
        .slice(from)
        .filter(({ call }) => call !== 'GetVolumeID')
        .map(({ config, tags, ...asked }) => ({
          ...asked,
          pid: undefined,
          tags: tags && { ...tags, 'velero.io/backup': plain(tags['velero.io/backup'] ?? '') },
          // The path of the file differs, and its contents are the same.
          config: config && Object.keys(config).sort(),
        }));
    const folder = `backups/${name}/${name}`;
    const results = JSON.parse(plain(await bytesOf(`${folder}-results.gz`))) as {
      errors: { velero?: string[] };
    };
    return {
      snapshots: listed(plain(await bytesOf(`${folder}-volumesnapshots.json.gz`))),
      infos: listed(plain(await bytesOf(`${folder}-volumeinfo.json.gz`))),
      resources: plain(await bytesOf(`${folder}-resource-list.json.gz`)),
      errors: results.errors,
      asked: [calls(native, before[0]), calls(other, before[1])],
      numbers: Object.fromEntries(
        Object.entries(status).filter(([key]) => /^(phase|errors|volume)/.test(key)),
      ),
    };
  }

  function startOurs(): OwnServer {
    const home = join(api.directory, 'own-home');
    fs.mkdirSync(home, { recursive: true });
    return OwnServer.start({
      program: join(sharedPackage(), 'bin/longshore'),
      parameters: [
        ...['server', '--namespace', 'velero', '--metrics-address', '127.0.0.1:0'],
        ...['--controllers', [...CONTROLLERS, ...RESTORE_CONTROLLERS].join(',')],
        ...['--plugin-dir', join(api.directory, 'plugins')],
        ...['--item-operation-sync-frequency', '1s', '--features', 'EnableCSI'],
      ],
      env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: home, TMPDIR: home },
      log: join(api.directory, 'own-server.log'),
    });
  }

  it('are the same, field by field', async () => {
    const theirs = await make('theirs');
    await api.stack('down', 'velero');
    server = startOurs();
    const ours = await make('ours');
    expect.soft(ours.snapshots).toEqual(theirs.snapshots);
    expect.soft(ours.infos).toEqual(theirs.infos);
    expect.soft(ours.infos.join()).toContain("csiSnapshot: skipped b/c it's not a CSI volume;");
    expect.soft(ours.resources).toEqual(theirs.resources);
    // Velero reports the claim, without its volume. Longshore reports both.
    expect
      .soft(theirs.errors.velero)
      .toEqual([expect.stringMatching(/name: \/broken .*the provider refuses CreateSnapshot$/)]);
    const why =
      'message: /Error backing up item error: /error taking snapshot of volume: the provider refuses CreateSnapshot';
    expect.soft(ours.errors).toEqual({
      cluster: [` resource: /persistentvolumes name: /pv-broken ${why}`],
      namespaces: { vol: [` resource: /persistentvolumeclaims name: /broken ${why}`] },
    });
    expect.soft(ours.numbers).toEqual({ ...theirs.numbers, errors: 2 });
    // Velero runs all plugins of a file in one process. The calls are the same.
    expect.soft(ours.asked).toEqual(theirs.asked);
    expect(ours.snapshots).toHaveLength(3);
    expect(ours.asked[0]).toContainEqual(
      expect.objectContaining({ call: 'Init', credentials: CREDENTIALS }),
    );
    expect(native.snapshots).toEqual(['snap-one-ours', 'snap-one-theirs']);
  }, 120_000);

  /** The data path of a restored claim: its volume, once it is bound. */
  async function pathOf(namespace: string, claim: string): Promise<string> {
    const pvc = ['-n', namespace, `pvc/${claim}`];
    await api.kubectl('wait', '--for=jsonpath={.status.phase}=Bound', ...pvc, '--timeout=60s');
    const pv = await api.kubectl('get', ...pvc, '-o', 'jsonpath={.spec.volumeName}');
    return api.kubectl('get', 'pv', pv, '-o', 'jsonpath={.spec.hostPath.path}');
  }

  async function restore(name: string, backup: string, ...flags: string[]): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      await velero('restore', 'create', name, '--from-backup', backup, ...flags);
      const { phase, failureReason, errors } = (await ended('restore', name)).status;
      // After its start, Velero's server sometimes cannot read its credentials, before any request.
      if (attempt < 3 && /failed to refresh cached credentials/.test(String(failureReason))) {
        await api.kubectl('-n', 'velero', 'delete', `restore.velero.io/${name}`);
        continue;
      }
      expect([phase, failureReason, errors]).toEqual(['Completed', undefined, undefined]);
      return;
    }
  }

  async function loseVolumes(): Promise<void> {
    await api.kubectl('delete', 'namespace', 'vol', '--wait', '--timeout=60s');
    const names = ['pv-one', 'pv-two', 'pv-broken', 'pv-nowhere'];
    await api.kubectl('delete', 'pv', ...names, '--ignore-not-found', '--timeout=60s');
  }

  /** Compares later calls about these snapshots. The server chooses the order of volumes. */
  const made = (from: readonly [number, number], backup: string): void => {
    const asked = (directory: NativeDirectory, first: number) =>
      directory.asked('CreateVolumeFromSnapshot').slice(first);
    expect(asked(native, from[0])).toMatchObject([
      { snapshot: `snap-one-${backup}`, type: 'directory', zone: 'z1', iops: 3000 },
    ]);
    expect(asked(other, from[1])).toMatchObject([
      { snapshot: `snap-two-${backup}`, type: 'directory', zone: '', iops: null },
    ]);
  };
  const before = (): [number, number] => [
    native.asked('CreateVolumeFromSnapshot').length,
    other.asked('CreateVolumeFromSnapshot').length,
  ];

  it('of ours are restored by our server', async () => {
    fs.writeFileSync(join(native.path, 'volumes/one/file'), 'changed since');
    await loseVolumes();
    const from = before();
    await restore('by-ours', 'ours', '--restore-volumes=true');
    const [one, two] = [await pathOf('vol', 'one'), await pathOf('vol', 'two')];
    expect(one).toBe(join(native.path, 'volumes/restored-snap-one-ours'));
    expect(two).toBe(join(other.path, 'volumes/restored-snap-two-ours'));
    expect(native.textOf('volumes', 'restored-snap-one-ours')).toBe('first');
    expect(other.textOf('volumes', 'restored-snap-two-ours')).toBe('second');
    made(from, 'ours');
    expect(native.asked('Init').at(-1)).toMatchObject({ credentials: CREDENTIALS });
    const infos = JSON.parse(
      await bytesOf('restores/by-ours/by-ours-volumeinfo.json.gz'),
    ) as object[];
    expect(infos).toContainEqual(
      expect.objectContaining({
        pvName: 'pv-one',
        pvcNamespace: 'vol',
        pvcName: 'one',
        restoreMethod: 'NativeSnapshot',
      }),
    );
  }, 120_000);

  it('of the real Velero are restored by our server, beside the volumes that they are of', async () => {
    const from = before();
    const mapping = ['--namespace-mappings', 'vol:copy'];
    const flags = ['--restore-volumes=true', ...mapping];
    await velero('restore', 'create', 'of-theirs', '--from-backup', 'theirs', ...flags);
    // The claim `nowhere` has no snapshot, and its volume still belongs to the original.
    const { phase, errors } = (await ended('restore', 'of-theirs')).status;
    expect([phase, errors]).toEqual(['PartiallyFailed', 1]);
    made(from, 'theirs');
    const claim = ['-n', 'copy', 'pvc/one', '-o', 'jsonpath={.spec.volumeName}'];
    expect(await pathOf('copy', 'one')).toBe(join(native.path, 'volumes/restored-snap-one-theirs'));
    expect(native.textOf('volumes', 'restored-snap-one-theirs')).toBe('first');
    // The original volume still has the name.
    expect(await api.kubectl('get', ...claim)).toMatch(/^velero-clone-/);
    expect(await pathOf('vol', 'one')).toBe(join(native.path, 'volumes/restored-snap-one-ours'));
  }, 120_000);

  it('of ours are restored, and deleted, by the real Velero', async () => {
    await server?.[Symbol.asyncDispose]();
    await loseVolumes();
    // The provider does not create a volume whose name exists.
    for (const { path } of [native, other]) {
      for (const name of fs.readdirSync(join(path, 'volumes'))) {
        if (name.endsWith('-ours')) fs.rmSync(join(path, 'volumes', name), { recursive: true });
      }
    }
    await api.stack('up', 'velero');
    const from = before();
    await restore('back', 'ours', '--restore-volumes=true');
    expect(await pathOf('vol', 'one')).toBe(join(native.path, 'volumes/restored-snap-one-ours'));
    expect(await pathOf('vol', 'two')).toBe(join(other.path, 'volumes/restored-snap-two-ours'));
    expect(native.textOf('volumes', 'restored-snap-one-ours')).toBe('first');
    expect(other.textOf('volumes', 'restored-snap-two-ours')).toBe('second');
    made(from, 'ours');
    await velero('backup', 'delete', 'ours', '--confirm');
    await expect
      .poll(() => [...native.snapshots, ...other.snapshots], { timeout: 60_000, interval: 200 })
      .toEqual(['snap-one-theirs', 'snap-two-theirs']);
  }, 180_000);
});
