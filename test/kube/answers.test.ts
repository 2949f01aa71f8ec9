import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { kubeError, unreachable } from '../../src/kube/client/errors.ts';
import { loadServed } from '../../src/kube/discovery/served.ts';
import {
  CONFIG_MAPS,
  connectToCluster,
  isExtensionAway,
  type KubeClient,
  meaningOf,
} from '../../src/kube/index.ts';

const RBAC =
  'configmaps is forbidden: User "system:serviceaccount:velero:velero" cannot list resource "configmaps" in API group "" in the namespace "app"';
const WEBHOOK = 'Internal error occurred: failed calling webhook "v.example.com": ';

describe('an answer of the API server', () => {
  it.each([
    [401, 'Unauthorized', 'refused for now'],
    [403, RBAC, 'refused for now'],
    [
      403,
      `${RBAC}: RBAC: clusterrole.rbac.authorization.k8s.io "velero" not found`,
      'refused for now',
    ],
    [403, undefined, 'refused for now'],
    [403, 'pods "a" is forbidden: not yet ready to handle request', 'refused for now'],
    [403, 'pods "a" is forbidden: status unknown for quota: q, resources: pods', 'refused for now'],
    [403, 'pods "a" is forbidden: exceeded quota: q, requested: pods=1', 'refused'],
    [403, 'pods "a" is forbidden: violates PodSecurity "restricted:latest"', 'refused'],
    [403, 'admission webhook "v.example.com" denied the request: User "x" is forbidden', 'refused'],
    [
      403,
      'pods "a" is forbidden: unable to create new content in namespace b because it is being terminated',
      'refused',
    ],
    [404, 'configmaps "a" not found', 'refused'],
    [409, 'Operation cannot be fulfilled on resourcequotas "q"', 'refused for now'],
    [422, 'ConfigMap "a" is invalid', 'refused'],
    [429, 'too many requests', 'away'],
    [500, 'etcdserver: leader changed', 'away'],
    [500, 'etcdserver: request is too large', 'refused'],
    [
      500,
      'rpc error: code = ResourceExhausted desc = trying to send message larger than max (2103145 vs. 2097152)',
      'refused',
    ],
    [500, 'etcdserver: mvcc: database space exceeded', 'away'],
    [500, 'etcdserver: request timed out', 'away'],
    [500, 'rpc error: code = Unavailable desc = transport is closing', 'away'],
    [500, `${WEBHOOK}context deadline exceeded`, 'refused for now'],
    [
      500,
      'error dialing backend: dial tcp 10.0.0.1:10250: connect: connection refused',
      'refused for now',
    ],
    [502, undefined, 'away'],
    [503, 'apiserver not ready', 'away'],
    [504, 'Timeout: request did not complete within requested timeout', 'away'],
  ] as const)('%s "%s" means: %s', (status, message, meaning) => {
    const error = kubeError(
      'list configmaps',
      status,
      message === undefined ? undefined : { message },
    );
    expect(meaningOf(error)).toBe(meaning);
  });
  it('that never came means: away', () => {
    expect(meaningOf(unreachable('list configmaps', new Error('ECONNREFUSED')))).toBe('away');
  });
  it('about the existing object means: refused', () => {
    const status = { reason: 'AlreadyExists', message: 'configmaps "a" already exists' };
    expect(meaningOf(kubeError('create', 409, status))).toBe('refused');
  });
  it.each([
    [500, `${WEBHOOK}no endpoints available for service "hook"`, true],
    [
      500,
      `${WEBHOOK}tls: failed to verify certificate: x509: certificate signed by unknown authority`,
      true,
    ],
    [500, 'conversion webhook for a.example.com/v1, Kind=A failed: Post: connection refused', true],
    [404, 'the server could not find the requested resource', true],
    [404, '404 page not found', true],
    [404, 'namespaces "a" not found', false],
    [500, 'etcdserver: leader changed', false],
  ])('%s "%s" is about an extension: %s', (status, message, isOne) => {
    const error = kubeError('create', status, { message });
    expect(isExtensionAway(error)).toBe(isOne);
    expect(isExtensionAway(new Error('not made', { cause: error }))).toBe(isOne);
  });
});

const scratch = mkdtempSync(join(tmpdir(), 'answers-'));
const ends: (() => void)[] = [];
afterEach(() => {
  for (const end of ends.splice(0)) end();
});
afterAll(() => {
  rmSync(scratch, { recursive: true, force: true });
});

/** An API server that refuses what `refuse` returns a status for, and else has empty answers. */
async function serverThat(
  refuse: (
    request: IncomingMessage,
  ) => { readonly status: number; readonly message: string } | undefined,
  user: object = { token: 't' },
): Promise<{ readonly client: KubeClient; readonly requests: string[] }> {
  const requests: string[] = [];
  const answer = (request: IncomingMessage, response: ServerResponse): void => {
    requests.push(`${request.method ?? ''} ${request.url ?? ''}`);
    const refusal = refuse(request);
    const body = refusal
      ? { kind: 'Status', code: refusal.status, message: refusal.message }
      : {
          metadata: { resourceVersion: '1' },
          items: [],
          groups: [],
          versions: ['v1'],
          resources: [],
        };
    response.writeHead(refusal?.status ?? 200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(body));
  };
  const server = createServer(answer);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const kubeconfig = join(scratch, `${port}`);
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'c',
    clusters: [
      {
        name: 'c',
        cluster: { server: `http://127.0.0.1:${port}`, 'insecure-skip-tls-verify': true },
      },
    ],
    users: [{ name: 'u', user }],
    contexts: [{ name: 'c', context: { cluster: 'c', user: 'u' } }],
  };
  writeFileSync(kubeconfig, JSON.stringify(config));
  const client = connectToCluster({ kubeconfig, userAgent: 'test', refusedMs: 1500 });
  ends.push(() => {
    client.close();
    server.closeAllConnections();
    server.close();
  });
  return { client, requests };
}

const ref = { namespace: 'app', name: 'a' };
const object = { metadata: ref };
const PHASES: Readonly<Record<string, (client: KubeClient) => Promise<unknown>>> = {
  list: (client) => client.list(CONFIG_MAPS, { namespace: 'app' }),
  get: (client) => client.get(CONFIG_MAPS, ref),
  find: (client) => client.find(CONFIG_MAPS, ref),
  create: (client) => client.create(CONFIG_MAPS, object),
  'dry run': (client) => client.create(CONFIG_MAPS, object, { isDryRun: true }),
  replace: (client) => client.replace(CONFIG_MAPS, object as never),
  patch: (client) => client.patch(CONFIG_MAPS, ref, {}, { subresource: 'status' }),
  delete: (client) => client.delete(CONFIG_MAPS, ref),
  log: (client) => client.podLog(ref, 'c', { tailLines: 1, bytesMax: 10 }),
  discovery: (client) => loadServed(client),
};
const REFUSALS = [
  { status: 401, message: 'Unauthorized' },
  { status: 403, message: RBAC },
  { status: 403, message: `${RBAC}: RBAC: clusterrole "velero" not found` },
];

describe('a client that retries refusals', () => {
  it.each(REFUSALS)('survives a short $status in each phase: $message', async (refusal) => {
    const phases = Object.entries(PHASES).map(async ([phase, ask]) => {
      let times = 0;
      const { client } = await serverThat(() => (times++ < 2 ? refusal : undefined));
      const result = await ask(client);
      if (phase === 'discovery') expect(result).toMatchObject({ failures: [] });
      expect([phase, times > 2]).toEqual([phase, true]);
    });
    let execs = 0;
    const { client } = await serverThat(() =>
      execs++ < 2 ? refusal : { status: 404, message: 'pods "a" not found' },
    );
    const exec = client.exec({ namespace: 'app', pod: 'a', container: 'c', command: ['ls'] });
    await Promise.all([...phases, expect(exec).rejects.toMatchObject({ code: 'KUBE_NOT_FOUND' })]);
  });

  it('waits once for a right that is missing, and says so', async () => {
    const { client, requests } = await serverThat(({ url = '' }) =>
      url.includes('/configmaps') ? { status: 403, message: RBAC } : undefined,
    );
    const sinceMs = performance.now();
    await expect(client.get(CONFIG_MAPS, ref)).rejects.toMatchObject({
      code: 'KUBE_FORBIDDEN',
      message: expect.stringMatching(/cannot list resource .* \(for \d+ s\)$/) as string,
    });
    const asked = requests.length;
    expect(performance.now() - sinceMs).toBeGreaterThan(1500);
    for (let i = 0; i < 50; i++) {
      const other = client.get(CONFIG_MAPS, { namespace: 'app', name: `other-${i}` });
      await expect(other).rejects.toMatchObject({ code: 'KUBE_FORBIDDEN' });
    }
    expect(requests.length - asked).toBe(50);
  });

  it('tells at once what admission refuses', async () => {
    const message = 'configmaps "a" is forbidden: exceeded quota: q';
    const { client, requests } = await serverThat(() => ({ status: 403, message }));
    await expect(client.create(CONFIG_MAPS, object)).rejects.toThrow('exceeded quota');
    expect(requests).toHaveLength(1);
  });

  it('reads the token again when it was replaced', async () => {
    const tokenFile = join(scratch, 'token');
    writeFileSync(tokenFile, 'old');
    let valid = 'old';
    const { client } = await serverThat(
      ({ headers }) =>
        headers.authorization === `Bearer ${valid}`
          ? undefined
          : { status: 401, message: 'Unauthorized' },
      { 'auth-provider': { name: 'tokenFile', config: { tokenFile } } },
    );
    await client.get(CONFIG_MAPS, ref);
    valid = 'new';
    writeFileSync(tokenFile, 'new');
    expect(await client.get(CONFIG_MAPS, ref)).toBeDefined();
  });
});
