/**
 * `node bench/pod-volumes.ts [--pairs N] [--large MiB] [--files N] [--crowd] [--pods N]`:
 * file-system backup on one real node, by our node-agent and by Velero's in turn.
 *
 * The first volume has one large file (1 GiB), and the second has many small files (100,000). Both
 * are backed up, backed up again unchanged, and restored. Each pair has its own data. Prints
 * seconds from the creation of the PodVolumeBackup or PodVolumeRestore to its end. Also prints
 * seconds and bytes per second of the move (`InProgress` to `Completed`), and the peak of the data
 * mover's process. The last figure is our rate as a multiple of Velero's.
 *
 * `--crowd` also backs up and restores 20 pods with three volumes each, 10 volumes at a time.
 * `--pairs 0 --crowd` does only that. `--pairs 1 --large 64 --files 2000` takes two minutes. Needs
 * root and the peers of test/peers.
 */
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import {
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type PodVolumeBackup,
  type PodVolumeRestore,
  type Resource,
} from '../src/kube/index.ts';
import { type Agent, application, RealNode, type VolumeOfPod } from '../test/support/real-node.ts';
import { median } from './measure.ts';
import { NodeWatch, type Row } from './node-watch.ts';
import { makeFiles, makeRandom } from './sources.ts';

const { values } = parseArgs({
  options: {
    pairs: { type: 'string', default: '3' },
    large: { type: 'string', default: '1024' },
    files: { type: 'string', default: '100000' },
    crowd: { type: 'boolean', default: false },
    pods: { type: 'string', default: '20' },
  },
});
const PORT_BASE = 23_400;
const AGENTS: readonly Agent[] = ['longshore', 'velero'];
const RATE_BAR = 1.5;
const PEAK_BAR_MIB = 256;
const VOLUMES_OF_POD = ['a', 'b', 'c'];
const CROWD_FILE_BYTES = 8 << 20;
const CROWD_FILES = 100;
/**
 * The settings of both agents. The queue's length is Velero's remedy for too many hosting pods at
 * once. Without it the node refuses the pods beyond its limit, and their backups are canceled.
 */
const LOAD_CONCURRENCY = { globalConfig: 10, prepareQueueLength: 10 };
const FLAGS = ['--node-agent-configmap=node-agent-config'];

const SHAPES: readonly (readonly [string, (directory: string) => void])[] = [
  [
    `one file of ${values.large} MiB`,
    (directory) => {
      makeRandom(join(directory, 'data.bin'), Number(values.large) * 2 ** 20);
    },
  ],
  [
    `${Number(values.files).toLocaleString('en')} files`,
    (directory) => {
      makeFiles(directory, Number(values.files));
    },
  ],
];

/** Rows by volume and step, then by agent. */
const rows = new Map<string, Record<Agent, Row[]>>();
function add(what: string, agent: Agent, row: Row): void {
  const both = rows.get(what) ?? { longshore: [], velero: [] };
  both[agent].push(row);
  rows.set(what, both);
  console.log(JSON.stringify({ what, agent, ...row }));
}

await using node = await RealNode.start(PORT_BASE);
const json = JSON.stringify({ loadConcurrency: LOAD_CONCURRENCY });
await node.apply(
  JSON.stringify({
    apiVersion: 'v1',
    kind: 'ConfigMap',
    metadata: { name: 'node-agent-config', namespace: 'velero' },
    data: { json },
  }),
);
// Twenty waiting pods would need more than a node of two CPUs has: Velero's default is a tenth of a
// CPU for each pod.
await node.apply(
  JSON.stringify({
    apiVersion: 'v1',
    kind: 'ConfigMap',
    metadata: {
      name: 'fs-restore-action-config',
      namespace: 'velero',
      labels: {
        'velero.io/plugin-config': '',
        'velero.io/pod-volume-restore': 'RestoreItemAction',
      },
    },
    data: { cpuRequest: '10m', memRequest: '32Mi' },
  }),
);
using watch = new NodeWatch(node.client, [POD_VOLUME_BACKUPS, POD_VOLUME_RESTORES]);

const ready = (namespace: string): Promise<string> =>
  node.kubectl('-n', namespace, 'wait', '--for=condition=Ready', 'pod', '--all', '--timeout=300s');

const removeNamespaces = (...namespaces: string[]): Promise<string> =>
  node.kubectl('delete', 'ns', ...namespaces, '--timeout=300s');

/** Seconds of the command, and the CRs that it made. */
async function timed<T extends PodVolumeBackup | PodVolumeRestore>(
  resource: Resource<T>,
  labelSelector: string,
  parameters: readonly string[],
): Promise<{ seconds: number; made: T[] }> {
  const startMs = performance.now();
  const text = await node.velero(...parameters, '--wait');
  const seconds = (performance.now() - startMs) / 1000;
  if (!/completed with status: Completed/.test(text)) throw new Error(text);
  const made = await node.client.list(resource, { namespace: 'velero', labelSelector });
  return { seconds, made };
}

const backUp = (name: string, namespace: string): ReturnType<typeof timed<PodVolumeBackup>> =>
  timed(POD_VOLUME_BACKUPS, `velero.io/backup-name=${name}`, [
    ...['backup', 'create', name, '--include-namespaces', namespace],
    '--default-volumes-to-fs-backup',
  ]);

const restore = (
  name: string,
  backup: string,
  ...flags: string[]
): ReturnType<typeof timed<PodVolumeRestore>> =>
  timed(POD_VOLUME_RESTORES, `velero.io/restore-name=${name}`, [
    ...['restore', 'create', name, '--from-backup', backup],
    ...flags,
  ]);

const bytesBelow = (directory: string): number =>
  fs
    .readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .reduce((sum, entry) => sum + fs.statSync(join(entry.parentPath, entry.name)).size, 0);

/** The helper that a restored pod waits by may not remove its directory from a volume of root's. */
function assertSame(before: string, after: string): void {
  execFileSync('diff', ['-rq', '--no-dereference', '--exclude=.velero', before, after]);
}

async function measureVolume(agent: Agent, shape: number, namespace: string): Promise<void> {
  const [label, fill] = SHAPES[shape] ?? ['', () => undefined];
  await node.applyPatiently(application(namespace, [{ name: 'data', storage: '2Gi' }]));
  await ready(namespace);
  const source = await node.volumePath(namespace, 'data');
  fill(source);
  const bytes = bytesBelow(source);
  for (const step of ['first', 'unchanged']) {
    const { made } = await backUp(`${namespace}-${step}`, namespace);
    for (const backup of made) add(`${label}, ${step}`, agent, watch.rowOf(backup, bytes));
  }
  const back = `${namespace}-back`;
  const mapping = ['--namespace-mappings', `${namespace}:${back}`];
  const { made } = await restore(back, `${namespace}-first`, ...mapping);
  for (const restored of made) add(`${label}, restored`, agent, watch.rowOf(restored, bytes));
  await ready(back);
  assertSame(source, await node.volumePath(back, 'data'));
  await removeNamespaces(namespace, back);
}

/** Pods with volumes of their own. */
function crowd(namespace: string, pods: number): string {
  const documents: object[] = [
    { apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } },
    ...Array.from({ length: pods }, (_, i) => ({
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: `pod-${i}`, namespace },
      spec: {
        terminationGracePeriodSeconds: 0,
        automountServiceAccountToken: false,
        containers: [
          {
            name: 'c',
            image: 'localhost/busybox:1',
            imagePullPolicy: 'Never',
            command: ['sleep', '36000'],
            volumeMounts: VOLUMES_OF_POD.map((name) => ({ name, mountPath: `/${name}` })),
          },
        ],
        volumes: VOLUMES_OF_POD.map((name) => ({ name, emptyDir: {} })),
      },
    })),
  ];
  return documents.map((document) => JSON.stringify(document)).join('\n---\n');
}

interface CrowdRow {
  /** Of `velero backup|restore create --wait`. */
  readonly seconds: number;
  /** From the first CR's creation to the last one's end. */
  readonly moving: number;
  readonly peakMiB: number;
}

function crowdRow({
  seconds,
  made,
}: {
  seconds: number;
  made: (PodVolumeBackup | PodVolumeRestore)[];
}): CrowdRow {
  const names = made.map(({ metadata }) => metadata.name);
  const first = Math.min(...names.map((name) => watch.momentOf(name)));
  const last = Math.max(...names.map((name) => watch.momentOf(name, 'Completed')));
  const peakMiB = Math.max(...made.map((movement) => watch.rowOf(movement).peakMiB));
  return { seconds, moving: (last - first) / 1000, peakMiB };
}

async function measureCrowd(agent: Agent): Promise<Record<'backed up' | 'restored', CrowdRow>> {
  const namespace = `crowd-${agent}`;
  const pods = Number(values.pods);
  await node.applyPatiently(crowd(namespace, pods));
  await ready(namespace);
  const sums = new Map<string, number>();
  const keyOf = ({ pod, volume }: VolumeOfPod): string => `${pod}/${volume}`;
  for (const volume of await node.volumesOfPods(namespace)) {
    makeRandom(join(volume.path, 'data.bin'), CROWD_FILE_BYTES);
    makeFiles(volume.path, CROWD_FILES);
    sums.set(keyOf(volume), bytesBelow(volume.path));
  }
  const up = crowdRow(await backUp(namespace, namespace));
  await removeNamespaces(namespace);
  const down = crowdRow(await restore(namespace, namespace));
  await ready(namespace);
  const restored = await node.volumesOfPods(namespace);
  const wrong = restored.filter((volume) => bytesBelow(volume.path) !== sums.get(keyOf(volume)));
  if (restored.length !== sums.size || wrong.length > 0) {
    throw new Error(`not restored: ${wrong.map(keyOf).join(', ')}`);
  }
  await removeNamespaces(namespace);
  return { 'backed up': up, restored: down };
}

const verdict = (ratio: number, bar: number): string =>
  `${ratio.toFixed(2)}${ratio >= bar ? '' : ' (missed)'}`;

for (let pair = 0; pair < Number(values.pairs); pair++) {
  for (const shape of SHAPES.keys()) {
    // In turn for each volume, and each first every other time: other load on the machine comes and
    // goes.
    for (const agent of (pair + shape) % 2 === 0 ? AGENTS : AGENTS.toReversed()) {
      await node.useAgent(agent, FLAGS);
      await measureVolume(agent, shape, `${agent}-${pair}-${shape}`);
    }
  }
}
if (rows.size > 0) {
  console.log(
    '\n| volume | agent | s in all | s of the move | MB/s of the move | mover MiB |\n|---|---|---|---|---|---|',
  );
  for (const [what, both] of rows) {
    for (const agent of AGENTS) {
      const of = (key: keyof Row, digits: number): string =>
        median(both[agent].map((row) => row[key])).toFixed(digits);
      console.log(
        `| ${what} | ${agent} | ${of('total', 1)} | ${of('move', 2)} | ${of('rate', 1)} | ${of('peakMiB', 0)} |`,
      );
    }
  }
  console.log(
    `\n| volume | times Velero's rate (bar ${RATE_BAR}) | Velero's seconds in all / ours | peak MiB (bar ${PEAK_BAR_MIB}) |\n|---|---|---|---|`,
  );
  for (const [what, { longshore, velero }] of rows) {
    const ratio = (key: 'rate' | 'total'): number =>
      median(longshore.map((row) => row[key])) / median(velero.map((row) => row[key]));
    const peak = Math.max(...longshore.map(({ peakMiB }) => peakMiB));
    const peakVerdict = `${peak.toFixed(0)}${peak <= PEAK_BAR_MIB ? '' : ' (missed)'}`;
    console.log(
      `| ${what} | ${verdict(ratio('rate'), RATE_BAR)} | ${(1 / ratio('total')).toFixed(2)} | ${peakVerdict} |`,
    );
  }
}
if (values.crowd) {
  const measured: [Agent, Awaited<ReturnType<typeof measureCrowd>>][] = [];
  for (const agent of AGENTS) {
    await node.useAgent(agent, FLAGS);
    measured.push([agent, await measureCrowd(agent)]);
  }
  console.log(
    `\n| ${values.pods} pods with ${VOLUMES_OF_POD.length} volumes each | agent | s of the command | s from the first CR to the last end | highest mover MiB |\n|---|---|---|---|---|`,
  );
  for (const step of ['backed up', 'restored'] as const) {
    for (const [agent, { [step]: row }] of measured) {
      console.log(
        `| ${step} | ${agent} | ${row.seconds.toFixed(1)} | ${row.moving.toFixed(1)} | ${row.peakMiB.toFixed(0)} |`,
      );
    }
    const [ours, theirs] = measured.map(([, result]) => result[step].moving);
    console.log(`| ${step} | Velero / ours | | ${((theirs ?? 0) / (ours ?? 1)).toFixed(2)} | |`);
  }
}
