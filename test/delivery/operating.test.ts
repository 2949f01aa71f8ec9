import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DATA_UPLOADS, NODES } from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { peer } from '../support/real-api.ts';

const ROOT = new URL('../..', import.meta.url).pathname;
const DOCS = ['operating', 'node-agent', 'replace-node-agent', 'repositories']
  .map((page) => fs.readFileSync(join(ROOT, `docs/${page}.md`), 'utf8'))
  .join('\n## ');
const KUBECTL = peer('kubectl');

/** The blocks of shell commands of a section. */
function commandsOf(section: string): string[] {
  const [, text = ''] = DOCS.split(new RegExp(`^## ${section}.*$`, 'm'));
  const [own = ''] = text.split(/^## /m);
  return [...own.matchAll(/```sh\n([^]*?)```/g)].flatMap(([, block = '']) =>
    block
      .split('\n')
      .map((line) => line.replace(/ {2,}#.*$/, '').trim())
      .filter((line) => line !== ''),
  );
}

function commandWith(section: string, part: string): string {
  const found = commandsOf(section).find((line) => line.includes(part));
  if (found === undefined) throw new Error(`no command with "${part}" in section ${section}`);
  return found;
}

const sh = (command: string, env: NodeJS.ProcessEnv, cwd = ROOT): Promise<string> =>
  new Promise((resolve, reject) => {
    const path = `${dirname(KUBECTL)}:${process.env.PATH ?? ''}`;
    execFile('sh', ['-euc', command], { env: { ...env, PATH: path }, cwd }, (error, out, err) => {
      if (error) reject(new Error(`${command}: ${out}${err}`));
      else resolve(out);
    });
  });

it('the flags that are documented are there, with the defaults that are documented', async () => {
  const help = await sh('bin/longshore node-agent server --help', { HOME: process.env.HOME });
  const flat = help.replaceAll(/\s+/g, ' ');
  const rows = [...DOCS.matchAll(/^\| `(--[a-z-]+)` +\| ([^|]*?) *\|/gm)];
  expect(rows.length).toBeGreaterThan(8);
  for (const [, flag = '', value = ''] of rows) {
    const [, own = ''] = flat.split(`${flag} <`);
    expect(own, flag).not.toBe('');
    if (value !== '') expect(own.split(/ --[a-z-]+ </)[0], flag).toContain(`default: "${value}"`);
  }
});

it('one Job at a time is promised for a BackupRepository only, with what to do where two share a repository', () => {
  const text = DOCS.replaceAll(/\s+/g, ' ');
  expect(text).not.toMatch(/never more than one Job that works on a repository/);
  expect(text).toMatch(
    /Two BackupStorageLocations with the same bucket and prefix[^|]{0,300}a prefix of its own[^|]{0,150}`accessMode: ReadOnly` on all but one/,
  );
});

describe.skipIf(!fs.existsSync(KUBECTL) && process.env.REQUIRE_PEERS !== '1')(
  'commands for operators do what is said of them',
  () => {
    let cluster: TestCluster;
    let environment: NodeJS.ProcessEnv;
    beforeAll(async () => {
      cluster = await TestCluster.start({ nodes: ['node-1'], snapshotMs: 8000 });
      cluster.startAgent('node-1');
      await cluster.makeNamespace('app');
      await cluster.makeVolume('app', 'data');
      environment = { HOME: cluster.directory, KUBECONFIG: cluster.kubeconfig };
    });
    afterAll(() => cluster[Symbol.asyncDispose]());

    const newUpload = async (name: string, datamover = ''): Promise<void> => {
      const snapshot = await cluster.makeSnapshot('app', 'data');
      await cluster.createUpload(name, { namespace: 'app', pvc: 'data', snapshot, datamover });
    };
    const run = (section: string, part: string, name: string): Promise<string> =>
      sh(commandWith(section, part).replaceAll('NAME', name), environment);

    it('cancel', async () => {
      await newUpload('unwanted');
      await cluster.waitUpload('unwanted', 'Accepted');
      await run('Canceling by hand', 'patch dataupload', 'unwanted');
      const { status } = await cluster.waitUpload('unwanted');
      expect(status?.phase).toBe('Canceled');
      expect(await run('Finalizers that stay', 'pod,pvc,volumesnapshot', 'unwanted')).toBe('');
    });

    it('delete what is under way: it is canceled first', async () => {
      await newUpload('deleted');
      await cluster.waitUpload('deleted', 'Accepted');
      await sh('kubectl -n velero delete dataupload deleted --timeout=60s', environment);
      expect(await run('Finalizers that stay', 'volumesnapshotcontent', 'deleted')).toBe('');
    });

    it('show finalizers, and take them off where nobody will', async () => {
      const ref = { namespace: NAMESPACE, name: 'orphan' };
      await newUpload('orphan', 'nobody');
      const finalizers = ['velero.io/data-upload-download-finalizer'];
      await cluster.client.patch(DATA_UPLOADS, ref, { metadata: { finalizers } });
      await cluster.client.delete(DATA_UPLOADS, ref);
      const table = await run('Finalizers that stay', 'custom-columns', '');
      expect(table).toMatch(/^orphan +<none> +\d{4}-.*Z +\[velero.io\/data-upload-download-fin/m);
      await run('Finalizers that stay', '"finalizers":null', 'orphan');
      expect(await cluster.client.find(DATA_UPLOADS, ref)).toBeUndefined();
    });

    it('say that a node is gone for good', async () => {
      const command = commandWith('Nodes that are lost', 'kubectl taint');
      await sh(command.replace('NODE', 'node-1'), environment);
      const { spec } = await cluster.client.get(NODES, { name: 'node-1' });
      expect(spec?.taints).toMatchObject([{ key: 'node.kubernetes.io/out-of-service' }]);
    });

    it('carry flags and the Secret of credentials over', async () => {
      const directory = join(cluster.directory, 'carried');
      fs.cpSync(join(ROOT, 'manifests'), join(directory, 'manifests'), { recursive: true });
      const [, script = ''] = /^(mkdir -p own [^]*?\nEOF\n)/m.exec(DOCS) ?? [];
      const text = await sh(`${script}kubectl kustomize own`, environment, directory);
      expect(text).toContain('--node-agent-configmap=node-agent-config');
      expect(text).toContain('secretName: velero');
    });
  },
);
