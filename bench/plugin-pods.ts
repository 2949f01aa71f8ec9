/**
 * `node bench/plugin-pods.ts [PODS ...]`: memory of a plugin process after it has backed up a PVC.
 *
 * The namespace has PODS other pods of 20 KiB each (0, 1,000 and 10,000), on a real API server. The
 * process must know the pods of each volume, once per backup. Prints one line of JSON for each
 * count: peak and present memory, and seconds of the first and the second item.
 */
import * as fs from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { silentLogger } from '../src/base/index.ts';
import { BACKUPS, PODS, VOLUME_SNAPSHOT_CLASSES } from '../src/kube/index.ts';
import { PluginHost } from '../src/plugin/host/plugin-host.ts';
import { TestCluster } from '../test/support/dev-cluster.ts';
import { sharedPackage } from '../test/support/package.ts';
import { backupOf, pvcOf } from '../test/support/plugin-items.ts';
import { createCrd, PEERS_DIR, startRealApi } from '../test/support/real-api.ts';

const counts = process.argv.length > 2 ? process.argv.slice(2).map(Number) : [0, 1000, 10_000];
const APP = 'app';
const PAYLOAD = 'x'.repeat(20 << 10);

await using api = await startRealApi(23_900);
const crd = join(PEERS_DIR, 'crds/velero-v1/velero.io_backups.yaml');
await createCrd(api.client, parse(fs.readFileSync(crd, 'utf8')) as object);
await using test = await TestCluster.start({ nodes: ['node-1'], kubeconfig: api.kubeconfig });
await test.makeNamespace(APP);
await test.client.create(VOLUME_SNAPSHOT_CLASSES, {
  metadata: { name: 'dir-snap' },
  driver: 'dir.csi.longshore.dev',
  deletionPolicy: 'Delete',
} as never);
const folder = join(test.directory, 'plugins');
fs.mkdirSync(folder);
const file = join(folder, 'velero-plugin-longshore');
fs.copyFileSync(join(sharedPackage(), 'dist/velero-plugin-longshore'), file);
fs.chmodSync(file, 0o755);

let pods = 0;
async function makePods(until: number): Promise<void> {
  for (; pods < until; pods++) {
    await test.client.create(PODS, {
      metadata: { name: `pod-${pods}`, namespace: APP, annotations: { payload: PAYLOAD } },
      spec: {
        // A pod of a missing scheduler: no node runs it.
        schedulerName: 'none',
        containers: [{ name: 'main', image: 'busybox' }],
        volumes: [{ name: 'data', persistentVolumeClaim: { claimName: `other-${pods}` } }],
      },
    } as never);
  }
}

/** The plugin process that this process has started. */
function pluginPid(): number {
  for (const name of fs.readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const command = fs.readFileSync(`/proc/${name}/cmdline`, 'utf8');
      if (command.includes(file)) return Number(name);
    } catch {
      // The process has ended meanwhile.
    }
  }
  throw new Error('the plugin does not run');
}

for (const count of counts) {
  await makePods(count);
  const backup = backupOf(`b-${count}`);
  const { metadata } = await test.client.create(BACKUPS, {
    metadata: { name: backup.metadata.name, namespace: 'velero' },
    spec: backup.spec,
    status: backup.status,
  });
  backup.metadata.uid = metadata.uid;
  await using host = await PluginHost.open({
    folder,
    flags: [],
    environment: { PATH: process.env.PATH, HOME: test.directory, KUBECONFIG: test.kubeconfig },
    logger: silentLogger,
  });
  await using manager = host.manager(silentLogger);
  const { action } = manager.backupItemAction('longshore.io/csi-pvc-backupper');
  const seconds: number[] = [];
  for (const name of ['first', 'second']) {
    const claim = `${name}-${count}`;
    await test.makeVolume(APP, claim);
    const item = await pvcOf(test.client, APP, claim);
    const begunMs = performance.now();
    await action.execute(item, backup, {
      signal: AbortSignal.timeout(600_000),
      logger: silentLogger,
    } as never);
    seconds.push(Math.round(performance.now() - begunMs) / 1000);
  }
  const status = fs.readFileSync(`/proc/${pluginPid()}/status`, 'utf8');
  const mib = (key: string): number =>
    Math.round(Number(new RegExp(`${key}:\\s+(\\d+)`).exec(status)?.[1]) / 1024);
  const [firstSeconds, secondSeconds] = seconds;
  const figures = { residentMiB: mib('VmRSS'), peakMiB: mib('VmHWM'), firstSeconds, secondSeconds };
  console.log(JSON.stringify({ pods: count, ...figures }));
}
