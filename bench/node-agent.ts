/**
 * `node bench/node-agent.ts [--pairs N] [--large MiB]`: volumes of one real node to S3 and back, by our node-agent and by
 * Velero's in turn: a small one (30 MB) and a large one (1 GiB), each pair with data of its own. Prints one row for
 * each: seconds from creation to the end, of it until InProgress, seconds from the pod's start to InProgress, the bytes
 * per second of the move, and the peak of the data mover's process. At the end both agents idle beside 1,000 ended CRs.
 * Printed too: what each agent with its movers asked of the API server for one CR, by the server's audit log.
 * Needs root and the peers of test/peers.
 */
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataDownload,
  type DataUpload,
  type KubeObject,
  PODS,
  type Resource,
} from '../src/kube/index.ts';
import { application, processesOf, RealNode } from '../test/support/real-node.ts';

const { values } = parseArgs({
  options: { pairs: { type: 'string', default: '3' }, large: { type: 'string', default: '1024' } },
});
const SIDES = ['longshore', 'velero'] as const;
const SIZES = [
  ['30 MB', 30],
  [`${values.large} MiB`, Number(values.large)],
] as const;
const PORT_BASE = 23_400;
const CRS = 1000;

interface Row {
  readonly total: number;
  readonly until: number;
  readonly rate: number;
  /** Seconds from the pod's start, as a watcher sees both. */
  readonly beyond: number;
  readonly peakMiB: number;
}

const seconds = (from: string | null | undefined, to: string | null | undefined): number =>
  (Date.parse(to ?? '') - Date.parse(from ?? '')) / 1000;

/** Peaks of the data movers' processes, by the names of their CRs.*/
const peaks = new Map<string, number>();
function samplePeaks(): void {
  for (const { pid, command } of processesOf(/--data-(?:upload|download)=/)) {
    const name = /--data-(?:upload|download)=(\S+)/.exec(command)?.[1] ?? '';
    peaks.set(name, Math.max(peaks.get(name) ?? 0, memoryMiB(pid, 'VmHWM')));
  }
}

function memoryMiB(pid: number, key: 'VmHWM' | 'VmRSS'): number {
  try {
    const status = fs.readFileSync(`/proc/${pid}/status`, 'utf8');
    return Number(new RegExp(`${key}:\\s+(\\d+)`).exec(status)?.[1] ?? 0) / 1024;
  } catch {
    // It has just ended.
    return 0;
  }
}

const over = new AbortController();
/** When pods began to run and CRs to be in progress, by name, as seen here. */
const seenMs = new Map<string, number>();
function note(what: string, name: string): void {
  const key = `${what} ${name}`;
  if (!seenMs.has(key)) seenMs.set(key, performance.now());
}

function watchFor<T extends KubeObject & { status?: { phase?: string | undefined } | undefined }>(
  resource: Resource<T>,
  phase: string,
): void {
  void (async () => {
    while (!over.signal.aborted) {
      try {
        const scope = { namespace: 'velero', signal: over.signal };
        for await (const { object } of node.client.watch(resource, scope)) {
          if ((object as T).status?.phase === phase) note(phase, object.metadata.name);
        }
      } catch {
        await sleep(200);
      }
    }
  })();
}

/** Resident MiB of the processes whose command matches. */
const residentMiB = (command: RegExp): number =>
  Math.round(processesOf(command).reduce((sum, { pid }) => sum + memoryMiB(pid, 'VmRSS'), 0));

function rowOf({ metadata, status }: DataUpload | DataDownload): Row {
  if (status?.phase !== 'Completed')
    throw new Error(`${metadata.name}: ${status?.phase ?? ''} ${status?.message ?? ''}`);
  const { startTimestamp, completionTimestamp, progress } = status;
  const moving = Math.max(1, seconds(startTimestamp, completionTimestamp));
  return {
    total: seconds(metadata.creationTimestamp, completionTimestamp),
    until: seconds(metadata.creationTimestamp, startTimestamp),
    rate: (progress?.totalBytes ?? 0) / moving / 1e6,
    beyond:
      ((seenMs.get(`InProgress ${metadata.name}`) ?? NaN) -
        (seenMs.get(`Running ${metadata.name}`) ?? NaN)) /
      1000,
    peakMiB: peaks.get(metadata.name) ?? NaN,
  };
}

const median = (numbers: readonly number[]): number =>
  numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)] ?? NaN;

await using node = await RealNode.start(PORT_BASE, { isAudited: true });
await node.applyOverlay('beside-velero');
setInterval(samplePeaks, 50).unref();
watchFor(PODS, 'Running');
watchFor(DATA_UPLOADS, 'InProgress');
watchFor(DATA_DOWNLOADS, 'InProgress');
const rows = new Map<string, Row[]>();
const add = (name: string, row: Row): void => void rows.set(name, [...(rows.get(name) ?? []), row]);
let run = 0;
for (const [label, mebibytes] of SIZES) {
  for (let pair = 0; pair < Number(values.pairs); pair++) {
    for (const side of SIDES) {
      const namespace = `bench-${++run}`;
      await node.applyPatiently(application(namespace, [{ name: 'data', storage: '2Gi' }]));
      await node.kubectl(
        '-n',
        namespace,
        'wait',
        '--for=condition=Ready',
        'pod/writer',
        '--timeout=60s',
      );
      const file = fs.openSync(join(await node.volumePath(namespace, 'data'), 'data.bin'), 'w');
      for (let done = 0; done < mebibytes; done++) fs.writeSync(file, randomBytes(1 << 20));
      fs.closeSync(file);
      const name = `b-${run}`;
      const flags = ['--snapshot-move-data', '--data-mover', side, '--wait'];
      await node.velero('backup', 'create', name, '--include-namespaces', namespace, ...flags);
      const [upload] = await node.client.list(DATA_UPLOADS, {
        namespace: 'velero',
        labelSelector: `velero.io/backup-name=${name}`,
      });
      if (upload) add(`${label} up ${side}`, rowOf(upload));
      const mapping = ['--namespace-mappings', `${namespace}:${namespace}-back`, '--wait'];
      await node.velero('restore', 'create', name, '--from-backup', name, ...mapping);
      const [download] = await node.client.list(DATA_DOWNLOADS, {
        namespace: 'velero',
        labelSelector: `velero.io/restore-name=${name}`,
      });
      if (download) add(`${label} down ${side}`, rowOf(download));
      await node.kubectl('delete', 'ns', namespace, `${namespace}-back`, '--wait=false');
      console.log(
        JSON.stringify({
          label,
          pair,
          side,
          upload: upload && rowOf(upload),
          download: download && rowOf(download),
        }),
      );
    }
  }
}
console.log(
  '\n| volume | side | s in all | s until InProgress | of it after the pod ran | MB/s of the move | mover MiB |\n|---|---|---|---|---|---|---|',
);
for (const [name, all] of rows) {
  const [what, side] = [
    name.slice(0, name.lastIndexOf(' ')),
    name.slice(name.lastIndexOf(' ') + 1),
  ];
  const of = (key: keyof Row): string => median(all.map((row) => row[key])).toFixed(1);
  console.log(
    `| ${what} | ${side} | ${of('total')} | ${of('until')} | ${of('beyond')} | ${of('rate')} | ${of('peakMiB')} |`,
  );
}
const ASKING = {
  longshore: /^longshore/,
  velero: /^(?:velero-)?(?:node-agent|data-mover)/,
};
interface Asked {
  readonly userAgent?: string;
  readonly verb: string;
}
const asked = fs
  .readFileSync(join(node.directory, 'audit.log'), 'utf8')
  .split('\n')
  .filter((line) => line !== '')
  .map((line) => JSON.parse(line) as Asked);
const crs = 2 * SIZES.length * Number(values.pairs);
for (const [side, agent] of Object.entries(ASKING)) {
  const own = asked.filter(({ userAgent = '' }) => agent.test(userAgent));
  const verbs = Map.groupBy(own, ({ verb }) => verb);
  const parts = [...verbs].map(([verb, list]) => `${verb} ${(list.length / crs).toFixed(1)}`);
  console.log(
    `requests for each CR, ${side}: ${(own.length / crs).toFixed(1)} (${parts.join(', ')})`,
  );
}
const names = Map.groupBy(asked, ({ userAgent = '' }) => userAgent.split(' ')[0]);
console.log(
  `all who asked: ${[...names].map(([name, { length }]) => `${name} ${length}`).join(', ')}`,
);
const AGENTS = {
  longshore: /node.*node-agent server.*--data-movers=longshore/,
  velero: /^\S*velero node-agent server/,
};
const idle = (): string =>
  Object.entries(AGENTS)
    .map(([side, command]) => `${side} ${residentMiB(command)} MiB`)
    .join(', ');
console.log(`idle agents: ${idle()}`);
for (let i = 0; i < CRS; i++) {
  await node.client.create(DATA_UPLOADS, {
    metadata: { name: `ended-${i}`, namespace: 'velero' },
    spec: {
      snapshotType: 'CSI',
      csiSnapshot: { volumeSnapshot: `snapshot-${i}`, storageClass: 'dir', snapshotClass: '' },
      sourcePVC: `claim-${i}`,
      sourceNamespace: 'app',
      backupStorageLocation: 'default',
      operationTimeout: '10m0s',
    },
    status: {
      phase: 'Completed',
      snapshotID: '0123456789abcdef0123456789abcdef',
      node: 'node-1',
      progress: { totalBytes: 1 << 30, bytesDone: 1 << 30 },
    },
  });
}
await sleep(30_000);
console.log(`beside ${CRS} ended CRs: ${idle()}`);
over.abort();
