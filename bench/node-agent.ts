/**
 * `node bench/node-agent.ts [--pairs N] [--large MiB]`: volumes of one real node to S3 and back, by our node-agent and by
 * Velero's in turn: a small one (30 MB) and a large one (1 GiB), each pair with data of its own. Prints one row for
 * each: seconds from creation to the end, of it until InProgress, and the bytes per second of the move. Needs root and
 * the peers of test/peers.
 */
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataDownload,
  type DataUpload,
} from '../src/kube/index.ts';
import { application, RealNode } from '../test/support/real-node.ts';

const { values } = parseArgs({
  options: { pairs: { type: 'string', default: '3' }, large: { type: 'string', default: '1024' } },
});
const SIDES = ['longshore', 'velero'] as const;
const SIZES = [
  ['30 MB', 30],
  [`${values.large} MiB`, Number(values.large)],
] as const;
const PORT_BASE = 23_400;

interface Row {
  readonly total: number;
  readonly until: number;
  readonly rate: number;
}

const seconds = (from: string | null | undefined, to: string | null | undefined): number =>
  (Date.parse(to ?? '') - Date.parse(from ?? '')) / 1000;

function rowOf({ metadata, status }: DataUpload | DataDownload): Row {
  if (status?.phase !== 'Completed')
    throw new Error(`${metadata.name}: ${status?.phase ?? ''} ${status?.message ?? ''}`);
  const { startTimestamp, completionTimestamp, progress } = status;
  const moving = Math.max(1, seconds(startTimestamp, completionTimestamp));
  return {
    total: seconds(metadata.creationTimestamp, completionTimestamp),
    until: seconds(metadata.creationTimestamp, startTimestamp),
    rate: (progress?.totalBytes ?? 0) / moving / 1e6,
  };
}

const median = (numbers: readonly number[]): number =>
  numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)] ?? NaN;

await using node = await RealNode.start(PORT_BASE);
await node.applyOverlay('beside-velero');
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
  '\n| volume | side | s in all | s until InProgress | MB/s of the move |\n|---|---|---|---|---|',
);
for (const [name, all] of rows) {
  const [what, side] = [
    name.slice(0, name.lastIndexOf(' ')),
    name.slice(name.lastIndexOf(' ') + 1),
  ];
  const of = (key: keyof Row): string => median(all.map((row) => row[key])).toFixed(1);
  console.log(`| ${what} | ${side} | ${of('total')} | ${of('until')} | ${of('rate')} |`);
}
