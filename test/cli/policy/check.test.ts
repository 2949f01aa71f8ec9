import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parse } from 'yaml';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  BACKUPS,
  CONFIG_MAPS,
  DEPLOYMENTS,
  PODS,
  PVCS,
  PVS,
  VOLUME_SNAPSHOT_CLASSES,
} from '../../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { packagedProgram } from '../../support/package.ts';
import {
  createCrd,
  hasPeers,
  hasRealApi,
  PEERS_DIR,
  type RealApi,
  startRealApi,
} from '../../support/real-api.ts';
import { hasTerminal, Terminal } from '../../support/terminal.ts';

const BIN = packagedProgram();
const EXAMPLE = new URL('../../../docs/examples/volume-policies.yaml', import.meta.url).pathname;
const RULES = `version: v1
volumePolicies:
- conditions: {pvcLabels: {backup: never}}
  action: {type: skip}
- conditions: {csi: {}}
  action: {type: snapshot}
- conditions: {volumeTypes: [emptyDir]}
  action: {type: fs-backup}
`;

const snapshotClass = {
  metadata: { name: 'snapshots' },
  driver: 'dir.csi.longshore.dev',
  deletionPolicy: 'Delete' as const,
};
const KINDS = [
  { kind: 'embedded', isThere: true },
  { kind: 'real', isThere: hasRealApi() && hasPeers('velero') },
];

describe.for(KINDS.filter(({ isThere }) => isThere))(
  'longshore policy-check, $kind API server',
  ({ kind }) => {
    let api: RealApi | undefined;
    let cluster: TestCluster;
    let directory: string;
    beforeAll(async () => {
      directory = mkdtempSync(join(tmpdir(), 'longshore-policy-'));
      api = kind === 'real' ? await startRealApi(26_300) : undefined;
      cluster = await TestCluster.start({
        nodes: ['node-1'],
        ...(api && { kubeconfig: api.kubeconfig }),
      });
      const { client } = cluster;
      if (api) {
        const path = join(PEERS_DIR, 'crds/velero-v1/velero.io_backups.yaml');
        await createCrd(client, parse(readFileSync(path, 'utf8')) as object);
        // The embedded cluster brings one along.
        await client.create(VOLUME_SNAPSHOT_CLASSES, snapshotClass);
      }
      for (const namespace of ['app', 'other']) await cluster.makeNamespace(namespace);
      await cluster.makeVolume('app', 'data');
      await cluster.makeVolume('app', 'cache');
      const labels = { backup: 'never' };
      await client.patch(PVCS, { namespace: 'app', name: 'cache' }, { metadata: { labels } });
      await cluster.makeVolume('other', 'far');
      await client.create(PVCS, {
        metadata: { name: 'waiting', namespace: 'other' },
        spec: {
          accessModes: ['ReadWriteOnce'],
          storageClassName: 'nobody',
          resources: { requests: { storage: '1Gi' } },
        },
      });
      await client.create(PVS, {
        metadata: { name: 'free' },
        spec: {
          accessModes: ['ReadWriteOnce'],
          capacity: { storage: '2Gi' },
          nfs: { server: '10.0.0.1', path: '/a' },
        },
      });
      await client.create(PODS, {
        metadata: { name: 'web', namespace: 'app' },
        spec: {
          nodeName: 'elsewhere',
          containers: [
            {
              name: 'web',
              image: 'x',
              volumeMounts: [
                { name: 'scratch', mountPath: '/s' },
                { name: 'disk', mountPath: '/d' },
              ],
            },
          ],
          volumes: [
            { name: 'scratch', emptyDir: {} },
            { name: 'disk', persistentVolumeClaim: { claimName: 'data' } },
            { name: 'secret', secret: { secretName: 's' } },
          ],
        },
      });
    }, 120_000);
    afterAll(async () => {
      await cluster[Symbol.asyncDispose]();
      await api?.[Symbol.asyncDispose]();
      rmSync(directory, { recursive: true, force: true });
    });

    const file = (text: string, name = 'policy.yaml'): string => {
      const path = join(directory, name);
      writeFileSync(path, text);
      return path;
    };
    const run = async (args: readonly string[], input = '') => {
      const { PATH, HOME } = process.env;
      const env = { PATH, HOME, NO_COLOR: '1', KUBECONFIG: cluster.kubeconfig };
      // The API server is in this process.
      const child = spawn(BIN, ['policy-check', ...args], { env });
      child.stdin.end(input);
      let [out, err] = ['', ''];
      child.stdout.on('data', (part: Buffer) => (out += part.toString()));
      child.stderr.on('data', (part: Buffer) => (err += part.toString()));
      const [status] = (await once(child, 'close')) as [number];
      return { status, out, err };
    };
    const rowsOf = (text: string): string[] =>
      text
        .trimEnd()
        .split('\n')
        .map((line) => line.replaceAll(/ {2,}/g, ' | '));

    it('prints which rule decides about each volume, and why', async () => {
      const { status, out, err } = await run(['-f', file(RULES), '--include-namespaces', 'app']);
      expect(rowsOf(out)).toEqual([
        'NAMESPACE | VOLUME | OUTCOME | WHY',
        ' | PV free | none | no rule; the default, but no applicable volumesnapshotter found',
        'app | cache | skip | rule 1, line 3',
        'app | data | snapshot (csi) | rule 2, line 5',
        'app | web: scratch | none | rule 3, line 7, but pod web is not running, so that its files cannot be read',
      ]);
      expect(err).toBe('4 volumes: 2 none, 1 skip, 1 snapshot\n');
      expect(status).toBe(0);
    });

    it('ends with 3 where a backup would report an error, and names rules that decide nothing', async () => {
      const way = '- conditions: {nfs: {server: 10.0.0.1}}\n  action: {type: snapshot-csi}\n';
      const more = `${RULES}${way}- conditions: {nfs: {server: nobody}}\n  action: {type: skip}\n`;
      const { status, out, err } = await run(['-f', file(more), '--include-namespaces', 'o*']);
      const refused = 'Velero 1.18 refuses the whole document because of the action snapshot-csi';
      expect(rowsOf(out).slice(1)).toEqual([
        ' | PV free | error | rule 4, line 9, but the volume is of no CSI driver',
        `other | far | snapshot (csi) | rule 2, line 5 | error: ${refused}`,
        `other | waiting | none | the PVC has no volume backing this claim | error: ${refused}`,
      ]);
      expect(err).toContain('rule 5, line 11, decides about no volume\n');
      expect(status).toBe(3);
    });

    it('says error for a snapshot if no VolumeSnapshotClass fits, as the backup does', async () => {
      const { client } = cluster;
      const [found] = await client.list(VOLUME_SNAPSHOT_CLASSES);
      const name = found?.metadata.name ?? '';
      await client.patch(VOLUME_SNAPSHOT_CLASSES, { name }, { driver: 'other.example.com' });
      const { status, out } = await run(['-f', file(RULES), '--include-namespaces', 'o*']);
      await client.patch(VOLUME_SNAPSHOT_CLASSES, { name }, { driver: snapshotClass.driver });
      expect(out).toMatch(/far +error +rule 2, line 5, but failed to get VolumeSnapshotClass for /);
      expect(status).toBe(3);
    });

    it('takes the settings and the policies of a Backup, and those for all backups', async () => {
      const { client } = cluster;
      const maps = {
        own: '- {conditions: {storageClass: [no]}, action: {type: skip}}',
        global: '- {action: {type: custom}}',
      };
      for (const [name, rules] of Object.entries(maps)) {
        const data = { policies: `version: v1\nvolumePolicies:\n${rules}\n` };
        await client.create(CONFIG_MAPS, { metadata: { name, namespace: NAMESPACE }, data });
      }
      const backup = (name: string, spec: object, annotations: Record<string, string> = {}) =>
        client.create(BACKUPS, {
          metadata: { name, namespace: NAMESPACE, annotations },
          spec,
        });
      const resourcePolicy = { kind: 'configmap', name: 'own' };
      const includedNamespaces = ['app'];
      await backup(
        'nightly',
        { includedNamespaces, resourcePolicy, snapshotMoveData: true },
        { 'velero.io/global-backup-volume-policy-configmap': 'global' },
      );
      await backup('lost', { resourcePolicy: { kind: 'configmap', name: 'gone' } });
      await backup('other-kind', { resourcePolicy: { kind: 'Secret', name: 'own' } });
      const args = ['-n', NAMESPACE, '--backup', 'nightly'];
      const { out, status, err: refused } = await run(args);
      expect(rowsOf(out)[2]).toBe(
        `app | cache | custom | rule 1 of ConfigMap ${NAMESPACE}/global, line 3`,
      );
      // As the server's validation: nobody would move the data.
      expect(refused).toContain(
        'error: the backup would be refused: snapshotMoveData is set, but no node-agent runs that serves the data mover "velero": start one, or name another data mover\n',
      );
      expect(status).toBe(3);
      // A file counts in place of each.
      const replaced = await run([
        ...args,
        '-f',
        file(RULES),
        '--global',
        file('version: v1\n', 'global.yaml'),
      ]);
      expect(rowsOf(replaced.out)[3]).toBe('app | data | snapshot (moved) | rule 2, line 5');
      expect(await run(['-n', NAMESPACE, '--backup', 'lost'])).toMatchObject({
        status: 1,
        err: `longshore: ConfigMap ${NAMESPACE}/gone, which has the resource policies of the backup, is not there\n`,
      });
      const { err } = await run(['-n', NAMESPACE, '--backup', 'other-kind']);
      expect(err).toContain('must be a ConfigMap');
      expect(await run(['-n', NAMESPACE, '--backup', 'nobody'])).toMatchObject({
        status: 1,
        err: `longshore: there is no Backup nobody in namespace ${NAMESPACE}\n`,
      });
    });

    it('goes by the flags of the server, and refuses a data mover of a rule that nobody serves', async () => {
      const { client } = cluster;
      const labels = { name: 'velero' };
      const container = { name: 'velero', image: 'x', command: ['/velero'] };
      const args = ['server', '--global-backup-volume-policies-configmap=all-backups'];
      await client.create(DEPLOYMENTS, {
        metadata: { name: 'velero', namespace: NAMESPACE },
        spec: {
          selector: { matchLabels: labels },
          template: { metadata: { labels }, spec: { containers: [{ ...container, args }] } },
        },
      } as never);
      const policies = 'version: v1\nvolumePolicies: [{action: {type: snapshot-csi}}]\n';
      await client.create(CONFIG_MAPS, {
        metadata: { name: 'all-backups', namespace: NAMESPACE },
        data: { policies },
      });
      const text =
        'version: v1\nvolumePolicies: [{conditions: {pvcLabels: {backup: never}}, action: {type: snapshot-datamover, parameters: {dataMover: longshore}}}]\n';
      const common = ['-n', NAMESPACE, '--include-namespaces', 'app', '-f', file(text)];
      const { status, out, err } = await run(common);
      expect(rowsOf(out).slice(2, 4)).toEqual([
        expect.stringMatching(
          /^app \| cache \| error \| rule 1 .*, but the server runs without --features=EnableCSI$/,
        ),
        expect.stringMatching(
          /^app \| data \| error \| rule 1 of ConfigMap .*\/all-backups, line 2, but the server runs without --features=EnableCSI$/,
        ),
      ]);
      expect(err).toMatch(/would be refused: rule 1 .*, has volumes moved, but no node-agent runs/);
      expect(status).toBe(3);
      const told = await run([...common, '--features', 'EnableCSI', '-o', 'json']);
      const { volumes, refusals } = JSON.parse(told.out) as {
        volumes: { pvc?: string; way?: string }[];
        refusals: string[];
      };
      expect(volumes.find(({ pvc }) => pvc === 'cache')?.way).toBe('moved');
      expect(refusals).toHaveLength(1);
      await client.delete(DEPLOYMENTS, { namespace: NAMESPACE, name: 'velero' });
    });

    it('prints one document, with where Velero decides otherwise', async () => {
      const rules =
        'version: v1\nvolumePolicies: [{conditions: {storageClass: [nobody]}, action: {type: skip}}]\n';
      const { out, status } = await run(['-f', '-', '-o', 'json'], rules);
      const document = JSON.parse(out) as { rules: object[]; volumes: { pvc?: string }[] };
      expect(document).toMatchObject({ valid: true, problems: [], warnings: [] });
      expect(document.rules).toEqual([
        { source: 'stdin', number: 1, line: 2, action: { type: 'skip' }, volumes: 1 },
      ]);
      expect(document.volumes.find(({ pvc }) => pvc === 'waiting')).toEqual({
        namespace: 'other',
        pvc: 'waiting',
        pods: [],
        outcome: 'skip',
        rule: { source: 'stdin', number: 1, line: 2 },
        action: { type: 'skip' },
        reason: 'rule 1, line 2',
        view: {
          capacity: 2 ** 30,
          storageClass: 'nobody',
          type: '',
          pvcLabels: {},
          pvcPhase: 'Pending',
          pvcVolumeMode: 'Filesystem',
          pvcAccessModes: ['ReadWriteOnce'],
        },
        velero: { outcome: 'error', reason: 'the PVC has no volume backing this claim' },
      });
      expect(status).toBe(0);
      const table = await run(['-f', '-', '-o', 'wide', '--all'], rules);
      expect(rowsOf(table.out)[0]).toBe(
        'NAMESPACE | VOLUME | PV | CAPACITY | CLASS | TYPE | PODS | OUTCOME | WHY | VELERO 1.18',
      );
      expect(table.out).toContain('error: the PVC has no volume backing this claim');
      expect(table.out).toContain('secret: never backed up by files');
      expect(table.err).toContain('Velero 1.18 does something else with one of them');
    });

    it('says what is wrong with a file, line by line, and ends with 1', async () => {
      const path = file(
        'version: v1\nvolumePolicies:\n- conditions: {capacity: 5Gi}\n  action: {type: keep}\n',
      );
      const { status, out, err } = await run(['-f', path, '--file-only']);
      expect([status, out]).toEqual([1, '']);
      expect(err.trimEnd().split('\n')).toEqual([
        `${path}:3: volumePolicies[0].conditions.capacity: "5Gi" is no range: write "low,high", such as "0,100Gi" or "10Gi,"; "5Gi," is at least that much, and "0,5Gi" at most`,
        `${path}:4: volumePolicies[0].action.type: "keep" is no action: it is skip, fs-backup, snapshot, custom, snapshot-csi, snapshot-native or snapshot-datamover`,
        `longshore: ${path} has 2 problems, and a backup would be refused`,
      ]);
      const json = await run(['-f', path, '--file-only', '-o', 'json']);
      const { valid, problems } = JSON.parse(json.out) as { valid: boolean; problems: object[] };
      expect([json.status, valid, problems.length]).toEqual([1, false, 2]);
      const text =
        'version: v1\nvolumePolicies: [{action: {type: snapshot-csi}}]\nincludeExcludePolicy: {}\n';
      const own = await run(['-f', path, '--global', file(text, 'g.yaml'), '--file-only']);
      expect(own.status).toBe(1);
      const warned = await run([
        '-f',
        file(RULES),
        '--global',
        file(text, 'g.yaml'),
        '--file-only',
      ]);
      expect(warned.err).toContain(
        'warning: volumePolicies[0].action.type: Velero 1.18 does not know the action snapshot-csi',
      );
      expect(warned.err).toContain(
        'warning: includeExcludePolicy does not count in policies for all backups',
      );
      expect(warned.status).toBe(0);
    });

    it('refuses what makes no sense, and says when the cluster cannot be asked', async () => {
      expect(await run([])).toMatchObject({ status: 2 });
      expect(await run(['--file-only', '--backup', 'x'])).toMatchObject({ status: 2 });
      expect(await run(['-f', file(RULES), '--snapshot-volumes', 'maybe'])).toMatchObject({
        status: 2,
      });
      expect(await run(['-f', join(directory, 'none.yaml')])).toMatchObject({ status: 1 });
      expect((await run(['-f', file(RULES), '--kubeconfig', join(directory, 'none')])).status).toBe(
        1,
      );
    });

    it('the example is valid, and its lines are those of the manifest', async () => {
      const { out, status } = await run(['-f', EXAMPLE, '--file-only', '-o', 'json']);
      const { rules } = JSON.parse(out) as { rules: { line: number; action: { type: string } }[] };
      const lines = readFileSync(EXAMPLE, 'utf8').split('\n');
      for (const { line } of rules) expect(lines[line - 1]).toContain('- conditions:');
      expect(rules.map(({ action }) => action.type)).toEqual([
        'skip',
        'fs-backup',
        'snapshot',
        'fs-backup',
      ]);
      expect(status).toBe(0);
    });

    it.skipIf(!hasTerminal())('fits terminals of 80 and of 40 columns', async () => {
      for (const columns of [80, 40]) {
        const command = `stty cols ${columns}; exec ${BIN} policy-check -f ${file(RULES)} 2>/dev/null`;
        const { PATH, HOME } = process.env;
        const env = { PATH, HOME, NO_COLOR: '1', KUBECONFIG: cluster.kubeconfig };
        const terminal = new Terminal(['sh', '-c', command], env);
        await terminal.exit();
        const lines = terminal.shown.split(/\r?\n/);
        expect(lines.length).toBeGreaterThan(5);
        for (const line of lines) expect(line.length).toBeLessThanOrEqual(columns);
        expect(terminal.shown).toContain('snapshot (csi)');
      }
    });
  },
);
