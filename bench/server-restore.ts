/**
 * `node bench/server-restore.ts [--objects N] [--namespaces N] [--bytes N] [--claims N]
 * [--own] [--minutes M]`: restores by our server and by Velero's, in turn.
 *
 * Both restore the same backups on one real API server with MinIO, each into its own namespaces.
 * The first backup has N ConfigMaps (300,000 by default, in 600 namespaces). The second has N PVCs
 * with their volumes (metadata only, no data is moved).
 *
 * Prints for each restore: seconds from `InProgress` to its end in a watch of the CR, CPU seconds,
 * and the peak of the server's process. Then prints how many times faster ours was. `--own` leaves
 * Velero's server out. `--minutes` limits a restore by Velero's server. Its printed seconds are
 * then extrapolated from its pace to all items.
 *
 * Needs the peers of test/peers. `--objects 6000 --namespaces 60` takes some minutes: Velero's
 * server sends at most 100 requests a second.
 */
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { CONTROLLERS, RESTORE_CONTROLLERS } from '../src/server/compose/controller-names.ts';
import {
  BACKUPS,
  type KubeClient,
  type KubeObject,
  type Resource,
  RESTORES,
} from '../src/kube/index.ts';
import { OwnServer } from '../test/support/own-server.ts';
import { sharedPackage } from '../test/support/package.ts';
import { startRealApi } from '../test/support/real-api.ts';
import {
  cpuSecondsOf,
  fill,
  fillClaims,
  FINAL,
  load,
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
    minutes: { type: 'string' },
  },
});
const PORT_BASE = 25_900;
const WALL_BAR = 2;
const PEAK_BAR_MIB = 256;
const VELERO = 'velero';

interface Status {
  readonly phase?: string;
  readonly progress?: { readonly itemsRestored?: number; readonly totalItems?: number };
  readonly warnings?: number;
  readonly errors?: number;
}

type Ended = Status & { readonly seconds: number };

/**
 * Seconds from `InProgress` to the end. After `boundSeconds` without an end, the time is
 * extrapolated from the pace so far.
 */
async function untilEnd(
  client: KubeClient,
  resource: Resource<KubeObject>,
  name: string,
  boundSeconds = Infinity,
): Promise<Ended> {
  let startMs: number | undefined;
  for (;;) {
    const { status = {} } = (await client.get(resource, { name, namespace: VELERO })) as {
      status?: Status;
    };
    const { phase = '', progress } = status;
    if (phase === 'InProgress') startMs ??= performance.now();
    const seconds = (performance.now() - (startMs ?? performance.now())) / 1000;
    if (FINAL.test(phase)) return { ...status, seconds };
    if (seconds > boundSeconds) {
      const { itemsRestored = 0, totalItems = 0 } = progress ?? {};
      return { ...status, seconds: (seconds * totalItems) / itemsRestored };
    }
    await sleep(100);
  }
}

/** A restore that may be cut off comes last, because a server runs one restore at a time. */
const SCENARIOS: Readonly<Record<string, object>> = {
  claims: { includedNamespaces: ['claims'] },
  objects: { includedNamespaces: ['space-*'], includedNamespaceScopedResources: ['configmaps'] },
};

/** Each into namespaces of its own. */
function mappingOf(side: string): Record<string, string> {
  const spaces = Array.from({ length: Number(values.namespaces) }, (_, i) => `space-${i}`);
  return Object.fromEntries([...spaces, 'claims'].map((name) => [name, `${side}-${name}`]));
}

await using api = await startRealApi(PORT_BASE, { hasVeleroCrds: true });
const { client, directory } = api;
await fill(client, {
  objects: Number(values.objects),
  namespaces: Number(values.namespaces),
  bytes: Number(values.bytes),
});
await fillClaims(client, Number(values.claims));
await untilBound(client);
console.log(`filled, load ${load()}`);
await api.stack('up', 's3');
// Velero's part also creates the namespace and the location.
await api.stack('up', 'velero');
await api.stack('down', 'velero');
const seconds = new Map<string, number>();

async function measureServer(side: string, pid: number, boundSeconds?: number): Promise<void> {
  for (const scenario of Object.keys(SCENARIOS)) {
    const name = `${side}-${scenario}`;
    // Reset the high-water mark.
    fs.writeFileSync(`/proc/${pid}/clear_refs`, '5');
    const before = cpuSecondsOf(pid);
    await client.create(RESTORES, {
      metadata: { name, namespace: VELERO },
      spec: { backupName: scenario, namespaceMapping: mappingOf(side) },
    });
    const ended = await untilEnd(client, RESTORES, name, boundSeconds);
    seconds.set(`${side} ${scenario}`, ended.seconds);
    console.log(
      JSON.stringify({
        side,
        scenario,
        phase: ended.phase,
        warnings: ended.warnings,
        errors: ended.errors,
        seconds: round(ended.seconds),
        items: ended.progress?.itemsRestored,
        cpuSeconds: round(cpuSecondsOf(pid) - before),
        peakMiB: round(peakOf(pid) / 1024),
        load: load(),
      }),
    );
  }
}

{
  const home = join(directory, 'own-home');
  fs.mkdirSync(home, { recursive: true });
  await using server = OwnServer.start({
    program: join(sharedPackage(), 'bin/longshore'),
    parameters: [
      ...['server', '--namespace', VELERO, '--metrics-address', '127.0.0.1:0'],
      ...['--plugin-dir', join(directory, 'plugins'), '--features', 'EnableCSI'],
      ...['--controllers', [...CONTROLLERS, ...RESTORE_CONTROLLERS].join(',')],
    ],
    env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: home, TMPDIR: home },
    log: join(directory, 'own-server.log'),
  });
  for (const [name, spec] of Object.entries(SCENARIOS)) {
    await client.create(BACKUPS, {
      metadata: { name, namespace: VELERO },
      spec: { storageLocation: 'default', snapshotVolumes: false, ...spec },
    });
    const { phase, seconds: took } = await untilEnd(client, BACKUPS, name);
    console.log(`backup ${name}: ${phase} in ${round(took)} s`);
  }
  await measureServer('longshore', server.pid);
}
if (!values.own) {
  await api.stack('up', 'velero');
  const pid = Number(fs.readFileSync(join(directory, 'velero.pid'), 'utf8'));
  await measureServer(
    'velero',
    pid,
    values.minutes === undefined ? undefined : Number(values.minutes) * 60,
  );
  for (const scenario of Object.keys(SCENARIOS)) {
    const times =
      (seconds.get(`velero ${scenario}`) ?? 0) / (seconds.get(`longshore ${scenario}`) ?? 1);
    console.log(
      `${scenario}: ${round(times)} times as fast as Velero (bar ${WALL_BAR}); peak bar ${PEAK_BAR_MIB} MiB`,
    );
  }
}
