import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify, stripVTControlCharacters } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openBucket } from '../../../src/blob/index.ts';
import {
  CONFIG_MAPS,
  type KubeObject,
  NAMESPACES,
  RESTORES,
  SERVICE_ACCOUNTS,
  waitFor,
  waitGone,
} from '../../../src/kube/index.ts';
import { OwnServer } from '../../support/own-server.ts';
import { sharedPackage } from '../../support/package.ts';
import { hasPeers, hasRealApi, peer, type RealApi, startRealApi } from '../../support/real-api.ts';

const run = promisify(execFile);
const PORT = 26_900;
const FINAL = /^(Completed|PartiallyFailed|Failed|FailedValidation)$/;
/** More than a server restores between two polls. */
const MANY = 400;

const hasAll = (): boolean => hasRealApi() && hasPeers('velero', 'velero-plugin-for-aws', 'minio');

type Found = KubeObject & {
  readonly data?: Readonly<Record<string, string>>;
  readonly status?: Readonly<Record<string, unknown>> & {
    readonly phase?: string;
    readonly progress?: { readonly itemsRestored?: number };
  };
};

describe.skipIf(!hasAll())('a backup by the real Velero, restored by our server', () => {
  let api: RealApi;
  let server: OwnServer | undefined;

  beforeAll(async () => {
    api = await startRealApi(PORT, { hasVeleroCrds: true });
    await api.stack('up', 's3', 'velero');
    const yaml = join(api.directory, 'objects.json');
    fs.writeFileSync(yaml, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects() }));
    await api.kubectl('apply', '--server-side', '-f', yaml);
    await velero('backup', 'create', 'b1', '--include-namespaces', 'shop', '--wait');
    await velero('backup', 'create', 'many', '--include-namespaces', 'many', '--wait');
    await api.stack('down', 'velero');
    server = startOurs();
  }, 240_000);
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  });

  const velero = async (...parameters: string[]): Promise<string> => {
    const options = { env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: api.directory } };
    const { stdout } = await run(peer('velero'), ['-n', 'velero', ...parameters], options);
    return stripVTControlCharacters(stdout);
  };

  function startOurs(): OwnServer {
    const home = join(api.directory, 'own-home');
    fs.mkdirSync(home, { recursive: true });
    return OwnServer.start({
      program: join(sharedPackage(), 'bin/longshore'),
      parameters: [
        ...['server', '--namespace', 'velero', '--metrics-address', '127.0.0.1:0'],
        '--controllers',
        'backup-storage-location,download-request,restore,restore-operations,restore-finalizer',
        ...['--plugin-dir', join(api.directory, 'plugins'), '--features', 'EnableCSI'],
      ],
      env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: home, TMPDIR: home },
      log: join(api.directory, 'own-server.log'),
    });
  }

  const restoreNow = (name: string): Promise<Found | undefined> =>
    api.client.find(RESTORES, { namespace: 'velero', name });
  const waitRestore = (name: string, isSo: (found: Found) => boolean): Promise<Found> =>
    waitFor<Found, Found>(
      api.client,
      RESTORES,
      { namespace: 'velero', name },
      (found) => (found && isSo(found) ? found : undefined),
      { timeoutMs: 60_000 },
    );
  const configMap = (namespace: string, name: string) =>
    api.client.find(CONFIG_MAPS, { namespace, name });

  async function keysOf(prefix: string): Promise<string[]> {
    process.env.AWS_ACCESS_KEY_ID = 'peersaccess';
    process.env.AWS_SECRET_ACCESS_KEY = 'peerssecret';
    const location = `s3://velero?endpoint=http://127.0.0.1:${PORT + 3}&region=us-east-1`;
    await using bucket = await openBucket(location);
    return await Array.fromAsync(bucket.list(prefix));
  }

  it('is there in another namespace, and the CLI shows what became of it', async () => {
    const said = await velero(
      ...['restore', 'create', 'r1', '--from-backup', 'b1', '--wait'],
      ...['--namespace-mappings', 'shop:copy'],
    );
    expect(said).toContain('Restore completed with status: Completed');
    expect((await configMap('copy', 'settings'))?.data).toEqual({ color: 'blue' });
    const account = await api.client.find(SERVICE_ACCOUNTS, { namespace: 'copy', name: 'runner' });
    expect(account?.metadata.labels).toMatchObject({
      'velero.io/restore-name': 'r1',
      'velero.io/backup-name': 'b1',
    });
    const described = await velero('restore', 'describe', 'r1', '--details');
    expect(described).toMatch(/Phase:\s+Completed/);
    expect(described).toContain('copy/settings(created)');
    const logs = await velero('restore', 'logs', 'r1');
    expect(logs).toContain('restore=velero/r1');
    const { metadata } = (await restoreNow('r1')) as Found;
    expect(metadata.finalizers).toContain('restores.velero.io/external-resources-finalizer');
    // The journal is not needed any more.
    expect((await keysOf('restores/r1/')).filter((key) => key.includes('journal'))).toEqual([]);
  });

  it('brings existing objects back to what they were where the restore says so', async () => {
    const ref = { namespace: 'shop', name: 'settings' };
    await api.client.patch(CONFIG_MAPS, ref, { data: { color: 'red', more: 'x' } });
    await velero('restore', 'create', 'stays', '--from-backup', 'b1', '--wait');
    expect((await configMap('shop', 'settings'))?.data).toEqual({ color: 'red', more: 'x' });
    const stays = await velero('restore', 'describe', 'stays');
    expect(stays).toContain('ConfigMap:settings already exists');
    await velero(
      ...['restore', 'create', 'updates', '--from-backup', 'b1', '--wait'],
      ...['--existing-resource-policy', 'update'],
    );
    expect((await configMap('shop', 'settings'))?.data).toEqual({ color: 'blue' });
  });

  it('is refused with all reasons at once', async () => {
    await api.client.create(RESTORES, {
      metadata: { namespace: 'velero', name: 'wrong' },
      spec: { backupName: 'none', existingResourcePolicy: 'all' },
    });
    const { status } = await waitRestore('wrong', (found) => FINAL.test(found.status?.phase ?? ''));
    expect(status?.phase).toBe('FailedValidation');
    expect(status?.validationErrors).toEqual([
      'Invalid ExistingResourcePolicy: all',
      expect.stringContaining('backups.velero.io "none" not found'),
    ]);
  });

  it('goes on where a server was killed in the middle', async () => {
    await velero(
      ...['restore', 'create', 'killed', '--from-backup', 'many'],
      ...['--namespace-mappings', 'many:again'],
    );
    await waitRestore('killed', ({ status }) => (status?.progress?.itemsRestored ?? 0) > 20);
    await server?.kill();
    const { status } = (await restoreNow('killed')) as Found;
    expect(status?.phase).toBe('InProgress');
    server = startOurs();
    const over = await waitRestore('killed', (found) => FINAL.test(found.status?.phase ?? ''));
    expect(over.status).toMatchObject({ phase: 'Completed' });
    // The cluster creates this object in each namespace, sooner or later.
    const { warnings = 0, errors = 0 } = over.status as { warnings?: number; errors?: number };
    expect([errors, warnings <= 1]).toEqual([0, true]);
    const described = await velero('restore', 'describe', 'killed', '--details');
    expect(described.match(/again\/c\d+\(created\)/g)).toHaveLength(MANY);
    expect(described).not.toMatch(/again\/c\d+\((?!created)/);
  });

  it('takes its files along when it is deleted, also in the middle', async () => {
    await velero('restore', 'delete', 'r1', '--confirm');
    const r1 = { namespace: 'velero', name: 'r1' };
    await waitGone(api.client, RESTORES, r1, { timeoutMs: 30_000 });
    expect(await keysOf('restores/r1/')).toEqual([]);
    await velero(
      ...['restore', 'create', 'leaves', '--from-backup', 'many'],
      ...['--namespace-mappings', 'many:third'],
    );
    await waitRestore('leaves', ({ status }) => (status?.progress?.itemsRestored ?? 0) > 5);
    await velero('restore', 'delete', 'leaves', '--confirm');
    const leaves = { namespace: 'velero', name: 'leaves' };
    await waitGone(api.client, RESTORES, leaves, { timeoutMs: 30_000 });
    expect(await keysOf('restores/leaves/')).toEqual([]);
    // The run has ended, so no more objects are created.
    const count = async (): Promise<number> =>
      (await api.client.list(CONFIG_MAPS, { namespace: 'third' })).length;
    const before = await count();
    await sleep(300);
    expect(await count()).toBe(before);
    expect(await api.client.find(NAMESPACES, { name: 'third' })).toBeDefined();
  });
});

function objects(): object[] {
  const space = (name: string) => ({ apiVersion: 'v1', kind: 'Namespace', metadata: { name } });
  return [
    ...[space('shop'), space('many')],
    {
      apiVersion: 'v1',
      kind: 'ConfigMap',
      data: { color: 'blue' },
      metadata: { namespace: 'shop', name: 'settings' },
    },
    {
      apiVersion: 'v1',
      kind: 'ServiceAccount',
      metadata: { namespace: 'shop', name: 'runner' },
    },
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { namespace: 'shop', name: 'web' },
      spec: { selector: { app: 'web' }, ports: [{ port: 80 }] },
    },
    {
      apiVersion: 'apps/v1',
      kind: 'Deployment',
      metadata: { namespace: 'shop', name: 'web' },
      spec: {
        replicas: 0,
        selector: { matchLabels: { app: 'web' } },
        template: {
          metadata: { labels: { app: 'web' } },
          spec: { containers: [{ name: 'web', image: 'example.com/web:1' }] },
        },
      },
    },
    ...Array.from({ length: MANY }, (_, i) => ({
      apiVersion: 'v1',
      kind: 'ConfigMap',
      data: { n: String(i) },
      metadata: { namespace: 'many', name: `c${i}` },
    })),
  ];
}
