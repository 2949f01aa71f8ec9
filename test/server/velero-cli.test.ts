import { execFile, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify, stripVTControlCharacters } from 'node:util';
import { gunzipSync, gzipSync } from 'node:zlib';
import { Registry } from 'prom-client';
import { parseAllDocuments } from 'yaml';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { DOWNLOAD_KINDS } from '../../src/archive/index.ts';
import { silentLogger } from '../../src/base/index.ts';
import { blobId, openStorage } from '../../src/blob/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  type BackupStorageLocation,
  connectToCluster,
  DOWNLOAD_REQUESTS,
  type DownloadRequest,
  EVENTS,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  type ObjectReference,
  RESTORES,
  SECRETS,
  SERVER_STATUS_REQUESTS,
  waitFor,
  waitGone,
} from '../../src/kube/index.ts';
import {
  DownloadController,
  LocationController,
  Server,
  StatusRequestController,
} from '../../src/server/index.ts';
import type { Owner } from '../../src/server/downloads/download-source.ts';
import { tempDirectory } from '../support/kopia.ts';
import { BUCKET, hasStore, type ObjectStore, startStore } from '../support/object-stores.ts';
import { sharedPackage } from '../support/package.ts';
import { hasPeers, hasRealApi, peer, type RealApi, startRealApi } from '../support/real-api.ts';
import { askedBy, rightsOf, type Rule } from '../support/rights.ts';

const run = promisify(execFile);
const ROOT = new URL('../../', import.meta.url).pathname;
const GOLDEN = join(ROOT, 'test/golden/velero/recorded');
const NAMESPACE = 'velero';
const PREFIX = 'cluster-1';
const LOG =
  'time="2026-11-21T02:28:45Z" level=info msg="Setting up backup log" backup=velero/full1\n';
/** Rights that no test here uses. */
const ELSEWHERE = [
  // Needed if the API server has no streaming lists (test/kube/streamed-lists).
  ...['backupstoragelocations.velero.io list', 'downloadrequests.velero.io list'],
  'serverstatusrequests.velero.io list',
];

const hasAll = (): boolean =>
  hasRealApi() && hasPeers('velero', 'velero-plugin-for-aws') && hasStore('minio');

/** The last version of an object in the watch, in a form that can be created. */
function recorded(file: string): KubeObject {
  const events = JSON.parse(fs.readFileSync(join(GOLDEN, file), 'utf8')) as {
    object: KubeObject;
  }[];
  const object = events
    .filter(({ object: { metadata } }) => !metadata.deletionTimestamp)
    .at(-1)?.object;
  const { name, namespace, labels, annotations } = object.metadata;
  const metadata = {
    name,
    namespace,
    ...(labels && { labels }),
    ...(annotations && { annotations }),
  };
  return { ...object, metadata } as KubeObject;
}

describe.skipIf(!hasAll())("Velero's CLI and this server, on a real API server", () => {
  let api: RealApi;
  let client: KubeClient;
  let store: ObjectStore;
  let kubeconfig: string;
  let stop: (() => Promise<void>) | undefined;
  let registry: Registry;
  const saved: Owner[] = [];

  beforeAll(async () => {
    [api, store] = await Promise.all([
      startRealApi(25_300, { auditOf: NAMESPACE, hasVeleroCrds: true }),
      startStore('minio'),
    ]);
    ({ client } = api);
    await client.create(NAMESPACES, { metadata: { name: NAMESPACE } });
    await api.kubectl('apply', '-k', join(ROOT, 'manifests/server-for-cli'));
    await api.kubectl('-n', NAMESPACE, 'scale', 'deployment/longshore-server', '--replicas=0');
    // As docs/hardening.md says for locations with a Secret of their own.
    const own = ['-n', NAMESPACE, 'create'];
    const rule = [
      '--verb=get',
      '--resource=secrets',
      '--resource-name=bucket',
      '--resource-name=no-such',
    ];
    await api.kubectl(...own, 'role', 'location-secrets', ...rule);
    const account = `--serviceaccount=${NAMESPACE}:longshore-server`;
    await api.kubectl(
      ...own,
      'rolebinding',
      'location-secrets',
      '--role=location-secrets',
      account,
    );
    const token = await api.kubectl('-n', NAMESPACE, 'create', 'token', 'longshore-server');
    const admin = JSON.parse(
      await api.kubectl('config', 'view', '--raw', '--minify', '-o', 'json'),
    ) as object;
    kubeconfig = join(api.directory, 'server.kubeconfig');
    const users = [{ name: 'u', user: { token: token.trim() } }];
    fs.writeFileSync(kubeconfig, JSON.stringify({ ...admin, users }), { mode: 0o600 });
    await fillBucket();
    const { AWS_ACCESS_KEY_ID: id = '', AWS_SECRET_ACCESS_KEY: key = '' } = store.environment;
    const text = `[default]\naws_access_key_id=${id}\naws_secret_access_key=${key}\n`;
    await client.create(SECRETS, {
      metadata: { namespace: NAMESPACE, name: 'bucket' },
      data: { cloud: Buffer.from(text).toString('base64') },
    });
    await client.create(BACKUPS, recorded('backups__velero__full1.json'));
    await client.create(RESTORES, recorded('restores__velero__rfull1.json'));
  }, 180_000);
  afterEach(async () => {
    await stop?.();
    stop = undefined;
  });
  afterAll(async () => {
    await store[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  });

  /** Files as Velero wrote them, with its JSON compressed. */
  async function fillBucket(): Promise<void> {
    const location = store.location(PREFIX);
    await using storage = await openStorage(location, { environment: store.environment });
    const put = (key: string, bytes: Buffer): Promise<void> =>
      storage.putBlob(blobId(key), [bytes]);
    const folders = [
      ['bucket-full1', 'backups/full1'],
      ['bucket-rfull1', 'restores/rfull1'],
    ] as const;
    for (const [from, to] of folders) {
      for (const name of fs.readdirSync(join(GOLDEN, from))) {
        const text = fs.readFileSync(join(GOLDEN, from, name));
        if (name === 'velero-backup.json') await put(`${to}/${name}`, text);
        else if (name.endsWith('-results.json')) {
          await put(`${to}/${name.replace('.json', '.gz')}`, gzipSync(text));
        } else if (name.endsWith('.json')) await put(`${to}/${name}.gz`, gzipSync(text));
      }
    }
    await put('backups/full1/full1-logs.gz', gzipSync(LOG));
    await put('restores/rfull1/restore-rfull1-logs.gz', gzipSync(LOG.replace('backup', 'restore')));
    await put('backups/full1/full1.tar.gz', gzipSync('a tarball'));
    await put('kopia/app/kopia.repository', Buffer.of(1));
  }

  const ref = (name: string) => ({ namespace: NAMESPACE, name });
  const specOf = (
    more: { config?: object; objectStorage?: object; [name: string]: unknown } = {},
  ) => ({
    provider: 'aws',
    credential: { name: 'bucket', key: 'cloud' },
    ...more,
    objectStorage: { bucket: BUCKET, prefix: PREFIX, ...more.objectStorage },
    config: {
      region: 'us-east-1',
      s3ForcePathStyle: 'true',
      s3Url: store.endpoint,
      ...more.config,
    },
  });
  const createLocation = (name: string, spec: object): Promise<KubeObject> =>
    client.create(BACKUP_STORAGE_LOCATIONS, { metadata: ref(name), spec });
  const removeLocation = (name: string) => client.delete(BACKUP_STORAGE_LOCATIONS, ref(name));
  const waitLocation = (name: string, isThere: (found: BackupStorageLocation) => boolean) =>
    waitFor(
      client,
      BACKUP_STORAGE_LOCATIONS,
      ref(name),
      (found) => (found && isThere(found) ? found : undefined),
      { timeoutMs: 40_000 },
    );
  const waitMessage = async (name: string, text: string): Promise<BackupStorageLocation> => {
    const found = await waitLocation(
      name,
      ({ status }) => status?.message?.includes(text) === true,
    );
    expect(found.status?.phase).toBe('Unavailable');
    expect(found.status?.message).toMatch(
      new RegExp(`^BackupStorageLocation "${name}" is unavailable: `),
    );
    return found;
  };

  function startServer(validationFrequencyMs = 60_000): void {
    const own = connectToCluster({ kubeconfig, userAgent: 'longshore-server/test' });
    registry = new Registry();
    const common = { client: own, logger: silentLogger, namespace: NAMESPACE, host: 'test' };
    const stores = {
      directory: tempDirectory('credentials'),
      defaultCredentials: () => undefined,
      openStorage: (location: string) => openStorage(location, { stallMs: 10_000 }),
    };
    const server = new Server({
      ...common,
      registry,
      timing: { leaseMs: 1000, renewMs: 700, retryMs: 100 },
      controllers: [
        new LocationController({
          ...common,
          registry,
          stores,
          validationFrequencyMs,
          defaultLocation: 'default',
        }),
        new DownloadController({
          ...common,
          stores,
          unsavedOperations: {
            save: (owner) => {
              saved.push(owner);
              return Promise.reject(new Error('the bucket is read-only'));
            },
          },
        }),
        new StatusRequestController({
          client: own,
          logger: silentLogger,
          namespace: NAMESPACE,
          serverVersion: 'v1.18.3+longshore.test',
          plugins: () => Promise.resolve([{ name: 'longshore.io/pvc', kind: 'ItemBlockAction' }]),
        }),
      ],
    });
    const abort = new AbortController();
    const work = server.run(abort.signal);
    stop = async () => {
      abort.abort();
      await work;
      own.close();
    };
  }

  async function velero(...parameters: string[]): Promise<string> {
    const env = { ...process.env, KUBECONFIG: api.kubeconfig, HOME: api.directory };
    const { stdout, stderr } = await run(peer('velero'), ['-n', NAMESPACE, ...parameters], { env });
    return stripVTControlCharacters(stdout + stderr);
  }

  it('a location is validated and made the default, and velero shows it', async () => {
    await createLocation('default', specOf());
    startServer();
    const { status } = await waitLocation(
      'default',
      (found) => found.spec?.default === true && found.status?.phase === 'Available',
    );
    expect(Date.parse(status?.lastValidationTime ?? '')).toBeGreaterThan(Date.now() - 60_000);
    expect(status?.message).toBeUndefined();
    expect(await velero('backup-location', 'get')).toMatch(
      /default +aws +backups\/cluster-1 +Available +\S+ \S+ \S+ \S+ +ReadWrite +true/,
    );
    await expect
      .poll(() => registry.metrics())
      .toContain('velero_backup_location_status_gauge{backup_location_name="default"} 1');
  }, 60_000);

  it('says version and plugins, and removes what was asked', async () => {
    startServer();
    const version = await velero('version');
    expect(version).toContain('Version: v1.18.3+longshore.test');
    expect(version).not.toContain('WARNING');
    expect(await velero('plugin', 'get')).toMatch(/longshore\.io\/pvc +ItemBlockAction/);
    const [asked] = await client.list(SERVER_STATUS_REQUESTS, { namespace: NAMESPACE });
    const before = { status: { processedTimestamp: new Date(Date.now() - 61_000).toISOString() } };
    await client.patch(SERVER_STATUS_REQUESTS, ref(asked?.metadata.name ?? ''), before);
    await waitGone(client, SERVER_STATUS_REQUESTS, ref(asked?.metadata.name ?? ''), {
      timeoutMs: 20_000,
    });
  }, 60_000);

  it("reads what Velero's server wrote into the bucket", async () => {
    startServer();
    expect(await velero('backup', 'logs', 'full1')).toContain('Setting up backup log');
    const output = join(tempDirectory('download'), 'full1.tar.gz');
    await velero('backup', 'download', 'full1', '-o', output);
    expect(gunzipSync(fs.readFileSync(output)).toString()).toBe('a tarball');
    const described = await velero('backup', 'describe', 'full1', '--details');
    expect(described).toContain('Phase:  Completed');
    // Resource list, item operations and volume infos, each from its file.
    expect(described).toMatch(/v1\/PersistentVolumeClaim:\s+- app\/data/);
    expect(described).toMatch(/Operation ID: +du-/);
    expect(described).toMatch(/Data Movement:[^]*Result: +succeeded/);
    expect(described).not.toContain('<error');
    const restored = await velero('restore', 'describe', 'rfull1', '--details');
    expect(restored).toMatch(/v1\/PersistentVolumeClaim:\s+- app2\/data\(created\)/);
    expect(restored).toMatch(/Operation ID: +dd-/);
    expect(restored).toMatch(/Warnings:\s+Velero:/);
    expect(restored).not.toContain('<error');
    expect(await velero('restore', 'logs', 'rfull1')).toContain('Setting up restore log');
    const json = await velero('backup', 'describe', 'full1', '--details', '-o', 'json');
    expect(JSON.parse(json)).toMatchObject({ metadata: { name: 'full1' }, phase: 'Completed' });
    const uidOf = async (kind: typeof BACKUPS, name: string): Promise<string> =>
      (await client.get(kind, ref(name))).metadata.uid;
    expect(saved).toEqual(
      expect.arrayContaining([
        { kind: 'Backup', name: 'full1', uid: await uidOf(BACKUPS, 'full1') },
        { kind: 'Restore', name: 'rfull1', uid: await uidOf(RESTORES, 'rfull1') },
      ]),
    );
  }, 120_000);

  const ask = (name: string, kind: string, target: string): Promise<DownloadRequest> =>
    client.create(DOWNLOAD_REQUESTS, {
      metadata: ref(name),
      spec: { target: { kind, name: target } },
    } as DownloadRequest);
  const waitRequest = (
    name: string,
    isThere: (found: DownloadRequest) => boolean,
  ): Promise<DownloadRequest> =>
    waitFor(
      client,
      DOWNLOAD_REQUESTS,
      ref(name),
      (found) => (found && isThere(found) ? found : undefined),
      { timeoutMs: 40_000 },
    );
  const isAnswered = ({ status }: DownloadRequest): boolean => status?.downloadURL !== undefined;
  const eventOf = async (name: string): Promise<string> => {
    const events = await client.list(EVENTS, { namespace: NAMESPACE });
    const isOf = ({ kind, name: of }: ObjectReference): boolean =>
      kind === DOWNLOAD_REQUESTS.kind && of === name;
    return events.find(({ involvedObject }) => isOf(involvedObject))?.message ?? '';
  };

  it('hands out each kind of file for ten minutes, and removes requests after that', async () => {
    startServer();
    const kinds = DOWNLOAD_KINDS;
    expect(kinds.length).toBe(14);
    for (const kind of kinds) {
      await ask(`all-${kind.toLowerCase()}`, kind, kind.startsWith('Restore') ? 'rfull1' : 'full1');
    }
    for (const kind of kinds) {
      const { status } = await waitRequest(`all-${kind.toLowerCase()}`, isAnswered);
      expect(status?.phase).toBe('Processed');
      const leftMs = Date.parse(status?.expiration ?? '') - Date.now();
      expect(leftMs).toBeGreaterThan(9 * 60_000);
      expect(leftMs).toBeLessThan(11 * 60_000);
      // Files of older versions are missing, and Velero's CLI must get a 404.
      const isOld = kind.startsWith('CSI');
      expect((await fetch(status?.downloadURL ?? '')).status, kind).toBe(isOld ? 404 : 200);
    }
    const past = { status: { expiration: new Date(Date.now() - 1000).toISOString() } };
    // Uses another server, because this server knows its own answers.
    await stop?.();
    await client.patch(DOWNLOAD_REQUESTS, ref('all-backuplog'), past);
    startServer();
    await waitGone(client, DOWNLOAD_REQUESTS, ref('all-backuplog'), { timeoutMs: 20_000 });
    expect(await client.find(DOWNLOAD_REQUESTS, ref('all-backupresults'))).toBeDefined();
  }, 90_000);

  it('says what is missing, and answers when it has come', async () => {
    startServer();
    await ask('missing', 'BackupLog', 'later');
    await ask('missing-restore', 'RestoreLog', 'no-such');
    const waiting = await waitRequest('missing', ({ status }) => status?.expiration != null);
    expect(waiting.status?.phase ?? 'New').toBe('New');
    await expect
      .poll(() => eventOf('missing'), { timeout: 10_000 })
      .toBe('there is no backup velero/later');
    await expect
      .poll(() => eventOf('missing-restore'), { timeout: 10_000 })
      .toBe('there is no restore velero/no-such');
    await client.create(BACKUPS, {
      metadata: ref('later'),
      spec: { storageLocation: 'nowhere' },
    });
    await expect
      .poll(() => eventOf('missing'), { timeout: 20_000 })
      .toContain('there is no backup storage location velero/nowhere');
    await client.patch(BACKUPS, ref('later'), { spec: { storageLocation: 'default' } });
    await waitRequest('missing', isAnswered);
  }, 90_000);

  it('names the address that is for others, and says of what has none', async () => {
    const publicUrl = store.endpoint.replace('127.0.0.1', 'localhost');
    await createLocation('public', specOf({ config: { publicUrl } }));
    const fspath = tempDirectory('location');
    await createLocation('directory', {
      provider: 'velero.io/fs',
      config: { fspath },
      objectStorage: { bucket: '' },
    });
    for (const name of ['public', 'directory']) {
      const spec = { storageLocation: name };
      await client.create(BACKUPS, { metadata: ref(`b-${name}`), spec });
    }
    startServer();
    await ask('public', 'BackupLog', 'b-public');
    const { status } = await waitRequest('public', isAnswered);
    expect(new URL(status?.downloadURL ?? '').hostname).toBe('localhost');
    // The backup has no files. The signature is for this name.
    expect((await fetch(status?.downloadURL ?? '')).status).toBe(404);
    await ask('directory', 'BackupLog', 'b-directory');
    await expect
      .poll(() => eventOf('directory'), { timeout: 20_000 })
      .toContain('which has no URLs for others: read backups/b-directory/b-directory-logs.gz');
    await waitLocation('directory', (found) => found.status?.phase === 'Available');
    fs.mkdirSync(join(fspath, 'photos'));
    await client.patch(BACKUP_STORAGE_LOCATIONS, ref('directory'), {
      spec: { validationFrequency: '1s' },
    });
    await waitMessage('directory', 'Backup store contains invalid top-level directories: [photos]');
    await removeLocation('public');
    await removeLocation('directory');
  }, 90_000);

  it('says why a location cannot be used, in the words of Velero, and sees at once that it can', async () => {
    startServer();
    const caCert = Buffer.from('x').toString('base64');
    const caCertRef = { name: 'no-such', key: 'ca.crt' };
    await createLocation('both', specOf({ objectStorage: { caCert, caCertRef } }));
    await createLocation('ca', specOf({ objectStorage: { caCertRef } }));
    await createLocation('slash', specOf({ objectStorage: { bucket: 'backups/cluster-1' } }));
    await createLocation('key', specOf({ credential: { name: 'bucket', key: 'other' } }));
    await createLocation('bucket', specOf({ objectStorage: { bucket: 'no-such-bucket' } }));
    await createLocation('closed', specOf({ config: { s3Url: 'http://127.0.0.1:9' } }));
    await createLocation('root', specOf({ objectStorage: { prefix: '' } }));
    await waitMessage('both', 'cannot specify both caCert and caCertRef in objectStorage');
    await waitMessage('ca', 'error getting CA certificate from secret: ');
    await waitMessage('slash', `bucket name "backups/cluster-1" must not contain a '/'`);
    await waitMessage('key', 'unable to get credentials: Secret velero/bucket has no key "other"');
    await waitMessage('bucket', 'there is no such bucket');
    await waitMessage('closed', 'nothing is listening there');
    await waitMessage('root', 'Backup store contains invalid top-level directories: [cluster-1]');
    await expect
      .poll(() => registry.metrics())
      .toContain('velero_backup_location_status_gauge{backup_location_name="closed"} 0');
    expect(await velero('backup-location', 'get', 'closed')).toMatch(/ Unavailable /);
    await client.patch(BACKUP_STORAGE_LOCATIONS, ref('bucket'), {
      spec: { objectStorage: { bucket: BUCKET } },
    });
    const { status } = await waitLocation('bucket', (found) => found.status?.phase === 'Available');
    expect(status?.message).toBeUndefined();
    for (const name of ['both', 'ca', 'slash', 'key', 'bucket', 'closed', 'root']) {
      await removeLocation(name);
    }
    await expect.poll(() => registry.metrics()).not.toContain('backup_location_name="closed"');
  }, 90_000);

  it('validates as often as a location says, and one that is not to be validated once', async () => {
    startServer(1000);
    const timeOf = ({ status }: BackupStorageLocation): number =>
      Date.parse(status?.lastValidationTime ?? '');
    await createLocation('never', specOf({ validationFrequency: '0s' }));
    await createLocation('hourly', specOf({ validationFrequency: '1h0m0s' }));
    await createLocation('own', specOf());
    const isValidated = ({ status }: BackupStorageLocation): boolean =>
      status?.lastValidationTime != null;
    const [never, hourly, own] = await Promise.all(
      ['never', 'hourly', 'own'].map((name) => waitLocation(name, isValidated)),
    );
    await waitLocation('own', (found) => timeOf(found) >= timeOf(own as never) + 2000);
    for (const [name, before] of [
      ['never', never],
      ['hourly', hourly],
    ] as const) {
      const now = await client.get(BACKUP_STORAGE_LOCATIONS, ref(name));
      expect(timeOf(now)).toBe(timeOf(before as never));
    }
    // A change of the location is validated at once, whatever its frequency.
    await client.patch(BACKUP_STORAGE_LOCATIONS, ref('never'), {
      spec: { objectStorage: { bucket: 'gone' } },
    });
    await waitMessage('never', 'there is no such bucket');
    for (const name of ['never', 'hourly', 'own']) await removeLocation(name);
  }, 90_000);

  it('keeps one default: the one that was created last', async () => {
    startServer();
    await sleep(1100);
    await createLocation('newer', specOf({ default: true }));
    await waitLocation('default', ({ spec }) => spec?.default !== true);
    const newer = await client.get(BACKUP_STORAGE_LOCATIONS, ref('newer'));
    expect(newer.spec?.default).toBe(true);
    await velero('backup-location', 'set', 'newer', '--default=false');
    await velero('backup-location', 'set', 'default', '--default');
    await waitLocation('default', ({ spec }) => spec?.default === true);
    await waitLocation('newer', ({ spec }) => spec?.default !== true);
    // A user who removes the mark means it, until a server starts.
    await client.patch(BACKUP_STORAGE_LOCATIONS, ref('default'), { spec: { default: false } });
    await sleep(1500);
    const left = await client.get(BACKUP_STORAGE_LOCATIONS, ref('default'));
    expect(left.spec?.default).toBe(false);
    await removeLocation('newer');
  }, 60_000);

  it('does not wait for a location that never answers', async () => {
    const silent = createServer();
    await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
    const { port } = silent.address() as { port: number };
    const s3Url = `http://127.0.0.1:${port}`;
    for (let i = 0; i < 40; i++) await createLocation(`silent-${i}`, specOf({ config: { s3Url } }));
    await client.create(BACKUPS, {
      metadata: ref('b-silent'),
      spec: { storageLocation: 'silent-0' },
    });
    startServer();
    await ask('silent', 'BackupLog', 'b-silent');
    await createLocation('beside', specOf());
    const startMs = performance.now();
    await waitLocation('beside', (found) => found.status?.phase === 'Available');
    expect(await velero('backup', 'logs', 'full1')).toContain('Setting up backup log');
    // A silent bucket is reported after half a minute. An hour would be a hang.
    expect(performance.now() - startMs).toBeLessThan(25_000);
    // A URL needs no bucket.
    await waitRequest('silent', isAnswered);
    // The server waits for some at a time, in any order.
    const told = async (): Promise<string | undefined> =>
      (await client.list(BACKUP_STORAGE_LOCATIONS, { namespace: NAMESPACE })).find(
        ({ metadata, status }) =>
          metadata.name.startsWith('silent-') && status?.message?.includes('no answer') === true,
      )?.metadata.name;
    await expect.poll(told, { timeout: 60_000 }).toBeDefined();
    await waitMessage((await told()) ?? '', 'no answer');
    for (let i = 0; i < 40; i++) await removeLocation(`silent-${i}`);
    await removeLocation('beside');
    silent.close();
  }, 120_000);

  it('runs as a process, with the flags of a Deployment of Velero, and lists its plugins', async () => {
    const plugins = tempDirectory('plugins');
    fs.symlinkSync(peer('velero-plugin-for-aws'), join(plugins, 'velero-plugin-for-aws'));
    fs.writeFileSync(join(plugins, 'broken'), '#!/bin/sh\nexit 3\n', { mode: 0o755 });
    const child = spawn(
      join(sharedPackage(), 'bin/longshore'),
      [
        ...['server', '-n', NAMESPACE, '--kubeconfig', kubeconfig, '--features=EnableCSI'],
        ...[
          '--metrics-address=127.0.0.1:25399',
          '--disable-controllers=backup,backup-operations,backup-finalizer,backup-deletion,gc,backup-repo,backup-sync,schedule,restore,restore-operations,restore-finalizer',
        ],
        ...['--default-volumes-to-fs-backup', '--client-qps=50', '--plugin-dir', plugins],
        ...['--log-format=json', '--colorized=false', '-v', '2'],
      ],
      { stdio: ['ignore', 'pipe', 'pipe'] },
    );
    let log = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (bytes: Buffer) => (log += bytes.toString()));
    }
    const ended = new Promise((resolve) => child.once('exit', (code) => resolve(code)));
    try {
      await expect.poll(() => log, { timeout: 20_000 }).toContain('this process leads');
      expect(log).toMatch(/no effect here yet.*--client-qps|--client-qps.*no effect here yet/s);
      const version = await velero('version');
      expect(version).toMatch(/Server:\s+Version: v1\.18\.3\+longshore\./);
      expect(version).not.toContain('WARNING');
      const listed = await velero('plugin', 'get');
      expect(listed.match(/velero\.io\/aws +ObjectStore/g)).toHaveLength(1);
      // Actions of the plugin in the folder. A broken file there does not hide them.
      expect(listed).toMatch(/velero\.io\/aws +VolumeSnapshotter/);
      expect(log).toMatch(/"file":"[^"]*broken"/);
      // With Velero's CSI actions on, this is our only needed action.
      expect(listed).toMatch(/longshore\.io\/dataupload-delete +DeleteItemAction/);
    } finally {
      child.kill('SIGTERM');
    }
    expect(await ended).toBe(0);
  }, 90_000);

  it('notices that a bucket is away, and that it is back', async () => {
    await client.patch(BACKUP_STORAGE_LOCATIONS, ref('default'), {
      spec: { validationFrequency: '1s' },
    });
    startServer();
    await waitLocation('default', (found) => found.status?.phase === 'Available');
    const blocked = Buffer.from('[default]\naws_access_key_id=no\naws_secret_access_key=no\n');
    const { data } = await client.get(SECRETS, ref('bucket'));
    // A changed Secret is no change of the location: the next validation finds it.
    await client.patch(SECRETS, ref('bucket'), { data: { cloud: blocked.toString('base64') } });
    await waitMessage('default', 'does not know this access key');
    await client.patch(SECRETS, ref('bucket'), { data: { cloud: data?.cloud ?? '' } });
    await waitLocation('default', (found) => found.status?.phase === 'Available');
    await store[Symbol.asyncDispose]();
    await waitMessage('default', 'nothing is listening there');
  }, 90_000);

  it('has all the rights that it needs, and no other one', () => {
    const asked = askedBy(join(api.directory, 'audit.log'), NAMESPACE, 'longshore-server');
    const refused = asked.filter(({ isAllowed }) => !isAllowed).map(({ right }) => right);
    expect(refused).toEqual([]);
    const used = new Set([...asked.map(({ right }) => right), ...ELSEWHERE]);
    const text = fs.readFileSync(join(ROOT, 'manifests/server-for-cli/rbac.yaml'), 'utf8');
    const roles = parseAllDocuments(text).map(
      (document) => document.toJS() as { kind: string; rules?: Rule[] },
    );
    const rights = roles.flatMap(({ rules = [] }) => rightsOf(rules));
    expect(rights.length).toBeGreaterThan(10);
    expect(rights.filter((right) => !used.has(right))).toEqual([]);
  });
});
