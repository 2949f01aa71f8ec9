/**
 * `node bench/node-agent.ts [--pairs N] [--large MiB]`: moves volumes of one real node to S3 and
 * back, by our node-agent and by Velero's in turn.
 *
 * The small volume has 30 MB, and the large one 1 GiB. Each pair has its own data. Prints one row
 * for each volume:
 * - seconds from creation to the end, and their part until InProgress
 * - seconds from the pod's start to InProgress
 * - bytes per second of the move, and the peak of the data mover's process
 *
 * At the end both agents idle beside 1,000 ended CRs. The program also prints the requests of each
 * agent and its movers to the API server for one CR, from the audit log. Needs root and the peers
 * of test/peers.
 */
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { DATA_DOWNLOADS, DATA_UPLOADS } from '../src/kube/index.ts';
import { application, RealNode } from '../test/support/real-node.ts';
import { median } from './measure.ts';
import { NodeWatch, residentMiB, type Row } from './node-watch.ts';

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

await using node = await RealNode.start(PORT_BASE, { isAudited: true });
await node.applyOverlay('beside-velero');
using watch = new NodeWatch(node.client, [DATA_UPLOADS, DATA_DOWNLOADS]);
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
      if (upload) add(`${label} up ${side}`, watch.rowOf(upload));
      const mapping = ['--namespace-mappings', `${namespace}:${namespace}-back`, '--wait'];
      await node.velero('restore', 'create', name, '--from-backup', name, ...mapping);
      const [download] = await node.client.list(DATA_DOWNLOADS, {
        namespace: 'velero',
        labelSelector: `velero.io/restore-name=${name}`,
      });
      if (download) add(`${label} down ${side}`, watch.rowOf(download));
      await node.kubectl('delete', 'ns', namespace, `${namespace}-back`, '--wait=false');
      console.log(
        JSON.stringify({
          label,
          pair,
          side,
          upload: upload && watch.rowOf(upload),
          download: download && watch.rowOf(download),
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
