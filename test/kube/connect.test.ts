import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, it, vi } from 'vitest';
import { connectToCluster } from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';

const scratch = tempDirectory('connect');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});
afterEach(() => {
  vi.unstubAllEnvs();
});

const config = (more: object = {}): object => ({
  apiVersion: 'v1',
  kind: 'Config',
  'current-context': 'one',
  clusters: [{ name: 'c', cluster: { server: 'https://127.0.0.1:1' } }],
  users: [{ name: 'u', user: { token: 't' } }],
  contexts: ['one', 'two'].map((name) => ({ name, context: { cluster: 'c', user: 'u' } })),
  ...more,
});

function connect(content: object | string, context?: string) {
  const kubeconfig = join(scratch, 'kubeconfig');
  const text = typeof content === 'string' ? content : JSON.stringify(content);
  fs.writeFileSync(kubeconfig, text);
  return connectToCluster({ kubeconfig, context, userAgent: 'test' });
}
const many = Array.from({ length: 12 }, (_, i) => ({
  name: `c${i}`,
  context: { cluster: 'c', user: 'u' },
}));

describe('a kubeconfig', () => {
  it('leads to a cluster by its current context, or by another one of its contexts', () => {
    expect(() => connect(config())).not.toThrow();
    expect(() => connect(config({ 'current-context': '' }), 'two')).not.toThrow();
  });
  it.each([
    [
      'has no such context',
      config(),
      'nope',
      /kubeconfig \/.* has no context "nope"; it has one, two$/,
    ],
    ['has many contexts', config({ contexts: many }), 'no', /it has c0, .*, c9, and 2 more$/],
    [
      'has no current context',
      config({ 'current-context': undefined }),
      undefined,
      /has no current context; name one of these: one, two$/,
    ],
    ['has nothing', {}, undefined, /names no cluster: it may be another file$/],
    [
      'is another file',
      'root:x:0:0:root:/root:/bin/bash\nbin:x:1:1:bin:/bin:/bin/sh\n',
      undefined,
      /names no cluster|cannot read the kubeconfig/,
    ],
    [
      'names a cluster that it does not have',
      config({ contexts: [{ name: 'one', context: { cluster: 'gone', user: 'u' } }] }),
      undefined,
      /context "one" of kubeconfig \/.* names the cluster "gone", which is not in it$/,
    ],
  ])('that %s says so', (_, content, context, text) => {
    expect(() => connect(content, context)).toThrow(text);
  });
  it('that cannot be read is named, also where the environment names it', () => {
    const file = join(scratch, 'broken');
    fs.writeFileSync(file, 'contexts: [');
    vi.stubEnv('KUBECONFIG', file);
    const named = `cannot read the kubeconfig ${file}: `;
    expect(() => connectToCluster({ userAgent: 'test' })).toThrow(named);
    fs.rmSync(file);
    expect(() => connectToCluster({ userAgent: 'test' })).toThrow(named);
    fs.writeFileSync(file, JSON.stringify(config()));
    expect(() => connectToCluster({ userAgent: 'test', context: 'nope' })).toThrow(
      `kubeconfig ${file} has no context "nope"`,
    );
  });
  it('that is one of several is told by its name, and what none of them has is said of all', () => {
    const [first, second] = [join(scratch, 'first'), join(scratch, 'second')];
    fs.writeFileSync(first, JSON.stringify(config()));
    fs.writeFileSync(second, 'contexts: [');
    vi.stubEnv('KUBECONFIG', `${first}:${second}`);
    const connected = (context: string) => connectToCluster({ userAgent: 'test', context });
    expect(() => connected('two')).toThrow(`cannot read the kubeconfig ${second}: `);
    const contexts = [{ name: 'three', context: { cluster: 'c', user: 'u' } }];
    fs.writeFileSync(second, JSON.stringify({ contexts }));
    expect(() => connected('nope')).toThrow(
      'KUBECONFIG has no context "nope"; it has one, two, three',
    );
    connected('three').close();
  });
  it('that is nowhere is said to be missing, and no address is made up', () => {
    vi.stubEnv('KUBECONFIG', '');
    vi.stubEnv('HOME', join(scratch, 'nobody'));
    expect(() => connectToCluster({ userAgent: 'test' })).toThrow(
      'no Kubernetes cluster is configured: set KUBECONFIG, give a kubeconfig, or run in a pod',
    );
  });
});

describe('an exec plugin of a kubeconfig', () => {
  const withExec = (exec: object): object =>
    config({
      users: [
        { name: 'u', user: { exec: { apiVersion: 'client.authentication.k8s.io/v1', ...exec } } },
      ],
    });
  const failureOf = async (exec: object): Promise<unknown> => {
    const client = connect(withExec(exec));
    return client.raw({ path: '/version', what: 'ask' } as never).catch((error: unknown) => error);
  };

  it('that is not installed is named, with the hint that the kubeconfig gives', async () => {
    const exec = { command: 'no-such-plugin', installHint: 'Install it from example.com.' };
    expect(await failureOf(exec)).toMatchObject({
      code: 'KUBE_UNAVAILABLE',
      message:
        'the exec plugin "no-such-plugin" of the kubeconfig gave no credentials: it is not installed here. Install it from example.com.',
    });
  });

  it('that fails is named, with what it says', async () => {
    const exec = { command: '/bin/sh', args: ['-c', 'echo expired login >&2; exit 1'] };
    expect(await failureOf(exec)).toMatchObject({
      message: 'the exec plugin "/bin/sh" of the kubeconfig gave no credentials: expired login',
    });
  });
});
