/**
 * `node bench/server-backup.ts [--objects N] [--namespaces N] [--bytes N] [--claims N]
 * [--own] [--runs N]`: backups of one cluster by Velero's server and by ours, in turn.
 *
 * The cluster is one real API server with MinIO. The first backup has N ConfigMaps (300,000 by
 * default, in 600 namespaces). The second has N bound PVCs with their volumes, without snapshots.
 * Prints for each backup: seconds from `InProgress` to its end by the server's timestamps and by a
 * watch. Also prints CPU seconds, the peak of the server's process, its peak at rest, and how many
 * times faster ours was.
 *
 * `--own` leaves Velero's server out. `--runs`: number of our runs, each by its own process. Needs
 * the peers of test/peers. `--objects 6000 --namespaces 60` takes two minutes.
 */
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { BACKUPS, type KubeClient } from '../src/kube/index.ts';
import { OwnServer } from '../test/support/own-server.ts';
import { sharedPackage } from '../test/support/package.ts';
import { startRealApi } from '../test/support/real-api.ts';
import {
  cpuSecondsOf,
  fill,
  fillClaims,
  FINAL,
  load,
  residentOf,
  round,
  untilBound,
} from './filled-cluster.ts';
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
const WALL_BAR = 3;
const PEAK_BAR_MIB = 256;

interface Status {
  readonly phase?: string;
  readonly progress?: { readonly itemsBackedUp?: number };
}

async function backUp(
  client: KubeClient,
  name: string,
  spec: object,
): Promise<{ seconds: number; items: number; phase: string }> {
  await client.create(BACKUPS, {
    metadata: { name, namespace: 'velero' },
    spec: { storageLocation: 'default', snapshotVolumes: false, ...spec },
  });
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

await using api = await startRealApi(PORT_BASE, { hasVeleroCrds: true });
const { client, directory } = api;
const filledMs = performance.now();
await fill(client, {
  objects: Number(values.objects),
  namespaces: Number(values.namespaces),
  bytes: Number(values.bytes),
});
await fillClaims(client, Number(values.claims));
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
    // Reset the high-water mark.
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

// Velero's part also creates the namespace and the location.
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
