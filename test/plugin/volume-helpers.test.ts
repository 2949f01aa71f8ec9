import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import {
  type Backup,
  CONFIG_MAPS,
  type PersistentVolumeClaim,
  PVCS,
} from '../../src/kube/index.ts';
import { VolumeHelpers } from '../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { sharedPackage } from '../support/package.ts';

let test: TestCluster;
let pvc: PersistentVolumeClaim;
beforeAll(async () => {
  test = await TestCluster.start({ nodes: ['node-1'] });
  await test.makeNamespace('app');
  await test.makeVolume('app', 'data');
  pvc = await test.client.get(PVCS, { namespace: 'app', name: 'data' });
}, 120_000);
afterAll(() => test[Symbol.asyncDispose]());

const policies = (name: string, rules: string): Promise<unknown> =>
  test.client.create(CONFIG_MAPS, {
    metadata: { name, namespace: NAMESPACE },
    data: { any: `version: v1\nvolumePolicies:\n${rules}\n` },
  });
const backupOf = (
  name: string,
  spec: Backup['spec'],
  annotations: Record<string, string> = {},
): Backup => ({
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata: { name, namespace: NAMESPACE, uid: `uid-${name}`, annotations } as Backup['metadata'],
  spec,
});
const own = (name: string) => ({ resourcePolicy: { kind: 'ConfigMap', name } });

it('answers for each Backup by its policies, which are read once', async () => {
  await policies('class', '- {action: {type: snapshot, parameters: {snapshotClass: fast}}}');
  await policies('skip', '- {action: {type: skip}}');
  const helpers = new VolumeHelpers(test.client);
  const backup = backupOf('a', { ...own('class'), snapshotVolumes: false });
  const helper = await helpers.of(backup);
  expect(await helper.shouldPerformSnapshot({ pvc })).toBe(true);
  expect(await helper.snapshotClass({ pvc })).toBe('fast');
  await test.client.delete(CONFIG_MAPS, { namespace: NAMESPACE, name: 'class' });
  expect(await helpers.of(backup)).toBe(helper);
  const skipped = await helpers.of(backupOf('b', own('skip')));
  expect(await skipped.shouldPerformSnapshot({ pvc })).toBe(false);
  const off = await helpers.of(backupOf('c', { snapshotVolumes: false }));
  expect(await off.shouldPerformSnapshot({ pvc })).toBe(false);
  // The helpers of the fifth Backup replace the oldest.
  for (const name of ['d', 'e']) await helpers.of(backupOf(name, {}));
  await expect(helpers.of(backup)).rejects.toMatchObject({ code: 'NO_VOLUME_POLICY' });
});

it('asks the policies for all backups behind those of the Backup', async () => {
  await policies('nfs', '- {conditions: {nfs: {}}, action: {type: skip}}');
  await policies('global', '- {action: {type: custom}}');
  const annotations = { 'velero.io/global-backup-volume-policy-configmap': 'global' };
  const helpers = new VolumeHelpers(test.client);
  for (const spec of [own('nfs'), {}]) {
    const name = 'resourcePolicy' in spec ? 'both' : 'global';
    const helper = await helpers.of(backupOf(name, spec, annotations));
    expect(await helper.shouldPerformCustomAction({ pvc })).toBe(true);
  }
});

it('says what is wrong with the policies of a Backup, and asks again the next time', async () => {
  const helpers = new VolumeHelpers(test.client);
  const backup = backupOf('late', own('late'));
  await expect(helpers.of(backup)).rejects.toThrow(
    `ConfigMap ${NAMESPACE}/late, which has the resource policies of the backup, is not there`,
  );
  await policies('late', '- {action: {type: skip}}');
  await helpers.of(backup);
  await policies('bad', '- {action: {type: skipp}}');
  await expect(helpers.of(backupOf('bad', own('bad')))).rejects.toThrow('did you mean skip?');
  const secret = backupOf('secret', { resourcePolicy: { kind: 'Secret', name: 'late' } });
  await expect(helpers.of(secret)).rejects.toMatchObject({ code: 'BAD_VOLUME_POLICY' });
});

it('is there for plugins of others as longshore/volume-helper', async () => {
  await policies('export', '- {action: {type: skip}}');
  const folder = join(test.directory, 'user');
  const installed = join(folder, 'node_modules', 'longshore');
  mkdirSync(installed, { recursive: true });
  copyFileSync(new URL('../../package.json', import.meta.url), join(installed, 'package.json'));
  symlinkSync(join(sharedPackage(), 'dist'), join(installed, 'dist'));
  // The types let a plugin in TypeScript find its errors before it runs.
  const typed = join(folder, 'plugin.mts');
  const checked = async (call: string): Promise<string> => {
    writeFileSync(
      typed,
      `import { connectVolumeHelpers, type VolumeHelper } from 'longshore/volume-helper';
using helpers = connectVolumeHelpers({ kubeconfig: 'k' });
declare const backup: Parameters<typeof helpers.of>[0];
const helper: VolumeHelper = await helpers.of(backup);
export const answer: boolean = await helper.${call};\n`,
    );
    const compiler = fileURLToPath(import.meta.resolve('typescript/lib/tsc.js'));
    const flags = [
      '--ignoreConfig',
      '--noEmit',
      '--strict',
      '--skipLibCheck',
      '--module',
      'nodenext',
      '--lib',
      'esnext',
    ];
    const child = spawn(process.execPath, [compiler, ...flags, typed]);
    let said = '';
    child.stdout.on('data', (part: Buffer) => (said += part.toString()));
    await once(child, 'close');
    return said;
  };
  expect(await checked('shouldPerformSnapshot({ pvc: undefined! })')).toBe('');
  expect(await checked('shouldPerformSnapshots({ pvc: undefined! })')).toContain('TS2551');
  const script = join(folder, 'plugin.mjs');
  writeFileSync(
    script,
    `import { connectVolumeHelpers } from 'longshore/volume-helper';
using helpers = connectVolumeHelpers({ kubeconfig: process.argv[2] });
const { backup, pvc } = JSON.parse(process.argv[3]);
const helper = await helpers.of(backup);
console.log(await helper.shouldPerformSnapshot({ pvc }));\n`,
  );
  const input = JSON.stringify({ backup: backupOf('export', own('export')), pvc });
  const child = spawn(process.execPath, [script, test.kubeconfig, input]);
  let out = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (part: Buffer) => (out += part.toString()));
  }
  await once(child, 'close');
  expect(out).toBe('false\n');
});
