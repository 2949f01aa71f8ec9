import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import { bundleOf } from '../../../src/cli/debug/bundle.ts';
import { BACKUPS, CONFIG_MAPS, type KubeClient, SECRETS } from '../../../src/kube/index.ts';
import { type Ran, runHere } from '../../support/command-line.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { withCalls } from '../../support/with-calls.ts';

const HIDDEN = 'Wq7hiddenZx9';
const signal = new AbortController().signal;
const work = tempDirectory('debug');

describe('longshore debug', () => {
  let cluster: TestCluster;
  beforeAll(async () => {
    cluster = await TestCluster.start({ nodes: ['node-1'] });
    const { client } = cluster;
    await client.create(SECRETS, {
      metadata: { namespace: NAMESPACE, name: 'cloud-credentials' },
      data: { cloud: Buffer.from(HIDDEN).toString('base64') },
    });
    await client.create(CONFIG_MAPS, {
      metadata: { namespace: NAMESPACE, name: 'settings' },
      data: { 'app-password': HIDDEN, plain: 'kept' },
    });
    await client.create(BACKUPS, {
      metadata: { namespace: NAMESPACE, name: 'nightly' },
      status: { phase: 'Failed', failureReason: `PUT https://s3/b?X-Amz-Signature=${HIDDEN}: 403` },
    });
    const source = await cluster.makeNamespace('app').then(() => cluster.makeVolume('app', 'data'));
    fs.writeFileSync(join(source, 'a'), 'a');
    const snapshot = await cluster.makeSnapshot('app', 'data');
    const agent = cluster.startAgent('node-1');
    await cluster.createUpload('moved', { namespace: 'app', pvc: 'data', snapshot });
    await cluster.waitUpload('moved');
    await agent.stop();
  }, 120_000);
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
    fs.rmSync(work, { recursive: true, force: true });
  });

  const run = (...flags: string[]): Promise<Ran> =>
    runHere('debug', '--kubeconfig', cluster.kubeconfig, '-n', NAMESPACE, ...flags);

  it('writes one file with objects and no secrets, for its owner only, and never over another', async () => {
    const file = join(work, 'bundle.tar.gz');
    const { code, out } = await run('--output-file', file);
    expect(code).toBe(0);
    expect(out).toMatch(/bundle\.tar\.gz: \d+ files, /);
    expect(fs.statSync(file).mode & 0o777).toBe(0o600);
    execFileSync('tar', ['-xzf', file, '-C', work]);
    const names = fs
      .readdirSync(join(work, 'bundle'), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map(({ parentPath, name }) => join(parentPath, name));
    const text = names.map((name) => fs.readFileSync(name, 'utf8')).join('\n');
    expect(text).not.toContain(HIDDEN);
    expect(text).not.toContain(Buffer.from(HIDDEN).toString('base64'));
    const objects = (kind: string): { metadata: { name: string } }[] =>
      JSON.parse(fs.readFileSync(join(work, `bundle/objects/${kind}.json`), 'utf8')) as [];
    expect(objects('datauploads.velero.io')).toMatchObject([{ metadata: { name: 'moved' } }]);
    expect(objects('backups.velero.io')).toMatchObject([
      { metadata: { name: 'nightly' }, status: { phase: 'Failed' } },
    ]);
    expect(objects('configmaps')).toContainEqual(
      expect.objectContaining({ data: { 'app-password': '***', plain: 'kept' } }),
    );
    expect(names.some((name) => /secrets|downloadrequests/.test(name))).toBe(false);
    expect(fs.existsSync(join(work, 'bundle/versions.json'))).toBe(true);

    const before = fs.readFileSync(file);
    const again = await run('--output-file', file);
    expect(again.code).toBe(1);
    expect(again.err).toContain('is there already');
    expect(fs.readFileSync(file).equals(before)).toBe(true);
  });

  it('leaves no file where nothing can be read', async () => {
    const file = join(work, 'nothing.tar.gz');
    const kubeconfig = join(work, 'nowhere');
    const text = fs.readFileSync(cluster.kubeconfig, 'utf8').replace(/:\d+"/, ':1"');
    fs.writeFileSync(kubeconfig, text.replace(/127\.0\.0\.1:\d+/, '127.0.0.1:1'));
    const { code, err } = await run('--output-file', file, '--kubeconfig', kubeconfig);
    expect(code).toBe(1);
    expect(err).toContain(`nothing could be read of namespace ${NAMESPACE}`);
    expect(fs.existsSync(file)).toBe(false);
  });

  /** The contents of a bundle, with a client that has other answers. */
  async function bundle(
    change: Partial<KubeClient>,
    limits: object = {},
  ): Promise<{ files: Map<string, string>; problems: string[] }> {
    const client = withCalls(cluster.client, change);
    const problems: string[] = [];
    const files = new Map<string, string>();
    const about = { client, namespace: NAMESPACE, version: '1', signal, limits };
    for await (const entry of bundleOf({ ...about, onProblem: (text) => problems.push(text) })) {
      files.set(entry.path.replace('bundle/', ''), Buffer.from(entry.bytes).toString());
    }
    return { files, problems };
  }

  it('names what may not be read, and takes the rest', async () => {
    const { files, problems } = await bundle({
      listPage: (kind, options) => {
        if (kind.plural !== 'events') return cluster.client.listPage(kind, options);
        return Promise.reject(new CodedError('KUBE_FORBIDDEN', 'events is forbidden: token=abc'));
      },
    });
    expect(problems.filter((text) => !text.includes('password'))).toEqual([
      'events: events is forbidden: token=***',
    ]);
    expect(files.has('objects/events.json')).toBe(false);
    expect(files.has('objects/datauploads.velero.io.json')).toBe(true);
  });

  it("tells of Velero's well-known repository password, and of no other one", async () => {
    const secretWith = (password: string): Partial<KubeClient> => ({
      find: (() =>
        Promise.resolve({
          data: { 'repository-password': Buffer.from(password).toString('base64') },
        })) as never,
    });
    const wellKnown = await bundle(secretWith('static-passw0rd'));
    const text =
      /^the repository password is Velero's default, .*longshore repository change-password-all/;
    expect(wellKnown.problems).toEqual([expect.stringMatching(text)]);
    expect(wellKnown.files.get('password.txt')).toMatch(text);
    const other = await bundle(secretWith('another-one'));
    expect(other.problems).toEqual([]);
    expect([...other.files].flat().join(' ')).not.toContain('another-one');
    expect(other.files.has('password.txt')).toBe(false);
  });

  it('is bounded: lists and logs that do not fit are cut, and named', async () => {
    const pod = (name: string): object => ({
      metadata: { name, namespace: NAMESPACE },
      spec: { containers: [{ name: 'main' }, { name: 'waits' }] },
      status: { containerStatuses: [{ name: 'main', restartCount: 1 }] },
    });
    const asked: string[] = [];
    const { files, problems } = await bundle(
      {
        collect: ((_kind: unknown, _options: unknown, take: (pod: never) => unknown[]) =>
          Promise.resolve(['a', 'b', 'c'].flatMap((name) => take(pod(name) as never)))) as never,
        podLog: (ref, container, { previous }) => {
          asked.push(`${ref.name}/${container}/${String(previous)}`);
          if (ref.name === 'b') return Promise.reject(new Error('the node does not answer'));
          return Promise.resolve(`said password=${HIDDEN}\n`.repeat(10));
        },
      },
      { listBytes: 300, allLogsBytes: 450 },
    );
    expect(problems).toContain('log of b/main: the node does not answer');
    expect(problems.some((text) => /only the first \d+, the others do not fit/.test(text))).toBe(
      true,
    );
    expect(problems.at(-1)).toBe('logs: there are more than fit; the rest is left out');
    expect(asked).toContain('a/main/true');
    expect(asked.some((text) => text.includes('waits'))).toBe(false);
    expect(files.get('logs/a/main.previous.log')).toContain('password=***');
    expect(files.has('logs/c/main.log')).toBe(false);
    for (const [path, text] of files) {
      if (path.startsWith('objects/')) expect(() => JSON.parse(text) as unknown).not.toThrow();
    }
  });

  it('ends when it is told to', async () => {
    const stop = new AbortController();
    const about = { client: cluster.client, namespace: NAMESPACE, version: '1' };
    const walk = async (): Promise<void> => {
      const entries = bundleOf({ ...about, signal: stop.signal, onProblem: () => undefined });
      for await (const entry of entries) if (entry.path.includes('objects/')) stop.abort();
    };
    await expect(walk()).rejects.toThrow('aborted');
  });
});
