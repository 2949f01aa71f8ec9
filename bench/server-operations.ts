/**
 * `node bench/server-operations.ts [--operations N] [--seconds N]`: a server's requests to the API
 * server and the bucket while N operations of one backup (200 by default) are in flight.
 *
 * Velero's server and ours run in turn, on one real API server with MinIO. The volumes belong to a
 * simulated CSI driver, and no agent moves them. This program reports progress of a tenth of them
 * every ten seconds. Both servers poll at their default rate. Prints requests per minute for each
 * server, without the requests of the cluster itself.
 *
 * Needs the peers of test/peers. With 200 operations it takes 22 minutes, most of them for the
 * snapshots of Velero's server.
 */
import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DATA_UPLOADS,
  type KubeObject,
  VOLUME_SNAPSHOT_CLASSES,
} from '../src/kube/index.ts';
import { TestCluster } from '../test/support/dev-cluster.ts';
import { OwnServer } from '../test/support/own-server.ts';
import { sharedPackage } from '../test/support/package.ts';
import { startRealApi } from '../test/support/real-api.ts';

const { values } = parseArgs({
  options: {
    operations: { type: 'string', default: '200' },
    seconds: { type: 'string', default: '120' },
  },
});
const OPERATIONS = Number(values.operations);
const SECONDS = Number(values.seconds);
const PORT_BASE = 26_200;
const S3_PORT = PORT_BASE + 3;
const APP = 'app';
/** Uploads of a data mover without agents stay in flight for ever. */
const MOVER = 'of-nobody';
const BAR = 0.5;
const STEP_MS = 10_000;

// As by default; the peers' set-up for tests asks more often.
process.env.VELERO_SERVER_FLAGS = [
  '--item-operation-sync-frequency=10s',
  '--store-validation-frequency=1m',
  '--garbage-collection-frequency=1h',
].join(' ');
await using api = await startRealApi(PORT_BASE, { hasVeleroCrds: true });
const { client, directory } = api;
await using test = await TestCluster.start({ nodes: ['node-1'], kubeconfig: api.kubeconfig });
await client.create(VOLUME_SNAPSHOT_CLASSES, {
  metadata: { name: 'dir-snap', labels: { 'velero.io/csi-volumesnapshot-class': 'true' } },
  driver: 'dir.csi.longshore.dev',
  deletionPolicy: 'Delete',
} as never);
await test.makeNamespace(APP);
const names = Array.from({ length: OPERATIONS }, (_, i) => `volume-${i}`);
for (let i = 0; i < names.length; i += 20) {
  await Promise.all(names.slice(i, i + 20).map((name) => test.makeVolume(APP, name)));
}
console.log(`${OPERATIONS} volumes are bound`);
await api.stack('up', 's3');

const counter = spawn(
  process.execPath,
  [join(import.meta.dirname, 'request-counter.ts'), `http://127.0.0.1:${S3_PORT}`],
  { stdio: ['ignore', 'pipe', 'inherit'] },
);
process.once('exit', () => counter.kill());
const counterPort = await new Promise<number>((resolve) => {
  counter.stdout.once('data', (text: Buffer) => resolve(Number(text.toString())));
});

/** Since the last time. */
async function bucketRequests(): Promise<number> {
  const answer = await fetch(`http://127.0.0.1:${counterPort}/counts`);
  const counts = Object.values((await answer.json()) as Record<string, number>);
  return counts.reduce((sum, count) => sum + count, 0);
}

type Counts = ReadonlyMap<string, number>;

/** Requests by verb and resource, since the API server's start. */
async function apiRequests(): Promise<Counts> {
  const text = await api.kubectl('get', '--raw', '/metrics');
  const counts = new Map<string, number>();
  for (const [, labels = '', count] of text.matchAll(/^apiserver_request_total\{(.*)\} (\S+)$/gm)) {
    const of = (label: string): string => new RegExp(`${label}="([^"]*)"`).exec(labels)?.[1] ?? '';
    const key = `${of('verb')} ${of('resource')}`;
    counts.set(key, (counts.get(key) ?? 0) + Number(count));
  }
  return counts;
}

const less = (after: Counts, before: Counts): Counts =>
  new Map([...after].map(([key, count]) => [key, count - (before.get(key) ?? 0)]));

const sumOf = (counts: Counts): number => counts.values().reduce((sum, count) => sum + count, 0);

/** Reports progress as agents do, so that there is something to store. */
async function move(uploads: readonly KubeObject[], step: number): Promise<void> {
  const count = Math.ceil(uploads.length / 10);
  for (let i = 0; i < count; i++) {
    const upload = uploads[(step * count + i) % uploads.length];
    if (!upload) return;
    const progress = { bytesDone: 1000 * (step + 1), totalBytes: 1_000_000 };
    await client.patch(DATA_UPLOADS, upload.metadata, {
      status: { phase: 'InProgress', progress },
    });
  }
}

const perMinute = (count: number): number => Math.round((count * 600) / SECONDS) / 10;

/** Requests of `SECONDS`, in which the uploads, if there are any, move on. */
async function measure(): Promise<{ api: Counts; bucket: number }> {
  const uploads = await client.list(DATA_UPLOADS, { namespace: 'velero' });
  await bucketRequests();
  const before = await apiRequests();
  const until = performance.now() + SECONDS * 1000;
  for (let step = 0; performance.now() < until; step++) {
    const nextMs = performance.now() + STEP_MS;
    await move(uploads, step);
    await sleep(Math.max(0, Math.min(nextMs, until) - performance.now()));
  }
  return { api: less(await apiRequests(), before), bucket: await bucketRequests() };
}

async function measureServer(side: string): Promise<{ api: Counts; bucket: number }> {
  const ref = { name: `b-${side}`, namespace: 'velero' };
  await client.create(BACKUPS, {
    metadata: ref,
    spec: {
      storageLocation: 'default',
      includedNamespaces: [APP],
      snapshotMoveData: true,
      datamover: MOVER,
      itemOperationTimeout: '4h0m0s',
    },
  });
  for (;;) {
    const { status } = (await client.get(BACKUPS, ref)) as { status?: { phase?: string } };
    if (status?.phase === 'WaitingForPluginOperations') break;
    if (/Fail|Completed/.test(status?.phase ?? '')) throw new Error(JSON.stringify(status));
    await sleep(500);
  }
  await sleep(15_000);
  return measure();
}

// The simulated cluster's location has settings that Velero's plugin refuses.
await client.delete(BACKUP_STORAGE_LOCATIONS, { namespace: 'velero', name: 'default' });
await api.stack('up', 'velero');
await client.patch(
  BACKUP_STORAGE_LOCATIONS,
  { namespace: 'velero', name: 'default' },
  { spec: { config: { s3Url: `http://127.0.0.1:${counterPort}` } } },
);
const velero = await measureServer('velero');
await api.stack('down', 'velero');
// Background requests: the cluster itself and the reports of progress, with all uploads there.
const { api: background } = await measure();
for (const { metadata } of await client.list(DATA_UPLOADS, { namespace: 'velero' })) {
  await client.delete(DATA_UPLOADS, metadata);
}
await client.delete(BACKUPS, { namespace: 'velero', name: 'b-velero' });
const home = join(directory, 'own-home');
fs.mkdirSync(home, { recursive: true });
const own = await (async () => {
  await using server = OwnServer.start({
    program: join(sharedPackage(), 'bin/longshore'),
    parameters: [
      ...['server', '--namespace', 'velero', '--metrics-address', '127.0.0.1:0'],
      ...['--plugin-dir', join(directory, 'plugins'), '--features', 'EnableCSI'],
    ],
    env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: home, TMPDIR: home },
    log: join(directory, 'own-server.log'),
  });
  const counted = await measureServer('longshore');
  if (server.isGone) throw new Error('the server has ended');
  return counted;
})();
counter.kill();
const rows = Object.entries({ velero, longshore: own }).map(([side, counts]) => {
  const asked = less(counts.api, background);
  const most = [...asked].sort(([, a], [, b]) => b - a).slice(0, 6);
  const perMinuteOf = { api: perMinute(sumOf(asked)), bucket: perMinute(counts.bucket) };
  console.log(JSON.stringify({ side, operations: OPERATIONS, requestsPerMinute: perMinuteOf }));
  console.log(`  most: ${most.map(([key, count]) => `${key} ${perMinute(count)}`).join(', ')}`);
  return perMinuteOf;
});
const [theirs = { api: 0, bucket: 0 }, ours = theirs] = rows;
for (const kind of ['api', 'bucket'] as const) {
  const share = (ours[kind] / theirs[kind]).toFixed(2);
  console.log(`${kind}: ${share} of Velero's requests per minute (bar ${BAR})`);
}
