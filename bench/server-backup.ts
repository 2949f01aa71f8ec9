/**
 * `node bench/server-backup.ts [--objects N] [--namespaces N] [--bytes N] [--claims N] [--own] [--runs N]`: backups of the same cluster by
 * Velero's server and by ours, in turn, on one real API server with MinIO. The cluster has so many ConfigMaps (300,000 by default, in 600 namespaces), then so many
 * bound PVCs with their volumes whose snapshots are not taken. Prints for each backup: seconds from `InProgress` to its end as the server's own
 * timestamps and a watch have it, CPU seconds and the peak of the server's process, and its peak at rest; then how many times faster ours was.
 * `--own` leaves Velero's server out; `--runs`: so many times ours, each by a process of its own. Needs the peers of test/peers.
 * `--objects 6000 --namespaces 60` takes two minutes.
 */
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { BACKUPS, CONFIG_MAPS, type KubeClient, NAMESPACES, PVCS, PVS } from '../src/kube/index.ts';
import { OwnServer } from '../test/support/own-server.ts';
import { sharedPackage } from '../test/support/package.ts';
import { startRealApi } from '../test/support/real-api.ts';
import { peakOf } from './measure.ts';

const { values } = parseArgs({
  options: {
    objects: { type: 'string', default: '300000' },
    namespaces: { type: 'string', default: '600' },
    bytes: { type: 'string', default: '200' },
    claims: { type: 'string', default: '1000' },
    own: { type: 'boolean', default: false },
    runs: { type: 'string', default: '1' },
  },
});
const PORT_BASE = 25_900;
const AT_ONCE = 64;
const FINAL = /^(Completed|PartiallyFailed|Failed|FailedValidation)$/;
const WALL_BAR = 3;
const PEAK_BAR_MIB = 256;

interface Status {
  readonly phase?: string;
  readonly progress?: { readonly itemsBackedUp?: number };
}

/** Makes so many objects, many at a time. */
async function make(count: number, one: (index: number) => Promise<unknown>): Promise<void> {
  let next = 0;
  const work = async (): Promise<void> => {
    while (next < count) await one(next++);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

async function fill(client: KubeClient): Promise<void> {
  const [objects, spaces] = [Number(values.objects), Number(values.namespaces)];
  const text = 'x'.repeat(Number(values.bytes));
  await make(spaces, (i) => client.create(NAMESPACES, { metadata: { name: `space-${i}` } }));
  await make(objects, (i) =>
    client.create(CONFIG_MAPS, {
      metadata: { name: `config-${i}`, namespace: `space-${i % spaces}` },
      data: { text },
    }),
  );
}

async function fillClaims(client: KubeClient): Promise<void> {
  await client.create(NAMESPACES, { metadata: { name: 'claims' } });
  await make(Number(values.claims), async (i) => {
    const name = `volume-${i}`;
    await client.create(PVS, {
      metadata: { name },
      spec: {
        capacity: { storage: '1Gi' },
        accessModes: ['ReadWriteOnce'],
        storageClassName: 'by-hand',
        hostPath: { path: `/${name}` },
        claimRef: { apiVersion: 'v1', kind: 'PersistentVolumeClaim', namespace: 'claims', name },
      },
    });
    await client.create(PVCS, {
      metadata: { name, namespace: 'claims' },
      spec: {
        accessModes: ['ReadWriteOnce'],
        storageClassName: 'by-hand',
        volumeName: name,
        resources: { requests: { storage: '1Gi' } },
      },
    });
  });
}

/** Velero takes a claim without a volume for an error. */
async function untilBound(client: KubeClient): Promise<void> {
  for (;;) {
    const claims = await client.list(PVCS, { namespace: 'claims' });
    if (claims.every(({ status }) => status?.phase === 'Bound')) return;
    await sleep(1000);
  }
}

/** KiB that a process has in memory. */
const residentOf = (pid: number): number =>
  Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0);

/** User and system time of a process so far. */
function cpuSecondsOf(pid: number): number {
  const fields = fs.readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

async function backUp(
  client: KubeClient,
  name: string,
  spec: object,
): Promise<{ seconds: number; items: number; phase: string }> {
  await client.create(BACKUPS, {
    metadata: { name, namespace: 'velero' },
    spec: { storageLocation: 'default', snapshotVolumes: false, ...spec },
  } as never);
  let startMs: number | undefined;
  for (;;) {
    const { status = {} } = (await client.get(BACKUPS, { name, namespace: 'velero' })) as {
      status?: Status;
    };
    const { phase = '', progress } = status;
    if (phase === 'InProgress') startMs ??= performance.now();
    if (FINAL.test(phase)) {
      const seconds = (performance.now() - (startMs ?? performance.now())) / 1000;
      return { seconds, items: progress?.itemsBackedUp ?? 0, phase };
    }
    await sleep(100);
  }
}

const SCENARIOS: Readonly<Record<string, object>> = {
  objects: { includedNamespaces: ['space-*'], includedNamespaceScopedResources: ['configmaps'] },
  claims: { includedNamespaces: ['claims'] },
};

const load = (): string => fs.readFileSync('/proc/loadavg', 'utf8').split(' ')[0] ?? '';
const round = (value: number): number => Math.round(value * 10) / 10;

await using api = await startRealApi(PORT_BASE, { hasVeleroCrds: true });
const { client, directory } = api;
const filledMs = performance.now();
await fill(client);
await fillClaims(client);
console.log(`filled in ${round((performance.now() - filledMs) / 1000)} s, load ${load()}`);
await untilBound(client);
await api.stack('up', 's3');
const seconds = new Map<string, number>();

async function measureServer(side: string, pid: number): Promise<void> {
  await sleep(5000);
  const residentMiB = round(residentOf(pid) / 1024);
  const rest = { side, scenario: 'at rest', residentMiB, peakMiB: round(peakOf(pid) / 1024) };
  console.log(JSON.stringify(rest));
  for (const [scenario, spec] of Object.entries(SCENARIOS)) {
    // The high-water mark begins anew.
    fs.writeFileSync(`/proc/${pid}/clear_refs`, '5');
    const before = cpuSecondsOf(pid);
    const made = await backUp(client, `${side}-${scenario}`, spec);
    seconds.set(`${side} ${scenario}`, made.seconds);
    const peakMiB = round(peakOf(pid) / 1024);
    const cpuSeconds = round(cpuSecondsOf(pid) - before);
    console.log(
      JSON.stringify({
        side,
        scenario,
        ...made,
        seconds: round(made.seconds),
        cpuSeconds,
        peakMiB,
        load: load(),
      }),
    );
  }
}

// It also makes the namespace and the location.
await api.stack('up', 'velero');
if (!values.own) {
  await measureServer('velero', Number(fs.readFileSync(join(directory, 'velero.pid'), 'utf8')));
}
await api.stack('down', 'velero');
for (let run = 1; run <= Number(values.runs); run++) {
  const home = join(directory, 'own-home');
  fs.mkdirSync(home, { recursive: true });
  await using server = OwnServer.start({
    program: join(sharedPackage(), 'bin/longshore'),
    parameters: [
      ...['server', '--namespace', 'velero', '--metrics-address', '127.0.0.1:0'],
      ...['--plugin-dir', join(directory, 'plugins'), '--features', 'EnableCSI'],
      ...['--item-operation-sync-frequency', '2s'],
    ],
    env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: home, TMPDIR: home },
    log: join(directory, 'own-server.log'),
  });
  await measureServer(run === 1 ? 'longshore' : `longshore-${run}`, server.pid);
}
for (const scenario of values.own ? [] : Object.keys(SCENARIOS)) {
  const times =
    (seconds.get(`velero ${scenario}`) ?? 0) / (seconds.get(`longshore ${scenario}`) ?? 1);
  console.log(
    `${scenario}: ${round(times)} times as fast as Velero (bar ${WALL_BAR}); peak bar ${PEAK_BAR_MIB} MiB`,
  );
}
